//! Reads the results that evaluators store for the checkpoints of this run, and passes each result on once.
//! Does not communicate with evaluators.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::Evaluation;
use pushpull_storage::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, Store};

use pushpull_storage::Catalog;
use tracing::{debug, warn};

/// The time between two listings of the store.
const EVERY: Duration = Duration::from_secs(1);
/// The time limit for one request to the store.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `found` once for each evaluation that is stored for a checkpoint of this chief. The chief's
/// checkpoints carry the incarnation `life` or, after a rollback, a greater one. The evaluations that one
/// listing of the store finds are passed on in the order of steps. Evaluations of checkpoints with a smaller
/// incarnation are ignored, because they belong to another job or to an earlier run. Never returns.
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
            if name.life < life || known.contains(&name) {
                continue;
            }
            let record = EvaluationRecord::file(name);
            let read = tokio::time::timeout(PATIENCE, store.get(&record, RECORD_BYTES_MAX)).await;
            // If a record cannot be read, the next pass tries again.
            let Ok(Ok(bytes)) = read else { continue };
            known.insert(name);
            match EvaluationRecord::decode(&bytes) {
                Ok(record) => found(record.step, record.evaluation),
                Err(error) => {
                    warn!(record, store = store.location(), %error, "skipped an evaluation record that cannot be read");
                }
            }
        }
    }
}

/// Returns the names of the checkpoints that have a stored evaluation, in the order of steps.
async fn names(store: &Store) -> Vec<CheckpointName> {
    let files = match tokio::time::timeout(PATIENCE, store.files(EVALUATIONS)).await {
        Ok(Ok(files)) => files,
        Ok(Err(error)) => {
            debug!(%error, "could not list evaluations; trying again");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let mut names: Vec<_> = files.iter().filter_map(|file| EvaluationRecord::checkpoint_of(file)).collect();
    names.sort_unstable();
    names
}
