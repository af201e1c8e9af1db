//! A promise of a buffer that is still being written while its frame is already being sent. The writer keeps
//! the promise by handing over the buffer, and the frame's sender waits until then.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::aligned::Buffer;

/// The writer's end of a promise. The writer keeps the promise with [`keep`](Self::keep). If the writer
/// drops this value instead, the promise is broken, and every caller that waits for the buffer gets
/// [`BrokenPromise`].
#[derive(Debug)]
pub struct Promise {
    slot: Arc<OnceLock<Arc<Buffer>>>,
    bytes: usize,
    kept: watch::Sender<()>,
}

/// The receiving end of a promise. It gives access to the buffer once the promise is kept.
#[derive(Clone, Debug)]
pub(super) struct Promised {
    slot: Arc<OnceLock<Arc<Buffer>>>,
    kept: watch::Receiver<()>,
}

/// The error for a promised buffer that will never be handed over, because its writer has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part of the payload was never written, because its writer failed")]
pub struct BrokenPromise;

impl Promise {
    /// Returns a promise of a buffer of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { slot: Arc::default(), bytes, kept: watch::Sender::new(()) }
    }

    /// Returns the size of the promised buffer in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the receiving end of this promise.
    pub(super) fn promised(&self) -> Promised {
        Promised { slot: Arc::clone(&self.slot), kept: self.kept.subscribe() }
    }

    /// Hands over the buffer.
    ///
    /// # Panics
    /// If the buffer does not have the promised size.
    pub fn keep(self, buffer: Buffer) {
        assert_eq!(buffer.len(), self.bytes, "the buffer must have the promised size");
        let _ = self.slot.set(Arc::new(buffer));
        self.kept.send_replace(());
    }
}

impl Promised {
    /// Returns the buffer, if the promise has been kept.
    pub(super) fn get(&self) -> Option<&Arc<Buffer>> {
        self.slot.get()
    }

    /// Waits until the promise is kept or broken.
    pub(super) async fn kept(&self) -> Result<(), BrokenPromise> {
        let mut kept = self.kept.clone();
        while self.slot.get().is_none() {
            // An error says only that the promise was dropped. `keep` drops it too, so the slot must be
            // checked once more.
            if kept.changed().await.is_err() && self.slot.get().is_none() {
                return Err(BrokenPromise);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::buffer::Payload;

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

    #[tokio::test]
    async fn a_dropped_promise_is_broken() {
        let promise = Promise::new(8);
        let segment = promise.segment(0, 8);
        let (ready, ()) = tokio::join!(segment.ready(), async { drop(promise) });
        assert_eq!(ready, Err(BrokenPromise));
        assert_eq!(segment.ready().await, Err(BrokenPromise));
    }
}
