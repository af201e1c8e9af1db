//! The body of a response. All clients share its bytes. The bytes are passed to each connection in pieces,
//! and only for a limited time. This module must not depend on the content.
//!
//! Wanted properties: (A) the pieces together are the whole body, in order; (B) a body releases its bytes
//! after [`SENT_WITHIN`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;
use tokio::time::{Sleep, sleep};

/// The time limit for a client to read a response. Without a limit, a client that reads very slowly could
/// keep the bytes in memory for ever. The limit is shorter in tests, because a test waits until the limit
/// has passed.
const SENT_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 10 });
/// The number of bytes that are passed to a connection at a time.
const PIECE: usize = 16 << 10;

/// The bytes that have not been sent yet, and the deadline.
struct Pieces {
    rest: Bytes,
    late: Pin<Box<Sleep>>,
}

/// Answers 200 with these bytes and the content type `kind`.
pub(super) fn shared(kind: &str, bytes: Bytes) -> HttpResponse {
    HttpResponse::Ok().content_type(kind).body(Pieces::new(bytes))
}

impl Pieces {
    fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, late: Box::pin(sleep(SENT_WITHIN)) }
    }
}

impl MessageBody for Pieces {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.rest.len() as u64)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, io::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if self.late.as_mut().poll(context).is_ready() {
            self.rest = Bytes::new();
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        let bytes = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(self.rest.split_to(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::*;

    use super::*;

    async fn next(pieces: &mut Pieces) -> Option<Result<Bytes, io::Error>> {
        poll_fn(|context| Pin::new(&mut *pieces).poll_next(context)).await
    }

    fn timed() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    proptest! {
        /// Checks that the pieces together are the whole body (A).
        #[test]
        fn pieces_are_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..5 * PIECE)) {
            let got = timed().block_on(async {
                let mut pieces = Pieces::new(bytes.clone().into());
                assert_eq!(pieces.size(), BodySize::Sized(bytes.len() as u64));
                let mut got = Vec::new();
                while let Some(piece) = next(&mut pieces).await {
                    let piece = piece.unwrap();
                    assert!((1..=PIECE).contains(&piece.len()));
                    got.extend_from_slice(&piece);
                }
                got
            });
            prop_assert!(got == bytes);
        }

        /// Checks that a body releases its bytes after the time limit (B).
        #[test]
        fn no_bytes_are_held_for_long(taken in 0usize..5) {
            let (piece, rest) = timed().block_on(async {
                let mut pieces = Pieces::new(vec![7; 5 * PIECE].into());
                for _ in 0..taken {
                    next(&mut pieces).await.unwrap().unwrap();
                }
                pieces.late.as_mut().reset(tokio::time::Instant::now());
                pieces.late.as_mut().await;
                (next(&mut pieces).await, pieces.rest.len())
            });
            prop_assert_eq!(piece.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
            prop_assert_eq!(rest, 0);
        }
    }
}
