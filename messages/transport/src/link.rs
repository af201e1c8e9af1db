//! An open link between two tasks: two halves that carry envelopes. Knows neither handshakes nor requests.

use futures_util::future::BoxFuture;

use crate::buffer::Budget;
use crate::wire::{Envelope, Limits, WireError};

/// Both halves of a link, with the address of its other end.
pub struct Link {
    /// The half that writes.
    pub sender: Box<dyn FrameSender>,
    /// The half that reads.
    pub receiver: Box<dyn FrameReceiver>,
    /// The other end's address, for logs.
    pub peer: String,
}

/// The half of a link that writes.
pub trait FrameSender: Send {
    /// Writes one envelope, and returns when the transport has taken all of it. This may take for ever if the
    /// peer does not read: the caller must have a time limit, or know otherwise that the peer is alive.
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>>;
}

/// The half of a link that reads.
pub trait FrameReceiver: Send {
    /// Reads the next envelope; `None` when the other end has closed the link between two frames.
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>>;

    /// Sets what is accepted from now on: frames within `limits`, and payloads once `budget` has room for
    /// them; until then no more is read. A new link accepts only [`Limits::STRANGER`].
    fn trust(&mut self, limits: Limits, budget: Option<Budget>);
}
