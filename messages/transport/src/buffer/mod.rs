//! Memory for tensor bytes: aligned, pooled, and shared without a copy.
//! Knows nothing of what the bytes mean.

mod aligned;
mod budget;
mod payload;
mod pool;
mod promise;

pub use aligned::Buffer;
pub use budget::{Budget, Credit};
pub(crate) use payload::payload_layout;
pub use payload::{Payload, Segment};
pub use pool::BufferPool;
pub use promise::{BrokenPromise, Promise};
