//! A simulated shard, which the tests of all policies share, and a simulation of several shards.

mod several_shards;
pub(super) mod simulation;
