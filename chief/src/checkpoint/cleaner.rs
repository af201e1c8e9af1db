//! Deletes files that a store no longer needs once a checkpoint has been committed: checkpoints beyond those
//! to keep, and the remains of failed saves. Wanted property: (C1) neither the newest committed checkpoint
//! nor a file that another chief may be writing is ever deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Incarnation;
use pushpull_storage::{Catalog, CheckpointState, StoreError};
use tracing::{debug, warn};

use super::retention::to_delete;

/// A cleaner that is used by one incarnation of the chief.
#[derive(Debug)]
pub(super) struct Cleaner {
    catalog: Catalog,
    life: Incarnation,
    keep: usize,
    keep_every: Option<Duration>,
    /// The time at which each checkpoint that is known to be valid was made, in milliseconds since 1970.
    known: BTreeMap<CheckpointName, u64>,
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
            left_alone: BTreeSet::new(),
            due: false,
        }
    }

    /// Records a committed checkpoint.
    pub(super) fn committed(&mut self, name: CheckpointName, saved_ms: u64) {
        self.known.insert(name, saved_ms);
        self.due = true;
    }

    /// Deletes unneeded files if a checkpoint was committed since the last call. A file that cannot be
    /// deleted now is deleted by a later call. Must not be called while this chief is saving a checkpoint.
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
            // Another chief that was started later may be writing there.
            if self.known.contains_key(&name) || name.life > self.life {
                continue;
            }
            match self.catalog.look(name).await {
                CheckpointState::Committed(manifest) => {
                    self.known.insert(name, manifest.saved_ms);
                }
                // It was committed once: another version of this program may have written it, or an operator
                // may repair it.
                CheckpointState::Broken(reason) => {
                    if self.left_alone.insert(name) {
                        warn!(checkpoint = %name, reason, "broken checkpoint was left alone");
                    }
                }
                CheckpointState::Unfinished => {
                    debug!(checkpoint = %name, "deleting an unfinished checkpoint");
                    self.catalog.store().delete_folder(&name.to_string()).await?;
                }
                CheckpointState::Unreadable(reason) => {
                    warn!(checkpoint = %name, reason, "unreadable checkpoint was left alone");
                }
            }
        }
        let committed: Vec<_> = self.known.iter().map(|(&name, &saved_ms)| (name, saved_ms)).collect();
        for name in to_delete(committed, self.keep, self.keep_every) {
            // The manifest is deleted first, so that the remains do not count as a checkpoint if the rest
            // cannot be deleted.
            self.catalog.store().delete(&name.manifest()).await?;
            self.known.remove(&name);
            self.catalog.store().delete_folder(&name.to_string()).await?;
            debug!(checkpoint = %name, "deleted checkpoint");
        }
        Ok(())
    }
}
