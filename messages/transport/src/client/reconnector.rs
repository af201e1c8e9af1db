//! Keeps a client connected: when the connection breaks, dials again for a bounded time. The client itself
//! sends the requests again.

use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use pushpull_messages::id::{Incarnation, TaskId};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::connection::Connection;
use crate::counters::CallCounters;
use crate::dial::{Patience, dial_counted, pauses};
use crate::error::DialError;
use crate::handshake::Identity;
use crate::transport::Transport;

/// The minimum pause before dialling again if no call was waiting when the connection broke. Such a break
/// usually means that the job has ended. The pause gives the owner time to drop the client.
const IDLE_PAUSE: Duration = Duration::from_millis(100);

/// The state of a client's connection.
#[derive(Clone, Debug)]
pub(super) enum State {
    Connected(Arc<Connection>),
    /// The peer is being dialled.
    Reconnecting,
    /// The peer is lost for good, for this reason.
    Lost(String),
}

/// The state of the background task that keeps a client connected.
pub(super) struct Reconnector {
    pub transport: Arc<dyn Transport>,
    pub address: String,
    pub identity: Identity,
    pub to: TaskId,
    /// The incarnation and the nonce that the peer sent in the first handshake. If the peer sends different
    /// ones in a later handshake, it has restarted and counts as lost.
    pub life: (Incarnation, u64),
    pub redial_for: Duration,
    pub state: watch::Sender<State>,
    pub counters: Arc<CallCounters>,
}

/// A time without a working connection. It begins with the first break, and ends when the peer sends
/// something after a handshake. A new connection that breaks before then does not end the outage.
struct Outage {
    since: Instant,
    pauses: ExponentialBackoff,
}

impl Reconnector {
    /// Reconnects whenever the connection breaks, until the peer is lost for good.
    pub(super) async fn run(self, mut connection: Arc<Connection>) {
        let mut outage: Option<Outage> = None;
        let lost = loop {
            let broke = connection.wait_lost().await;
            self.state.send_replace(State::Reconnecting);
            let (current, pause) = match outage.take() {
                Some(mut outage) if !connection.was_heard() => {
                    let pause = outage.pauses.next().expect("the pauses never end");
                    (outage, pause)
                }
                _ => {
                    let pauses = pauses(self.caller(), &self.address);
                    (Outage { since: Instant::now(), pauses }, Duration::ZERO)
                }
            };
            tokio::time::sleep(if connection.was_missed() { pause } else { pause.max(IDLE_PAUSE) }).await;
            drop(connection);
            tracing::warn!(reason = broke, "the connection to {} broke; dialling again", self.to);
            let since = current.since;
            connection = match self.redial(since + self.redial_for).await {
                Ok(found) => Arc::new(found),
                Err(reason) => break format!("{broke}; {reason}"),
            };
            self.counters.reconnect();
            let after_ms = since.elapsed().as_millis() as u64;
            tracing::info!(after_ms, "reconnected to {}", self.to);
            self.state.send_replace(State::Connected(Arc::clone(&connection)));
            outage = Some(current);
        };
        tracing::warn!(reason = lost, "lost {}", self.to);
        self.state.send_replace(State::Lost(lost));
    }

    const fn caller(&self) -> Caller<'_> {
        Caller::Member { identity: &self.identity, to: self.to }
    }

    async fn redial(&self, deadline: Instant) -> Result<Connection, String> {
        let Self { transport, address, to, life, .. } = self;
        let patience = Patience { deadline, ..Patience::of(self.redial_for) };
        let dialled = dial_counted(&**transport, address, self.caller(), patience, &self.counters).await;
        let seconds = self.redial_for.as_secs_f32();
        match dialled {
            Ok(connection) => {
                let welcome = connection.welcome();
                let ((life, nonce), found) = (*life, welcome.incarnation);
                match (found == life, welcome.nonce == nonce) {
                    (true, true) => Ok(connection),
                    (true, false) => Err(format!("{to} has restarted with the same incarnation {life}")),
                    _ => Err(format!(
                        "{to} has restarted: expected incarnation {life}, but incarnation {found} answered"
                    )),
                }
            }
            Err(DialError::Missing { reason, .. }) => {
                Err(format!("dialled again for {seconds} s without success: {reason}"))
            }
            Err(error) => Err(format!("dialled again: {error}")),
        }
    }
}
