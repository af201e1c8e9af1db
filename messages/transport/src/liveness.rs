//! Detects that the peer of a connection has died. Each end sends a heartbeat after a second of silence, and
//! a peer that is silent for much longer counts as lost.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until};

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

/// The items to send to a peer, with heartbeats between them.
pub(super) struct Lively<'a, T> {
    queue: &'a mut mpsc::Receiver<T>,
    timer: LazyTimer,
}

impl<'a, T> Lively<'a, T> {
    pub(super) fn new(queue: &'a mut mpsc::Receiver<T>) -> Self {
        Self { queue, timer: LazyTimer::default() }
    }

    /// Waits for the next item to send. Returns an item of the queue as `Ok`, or, after a second without an
    /// item, a heartbeat as `Err`. Returns `None` when the queue is closed.
    pub(super) async fn next(&mut self) -> Option<Result<T, Envelope>> {
        match self.timer.limit(HEARTBEAT, self.queue.recv()).await {
            Some(next) => next.map(Ok),
            None => Some(Err(heartbeat())),
        }
    }
}

/// A timer for many short waits, one after another. To set a timer and to remove it takes longer than a wait
/// for a small message, so the timer keeps the time of an earlier wait, and is set again when it expires.
#[derive(Debug, Default)]
pub(super) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Waits for `wait`, for at most `limit`. Returns `None` after this time. The limits of later waits must
    /// not be shorter.
    pub(super) async fn limit<T>(&mut self, limit: Duration, wait: impl Future<Output = T>) -> Option<T> {
        let (mut wait, mut deadline) = (pin!(wait), None);
        let limited = poll_fn(|context| {
            if let Poll::Ready(done) = wait.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
            let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            while timer.as_mut().poll(context).is_ready() {
                if timer.deadline() >= deadline {
                    return Poll::Ready(None);
                }
                timer.as_mut().reset(deadline);
            }
            Poll::Pending
        });
        let done = limited.await;
        if done.is_none() {
            // A timer that has expired must be set again.
            self.0 = None;
        }
        done
    }
}

/// Returns a heartbeat.
pub(super) fn heartbeat() -> Envelope {
    Envelope { request: RequestId(0), message: Heartbeat {}.into(), payload: Payload::EMPTY }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{sleep, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn a_lazy_timer_limits_each_wait() {
        let mut timer = LazyTimer::default();
        for _ in 0..3 {
            // These waits leave the timer set to an earlier time.
            for _ in 0..3 {
                assert_eq!(timer.limit(SHORT, ready(1)).await, Some(1));
                assert_eq!(timer.limit(SHORT, sleep(SHORT / 10)).await, Some(()));
            }
            let began = Instant::now();
            assert_eq!(timer.limit(SHORT, pending::<()>()).await, None);
            assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        }
    }

    #[tokio::test]
    async fn heartbeats_are_sent_between_items() {
        let (sender, mut queue) = mpsc::channel(2);
        let mut lively = Lively::new(&mut queue);
        for item in 0..100 {
            sender.send(item).await.unwrap();
            assert!(matches!(lively.next().await, Some(Ok(got)) if got == item));
        }
        let beat = timeout(5 * HEARTBEAT, lively.next()).await.unwrap();
        assert!(matches!(beat, Some(Err(_))));
        drop(sender);
        assert!(lively.next().await.is_none());
    }
}
