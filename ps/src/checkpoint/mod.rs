//! Writes the cut of a shard (the snapshot of its state for a save) to a file of a checkpoint, and reads the
//! values of a new shard from a checkpoint. A separate thread does this, so that training and the network do
//! not wait for files. The shard's state machine decides when a save is due and how the values are used.

mod read;
#[cfg(test)]
mod tests;
mod thread;
mod write;

pub(crate) use thread::{Checkpoints, FileDone, FileResult};
