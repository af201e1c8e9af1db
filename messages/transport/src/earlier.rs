//! Keeps calls in order whose requests the peer must handle one after the other, while several of them are in
//! flight. This module must not depend on connections.

use pushpull_messages::id::TaskId;
use tokio::sync::oneshot;

use crate::error::CallError;

/// An earlier call to the same peer. A call that comes after it does not send its request again, except
/// because no reply comes, until the earlier call is answered. Neither does it wait for a new connection.
#[derive(Debug, Default)]
pub struct EarlierCall(Option<oneshot::Receiver<()>>);

/// Says that a call is answered. If it is dropped instead, the calls after this call fail when they would
/// send their requests again.
#[derive(Debug)]
pub struct CallAnswered(oneshot::Sender<()>);

/// The earlier call has failed, so its request may never be handled.
#[derive(Debug)]
pub(crate) struct EarlierFailed;

impl EarlierFailed {
    /// Returns the error of the call that comes after the one to `peer` that has failed.
    pub(crate) fn of(self, peer: TaskId) -> CallError {
        CallError::Lost { peer, reason: "an earlier request that comes first has failed".to_owned() }
    }
}

impl EarlierCall {
    /// The value for a call that comes after no other.
    pub const NONE: Self = Self(None);

    /// Returns a call in flight for the calls after it, and the means to say that it is answered.
    pub fn new() -> (CallAnswered, Self) {
        let (sender, receiver) = oneshot::channel();
        (CallAnswered(sender), Self(Some(receiver)))
    }

    /// Waits until the earlier call is answered.
    pub(crate) async fn answered(&mut self) -> Result<(), EarlierFailed> {
        let Some(answered) = &mut self.0 else { return Ok(()) };
        let result = answered.await.map_err(|_| EarlierFailed);
        self.0 = None;
        result
    }
}

impl CallAnswered {
    /// Says that the call is answered.
    pub fn tell(self) {
        // Sending fails only if no call comes after this one.
        let _ = self.0.send(());
    }
}
