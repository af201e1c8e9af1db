//! Memory for tensor bytes: aligned, pooled, and shared without copies. This module does not interpret the
//! bytes.

mod aligned;
mod budget;
mod free_list;
mod payload;
mod pool;
mod promise;
mod segment;

pub use aligned::Buffer;
pub use budget::{Budget, Credit, Share};
pub use payload::Payload;
pub(crate) use payload::payload_layout;
pub use pool::BufferPool;
pub use promise::{BrokenPromise, Promise};
pub use segment::Segment;
