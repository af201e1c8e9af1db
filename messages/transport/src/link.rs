//! An open link between two tasks: two halves that carry envelopes. Handshakes, and the matching of replies
//! to requests, are built on top.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::future::BoxFuture;

use pushpull_identity::Proven;

use crate::buffer::{Credit, Payload, Share};
use crate::sink::Sink;
use crate::wire::{Envelope, Limits, WireError};

/// Both halves of a link, with the address of its other end.
pub struct Link {
    /// The half that writes.
    pub sender: Box<dyn FrameSender>,
    /// The half that reads.
    pub receiver: Box<dyn FrameReceiver>,
    /// The address of the other end, for logs.
    pub peer: String,
    /// Who the other end has proved to be; `None` if it has proved nothing, because the link stays within a
    /// process or a host, or because the cluster has no join string.
    pub proven: Option<Proven>,
}

/// The half of a link that writes.
pub trait FrameSender: Send {
    /// Writes one envelope, and returns when the transport has taken all of it. If the peer does not read,
    /// the call may never return, so the caller must set a time limit or check by other means that the peer
    /// is alive.
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>>;

    /// Returns the count of the bytes that the transport has taken so far; it grows while an envelope is
    /// sent. `None` if the transport does not count them.
    fn taken(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}

/// An envelope that has been read, at least up to its payload.
pub enum Begun {
    /// The whole envelope.
    Whole(Envelope),
    /// The envelope without its payload, which is large and still to be read with
    /// [`finish`](FrameReceiver::finish).
    Head {
        /// The envelope without its payload.
        envelope: Envelope,
        /// The lengths of the payload's segments in bytes.
        lengths: Vec<u64>,
    },
}

/// The half of a link that reads.
pub trait FrameReceiver: Send {
    /// Reads the next envelope. Returns `None` if the other end has closed the link between two frames.
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>>;

    /// Reads the next envelope as [`receive`](Self::receive) does, but may stop before a large payload.
    fn begin(&mut self) -> BoxFuture<'_, Result<Option<Begun>, WireError>> {
        Box::pin(async { Ok(self.receive().await?.map(Begun::Whole)) })
    }

    /// Reads the payload of the envelope before which [`begin`](Self::begin) has stopped, and puts it into
    /// `sink`. Without a sink, returns the payload; with one, returns [`Payload::TAKEN`]. If this fails or is
    /// cancelled, the link can no longer be used.
    fn finish(&mut self, sink: Option<Box<dyn Sink>>) -> BoxFuture<'_, Result<Payload, WireError>> {
        let _ = sink;
        Box::pin(std::future::ready(Ok(Payload::EMPTY)))
    }

    /// Sets the limits for all frames from now on. Each frame must be within `limits`. A payload or a large
    /// header is read only when `share` has credit for it; until then nothing more is read from the link.
    /// Without a share, no credit is needed. A new link has the limits [`Limits::STRANGER`].
    fn trust(&mut self, limits: Limits, share: Option<Share>);

    /// Hands over the credit for the header of the last envelope; `None` if the header was too small to need
    /// credit. The caller keeps the credit for as long as it keeps the message. The credit for the payload
    /// belongs to the payload.
    fn take_header_credit(&mut self) -> Option<Credit> {
        None
    }
}
