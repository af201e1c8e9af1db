//! A view of a worker task, read from the worker's journal without a request to the task. This module must
//! not depend on connections.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{Observed, RoleSnapshot, TaskSnapshot};
use tokio_util::sync::CancellationToken;

use super::journal::Journal;
use super::life::Life;

/// A view of a worker task. It can be read even after the task has ended. It shows the task's current
/// incarnation only: if the worker registers again as another incarnation, all counters begin again at 0.
/// Clones show the same incarnation.
#[derive(Clone, Debug)]
pub struct WorkerView {
    task: TaskId,
    shown: Arc<Mutex<ShownIncarnation>>,
}

/// The incarnation of a worker that a view shows. Each incarnation has its own [`Life`] and [`Journal`], so
/// no snapshot contains counts of two incarnations.
#[derive(Clone, Debug)]
pub(crate) struct ShownIncarnation {
    pub incarnation: Incarnation,
    pub life: Life,
    pub journal: Journal,
}

impl ShownIncarnation {
    /// Creates the [`Life`] and the [`Journal`] of an incarnation that begins now.
    pub(crate) fn new(incarnation: Incarnation, interrupt: CancellationToken) -> Self {
        let life = Life::new("dialling the chief", interrupt);
        Self { incarnation, life, journal: Journal::default() }
    }
}

impl WorkerView {
    pub(crate) fn new(task: TaskId, shown: ShownIncarnation) -> Self {
        Self { task, shown: Arc::new(Mutex::new(shown)) }
    }

    /// Shows another incarnation from now on.
    pub(crate) fn show(&self, next: ShownIncarnation) {
        *self.shown.lock() = next;
    }

    /// Returns the incarnation that is shown.
    pub(crate) fn shown(&self) -> ShownIncarnation {
        self.shown.lock().clone()
    }
}

#[async_trait]
impl Observed for WorkerView {
    async fn observe(&self) -> TaskSnapshot {
        let ShownIncarnation { incarnation, life, journal } = self.shown();
        let (doing, devices) = life.actors(self.task);
        let mut actors = journal.actors(self.task, doing);
        actors.extend(devices);
        let mut snapshot = journal.progress().snapshot;
        snapshot.chief_connected = life.is_chief_connected();
        let (task, state) = (self.task, life.state());
        TaskSnapshot { task, incarnation, state, actors, role: RoleSnapshot::Worker(Box::new(snapshot)) }
    }
}
