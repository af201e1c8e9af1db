//! Placement: which slices the variables are split into, and which shard owns each slice. Pure functions from
//! variables and shards to a placement; they know no connection, no clock and no tensor. The wanted
//! properties (A) to (G) are beside `place`.

mod greedy;
mod partitioner;
mod place;
mod round_robin;
mod table;

#[cfg(test)]
mod tests;

pub use place::{PlaceError, place};
pub use table::table;
