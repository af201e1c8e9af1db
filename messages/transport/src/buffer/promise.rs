//! A promise of a buffer that is still being written while its frame is already being sent. The writer keeps
//! the promise by handing over the buffer, and the frame's sender waits until then.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pushpull_messages::observe;
use tokio::sync::Notify;

use super::aligned::Buffer;

/// The writer's end of a promise. The writer keeps the promise with [`keep`](Self::keep). If the writer
/// drops this value instead, the promise is broken, and every caller that waits for the buffer gets
/// [`BrokenPromise`].
#[derive(Debug)]
pub struct Promise {
    promised: Promised,
    bytes: usize,
}

/// The receiving end of a promise. It gives access to the buffer once the promise is kept.
#[derive(Clone, Debug)]
pub(super) struct Promised(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    /// Empty until the promise is kept or broken.
    outcome: OnceLock<Result<Kept, BrokenPromise>>,
    /// Notified when the promise is kept or broken. Each promise has its own, because a thread that is woken
    /// takes the processor from the one that computes the next gradients.
    settled: Notify,
}

/// A buffer that was promised, and when it was handed over.
#[derive(Debug)]
struct Kept {
    buffer: Arc<Buffer>,
    at: Instant,
}

/// The error for a promised buffer that will never be handed over, because its writer has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part of the payload was never written, because its writer failed")]
pub struct BrokenPromise;

impl Promise {
    /// Returns a promise of a buffer of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let slot = Slot { outcome: OnceLock::new(), settled: Notify::new() };
        Self { promised: Promised(Arc::new(slot)), bytes }
    }

    /// Returns the size of the promised buffer in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the receiving end of this promise.
    pub(super) fn promised(&self) -> Promised {
        self.promised.clone()
    }

    /// Hands over the buffer.
    ///
    /// # Panics
    /// If the buffer does not have the promised size.
    pub fn keep(self, buffer: impl Into<Arc<Buffer>>) {
        let buffer = buffer.into();
        assert_eq!(buffer.len(), self.bytes, "the buffer must have the promised size");
        let kept = Kept { buffer, at: observe::now() };
        let _ = self.promised.0.outcome.set(Ok(kept));
    }
}

/// Breaks the promise, unless it is kept, and wakes all that wait.
impl Drop for Promise {
    fn drop(&mut self) {
        let Promised(slot) = &self.promised;
        let _ = slot.outcome.set(Err(BrokenPromise));
        slot.settled.notify_waiters();
    }
}

impl Promised {
    /// Returns the buffer, if the promise has been kept.
    pub(super) fn get(&self) -> Option<&Arc<Buffer>> {
        self.kept_outcome().map(|kept| &kept.buffer)
    }

    /// Returns whether both belong to the same promise.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns when the promise was kept; `None` if it is not kept.
    pub(super) fn kept_at(&self) -> Option<Instant> {
        self.kept_outcome().map(|kept| kept.at)
    }

    fn kept_outcome(&self) -> Option<&Kept> {
        self.0.outcome.get()?.as_ref().ok()
    }

    /// Waits until the promise is kept or broken.
    pub(super) async fn kept(&self) -> Result<(), BrokenPromise> {
        loop {
            // Requested before the slot is checked, so that no notification is missed.
            let settled = self.0.settled.notified();
            match self.0.outcome.get() {
                Some(Ok(_)) => return Ok(()),
                Some(Err(broken)) => return Err(*broken),
                None => settled.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::buffer::Payload;
    use crate::buffer::wakes::Wakes;

    #[tokio::test]
    async fn a_payload_is_ready_when_all_its_promises_are_kept() {
        let [first, second] = [128, 64].map(Promise::new);
        let segments = vec![first.segment(0, 4), first.segment(64, 64), second.segment(0, 64)];
        let payload = Payload::new(segments);
        assert_eq!(payload.bytes(), 132);
        let mut buffer = Buffer::zeroed(128);
        buffer.as_f32_mut()[16] = 7.0;
        first.keep(buffer);
        payload.segments()[1].ready().await.unwrap();
        assert_eq!(payload.segments()[1].as_f32()[0], 7.0);
        let waits = tokio::time::timeout(Duration::from_millis(1), payload.ready()).await;
        assert!(waits.is_err(), "the second promise is not kept yet");
        let (ready, ()) = tokio::join!(payload.ready(), async { second.keep(Buffer::zeroed(64)) });
        ready.unwrap();
    }

    #[test]
    fn a_payload_wakes_its_reader_once() {
        let promises = [8, 8, 8].map(Promise::new);
        let payload = Payload::new(promises.iter().map(|promise| promise.segment(0, 8)).collect());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut ready = pin!(payload.ready());
        assert!(ready.as_mut().poll(&mut context).is_pending());
        for (promise, expected) in promises.into_iter().zip([0, 0, 1]) {
            promise.keep(Buffer::zeroed(8));
            assert_eq!(wakes.count(), expected);
        }
        assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    }

    #[tokio::test]
    async fn a_broken_promise_breaks_no_other() {
        let [first, second] = [8, 8].map(Promise::new);
        let segments = [&first, &second].map(|promise| promise.segment(0, 8));
        drop(first);
        second.keep(Buffer::zeroed(8));
        assert_eq!(segments[0].ready().await, Err(BrokenPromise));
        assert!(!segments[0].is_ready() && segments[1].is_ready());
        segments[1].ready().await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_promise_is_broken() {
        let promise = Promise::new(8);
        let segment = promise.segment(0, 8);
        let (ready, ()) = tokio::join!(segment.ready(), async { drop(promise) });
        assert_eq!(ready, Err(BrokenPromise));
        assert_eq!(segment.ready().await, Err(BrokenPromise));
    }
}
