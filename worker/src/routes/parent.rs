//! The connection to a worker that passes this worker's gradients on. Nothing is sent twice over it: a push
//! that it loses goes to the shard directly, and so do all later ones.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::id::{TaskId, Version};
use pushpull_messages::message::{JoinRoute, Pushed, RefusalCode, RelayPush, RouteJoined};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, Connection, DialError};
use tokio::time::timeout;

/// A worker to which this worker passes its gradients on.
#[derive(Debug)]
pub(super) struct Parent {
    task: TaskId,
    /// Whether the order in which gradients are added matters.
    deterministic: bool,
    link: Mutex<Option<Link>>,
}

#[derive(Debug)]
struct Link {
    connection: Arc<Connection>,
    /// The version from which the parent passes pushes on; `None` until it has said so.
    from: Option<Version>,
}

impl Parent {
    pub fn new(task: TaskId, dialled: Result<Connection, DialError>, deterministic: bool) -> Self {
        let parent = Self { task, deterministic, link: Mutex::default() };
        match dialled {
            Ok(connection) => {
                *parent.link.lock() = Some(Link { connection: Arc::new(connection), from: None });
            }
            Err(error) => parent.warn(&error),
        }
        parent
    }

    fn warn(&self, reason: &dyn std::fmt::Display) {
        let through = self.task;
        match self.deterministic {
            false => tracing::warn!(%through, %reason, "pushing to shards directly from now on"),
            true => tracing::warn!(
                %through, %reason,
                "pushing to shards directly from now on; the gradients are added in another order, so the result will differ from an undisturbed run"
            ),
        }
    }

    /// Uses the parent no more. Its connection is closed, so that it does not wait for this worker.
    fn lose(&self, reason: &dyn std::fmt::Display) {
        if self.close() {
            self.warn(reason);
        }
    }

    /// Closes the connection. Returns whether there was one.
    pub fn close(&self) -> bool {
        self.link.lock().take().is_some()
    }

    /// Tells the parent that this worker has joined the job and takes its first step from this version.
    pub async fn join(&self, first: Version, patience: Duration) {
        let connection = self.link.lock().as_ref().map(|link| Arc::clone(&link.connection));
        let Some(connection) = connection else { return };
        match timeout(patience, connection.call::<RouteJoined>(JoinRoute { first }, Payload::EMPTY)).await {
            Ok(Ok((joined, _))) => {
                self.link.lock().iter_mut().for_each(|link| link.from = Some(joined.from));
            }
            Ok(Err(error)) => self.lose(&error),
            Err(_) => self.lose(&format!("it has not joined the job within {} s", patience.as_secs())),
        }
    }

    /// Sends a push through the parent. Returns `None` if the push must go to the shard directly, now and
    /// perhaps again.
    pub async fn push(&self, relayed: RelayPush, payload: &Payload) -> Option<(Pushed, Payload)> {
        let version = relayed.push.version;
        let passes = |link: &&Link| link.from.is_some_and(|from| from <= version);
        let connection = self.link.lock().as_ref().filter(passes).map(|link| Arc::clone(&link.connection))?;
        match connection.call::<Pushed>(relayed, payload.clone()).await {
            Ok(reply) => Some(reply),
            Err(CallError::Refused { refusal, .. }) if refusal.code == RefusalCode::Alone => {
                tracing::debug!(through = %self.task, "pushing to a shard directly: {refusal}");
                None
            }
            Err(error) => {
                self.lose(&error);
                None
            }
        }
    }
}
