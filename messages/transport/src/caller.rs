//! Calls to one task, whatever becomes of the connection: it is dialled again, and requests are made again. What they
//! ask for must therefore be the same when it is asked twice.
//!
//! Wanted properties: (A) every call ends with one answer, or with the reason why there will never be one. (B) A reply
//! reaches the call that asked for it, and no other. (C) Nobody answers in the place of the life that was called
//! first. (D) Tries are bounded in number and in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::client::{CallError, Client};
use super::connection::Transport;
use super::counters::CallCounters;
use super::dial::{DialError, PAUSE, Patience, dial_counted};
use super::handshake::Identity;
use super::retry::RetryConfig;
use crate::buffer::Payload;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{Message, Welcome};

/// One task, for calls that outlive a connection. Closed when it is dropped.
#[derive(Debug)]
pub struct Caller {
    peer: TaskId,
    welcome: Welcome,
    retry: RetryConfig,
    line: watch::Receiver<Line>,
    counters: Arc<CallCounters>,
    keeper: AbortHandle,
}

/// When a connection breaks that nobody waits on, it is most often the end of the job: whoever is done with the peer has
/// so much time to say so by dropping the caller.
const IDLE_PAUSE: Duration = Duration::from_millis(100);

/// How the peer can be reached now.
#[derive(Clone, Debug)]
enum Line {
    Up(Arc<Client>),
    /// It is being dialled.
    Down,
    /// It will not be reached any more, and why.
    Lost(String),
}

impl Caller {
    /// Dials `to` at `address` until it answers.
    ///
    /// # Errors
    /// Where it does not answer in time, or refuses us.
    pub async fn connect(
        transport: Arc<dyn Transport>,
        address: &str,
        identity: &Identity,
        to: TaskId,
        patience: Patience,
        retry: RetryConfig,
    ) -> Result<Self, DialError> {
        let counters = Arc::new(CallCounters::default());
        let client = dial_counted(&*transport, address, identity, to, patience, &counters).await?;
        let (welcome, client) = (client.welcome().clone(), Arc::new(client));
        let (line, watched) = watch::channel(Line::Up(Arc::clone(&client)));
        let (address, identity) = (address.to_owned(), identity.clone());
        let (life, redial_for, counted) = (welcome.incarnation, retry.redial_for, Arc::clone(&counters));
        let keeper = Keeper { transport, address, identity, to, life, redial_for, line, counters: counted };
        let keeper = tokio::spawn(keeper.keep(client)).abort_handle();
        Ok(Self { peer: to, welcome, retry, line: watched, counters, keeper })
    }

    /// Who is called.
    pub const fn peer(&self) -> TaskId {
        self.peer
    }

    /// What it said of itself when it was reached first.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// What it took so far.
    pub fn counters(&self) -> &CallCounters {
        &self.counters
    }

    /// Whether the peer will not be reached any more.
    pub fn is_lost(&self) -> bool {
        matches!(&*self.line.borrow(), Line::Lost(_)) || self.line.has_changed().is_err()
    }

    /// Whether there is a connection to the peer now.
    pub fn is_up(&self) -> bool {
        matches!(&*self.line.borrow(), Line::Up(client) if !client.is_lost())
    }

    /// Waits until the peer will not be reached any more, and says why.
    pub async fn wait_lost(&self) -> String {
        match self.line.clone().wait_for(|line| matches!(line, Line::Lost(_))).await.as_deref() {
            Ok(Line::Lost(reason)) => reason.clone(),
            _ => CANCELLED.to_owned(),
        }
    }

    /// Makes a request, again where its connection breaks or no answer comes, and waits for the reply.
    ///
    /// # Errors
    /// Where the peer refuses, cannot be reached any more, or the reply is of another kind.
    pub async fn call<R>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let message = message.into();
        let mut line = self.line.clone();
        let mut last = String::new();
        for connection in 0..self.retry.connections_max {
            if connection > 0 {
                self.counters.resend();
            }
            let client = self.reach(&mut line).await?;
            match client.call_patiently(&message, &payload, &self.retry).await {
                Err(CallError::Lost { reason, .. }) => last = reason,
                answer => return answer,
            }
        }
        let (name, times) = (message.name(), self.retry.connections_max);
        Err(self.lost(format!("{name} was made on {times} connections, and each broke; the last: {last}")))
    }

    /// A connection that is not known to be broken, as soon as there is one.
    async fn reach(&self, line: &mut watch::Receiver<Line>) -> Result<Arc<Client>, CallError> {
        let settled = line.wait_for(|line| match line {
            Line::Up(client) => !client.is_lost(),
            Line::Down => false,
            Line::Lost(_) => true,
        });
        match settled.await.as_deref() {
            Ok(Line::Up(client)) => Ok(Arc::clone(client)),
            Ok(Line::Lost(reason)) => Err(self.lost(reason.clone())),
            _ => Err(self.lost(CANCELLED.to_owned())),
        }
    }

    fn lost(&self, reason: String) -> CallError {
        CallError::Lost { peer: self.peer, reason }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

const CANCELLED: &str = "the task that keeps it has panicked or was cancelled";

/// Sees to it that there is a connection.
struct Keeper {
    transport: Arc<dyn Transport>,
    address: String,
    identity: Identity,
    to: TaskId,
    /// The life of the peer that was called first.
    life: Incarnation,
    redial_for: Duration,
    line: watch::Sender<Line>,
    counters: Arc<CallCounters>,
}

/// From the first break until the peer has spoken again: a connection that breaks before that is no way out of it.
struct Outage {
    since: Instant,
    pause: Duration,
}

impl Keeper {
    async fn keep(self, mut client: Arc<Client>) {
        let mut outage = None;
        let lost = loop {
            let broke = client.wait_lost().await;
            self.line.send_replace(Line::Down);
            let Outage { since, pause } = match outage.take() {
                Some(Outage { since, pause }) if !client.was_heard() => {
                    Outage { since, pause: PAUSE.1.min(PAUSE.0.max(2 * pause)) }
                }
                _ => Outage { since: Instant::now(), pause: Duration::ZERO },
            };
            tokio::time::sleep(if client.was_missed() { pause } else { pause.max(IDLE_PAUSE) }).await;
            drop(client);
            tracing::warn!("the connection to {} broke: {broke}; dialling again", self.to);
            client = match self.redial(since + self.redial_for).await {
                Ok(found) => Arc::new(found),
                Err(reason) => break format!("{broke}; {reason}"),
            };
            self.counters.reconnect();
            tracing::info!("connected to {} again after {} ms", self.to, since.elapsed().as_millis());
            self.line.send_replace(Line::Up(Arc::clone(&client)));
            outage = Some(Outage { since, pause });
        };
        tracing::warn!("{} is lost: {lost}", self.to);
        self.line.send_replace(Line::Lost(lost));
    }

    async fn redial(&self, deadline: Instant) -> Result<Client, String> {
        let Self { transport, address, identity, to, life, .. } = self;
        let patience = Patience { deadline, ..Patience::of(self.redial_for) };
        let dialled = dial_counted(&**transport, address, identity, *to, patience, &self.counters).await;
        let seconds = self.redial_for.as_secs_f32();
        match dialled {
            Ok(client) if client.welcome().incarnation == *life => Ok(client),
            Ok(client) => {
                let found = client.welcome().incarnation;
                Err(format!("{to} was started again: incarnation {life} was called, and {found} answers"))
            }
            Err(DialError::Missing { reason, .. }) => {
                Err(format!("dialled again for {seconds} s without success: {reason}"))
            }
            Err(error) => Err(format!("dialled again: {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
