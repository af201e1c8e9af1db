//! How a connection knows that its peer is alive: both ends send at least this often, and a silent one is
//! lost.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::buffer::Payload;
use crate::wire::Envelope;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::Heartbeat;

/// The time without a message after which a heartbeat is sent.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// The default time of silence after which a peer counts as lost.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(20);
/// The shortest time of silence after which a peer may count as lost: a busy machine must not look like a
/// dead one.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(3);

const _: () = assert!(LOST_AFTER_MIN.as_millis() >= 3 * HEARTBEAT.as_millis());

/// Waits for what to send next: an item of the queue, or a heartbeat as `Err`. `None` when the queue is
/// closed.
pub(super) async fn next<T>(queue: &mut mpsc::Receiver<T>) -> Option<Result<T, Envelope>> {
    match timeout(HEARTBEAT, queue.recv()).await {
        Ok(next) => next.map(Ok),
        Err(_) => Some(Err(Envelope {
            request: RequestId(0),
            message: Heartbeat {}.into(),
            payload: Payload::EMPTY,
        })),
    }
}
