//! What every transport offers: listen, dial, and two halves of a connection that carry envelopes.

use std::io;

use futures_util::future::BoxFuture;

use crate::buffer::Budget;
use crate::wire::{Envelope, Limits, WireError};

/// A way for envelopes to travel between tasks. Addresses are `host:port`, whatever the transport makes of them.
pub trait Transport: Send + Sync + 'static {
    /// Starts to listen.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>>;

    /// Whether a frame may be on its way before all of its payload is there. Where it may not, a promise gains nothing.
    fn streams(&self) -> bool;

    /// Opens a connection. The first frame is the caller's.
    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Connection, TransportError>>;
}

/// Takes connections as they come.
pub trait Listener: Send {
    /// The next one.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>>;

    /// Where it listens; with the port that was given to it, if it asked for any.
    fn address(&self) -> String;
}

/// Both halves, and who is at the other end as far as the transport can tell.
pub struct Connection {
    /// Writes.
    pub sender: Box<dyn FrameSender>,
    /// Reads.
    pub receiver: Box<dyn FrameReceiver>,
    /// For logs: the other end's address.
    pub peer: String,
}

/// The half that writes.
pub trait FrameSender: Send {
    /// Writes one envelope; returns when the transport has taken all of it. That may take for ever where the peer
    /// does not read: whoever calls has a limit of its own, or knows otherwise that the peer is there.
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>>;
}

/// The half that reads.
pub trait FrameReceiver: Send {
    /// The next envelope; `None` when the other end has closed between two frames.
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>>;

    /// What it takes from now on: frames within `limits`, and payloads as far as `budget` has room for them; until
    /// then nothing more is read. A new connection takes only [`Limits::STRANGER`].
    fn trust(&mut self, limits: Limits, budget: Option<Budget>);
}

/// Why a transport could not listen or dial.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Somebody else listens there.
    #[error("address {address} is already in use")]
    InUse {
        /// That address.
        address: String,
    },
    /// The operating system's word.
    #[error("{address}: {source}")]
    Io {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
}

impl TransportError {
    pub(super) fn io(address: &str, source: io::Error) -> Self {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            _ => Self::Io { address, source },
        }
    }
}
