//! Placement: which slices the variables are split into, and which shard owns each slice. The functions are
//! pure: they take variables and shards and return a placement. The wanted properties (A) to (G) are listed
//! in the file of `place`.

mod greedy;
mod partitioner;
mod place;
mod round_robin;
mod table;

#[cfg(test)]
mod tests;

pub use place::{PlaceError, place};
pub use table::table;
