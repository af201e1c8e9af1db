//! The types that pushpull tasks exchange and must therefore agree on: specs, ids, the graph, messages and
//! snapshots. Transport, checkpoint storage, synchronisation and computation are in other crates.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as pushpull_messages; // The fixtures use this name, because other crates share them.

pub mod cadence;
pub mod checkpoint;
pub mod cluster;
pub mod communication;
pub mod compression;
pub mod device;
pub mod distribution;
pub mod excerpt;
#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
mod float;
pub mod gradient;
pub mod graph;
pub mod id;
pub mod input;
pub mod job;
mod job_name;
pub mod message;
pub mod model;
pub mod observe;
pub mod optimizer;
pub mod out_of_range;
pub mod pattern;
pub mod placement;
pub mod summary;
pub mod sync;
pub mod tensor;
pub mod variable;
