//! Records which peers are connected to a ps task, which chief it obeys, and how it is to end.

use std::sync::Arc;
use std::time::Duration;

use pushpull_cuda::DriverError;
use pushpull_messages::id::{JobName, ShardId};
use pushpull_messages::message::StopReason;
use pushpull_transport::Peer;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::claims::{ClaimError, Claims, Term};

/// How a task is to end.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The chief ended the job, for this reason.
    Stop(StopReason),
    /// A shard panicked, with this message.
    Panic(ShardId, String),
    /// The device of a shard has failed with this error.
    DeviceFailed(ShardId, DriverError),
}

#[derive(Debug)]
struct Status {
    chief_seen: bool,
    /// The number of all connections.
    connections: usize,
    claims: Claims,
    end: Option<End>,
}

impl Status {
    /// Returns whether the chief has connected before and no peer is connected now.
    const fn is_deserted(&self) -> bool {
        self.chief_seen && self.connections == 0
    }
}

/// A shared record of a task's connections and of how the task is to end.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle(Arc<watch::Sender<Status>>);

impl Lifecycle {
    /// Returns the record of a task without connections. A chief that is away for `lease` may lose the task
    /// to another chief.
    pub(crate) fn new(lease: Duration) -> Self {
        let status = Status { chief_seen: false, connections: 0, claims: Claims::new(lease), end: None };
        Self(Arc::new(watch::Sender::new(status)))
    }

    /// Records a new connection from `peer`. Connections of other ps tasks do not count: two ps tasks that
    /// only have each other have lost their job.
    pub(crate) fn connected(&self, peer: &Peer) {
        if peer.task.job == JobName::Ps {
            return;
        }
        self.0.send_modify(|status| {
            status.connections += 1;
            if peer.task.job == JobName::Chief {
                status.chief_seen = true;
                status.claims.connected(Term::of(peer), &peer.address);
            }
        });
    }

    /// Records that a connection from `peer` has ended.
    pub(crate) fn disconnected(&self, peer: &Peer) {
        if peer.task.job == JobName::Ps {
            return;
        }
        self.0.send_modify(|status| {
            status.connections -= 1;
            if peer.task.job == JobName::Chief {
                status.claims.disconnected(Term::of(peer), Instant::now());
            }
        });
    }

    /// Grants or refuses the claim of a chief.
    pub(crate) fn claim(&self, chief: &Peer, attempt: u64) -> Result<(), ClaimError> {
        self.change(|claims| claims.claim(Term::of(chief), attempt, Instant::now()))
    }

    /// Withdraws the claims of a chief up to and including `attempt`.
    pub(crate) fn withdraw(&self, chief: &Peer, attempt: u64) {
        self.change(|claims| claims.withdraw(Term::of(chief), attempt));
    }

    /// Checks that the task obeys an order of this chief, and returns the reason if it does not.
    pub(crate) fn order(&self, chief: &Peer) -> Result<(), ClaimError> {
        self.change(|claims| claims.order(Term::of(chief), Instant::now()))
    }

    /// Checks that the task obeys this chief's order to stop, and returns the reason if it does not.
    pub(crate) fn stop(&self, chief: &Peer) -> Result<(), ClaimError> {
        self.change(|claims| claims.stop(Term::of(chief), Instant::now()))
    }

    /// Checks that this chief may see the shards, and returns the reason if it may not.
    pub(crate) fn observe(&self, chief: &Peer) -> Result<(), ClaimError> {
        self.0.borrow().claims.observe(Term::of(chief), Instant::now())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Claims) -> T) -> T {
        let mut result = None;
        self.0.send_modify(|status| result = Some(change(&mut status.claims)));
        result.expect("the status was changed")
    }

    /// Records that the task is to end, and how.
    pub(crate) fn end(&self, end: End) {
        self.0.send_modify(|status| status.end = Some(end));
    }

    /// Returns whether the chief is connected now.
    pub(crate) fn is_chief_connected(&self) -> bool {
        self.0.borrow().claims.connections() > 0
    }

    /// Waits until the chief has connected or the task is to end. Returns false if neither happens within
    /// `limit`.
    pub(crate) async fn chief_arrives(&self, limit: Duration) -> bool {
        self.wait_within(limit, |status| status.chief_seen || status.end.is_some()).await
    }

    /// Waits until the task is to end, and returns how. Returns `None` if the chief has connected before,
    /// and then no peer is connected for the whole of `limit`. A shorter time does not count, because all
    /// connections may break at once and be established again.
    pub(crate) async fn ended(&self, limit: Duration) -> Option<End> {
        loop {
            self.wait(|status| status.end.is_some() || status.is_deserted()).await;
            if let Some(end) = &self.0.borrow().end {
                return Some(end.clone());
            }
            if !self.wait_within(limit, |status| status.end.is_some() || !status.is_deserted()).await {
                return self.0.borrow().end.clone();
            }
        }
    }

    /// Waits until the chief has stayed disconnected for the whole of `limit`. Returns at once if the chief
    /// has never connected.
    pub(crate) async fn chief_leaves(&self, limit: Duration) {
        while self.0.borrow().chief_seen {
            self.wait(|status| status.claims.connections() == 0).await;
            if !self.wait_within(limit, |status| status.claims.connections() > 0).await {
                return;
            }
        }
    }

    async fn wait(&self, holds: impl FnMut(&Status) -> bool) {
        // The wait fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.0.subscribe().wait_for(holds).await;
    }

    async fn wait_within(&self, limit: Duration, holds: impl FnMut(&Status) -> bool) -> bool {
        timeout(limit, self.wait(holds)).await.is_ok()
    }
}
