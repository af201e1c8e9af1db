//! Deletes what a store does not need any more once a checkpoint has been committed: what is not kept, and what is left of
//! saves that broke. Wanted property: (C1) the newest that was committed is never touched, nor what another chief may be
//! writing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Incarnation;
use pushpull_storage::StoreError;

use super::retention::to_delete;
use pushpull_storage::{Catalog, CheckpointState};

#[derive(Debug)]
pub(super) struct Cleaner {
    catalog: Catalog,
    life: Incarnation,
    keep: usize,
    keep_every: Option<Duration>,
    /// Those that are known to be whole, and when they were made, in milliseconds since 1970.
    known: BTreeMap<CheckpointName, u64>,
    /// Those that are not whole, of which that has been told.
    left_alone: BTreeSet<CheckpointName>,
    /// Something was committed since it cleaned last.
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

    /// One more was committed.
    pub(super) fn committed(&mut self, name: CheckpointName, saved_ms: u64) {
        self.known.insert(name, saved_ms);
        self.due = true;
    }

    /// Deletes what can go, if there may be something. What cannot be deleted now can be later. Not while a save of this
    /// life is under way.
    pub(super) async fn clean_if_due(&mut self) {
        if self.due {
            if let Err(error) = self.clean().await {
                tracing::warn!("checkpoints that are not kept could not be deleted: {error}");
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
                // Another version of this program may have made it, or somebody may mend it: it was committed once.
                CheckpointState::Broken(reason) => {
                    if self.left_alone.insert(name) {
                        tracing::warn!("{name} is not whole, and left alone: {reason}");
                    }
                }
                CheckpointState::Unfinished => {
                    tracing::debug!("deleting {name}, which was never finished");
                    self.catalog.store().delete_folder(&name.to_string()).await?;
                }
                CheckpointState::Unreadable(reason) => tracing::warn!("{name} is left alone: {reason}"),
            }
        }
        let committed: Vec<_> = self.known.iter().map(|(&name, &saved_ms)| (name, saved_ms)).collect();
        for name in to_delete(committed, self.keep, self.keep_every) {
            // First, so that what is left of it is no checkpoint, if the rest cannot be deleted.
            self.catalog.store().delete(&name.manifest()).await?;
            self.known.remove(&name);
            self.catalog.store().delete_folder(&name.to_string()).await?;
            tracing::debug!("deleted {name}");
        }
        Ok(())
    }
}
