//! Deletes unneeded files from a store after a checkpoint has been committed: checkpoints beyond those that
//! are kept, and the files of failed saves. Wanted property: (C1) the cleaner never deletes the newest
//! committed checkpoint, or a file that another chief may be writing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Incarnation;
use pushpull_storage::{Catalog, CheckpointState, StoreError};
use tracing::{debug, warn};

use super::retention::to_delete;

/// The cleaner of one run of the chief.
#[derive(Debug)]
pub(super) struct Cleaner {
    catalog: Catalog,
    life: Incarnation,
    keep: usize,
    keep_every: Option<Duration>,
    /// The checkpoints that are known to be valid, each with the time of its save in milliseconds since
    /// 1970.
    known: BTreeMap<CheckpointName, u64>,
    /// Whether broken checkpoints are deleted, too.
    deletes_broken: bool,
    /// The broken checkpoints that have already been logged; they are not deleted.
    left_alone: BTreeSet<CheckpointName>,
    /// Whether a checkpoint was committed since the last cleaning.
    due: bool,
}

impl Cleaner {
    pub(super) const fn new(
        catalog: Catalog,
        life: Incarnation,
        keep: usize,
        keep_every: Option<Duration>,
    ) -> Self {
        Self {
            catalog,
            life,
            keep,
            keep_every,
            known: BTreeMap::new(),
            deletes_broken: false,
            left_alone: BTreeSet::new(),
            due: false,
        }
    }

    /// Lets the cleaner delete broken checkpoints, too. Files in the memory of ps tasks cannot be repaired.
    #[must_use]
    pub(super) fn deleting_broken(self) -> Self {
        Self { deletes_broken: true, ..self }
    }

    /// Sets the incarnation number that the chief's checkpoints carry from now on. Checkpoints with a greater
    /// number are left alone, because they belong to another chief.
    pub(super) const fn renew(&mut self, life: Incarnation) {
        self.life = life;
    }

    /// Records a committed checkpoint.
    pub(super) fn committed(&mut self, name: CheckpointName, saved_ms: u64) {
        self.known.insert(name, saved_ms);
        self.due = true;
    }

    /// Deletes unneeded files if a checkpoint was committed since the last call. If a file cannot be
    /// deleted, the cleaning after the next commit tries again. Must not be called while this chief is
    /// saving a checkpoint.
    pub(super) async fn clean_if_due(&mut self) {
        if self.due {
            if let Err(error) = self.clean().await {
                warn!(%error, "could not delete old checkpoints");
            }
            self.due = false;
        }
    }

    async fn clean(&mut self) -> Result<(), StoreError> {
        let names = self.catalog.names().await?;
        self.known.retain(|name, _| names.contains(name));
        for name in names {
            // A chief that was started later may be writing this checkpoint.
            if self.known.contains_key(&name) || name.life > self.life {
                continue;
            }
            match self.catalog.look(name).await {
                CheckpointState::Committed(manifest) => {
                    self.known.insert(name, manifest.saved_ms);
                }
                CheckpointState::Broken(reason) if self.deletes_broken => {
                    debug!(checkpoint = %name, reason, "deleting a broken checkpoint");
                    self.delete(name).await?;
                }
                // A broken checkpoint was once committed, so it is kept: another version of this program may
                // have written it, or an operator may be able to repair it.
                CheckpointState::Broken(reason) => {
                    if self.left_alone.insert(name) {
                        warn!(checkpoint = %name, reason, "kept a broken checkpoint");
                    }
                }
                CheckpointState::Unfinished => {
                    debug!(checkpoint = %name, "deleting an unfinished checkpoint");
                    self.catalog.store().delete_folder(&name.to_string()).await?;
                }
                CheckpointState::Unreadable(reason) => {
                    warn!(checkpoint = %name, reason, "kept a checkpoint that could not be read");
                }
            }
        }
        let committed: Vec<_> = self.known.iter().map(|(&name, &saved_ms)| (name, saved_ms)).collect();
        for name in to_delete(committed, self.keep, self.keep_every) {
            self.delete(name).await?;
            debug!(checkpoint = %name, "deleted checkpoint");
        }
        Ok(())
    }

    async fn delete(&mut self, name: CheckpointName) -> Result<(), StoreError> {
        // The manifest is deleted first. If the other files then cannot be deleted, they no longer count as a
        // checkpoint.
        self.catalog.store().delete(&name.manifest()).await?;
        self.known.remove(&name);
        self.catalog.store().delete_folder(&name.to_string()).await
    }
}
