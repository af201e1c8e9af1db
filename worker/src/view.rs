//! A worker task as it shows itself: what its loop has written down, without asking anybody.

use async_trait::async_trait;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{Observed, RoleSnapshot, TaskSnapshot};

use crate::journal::Journal;
use crate::life::Life;

/// A worker task that can be observed, also after it has ended.
#[derive(Clone, Debug)]
pub struct WorkerView {
    task: TaskId,
    incarnation: Incarnation,
    life: Life,
    journal: Journal,
}

impl WorkerView {
    pub(crate) const fn new(task: TaskId, incarnation: Incarnation, life: Life, journal: Journal) -> Self {
        Self { task, incarnation, life, journal }
    }
}

#[async_trait]
impl Observed for WorkerView {
    async fn observe(&self) -> TaskSnapshot {
        let (doing, devices) = self.life.actors(self.task);
        let mut actors = self.journal.actors(self.task, doing);
        actors.extend(devices);
        TaskSnapshot {
            task: self.task,
            incarnation: self.incarnation,
            state: self.life.state(),
            actors,
            role: RoleSnapshot::Worker(Box::new(self.journal.progress().snapshot)),
        }
    }
}
