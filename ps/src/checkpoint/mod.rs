//! A shard's part of a checkpoint: writes cuts, and reads the values that a shard begins with, on a thread of
//! its own, so that neither training nor the network waits for files. It decides neither when a save is due
//! nor what a shard does with what was read.

mod read;
#[cfg(test)]
mod tests;
mod thread;
mod write;

pub(crate) use thread::{Checkpoints, FileDone, FileResult};
