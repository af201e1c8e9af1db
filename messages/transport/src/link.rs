//! An open link between two tasks: two halves that carry envelopes. Handshakes, and the matching of replies
//! to requests, are built on top.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::future::BoxFuture;

use crate::buffer::Budget;
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
    /// this may never return, so the caller must set a time limit or check by other means that the peer is
    /// alive.
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

    /// Sets the limits for all frames from now on. A frame must be within `limits`. A payload is read only
    /// when `budget` has credit for it; until then nothing more is read from the link. A new link has the
    /// limits [`Limits::STRANGER`].
    fn trust(&mut self, limits: Limits, budget: Option<Budget>);
}
