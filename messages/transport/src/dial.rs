//! Reaching a peer that may not be up yet: try again with growing pauses, and say what is being waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::connection::{Transport, TransportError};
use super::counters::CallCounters;
use super::handshake::Identity;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Refusal, RefusalCode};

/// The first pause between two tries, and the longest.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How long to wait for a peer, and how often to say so.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until then.
    pub deadline: Instant,
    /// Between two lines in the log.
    pub log_every: Duration,
}

impl Patience {
    /// For so long from now on.
    pub fn of(duration: Duration) -> Self {
        Self { deadline: Instant::now() + duration, log_every: Duration::from_secs(3) }
    }
}

/// Why a peer could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// It was not there until the deadline.
    #[error("{to} at {address} did not come up in time: {reason}")]
    Missing {
        /// Who.
        to: TaskId,
        /// Where.
        address: String,
        /// What the last try said.
        reason: String,
    },
    /// It is there, and does not want us.
    #[error("{to} refused this task: {refusal}")]
    Refused {
        /// Who.
        to: TaskId,
        /// Why.
        refusal: Refusal,
    },
    /// One try failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// Dials `to` at `address` until it answers.
///
/// # Errors
/// Where it does not answer in time, or refuses us.
pub async fn dial(
    transport: &dyn Transport,
    address: &str,
    identity: &Identity,
    to: TaskId,
    patience: Patience,
) -> Result<Client, DialError> {
    dial_counted(transport, address, identity, to, patience, &Arc::default()).await
}

/// [`dial`], for one who counts what becomes of the calls.
pub(super) async fn dial_counted(
    transport: &dyn Transport,
    address: &str,
    identity: &Identity,
    to: TaskId,
    patience: Patience,
    counters: &Arc<CallCounters>,
) -> Result<Client, DialError> {
    let (mut pause, longest) = PAUSE;
    let mut log_at = Instant::now() + patience.log_every;
    loop {
        let attempt = async {
            let connection = transport.dial(address).await?;
            Client::handshake(connection, identity, to, Arc::clone(counters)).await
        };
        let attempt = tokio::time::timeout_at(patience.deadline, attempt)
            .await
            .unwrap_or_else(|_| Err(TransportError::io(address, std::io::ErrorKind::TimedOut.into()).into()));
        let reason = match attempt {
            Ok(client) => return Ok(client),
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
            tracing::info!("waiting for {to} at {address}: {reason}");
            log_at = now + patience.log_every;
        }
        tokio::time::sleep(pause.min(patience.deadline - now)).await;
        pause = longest.min(pause * 2);
    }
}
