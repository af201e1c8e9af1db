//! The chief's part in checkpoints: chooses the checkpoint that a job begins with, makes new ones, and
//! deletes old ones. The chief reads manifests, and never reads tensors.

mod checkpoint_writer;
mod cleaner;
mod config;
mod drain;
mod error;
mod evaluations;
mod newest;
mod resume;
mod retention;
mod saver;
mod saver_commands;
mod schedule;
mod search;
mod shard_initializer;
#[cfg(test)]
pub(crate) mod tests;
mod warm_start;

pub use config::{
    CheckpointConfig, DRAIN_TIMEOUT_MAX, KEEP_MAX, LAST_SAVE_TIMEOUT_MAX, MemoryCheckpointConfig,
    MemoryCheckpointError, RestoreChoice, RestoreChoiceError,
};
pub(crate) use drain::DrainShares;
pub use error::{BrokenCheckpoint, RestoreError};
pub(crate) use evaluations::follow;
pub(crate) use newest::newest;
pub(crate) use saver::{SaveStatus, Saver, SaverCommand, StartingPoint};
pub(crate) use saver_commands::SaverCommands;
pub(crate) use shard_initializer::{InitialState, ShardInitializer};
pub use warm_start::WarmStartConfig;
