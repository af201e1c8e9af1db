//! The reasons why a device cannot compute. Knows no graph.

use actix::MailboxError;
use pushpull_engine::{CompileError, StepError};
use pushpull_messages::device::Device;

/// The reason why a replica cannot compute.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A batch does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A node requests a device that its clone of the graph does not run on.
    #[error(
        "{node} requests {asked}, but runs on every device of this worker, including {device}: request a kind of \
         device that all of them are, or allow soft placement"
    )]
    Device {
        /// The node.
        node: String,
        /// The device that it requests.
        asked: String,
        /// The device that it would run on.
        device: Device,
    },
    /// A batch has fewer examples than the worker has devices.
    #[error(
        "a batch of {examples} examples cannot be split among {devices} devices: use fewer devices, or a larger batch"
    )]
    Share {
        /// The examples in a batch.
        examples: usize,
        /// The devices of this worker.
        devices: usize,
    },
    /// The operating system refused to start threads.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// The number of threads requested.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
}

/// An error of a device while it computes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// The replica could not compute.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The device's mailbox is closed, which happens only if its thread panicked.
    #[error(transparent)]
    Panicked(#[from] MailboxError),
}
