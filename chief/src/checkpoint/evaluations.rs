//! What evaluators have found of this life's checkpoints: read from where they leave it, and passed on once.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::Evaluation;
use pushpull_storage::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, Store};

use pushpull_storage::Catalog;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// So long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Passes on every record of a checkpoint of that life, in the order of their steps: others are of another job, or of what
/// this one does not go on from. Never ends.
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
            // Unless it cannot be read now, it is looked at once.
            let Ok(Ok(bytes)) = read else { continue };
            known.insert(name);
            match EvaluationRecord::decode(&bytes) {
                Ok(record) => found(record.step, record.evaluation),
                Err(error) => tracing::warn!("{record} in {} is left out: {error}", store.location()),
            }
        }
    }
}

/// Of which checkpoints there are records, in the order of their steps.
async fn names(store: &Store) -> Vec<CheckpointName> {
    let files = match tokio::time::timeout(PATIENCE, store.files(EVALUATIONS)).await {
        Ok(Ok(files)) => files,
        Ok(Err(error)) => {
            tracing::debug!("evaluations cannot be listed now: {error}");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let mut names: Vec<_> = files.iter().filter_map(|file| EvaluationRecord::checkpoint_of(file)).collect();
    names.sort_unstable();
    names
}
