//! The worker: the only code that runs a graph or touches a device.
//! Knows no update rule, no other worker, and makes no checkpoint.

#![forbid(unsafe_code)]

mod alignment;
mod config;
mod device;
mod devices;
mod error;
mod evaluate;
mod evaluator;
mod exchanges;
mod filter;
mod gauge;
mod gradients;
mod hook;
pub mod hooks;
mod journal;
mod layout;
mod life;
mod moments;
mod operations;
mod parameters;
mod plots;
mod preparation;
mod replica;
mod reporter;
mod spans;
mod trace;
mod train;
mod values;
mod view;
mod worker;

pub use config::{DEVICES_MAX, MakeReplica, THREADS_MAX, WorkerConfig};
pub use error::WorkerError;
pub use evaluator::{BestError, BestSpec, Evaluator, EvaluatorConfig, EvaluatorError, EvaluatorView, Goal};
pub use gradients::Gradients;
pub use hook::{Hook, HookError, MakeHook, Start, StepContext, StepInfo};
pub use layout::Layout;
pub use parameters::{Exchange, Parameters};
pub use plots::Plots;
pub use replica::{Complete, Compute, GraphReplica, Replica, ReplicaConfig, ReplicaError};
pub use values::{Values, ValuesError};
pub use view::WorkerView;
pub use worker::Worker;
