//! The chief: the task that makes the decisions for the whole job. It carries no tensors and runs no kernels.

#![forbid(unsafe_code)]

pub mod checkpoint;
mod chief;
mod command;
mod config;
mod coordinator;
mod elapsed;
mod error;
mod hook;
pub mod hooks;
mod job;
mod launch;
mod monitor;
pub mod placement;
mod report;
mod status;
pub mod tensorboard;
mod threads;

pub use chief::{BeforeStop, Chief, TrainedJob};
pub use command::Command;
pub use config::{ChiefConfig, RECONNECT_TIMEOUT_MAX};
pub use error::ChiefError;
pub use hook::{Hook, HookContext, MakeHook};
#[cfg(any(test, feature = "fuzz"))]
pub use job::fuzz;
pub use monitor::{TrainingSnapshot, WorkerReport};
pub use report::{JobEnd, JobProgress, JobReport};
pub use status::ChiefView;
