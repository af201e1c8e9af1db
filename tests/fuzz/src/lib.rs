//! What the fuzz targets share with the programs that need no fuzzer: the bodies of targets, valid inputs,
//! and changes of inputs.

#![forbid(unsafe_code)]

#[path = "../../support/anybody.rs"]
mod anybody;
mod authority;
mod changes;
mod chief;
mod cluster;
mod corpus;
mod data;
mod evaluation;
#[path = "../../../messages/tests/fixtures/mod.rs"]
mod fixtures;
mod frame;
mod graph;
mod graphs;
mod http;
mod job;
mod join;
mod limits;
mod manifest;
mod memory_files;
mod message;
pub mod numbers;
mod pem;
mod record;
mod samples;
mod script;
mod seeds;
mod session;
mod shard;
mod target;
mod targets;
mod tensors;
#[cfg(test)]
mod tests;
mod tls;
mod trees;

pub use corpus::{Corpus, Form};
pub use limits::Limits;
pub use seeds::session_graphs;
pub use target::{Class, Target};
pub use targets::check;
