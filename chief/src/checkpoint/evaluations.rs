//! Reads what evaluators have found of this life's checkpoints, and passes it on once. Knows no evaluator.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::Evaluation;
use pushpull_storage::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, Store};

use pushpull_storage::Catalog;
use tracing::{debug, warn};

/// The time between two looks at the store.
const EVERY: Duration = Duration::from_secs(1);
/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Passes on every record of a checkpoint of this life, in the order of steps. Records of other lives belong
/// to another job or to a run that this one does not go on from. Never ends.
pub(crate) async fn follow(
    catalog: &Catalog,
    life: Incarnation,
    mut found: impl FnMut(GlobalStep, Evaluation),
) -> Infallible {
    let store = catalog.store();
    let mut known = BTreeSet::new();
    loop {
        tokio::time::sleep(EVERY).await;
        for name in names(store).await {
            if name.life != life || known.contains(&name) {
                continue;
            }
            let record = EvaluationRecord::file(name);
            let read = tokio::time::timeout(PATIENCE, store.get(&record, RECORD_BYTES_MAX)).await;
            // A record that cannot be read now is tried again.
            let Ok(Ok(bytes)) = read else { continue };
            known.insert(name);
            match EvaluationRecord::decode(&bytes) {
                Ok(record) => found(record.step, record.evaluation),
                Err(error) => {
                    warn!(record, store = store.location(), %error, "evaluation record was left out");
                }
            }
        }
    }
}

/// Returns the checkpoints that have a record, in the order of steps.
async fn names(store: &Store) -> Vec<CheckpointName> {
    let files = match tokio::time::timeout(PATIENCE, store.files(EVALUATIONS)).await {
        Ok(Ok(files)) => files,
        Ok(Err(error)) => {
            debug!(%error, "evaluations cannot be listed now");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let mut names: Vec<_> = files.iter().filter_map(|file| EvaluationRecord::checkpoint_of(file)).collect();
    names.sort_unstable();
    names
}
