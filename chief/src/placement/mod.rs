//! Placement: how variables are split into slices, and which shard owns each slice. The functions are pure:
//! they take variables and shards and return a placement. The wanted properties (A) to (J) are listed in
//! `place.rs`.

mod greedy;
mod in_workers;
mod overflow;
mod partitioner;
mod place;
mod round_robin;
mod stages;
mod table;

#[cfg(test)]
mod tests;

pub use in_workers::{HostedShards, place_in_workers};
pub use place::{PlaceError, place};
pub use stages::place_stages;
pub use table::table;
