//! A ps task as it shows itself: asks its shards all at once, and waits for none that is busy.
//!
//! Wanted properties: (A) a shard that has not answered is asked no second time; (B) a shard that is busy is shown as it was, with how
//! busy it is, and nobody waits for it beyond [`ANSWER_WITHIN`]; (C) after the end it shows what every shard had come to.

mod sight;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::Recipient;
use async_trait::async_trait;
use futures_util::future::join_all;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{
    ActorSnapshot, Meter, Observed, PsSnapshot, RoleSnapshot, TaskSnapshot, TaskState,
};
use pushpull_transport::ServerObserver;
use pushpull_transport::buffer::BufferPool;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::shard::Stage;
pub(crate) use sight::{Look, Showing, Sight};

/// A shard that takes longer is shown as it was.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// Shards that were stopped have so long to end; one that takes longer shows what it has come to when it does.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A ps task that can be observed, also after it has ended.
#[derive(Clone, Debug)]
pub struct PsView(Arc<Watched>);

/// What is seen of a ps task.
#[derive(Debug)]
pub(crate) struct Watched {
    pub task: TaskId,
    pub incarnation: Incarnation,
    pub sights: Vec<Sight>,
    /// Of the thread that reads and writes checkpoints.
    pub checkpoints: Arc<Meter>,
    pub server: ServerObserver,
    /// Cancelled when the task is told to stop by a signal.
    pub leaving: CancellationToken,
    pub life: Mutex<Life>,
}

/// What only a task that has not ended has.
#[derive(Debug)]
pub(crate) enum Life {
    /// Its shards can be asked.
    Lives { shards: Vec<Recipient<Look>>, pool: BufferPool, stopping: bool },
    /// With so many bytes in its pool.
    Ended { pool_bytes: u64 },
}

/// A task that has not ended; dropped, it has.
#[derive(Debug)]
pub(crate) struct Lifetime(PsView);

impl PsView {
    pub(crate) fn new(watched: Watched) -> (Lifetime, Self) {
        let view = Self(Arc::new(watched));
        (Lifetime(view.clone()), view)
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.0.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task brings to an end what it is at.
    pub(crate) fn stop(&self) {
        if let Life::Lives { stopping, .. } = &mut *self.life() {
            *stopping = true;
        }
    }

    /// Waits until all shards have ended, but not for ever.
    pub(crate) async fn ended(&self) {
        let all = join_all(self.0.sights.iter().map(Sight::ended));
        if timeout(END_WITHIN, all).await.is_err() {
            tracing::warn!("{}: not all shards have ended within {END_WITHIN:?}", self.0.task);
        }
    }

    /// Has the shards show themselves.
    async fn refresh(&self) {
        let shards = match &*self.life() {
            Life::Lives { shards, .. } => shards.clone(),
            Life::Ended { .. } => return,
        };
        let deadline = Instant::now() + ANSWER_WITHIN;
        let sights = self.0.sights.iter().zip(&shards);
        join_all(sights.map(|(sight, shard)| sight.refresh(shard, deadline))).await;
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        let mut life = self.0.life();
        if let Life::Lives { pool, .. } = &*life {
            *life = Life::Ended { pool_bytes: pool.bytes_kept() as u64 };
        }
    }
}

#[async_trait]
impl Observed for PsView {
    async fn observe(&self) -> TaskSnapshot {
        self.refresh().await;
        let Watched { task, incarnation, sights, checkpoints, server, leaving, .. } = &*self.0;
        let seen: Vec<_> = sights.iter().map(Sight::seen).collect();
        let serves = |stage| matches!(stage, Stage::Serving | Stage::Complete);
        let (state, pool_bytes) = match &*self.life() {
            Life::Ended { pool_bytes } => (TaskState::Ended, *pool_bytes),
            Life::Lives { pool, stopping, .. } => {
                let state = if *stopping || leaving.is_cancelled() {
                    TaskState::Stopping
                } else if seen.iter().all(|&(stage, ..)| serves(stage)) {
                    TaskState::Ready
                } else {
                    TaskState::Starting
                };
                (state, pool.bytes_kept() as u64)
            }
        };
        let mut actors: Vec<_> = seen.iter().map(|(.., snapshot)| snapshot.actor.clone()).collect();
        let files = checkpoints.snapshot(format!("{task}/checkpoints"), "");
        let at = if files.busy_us.is_some() { "at a file" } else { "idle" };
        actors.push(ActorSnapshot { state: at.to_owned(), ..files });
        let shards = seen.into_iter().map(|(_, id, snapshot)| (id, snapshot)).collect();
        let role = RoleSnapshot::Ps(Box::new(PsSnapshot { server: server.snapshot(), shards, pool_bytes }));
        TaskSnapshot { task: *task, incarnation: *incarnation, state, actors, role }
    }
}
