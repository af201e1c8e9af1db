//! The trait of sinks. A sink takes the payload of a request while it arrives, so that the service can work
//! on the bytes while they are in the processor's caches, and need not keep them.

use crate::buffer::Credit;

/// Takes the segments of one payload, in order. If the payload does not arrive, the sink is dropped.
pub trait Sink: Send {
    /// Returns memory for the next bytes of the current segment. It has at least one byte and at most the
    /// bytes that the segment lacks. Is not called after the last segment.
    fn space(&mut self) -> &mut [u8];

    /// Takes the first `bytes` bytes of the memory that [`space`](Self::space) has returned.
    fn filled(&mut self, bytes: usize);

    /// Learns that all segments have arrived. The service is called next.
    fn finish(self: Box<Self>);

    /// Keeps the credit for the payload for as long as the service keeps what it has made of the payload.
    fn hold(&mut self, credit: Credit);
}
