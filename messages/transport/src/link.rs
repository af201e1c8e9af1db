//! An open link between two tasks: two halves that carry envelopes. Handshakes, and the matching of replies
//! to requests, are built on top.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::future::BoxFuture;

use crate::buffer::{Credit, Share};
use crate::wire::{Envelope, Limits, WireError};

/// Both halves of a link, with the address of its other end.
pub struct Link {
    /// The half that writes.
    pub sender: Box<dyn FrameSender>,
    /// The half that reads.
    pub receiver: Box<dyn FrameReceiver>,
    /// The address of the other end, for logs.
    pub peer: String,
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

/// The half of a link that reads.
pub trait FrameReceiver: Send {
    /// Reads the next envelope. Returns `None` if the other end has closed the link between two frames.
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>>;

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
