//! Links over TLS: both ends have proved who they are.

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_identity::IdentityError;
use tokio::io::{AsyncRead, ReadBuf};

use crate::buffer::Share;
use crate::link::{FrameReceiver, FrameSender, Link};
use crate::wire::{Envelope, Limits, WireError};

/// The half of a TLS stream that reads. An end that is closed without a farewell counts as closed: tasks
/// close their sockets like that, and a frame that is cut is noticed by its length.
pub(crate) struct SecureRead<R>(pub R);

impl<R: AsyncRead + Unpin> AsyncRead for SecureRead<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Err(error) = ready!(Pin::new(&mut self.0).poll_read(context, buffer)) else {
            return Poll::Ready(Ok(()));
        };
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(match IdentityError::from(error) {
            IdentityError::Io(error) => error,
            identity => io::Error::other(identity),
        }))
    }
}

/// A link that is over before it has begun: its other end has proved nothing, wanted only a certificate, or
/// was one too many.
struct Over(Option<WireError>);

/// Returns a link from which only `error` can be received or, without an error, nothing.
pub(crate) fn over(peer: String, error: Option<WireError>) -> Link {
    Link { sender: Box::new(Over(None)), receiver: Box::new(Over(error)), peer, proven: None }
}

impl FrameReceiver for Over {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        std::future::ready(self.0.take().map_or(Ok(None), Err)).boxed()
    }

    fn trust(&mut self, _: Limits, _: Option<Share>) {}
}

impl FrameSender for Over {
    fn send(&mut self, _: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        std::future::ready(Err(io::Error::from(io::ErrorKind::NotConnected).into())).boxed()
    }
}
