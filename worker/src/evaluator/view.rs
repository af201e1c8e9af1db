//! An evaluator as it shows itself: what it has written down after each checkpoint, without asking it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::observe::{ActorSnapshot, EvaluatorSnapshot, Observed, RoleSnapshot, TaskSnapshot};
use pushpull_storage::EvaluationRecord;

use crate::life::Life;

/// An evaluator that can be observed, also after it has ended.
#[derive(Clone, Debug)]
pub struct EvaluatorView {
    life: Life,
    snapshot: Arc<Mutex<EvaluatorSnapshot>>,
}

impl EvaluatorView {
    pub(super) fn new(life: Life) -> Self {
        Self { life, snapshot: Arc::default() }
    }

    /// A checkpoint was evaluated, which took so long.
    pub(super) fn evaluated(&self, record: &EvaluationRecord, took: Duration) {
        let mut snapshot = self.lock();
        snapshot.evaluated += 1;
        snapshot.step = Some(record.step);
        snapshot.loss = Some(record.evaluation.loss);
        snapshot.metrics.clone_from(&record.evaluation.metrics);
        snapshot.took.record(took);
    }

    /// One was given up.
    pub(super) fn failed(&self) {
        self.lock().failed += 1;
    }

    fn lock(&self) -> MutexGuard<'_, EvaluatorSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
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
            role: RoleSnapshot::Evaluator(Box::new(self.lock().clone())),
        }
    }
}
