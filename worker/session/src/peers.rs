//! The connections to the other tasks of the cluster. A connection is opened when it is first needed, and
//! again after it was lost. Requests are never sent twice: a run that lost a task has failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_transport::{Connection, DialError, Identity, Patience, Transport, dial};
use tokio::time::Instant;

use crate::error::Unreachable;

/// How long to wait for a task that is not reached at once.
const DIAL_WAIT: Duration = Duration::from_secs(3);

/// A connection to another task.
#[derive(Clone)]
pub(crate) struct PeerConnection {
    pub connection: Arc<Connection>,
    /// The number of the connection. Each new connection has another one.
    pub number: u64,
}

type Slot = Arc<tokio::sync::Mutex<Dialled>>;

/// The result of the last dial of a task.
#[derive(Default)]
enum Dialled {
    #[default]
    Never,
    Open(PeerConnection),
    /// The reason, and when the dial failed. All who have waited for this dial get the reason, so that their
    /// waits do not add up.
    Failed(Unreachable, Instant),
}

/// The connections to the other tasks.
pub(crate) struct Peers {
    transport: Arc<dyn Transport>,
    identity: Identity,
    slots: Mutex<HashMap<TaskId, Slot>>,
    next: AtomicU64,
}

impl Peers {
    pub fn new(transport: Arc<dyn Transport>, identity: Identity) -> Self {
        Self { transport, identity, slots: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// Returns the connection to a task of the cluster.
    ///
    /// # Errors
    /// If the task cannot be reached, or refuses this task.
    pub async fn connection(&self, task: TaskId) -> Result<PeerConnection, Unreachable> {
        let asked = Instant::now();
        let slot = Arc::clone(self.slots.lock().entry(task).or_default());
        let mut slot = slot.lock().await;
        match &*slot {
            Dialled::Open(open) if !open.connection.is_lost() => return Ok(open.clone()),
            Dialled::Failed(error, at) if asked < *at => return Err(error.clone()),
            _ => {}
        }
        let address = self.identity.cluster.address(task).map(ToString::to_string).unwrap_or_default();
        let patience = Patience::of(DIAL_WAIT);
        let dialled = dial(&*self.transport, &address, &self.identity, task, patience).await;
        match dialled {
            Ok(connection) => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let open = PeerConnection { connection: Arc::new(connection), number };
                *slot = Dialled::Open(open.clone());
                Ok(open)
            }
            Err(error) => {
                let error = match error {
                    DialError::Transport(error) => Unreachable(format!("{task} cannot be reached: {error}")),
                    error => Unreachable(error.to_string()),
                };
                *slot = Dialled::Failed(error.clone(), Instant::now());
                Err(error)
            }
        }
    }

    /// Returns the connection to a task if it is open now. Does not dial.
    pub async fn open(&self, task: TaskId) -> Option<PeerConnection> {
        let slot = self.slots.lock().get(&task).map(Arc::clone)?;
        match &*slot.lock().await {
            Dialled::Open(open) if !open.connection.is_lost() => Some(open.clone()),
            _ => None,
        }
    }
}
