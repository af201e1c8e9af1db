//! A client whose calls to one task survive broken connections. The client dials the task again and sends
//! requests again, so a request that arrives twice must have the same effect as one that arrives once.
//! Wanted properties: (A) every call ends with one reply, or with the reason why no reply will come; (B) a
//! reply reaches only the call that made its request; (C) all calls reach the same incarnation of the peer,
//! and a restarted peer counts as lost; (D) attempts are bounded in number and in time.

mod files;
mod reconnector;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Message, Welcome};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::Instrument;

use crate::buffer::Payload;
use crate::caller::Caller;
use crate::connection::{Connection, reply_as};
use crate::counters::CallCounters;
use crate::dial::{Patience, dial_counted};
use crate::earlier::EarlierCall;
use crate::error::{CallError, DialError};
use crate::handshake::Identity;
use crate::retry::RetryConfig;
use crate::transport::Transport;
use reconnector::{Reconnector, State};

/// The reason that a failed call reports if the client's background task ended without giving one.
const CANCELLED: &str = "the background task of the client panicked or was cancelled";

/// A client that calls one task. Its calls survive broken connections. The client disconnects when it is
/// dropped.
#[derive(Debug)]
pub struct ReconnectingClient {
    peer: TaskId,
    welcome: Welcome,
    retry: RetryConfig,
    state: watch::Receiver<State>,
    counters: Arc<CallCounters>,
    reconnector: AbortHandle,
}

impl ReconnectingClient {
    /// Dials the task `to` at `address` until the task answers.
    ///
    /// # Errors
    /// Returns an error if the task does not answer before the deadline of `patience`, or if it refuses this
    /// task.
    // The future is boxed, so that its code is compiled only in this crate and not again in each crate that
    // awaits it.
    pub fn connect<'a>(
        transport: Arc<dyn Transport>,
        address: &'a str,
        identity: &'a Identity,
        to: TaskId,
        patience: Patience,
        retry: RetryConfig,
    ) -> BoxFuture<'a, Result<Self, DialError>> {
        Box::pin(Self::dial_and_keep(transport, address, identity, to, patience, retry))
    }

    async fn dial_and_keep(
        transport: Arc<dyn Transport>,
        address: &str,
        identity: &Identity,
        to: TaskId,
        patience: Patience,
        retry: RetryConfig,
    ) -> Result<Self, DialError> {
        let caller = Caller::Member { identity, to };
        let counters = Arc::new(CallCounters::default());
        let connection = dial_counted(&*transport, address, caller, patience, &counters).await?;
        let (welcome, connection) = (connection.welcome().clone(), Arc::new(connection));
        let (sender, state) = watch::channel(State::Connected(Arc::clone(&connection)));
        let reconnector = Reconnector {
            transport,
            address: address.to_owned(),
            identity: identity.clone(),
            to,
            life: (welcome.incarnation, welcome.nonce),
            redial_for: retry.redial_for,
            state: sender,
            counters: Arc::clone(&counters),
        };
        let reconnector = tokio::spawn(reconnector.run(connection).in_current_span()).abort_handle();
        Ok(Self { peer: to, welcome, retry, state, counters, reconnector })
    }

    /// Returns the task that this client calls.
    pub const fn peer(&self) -> TaskId {
        self.peer
    }

    /// Returns the peer's description of itself from the first handshake.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Returns the counts of this client's calls and connections.
    pub fn counters(&self) -> &CallCounters {
        &self.counters
    }

    /// Returns whether the peer is lost for good.
    pub fn is_lost(&self) -> bool {
        matches!(&*self.state.borrow(), State::Lost(_)) || self.state.has_changed().is_err()
    }

    /// Returns whether there is a connection to the peer now.
    pub fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Connected(connection) if !connection.is_lost())
    }

    /// Waits until the peer is lost for good, and returns the reason.
    pub async fn wait_lost(&self) -> String {
        match self.state.clone().wait_for(|state| matches!(state, State::Lost(_))).await.as_deref() {
            Ok(State::Lost(reason)) => reason.clone(),
            _ => CANCELLED.to_owned(),
        }
    }

    /// Sends a request and waits for the reply. Sends the request again if the connection breaks or no reply
    /// comes.
    ///
    /// # Errors
    /// Returns an error if the peer refuses the request, if the peer is lost, or if the reply is
    /// not an `R`.
    pub async fn call<R>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        self.call_after(message, payload, EarlierCall::NONE).await
    }

    /// Does the same as [`call`](Self::call) for a request that the peer must handle after that of an earlier
    /// call, which may still be in flight. If there is no connection, if it breaks, or if the peer asks
    /// for the request again, sends it only after the earlier call is answered. The caller polls the earlier
    /// call first, so that its request is sent first.
    ///
    /// # Errors
    /// Those of [`call`](Self::call). Also returns an error if the request is to be sent again, but the
    /// earlier call has failed.
    pub async fn call_after<R>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
        earlier: EarlierCall,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let (reply, payload) = self.exchange(message.into(), payload, earlier).await?;
        Ok((reply_as(self.peer, reply)?, payload))
    }

    /// Sends a request and waits for a reply of any kind. The function has no type parameter and its future
    /// is boxed. So its code is compiled only once, and not again for every kind of reply in every crate.
    fn exchange(
        &self,
        message: Message,
        payload: Payload,
        mut earlier: EarlierCall,
    ) -> BoxFuture<'_, Result<(Message, Payload), CallError>> {
        Box::pin(async move {
            let mut state = self.state.clone();
            let mut last = String::new();
            for attempt in 0..self.retry.connections_max {
                // The calls that wait for a connection may get it in any order.
                if attempt > 0 || !self.is_up() {
                    earlier.answered().await.map_err(|failed| failed.of(self.peer))?;
                }
                if attempt > 0 {
                    self.counters.resend();
                }
                let connection = self.connection(&mut state).await?;
                let exchange =
                    connection.exchange_with_resends(&message, &payload, &self.retry, &mut earlier);
                match exchange.await {
                    Err(CallError::Lost { reason, .. }) => last = reason,
                    result => return result,
                }
            }
            let (name, times) = (message.name(), self.retry.connections_max);
            let reason =
                format!("{name} was sent on {times} connections, and each broke; the last reason: {last}");
            Err(self.lost(reason))
        })
    }

    /// Waits for a connection that is not known to be broken.
    async fn connection(&self, state: &mut watch::Receiver<State>) -> Result<Arc<Connection>, CallError> {
        let settled = state.wait_for(|state| match state {
            State::Connected(connection) => !connection.is_lost(),
            State::Reconnecting => false,
            State::Lost(_) => true,
        });
        match settled.await.as_deref() {
            Ok(State::Connected(connection)) => Ok(Arc::clone(connection)),
            Ok(State::Lost(reason)) => Err(self.lost(reason.clone())),
            _ => Err(self.lost(CANCELLED.to_owned())),
        }
    }

    fn lost(&self, reason: String) -> CallError {
        CallError::Lost { peer: self.peer, reason }
    }
}

impl Drop for ReconnectingClient {
    fn drop(&mut self) {
        self.reconnector.abort();
    }
}
