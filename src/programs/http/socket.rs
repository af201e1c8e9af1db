//! A connection that the server has accepted: plain, or with HTTPS. It is registered before the handshake, so
//! the bounds on connections also hold for clients that stall in it. This module must not depend on requests.

use std::cell::Cell;
use std::io::{IoSlice, Result};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::dev::Extensions;
use pushpull_identity::{HttpsServer, HttpsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connections::Place;

/// The address of this host at which a connection has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReachedAt(pub(super) IpAddr);

/// A connection, and its registration.
pub(super) struct Socket {
    stream: Stream,
    reached: Option<ReachedAt>,
    place: Cell<Option<Place>>,
}

enum Stream {
    Plain(TcpStream),
    Secured(Box<HttpsStream<TcpStream>>),
}

impl Socket {
    /// Performs the handshake of a new connection, if the server speaks HTTPS. Also returns the address of
    /// the client.
    pub(super) async fn open(
        stream: TcpStream,
        place: Option<Place>,
        https: Option<HttpsServer>,
        limit: Duration,
    ) -> Result<(Self, Option<SocketAddr>)> {
        let client = stream.peer_addr().ok();
        let reached = stream.local_addr().ok().map(|address| ReachedAt(address.ip()));
        let stream = match https {
            Some(https) => {
                let stream = timeout(limit, https.accept(stream)).await??;
                if let Some(place) = &place {
                    place.has_shaken_hands(Instant::now());
                }
                Stream::Secured(Box::new(stream))
            }
            None => Stream::Plain(stream),
        };
        Ok((Self { stream, reached, place: Cell::new(place) }, client))
    }

    /// Passes what is known about the connection on to its requests.
    pub(super) fn tell(&self, extensions: &mut Extensions) {
        self.place.take().map(|place| extensions.insert(place));
        self.reached.map(|reached| extensions.insert(reached));
    }
}

/// Calls a function of the stream, whichever it is.
macro_rules! on {
    ($socket:ident, $call:ident $(, $argument:expr)*) => {
        match &mut $socket.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).$call($($argument),*),
            Stream::Secured(stream) => Pin::new(&mut **stream).$call($($argument),*),
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        on!(self, poll_read, context, to)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        on!(self, poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        on!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        on!(self, poll_shutdown, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        on!(self, poll_write_vectored, context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secured(stream) => stream.is_write_vectored(),
        }
    }
}
