//! A shard's part of a checkpoint: writes a shard's cut (the snapshot of its state for a save), and reads the
//! values that a shard begins with. A separate thread does this, so that neither training nor the network
//! waits for files. When a save is due, and what a shard does with what was read, is decided elsewhere.

mod read;
#[cfg(test)]
mod tests;
mod thread;
mod write;

pub(crate) use thread::{Checkpoints, FileDone, FileResult};
