//! A view of an evaluator. The evaluator updates the view after each checkpoint, so the view can be read
//! without a request to the task. This module must not depend on stores.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::observe::{ActorSnapshot, EvaluatorSnapshot, Observed, RoleSnapshot, TaskSnapshot};
use pushpull_storage::EvaluationRecord;

use crate::telemetry::Life;

/// A view of an evaluator. It can be read even after the evaluator has ended.
#[derive(Clone, Debug)]
pub struct EvaluatorView {
    life: Life,
    snapshot: Arc<Mutex<EvaluatorSnapshot>>,
}

impl EvaluatorView {
    pub(super) fn new(life: Life) -> Self {
        Self { life, snapshot: Arc::default() }
    }

    /// Records that a checkpoint was evaluated. `took` is the duration of the evaluation.
    pub(super) fn evaluated(&self, record: &EvaluationRecord, took: Duration) {
        let mut snapshot = self.snapshot.lock();
        snapshot.evaluated += 1;
        snapshot.step = Some(record.step);
        snapshot.loss = Some(record.evaluation.loss);
        snapshot.metrics.clone_from(&record.evaluation.metrics);
        snapshot.took.record(took);
    }

    /// Counts a checkpoint that was skipped because it could not be evaluated.
    pub(super) fn failed(&self) {
        self.snapshot.lock().failed += 1;
    }
}

#[async_trait]
impl Observed for EvaluatorView {
    async fn observe(&self) -> TaskSnapshot {
        let task = TaskId::new(JobName::Evaluator, 0);
        let (doing, devices) = self.life.actors(task);
        let (name, state) = (format!("{task}/watcher"), doing.to_owned());
        let mut actors = vec![ActorSnapshot { name, state, ..Default::default() }];
        actors.extend(devices);
        TaskSnapshot {
            task,
            incarnation: Incarnation(0),
            state: self.life.state(),
            actors,
            role: RoleSnapshot::Evaluator(Box::new(self.snapshot.lock().clone())),
        }
    }
}
