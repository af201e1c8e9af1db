//! Reads the bytes of an object in pieces, which are requested ahead of their use. This module must not
//! depend on the addresses of objects.
//!
//! Wanted properties: (A) the bytes are those of the object, in order, without gaps; (B) besides the piece
//! that is being read, at most [`PIECES_AHEAD_MAX`] pieces are requested or have arrived; (C) a piece is
//! requested at most [`ATTEMPTS_MAX`] times, and the error of the last attempt names the range of bytes.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, Read};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pushpull_storage::StoreError;
use tokio::runtime::Handle;

/// The number of bytes of the first piece, which suffices for the header of any format.
const FIRST_BYTES: u64 = 1 << 16;
/// The number of bytes of each further piece. Larger pieces hide the latency of a store better, but take more
/// memory.
const PIECE_BYTES: u64 = 2 << 20;
/// The maximum number of pieces that are requested or have arrived, besides the piece that is being read.
const PIECES_AHEAD_MAX: usize = 3;
/// The maximum number of attempts to read a piece. The clients of stores also repeat requests of their own
/// accord, but not if a reply ends too early.
const ATTEMPTS_MAX: u32 = 3;
/// The pause before the second attempt; it doubles before each further attempt.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// A function that requests a range of an object's bytes.
pub(super) type Fetch =
    Arc<dyn Fn(Range<u64>) -> Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>> + Send + Sync>;

/// A reader of an object's bytes.
pub(crate) struct Pieces {
    runtime: Handle,
    fetch: Fetch,
    /// The number of bytes of the object.
    size: u64,
    sizes: PieceSizes,
    /// The offset in the object at which the last requested piece ends.
    requested: u64,
    /// The pieces that were requested and not read yet, in order.
    ahead: VecDeque<Receiver<io::Result<Bytes>>>,
    /// The rest of the piece that is being read.
    piece: Bytes,
}

/// The sizes of pieces in bytes, and the pause before the second attempt.
#[derive(Clone, Copy)]
struct PieceSizes {
    first: u64,
    further: u64,
    pause: Duration,
}

impl Pieces {
    /// Creates a reader of an object of `size` bytes. Nothing is requested before the first read.
    pub(super) fn new(runtime: Handle, fetch: Fetch, size: u64) -> Self {
        Self::with(
            runtime,
            fetch,
            size,
            PieceSizes { first: FIRST_BYTES, further: PIECE_BYTES, pause: PAUSE },
        )
    }

    fn with(runtime: Handle, fetch: Fetch, size: u64, sizes: PieceSizes) -> Self {
        let (ahead, piece) = (VecDeque::with_capacity(PIECES_AHEAD_MAX), Bytes::new());
        Self { runtime, fetch, size, sizes, requested: 0, ahead, piece }
    }

    /// Requests pieces ahead of their use. The first call requests only the first piece, because the caller
    /// may need nothing but the header.
    fn request(&mut self) {
        let most = if self.requested == 0 { 1 } else { PIECES_AHEAD_MAX };
        while self.ahead.len() < most && self.requested < self.size {
            let bytes = if self.requested == 0 { self.sizes.first } else { self.sizes.further };
            let range = self.requested..self.size.min(self.requested + bytes);
            self.requested = range.end;
            let (fetch, pause) = (Arc::clone(&self.fetch), self.sizes.pause);
            let (sender, receiver) = sync_channel(1);
            self.runtime.spawn(async move {
                // If the reader was dropped, the piece is not needed any more.
                let _ = sender.send(attempt(&fetch, range, pause).await);
            });
            self.ahead.push_back(receiver);
        }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !buffer.is_empty() {
            self.request();
            let Some(next) = self.ahead.pop_front() else { return Ok(0) };
            let piece = next.recv().map_err(|_| io::Error::other("a request to a store panicked"));
            match piece.flatten() {
                Ok(piece) => self.piece = piece,
                Err(error) => {
                    // The later pieces are dropped: without the failed piece, the bytes would have a gap.
                    self.ahead.clear();
                    self.requested = self.size;
                    return Err(error);
                }
            }
        }
        let got = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..got]);
        Ok(got)
    }
}

