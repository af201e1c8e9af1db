//! Dials a peer that may not have started yet: tries again with growing pauses, and logs which peer it is
//! waiting for and why.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::future::BoxFuture;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::RefusalCode;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::counters::CallCounters;
use crate::error::{DialError, TransportError};
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

/// Returns the pauses between this task's attempts to dial `to`. Different tasks have different pauses, so
/// that they do not all dial at once.
pub(crate) fn pauses(identity: &Identity, to: TaskId) -> ExponentialBackoff {
    let mut hasher = DefaultHasher::new();
    (identity.task, identity.incarnation, to).hash(&mut hasher);
    dial_pauses(hasher.finish())
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
    Box::pin(async move { dial_counted(transport, address, identity, to, patience, &Arc::default()).await })
}

/// Dials like [`dial`], and counts the calls on the connection in `counters`.
pub(crate) async fn dial_counted(
    transport: &dyn Transport,
    address: &str,
    identity: &Identity,
    to: TaskId,
    patience: Patience,
    counters: &Arc<CallCounters>,
) -> Result<Connection, DialError> {
    let mut pauses = pauses(identity, to);
    let mut log_at = Instant::now() + patience.log_every;
    loop {
        let attempt = async {
            let link = transport.dial(address).await?;
            Connection::open(link, identity, to, Arc::clone(counters)).await
        };
        let attempt = tokio::time::timeout_at(patience.deadline, attempt)
            .await
            .unwrap_or_else(|_| Err(TransportError::io(address, std::io::ErrorKind::TimedOut.into()).into()));
        let reason = match attempt {
            Ok(connection) => return Ok(connection),
            Err(DialError::Refused { refusal, .. }) if refusal.code == RefusalCode::Unavailable => {
                refusal.reason
            }
            Err(DialError::Transport(error)) => error.to_string(),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        if now >= patience.deadline {
            return Err(DialError::Missing { to, address: address.to_owned(), reason });
        }
        if now >= log_at {
            tracing::info!(reason, "waiting for {to} at {address}");
            log_at = now + patience.log_every;
        }
        let pause = pauses.next().expect("the pauses never end");
        tokio::time::sleep(pause.min(patience.deadline - now)).await;
    }
}
