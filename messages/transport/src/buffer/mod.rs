//! Memory for tensor bytes: aligned, pooled, and shared without copies. This module does not interpret the
//! bytes.

mod aligned;
mod budget;
mod countdown;
mod free_list;
mod line;
mod parts;
mod payload;
mod pool;
mod promise;
#[cfg(target_os = "linux")]
mod ranges;
mod segment;
#[cfg_attr(not(target_os = "linux"), path = "own_memory.rs")]
mod shared_memory;
#[cfg(test)]
mod wakes;

pub use aligned::Buffer;
pub use budget::{Budget, Credit, Share};
pub use parts::{Part, Parts};
pub use payload::Payload;
pub(crate) use payload::payload_layout;
pub use pool::BufferPool;
pub(crate) use pool::SHARED_BYTES_MIN;
pub use promise::{BrokenPromise, Promise};
pub use segment::Segment;
pub(crate) use shared_memory::{Arena, Region};
