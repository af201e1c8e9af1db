//! The simulation that the tests of all policies share, and one of several shards.

mod several_shards;
pub(super) mod simulation;
