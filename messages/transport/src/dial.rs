//! Dials a peer that may not have started yet: tries again with growing pauses, and logs which peer it is
//! waiting for and why.

use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::future::BoxFuture;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::RefusalCode;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::connection::Connection;
use crate::counters::CallCounters;
use crate::error::{DialError, TransportError};
use crate::guest::Guest;
use crate::handshake::Identity;
use crate::retry::dial_pauses;
use crate::transport::Transport;

/// How long to wait for a peer, and how often to log that this task is waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The time at which to stop waiting.
    pub deadline: Instant,
    /// The time between two log lines.
    pub log_every: Duration,
}

impl Patience {
    /// Returns the settings for waiting until `duration` has passed from now, with a log line every 3 s.
    pub fn of(duration: Duration) -> Self {
        Self { deadline: Instant::now() + duration, log_every: Duration::from_secs(3) }
    }
}

/// Returns the pauses between the attempts of `caller` to dial `address`. Different callers have different
/// pauses, so that they do not all dial at once.
pub(crate) fn pauses(caller: Caller<'_>, address: &str) -> ExponentialBackoff {
    dial_pauses(caller.pause_seed(address))
}

/// Dials the task `to` at `address` until the task answers.
///
/// # Errors
/// Returns an error if the task does not answer before the deadline of `patience`, or if it refuses this
/// task.
// The future is boxed, so that its code is compiled only in this crate and not again in each crate that
// awaits it.
pub fn dial<'a>(
    transport: &'a dyn Transport,
    address: &'a str,
    identity: &'a Identity,
    to: TaskId,
    patience: Patience,
) -> BoxFuture<'a, Result<Connection, DialError>> {
    let caller = Caller::Member { identity, to };
    Box::pin(async move { dial_counted(transport, address, caller, patience, &Arc::default()).await })
}

/// Dials the task at `address` as a client program, until a task answers. The returned connection names the
/// task that was reached.
///
/// # Errors
/// Returns an error if no task answers before the deadline of `patience`, or if the task refuses clients.
pub fn dial_as_guest<'a>(
    transport: &'a dyn Transport,
    address: &'a str,
    guest: &'a Guest,
    patience: Patience,
) -> BoxFuture<'a, Result<Connection, DialError>> {
    let caller = Caller::Guest(guest);
    Box::pin(async move { dial_counted(transport, address, caller, patience, &Arc::default()).await })
}

/// Dials like [`dial`] or [`dial_as_guest`], and counts the calls on the connection in `counters`.
pub(crate) async fn dial_counted(
    transport: &dyn Transport,
    address: &str,
    caller: Caller<'_>,
    patience: Patience,
    counters: &Arc<CallCounters>,
) -> Result<Connection, DialError> {
    let mut pauses = pauses(caller, address);
    let mut log_at = Instant::now() + patience.log_every;
    let mut last_reason = None;
    loop {
        let attempt = async {
            let link = transport.dial(address).await?;
            Connection::open(link, caller, Arc::clone(counters)).await
        };
        let Ok(attempt) = tokio::time::timeout_at(patience.deadline, attempt).await else {
            // The last attempt had little time. The reason of the attempt before it says more.
            let late = || TransportError::io(address, std::io::ErrorKind::TimedOut.into()).to_string();
            return Err(caller.missing(address, last_reason.unwrap_or_else(late)));
        };
        let reason = match attempt {
            Ok(connection) => return Ok(connection),
            Err(DialError::Refused { refusal, .. } | DialError::GuestRefused { refusal, .. })
                if refusal.code == RefusalCode::Unavailable =>
            {
                refusal.reason
            }
            // The settings of the two tasks do not fit together, so it is useless to try again.
            Err(error @ DialError::Transport(TransportError::Untrusted { .. })) => return Err(error),
            Err(DialError::Transport(error)) => error.to_string(),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        if now >= patience.deadline {
            return Err(caller.missing(address, reason));
        }
        if now >= log_at {
            tracing::info!(reason, "waiting for {caller} at {address}");
            log_at = now + patience.log_every;
        }
        last_reason = Some(reason);
        let pause = pauses.next().expect("the pauses never end");
        tokio::time::sleep(pause.min(patience.deadline - now)).await;
    }
}
