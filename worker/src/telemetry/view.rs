//! A view of a worker task, read from the worker's journal without a request to the task. This module must
//! not depend on connections.

use async_trait::async_trait;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{Observed, RoleSnapshot, TaskSnapshot};

use super::journal::Journal;
use super::life::Life;

/// A view of a worker task. It can be read even after the task has ended.
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
        let mut snapshot = self.journal.progress().snapshot;
        snapshot.chief_connected = self.life.is_chief_connected();
        TaskSnapshot {
            task: self.task,
            incarnation: self.incarnation,
            state: self.life.state(),
            actors,
            role: RoleSnapshot::Worker(Box::new(snapshot)),
        }
    }
}
