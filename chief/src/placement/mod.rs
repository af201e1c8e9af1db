//! Placement: which slices the variables are split into, and which shard owns each. Pure functions.
//! Knows no connection, no clock and no tensor: variables and shards in, a placement out.
//! The wanted properties (A) to (G) stand beside `place`.

mod greedy;
mod partitioner;
mod place;
mod round_robin;
mod table;

#[cfg(test)]
mod tests;

pub use place::{PlaceError, place};
pub use table::table;