/// Reads a piece, and repeats the request if the store fails. If the object is missing or too short, returns
/// an error without another attempt.
pub(super) async fn attempt(fetch: &Fetch, range: Range<u64>, pause: Duration) -> io::Result<Bytes> {
    let Range { start, end } = range;
    let mut attempts = 1;
    loop {
        match fetch(start..end).await {
            Ok(bytes) => return Ok(bytes),
            Err(error @ StoreError::Failed { .. }) if attempts < ATTEMPTS_MAX => {
                tracing::debug!(%error, attempts, start, end, "could not read a piece; trying again");
                tokio::time::sleep(pause * (1 << (attempts - 1))).await;
                attempts += 1;
            }
            Err(error) => {
                return Err(io::Error::other(format!("bytes {start} to {end}, attempt {attempts}: {error}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::super::runtime::handle;
    use super::*;

    const SIZES: PieceSizes = PieceSizes { first: 5, further: 16, pause: Duration::ZERO };

    fn failed() -> StoreError {
        let text = || "x".to_owned();
        StoreError::Failed { verb: "read", name: text(), location: text(), reason: text() }
    }

    proptest! {
        /// Checks that the bytes are read in order (A), that few pieces are requested ahead (B), and that
        /// the attempts are limited (C). The store fails some requests, and the caller reads a different
        /// number of bytes each time.
        #[test]
        fn an_object_is_read_as_it_is(
            object in prop::collection::vec(any::<u8>(), 0..200),
            reads in prop::collection::vec(1usize..40, 1..60),
            failures in prop::collection::vec(0u32..4, 20),
        ) {
            // For each piece, the number of attempts; the end of the greatest range that was requested.
            let seen: Arc<Mutex<(BTreeMap<u64, u32>, u64)>> = Arc::default();
            let (bytes, shared, fails) = (Bytes::from(object.clone()), Arc::clone(&seen), failures.clone());
            let fetch: Fetch = Arc::new(move |range: Range<u64>| {
                let mut seen = shared.lock().unwrap();
                seen.1 = seen.1.max(range.end);
                let attempts = seen.0.entry(range.start).or_default();
                *attempts += 1;
                let piece = range.start.div_ceil(SIZES.further) as usize;
                let fail = *attempts <= fails[piece];
                let bytes = bytes.slice(range.start as usize..range.end as usize);
                Box::pin(async move { if fail { Err(failed()) } else { Ok(bytes) } })
            });
            let mut pieces = Pieces::with(handle().unwrap(), fetch, object.len() as u64, SIZES);
            let (mut all, mut broken) = (Vec::new(), None);
            for bytes in reads {
                let mut buffer = vec![0; bytes];
                match pieces.read(&mut buffer) {
                    Ok(got) => all.extend_from_slice(&buffer[..got]),
                    Err(error) => {
                        broken = Some(error.to_string());
                        break;
                    }
                }
                let ahead = (PIECES_AHEAD_MAX as u64 + 1) * SIZES.further;
                prop_assert!(seen.lock().unwrap().1 <= all.len() as u64 + ahead, "(B)");
                prop_assert!(pieces.ahead.len() <= PIECES_AHEAD_MAX, "(B)");
            }
            prop_assert_eq!(&all[..], &object[..all.len()], "(A)");
            let seen = seen.lock().unwrap();
            prop_assert!(seen.0.values().all(|&attempts| attempts <= ATTEMPTS_MAX), "(C)");
            if let Some(broken) = broken {
                let words = format!("bytes {} to ", all.len());
                prop_assert!(broken.starts_with(&words) && broken.contains("attempt 3: cannot read x"), "(C) {}", broken);
                prop_assert!(failures.contains(&3), "(C)");
            }
        }
    }

    #[test]
    fn a_header_takes_one_small_request() {
        let ranges: Arc<Mutex<Vec<Range<u64>>>> = Arc::default();
        let asked = Arc::clone(&ranges);
        let fetch: Fetch = Arc::new(move |range: Range<u64>| {
            asked.lock().unwrap().push(range.clone());
            Box::pin(async move { Ok(vec![7; (range.end - range.start) as usize].into()) })
        });
        let mut pieces = Pieces::new(handle().unwrap(), fetch, 1 << 30);
        assert!(ranges.lock().unwrap().is_empty(), "opening requests nothing");
        pieces.read_exact(&mut [0; 4]).unwrap();
        let mut ranges = ranges.lock().unwrap();
        assert_eq!((ranges.pop(), ranges.len()), (Some(0..FIRST_BYTES), 0));
    }

    #[test]
    fn a_shorter_object_is_an_error_at_once() {
        let fetch: Fetch = Arc::new(|range: Range<u64>| {
            let (name, location) = ("a".to_owned(), "s3://b".to_owned());
            Box::pin(async move { Err(StoreError::Cut { name, location, bytes: 3, end: range.end }) })
        });
        let mut pieces = Pieces::with(handle().unwrap(), fetch, 4, SIZES);
        let error = pieces.read(&mut [0; 4]).unwrap_err().to_string();
        assert_eq!(error, "bytes 0 to 4, attempt 1: a in s3://b has 3 bytes, expected at least 4");
    }
}
