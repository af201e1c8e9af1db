//! Checkpoints, as far as the chief decides: with which one a job begins, when others are made, and which are kept. It reads
//! manifests and no tensors.

mod begin;
mod choose;
mod cleaner;
mod config;
mod error;
mod evaluations;
mod resume;
mod retention;
mod save;
mod saver;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;
mod warm_start;

pub(crate) use begin::{Begin, Beginning};
pub use config::{CheckpointConfig, DRAIN_TIMEOUT_MAX, KEEP_MAX, RestoreChoice, RestoreChoiceError};
pub use error::{BrokenCheckpoint, RestoreError};
pub(crate) use evaluations::follow;
pub(crate) use saver::{Order, SaveStatus, Saver};
pub use warm_start::WarmStartConfig;
