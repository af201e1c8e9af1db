//! Detects that the peer of a connection has died. Each end sends a heartbeat after a second of silence, and
//! a peer that is silent for much longer counts as lost.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::buffer::Payload;
use crate::wire::Envelope;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::Heartbeat;

/// The time after which a heartbeat is sent if no other message was sent to the peer.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// The default time of silence after which a peer counts as lost.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(20);
/// The lowest limit that a user may set on a peer's time of silence. With a lower limit, a peer on a busy
/// machine could count as lost only because its heartbeats are late.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(3);

const _: () = assert!(LOST_AFTER_MIN.as_millis() >= 3 * HEARTBEAT.as_millis());

/// Waits for the next item to send. Returns an item of the queue as `Ok`, or, after a second without an
/// item, a heartbeat as `Err`. Returns `None` when the queue is closed.
pub(super) async fn next<T>(queue: &mut mpsc::Receiver<T>) -> Option<Result<T, Envelope>> {
    match timeout(HEARTBEAT, queue.recv()).await {
        Ok(next) => next.map(Ok),
        Err(_) => Some(Err(heartbeat())),
    }
}

/// Returns a heartbeat.
pub(super) fn heartbeat() -> Envelope {
    Envelope { request: RequestId(0), message: Heartbeat {}.into(), payload: Payload::EMPTY }
}
