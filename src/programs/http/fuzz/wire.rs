//! A connection in memory: the bytes of a client that has sent them all, and those that it gets.

use std::cell::RefCell;
use std::io::Result;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::dev::Extensions;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::socket::ReachedAt;

/// One end of a connection.
pub(super) struct Wire {
    pub sent: Vec<u8>,
    /// The number of bytes that were read.
    pub read: usize,
    /// The number of bytes that arrive at a time.
    pub piece: usize,
    /// Whether the client sends nothing more, and leaves the connection open.
    pub is_silent: bool,
    pub reached: ReachedAt,
    /// What was written.
    pub got: Rc<RefCell<Vec<u8>>>,
}

impl Wire {
    /// Passes what is known about the connection on to its requests.
    pub fn tell(&self, extensions: &mut Extensions) {
        extensions.insert(self.reached);
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let left = self.sent.len() - self.read;
        if left == 0 && self.is_silent {
            // Nothing ever wakes the reader: its time limits have to.
            return Poll::Pending;
        }
        let end = self.read + left.min(self.piece).min(to.remaining());
        to.put_slice(&self.sent[self.read..end]);
        self.read = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.got.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
