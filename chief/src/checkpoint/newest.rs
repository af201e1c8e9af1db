//! Finds the newest checkpoint of a job, for a new run of the chief that continues this job.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Version;
use pushpull_storage::{Catalog, CheckpointState};
use tracing::warn;

/// Returns the newest valid checkpoint that is not beyond `version`; `None` if there is none, or if the store
/// cannot be read.
pub(crate) async fn newest(catalog: &Catalog, version: Version) -> Option<CheckpointName> {
    let names = match catalog.names().await {
        Ok(names) => names,
        Err(error) => {
            warn!(%error, "could not list the checkpoints of the earlier run of the chief");
            return None;
        }
    };
    for name in names.into_iter().filter(|name| name.step.0 <= version.0) {
        match catalog.look(name).await {
            CheckpointState::Committed(_) => return Some(name),
            CheckpointState::Unfinished => {}
            CheckpointState::Broken(reason) | CheckpointState::Unreadable(reason) => {
                warn!(checkpoint = %name, reason, "checkpoint cannot be used");
            }
        }
    }
    None
}
