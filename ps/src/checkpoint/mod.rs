//! A shard's part of a checkpoint: writes what it hands out, and reads what it begins with, on a thread of its own, so that
//! neither training nor the network waits for files. When a save is due, and what a shard makes of what was read, is not
//! decided here.

mod read;
#[cfg(test)]
mod tests;
mod thread;
mod write;

pub(crate) use thread::{Checkpoints, Done, Outcome};
