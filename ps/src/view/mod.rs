//! A view of a ps task for observers. It requests snapshots from all shards at once.
//!
//! Wanted properties: (A) a snapshot is requested from a shard only after the shard has answered the
//! previous request; (B) for a busy shard, the view shows the last snapshot and how long the shard has been
//! busy, and an observer waits at most [`ANSWER_WITHIN`]; (C) after the end of the task the view shows the
//! final state of every shard.

mod shard_view;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{
    ActorSnapshot, Meter, Observed, PsSnapshot, RoleSnapshot, TaskSnapshot, TaskState,
};
use pushpull_transport::ServerObserver;
use pushpull_transport::buffer::BufferPool;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::lifecycle::Lifecycle;
use crate::shard::Stage;
pub(crate) use shard_view::{Publisher, Refresh, ShardView};

/// How long an observer waits for a shard's snapshot. If a shard takes longer, the view shows its last
/// snapshot.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// How long the task waits for its stopped shards to end. A shard that takes longer publishes its final state
/// when it ends.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A view of a ps task. The view stays usable after the task has ended.
#[derive(Clone, Debug)]
pub struct PsView(Arc<Observation>);

/// The sources of the data that a view shows.
#[derive(Debug)]
pub(crate) struct Observation {
    pub task: TaskId,
    pub incarnation: Incarnation,
    /// The views of the shards that have been started, in the order of their indices.
    pub shards: RwLock<Vec<ShardView>>,
    /// The meter of the thread that reads and writes checkpoints.
    pub checkpoints: Arc<Meter>,
    pub server: ServerObserver,
    pub lifecycle: Lifecycle,
    /// Cancelled when a signal to stop has arrived.
    pub leaving: CancellationToken,
    pub phase: Mutex<Phase>,
}

/// Whether the task is running or has ended, with the data that the view needs in each case.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The task is running, and snapshots can be requested from its shards.
    Running { shards: Vec<Recipient<Refresh>>, pool: BufferPool, stopping: bool },
    /// The task has ended. At that time, the unused buffers of its pool had this number of bytes.
    Ended { pool_bytes: u64 },
}

/// A guard that marks the task as ended in its view when it is dropped.
#[derive(Debug)]
pub(crate) struct EndGuard(PsView);

impl PsView {
    pub(crate) fn new(observation: Observation) -> (EndGuard, Self) {
        let view = Self(Arc::new(observation));
        (EndGuard(view.clone()), view)
    }

    /// Adds a shard, from which snapshots can be requested through `recipient`.
    pub(crate) fn add(&self, shard: ShardView, recipient: Option<Recipient<Refresh>>) {
        let mut phase = self.0.phase.lock();
        if let (Phase::Running { shards, .. }, Some(recipient)) = (&mut *phase, recipient) {
            shards.push(recipient);
            self.0.shards.write().push(shard);
        }
    }

    fn shards(&self) -> Vec<ShardView> {
        self.0.shards.read().clone()
    }

    /// Marks the task as stopping.
    pub(crate) fn stop(&self) {
        if let Phase::Running { stopping, .. } = &mut *self.0.phase.lock() {
            *stopping = true;
        }
    }

    /// Waits until all shards have ended, for at most [`END_WITHIN`].
    pub(crate) async fn wait_for_end(&self) {
        let all = self.shards();
        let all = join_all(all.iter().map(ShardView::wait_for_end));
        if timeout(END_WITHIN, all).await.is_err() {
            tracing::warn!(task = %self.0.task, "not all shards ended within {END_WITHIN:?}");
        }
    }

    /// Requests a snapshot from each shard, and waits until the shards that are not busy have published
    /// theirs.
    async fn refresh(&self) {
        let (shards, recipients) = match &*self.0.phase.lock() {
            Phase::Running { shards, .. } => (self.shards(), shards.clone()),
            Phase::Ended { .. } => return,
        };
        let deadline = Instant::now() + ANSWER_WITHIN;
        let shards = shards.iter().zip(&recipients);
        join_all(shards.map(|(shard, recipient)| shard.refresh(recipient, deadline))).await;
    }

    /// Returns the task's state and the number of bytes in its pool. The state depends on the stages of the
    /// shards.
    fn state(&self, mut stages: impl Iterator<Item = Stage>) -> (TaskState, u64) {
        match &*self.0.phase.lock() {
            Phase::Ended { pool_bytes } => (TaskState::Ended, *pool_bytes),
            Phase::Running { pool, stopping, .. } => {
                let state = if *stopping || self.0.leaving.is_cancelled() {
                    TaskState::Stopping
                } else if stages.all(|stage| matches!(stage, Stage::Serving | Stage::Complete)) {
                    TaskState::Ready
                } else {
                    TaskState::Starting
                };
                (state, pool.bytes_kept() as u64)
            }
        }
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut phase = self.0.0.phase.lock();
        if let Phase::Running { pool, .. } = &*phase {
            *phase = Phase::Ended { pool_bytes: pool.bytes_kept() as u64 };
        }
    }
}

#[async_trait]
impl Observed for PsView {
    async fn observe(&self) -> TaskSnapshot {
        self.refresh().await;
        let Observation { task, incarnation, checkpoints, server, lifecycle, .. } = &*self.0;
        let shards: Vec<_> = self.shards().iter().map(ShardView::snapshot).collect();
        let (state, pool_bytes) = self.state(shards.iter().map(|&(stage, ..)| stage));
        let mut actors: Vec<_> = shards.iter().map(|(.., snapshot)| snapshot.actor.clone()).collect();
        let files = checkpoints.snapshot(format!("{task}/checkpoints"), "");
        let activity = if files.busy_us.is_some() { "at a file" } else { "idle" };
        actors.push(ActorSnapshot { state: activity.to_owned(), ..files });
        let role = RoleSnapshot::Ps(Box::new(PsSnapshot {
            server: server.snapshot(),
            chief_connected: lifecycle.is_chief_connected(),
            shards: shards.into_iter().map(|(_, id, snapshot)| (id, snapshot)).collect(),
            pool_bytes,
        }));
        TaskSnapshot { task: *task, incarnation: *incarnation, state, actors, role }
    }
}
