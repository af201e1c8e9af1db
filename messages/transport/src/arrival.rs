//! The time limits on a frame that is being read.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::wire::{Limits, WireError};

/// The longest time without progress while a frame is read. After this time, the peer counts as lost.
const STALL: Duration = Duration::from_secs(30);

/// The number of bytes that a part of a frame may read without a wait, before other tasks of the thread have
/// a turn. A task that another thread has woken would otherwise wait behind a peer that always has bytes.
const TURN_BYTES: u64 = 4 << 20;

/// The progress of one part of a frame that is being read: since when it is awaited, and how much of it has
/// arrived.
pub(crate) struct Arrival {
    /// When the first wait for the part began; `None` while all of it was there already.
    began: Option<Instant>,
    limits: Limits,
    bytes: u64,
    received: u64,
    /// The number of bytes received since other tasks last had a turn.
    turn: u64,
}

impl Arrival {
    /// Begins to count the time and the bytes of a part of `bytes` bytes.
    pub(crate) fn begin(limits: &Limits, bytes: u64) -> Self {
        Self { began: None, limits: *limits, bytes, received: 0, turn: 0 }
    }

    /// Waits for more bytes of the frame. They must arrive within [`STALL`], and before the time limit of the
    /// frame has expired.
    async fn wait(&mut self, read: impl Future<Output = io::Result<usize>>) -> Result<usize, WireError> {
        // What was read before is used by now, while it is in the processor's caches.
        if self.turn >= TURN_BYTES {
            self.turn = 0;
            yield_now().await;
        }
        let mut read = pin!(read);
        // What has arrived already needs no limit.
        if let Poll::Ready(read) = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
            let read = read?;
            self.received += read as u64;
            self.turn += read as u64;
            return Ok(read);
        }
        self.turn = 0;
        let time = self.limits.time_for(self.received);
        let now = Instant::now();
        let (began, stalled) = (*self.began.get_or_insert(now), now + STALL);
        // If the sum overflows, only the limit [`STALL`] applies.
        let late = began.checked_add(time).unwrap_or(stalled);
        match timeout_at(late.min(stalled), read).await {
            Ok(read) => {
                let read = read?;
                self.received += read as u64;
                Ok(read)
            }
            Err(_) if late <= stalled => {
                let Self { bytes, received, .. } = *self;
                Err(WireError::Slow { received, bytes, seconds: time.as_secs() })
            }
            Err(_) => Err(WireError::Stalled(STALL.as_secs())),
        }
    }
}

/// Fills `bytes` from a stream.
///
/// # Errors
/// Returns an error if the stream ends or breaks, or if the bytes arrive too slowly.
pub(crate) async fn read_full(
    stream: &mut (impl AsyncRead + Unpin),
    mut bytes: &mut [u8],
    arrival: &mut Arrival,
) -> Result<(), WireError> {
    while !bytes.is_empty() {
        let read = read_some(stream, bytes, arrival).await?;
        bytes = &mut bytes[read..];
    }
    Ok(())
}

/// Reads from a stream into `bytes`, which must not be empty. Returns the number of bytes read, at least one.
///
/// # Errors
/// As for [`read_full`].
pub(crate) async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut [u8],
    arrival: &mut Arrival,
) -> Result<usize, WireError> {
    match arrival.wait(stream.read(bytes)).await? {
        0 => Err(WireError::Truncated),
        read => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::repeat;

    use super::*;

    /// Reads from a stream that always has bytes, beside another task of the same thread.
    #[tokio::test]
    async fn a_peer_that_always_has_bytes_leaves_turns_to_others() {
        const BYTES: u64 = 11 * TURN_BYTES;
        let others = tokio::spawn(async {
            for _ in 0..8 {
                yield_now().await;
            }
        });
        let mut arrival = Arrival::begin(&Limits::default(), BYTES);
        let mut bytes = vec![0; BYTES as usize];
        // There are so few reads that tokio itself does not end the task's turn.
        for piece in bytes.chunks_mut(512 << 10) {
            read_full(&mut repeat(7), piece, &mut arrival).await.unwrap();
        }
        assert!(others.is_finished(), "it has had eight turns");
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
