//! The reasons why a device cannot compute. This module must not depend on graphs.

use actix::MailboxError;
use pushpull_cuda::DriverError;
use pushpull_engine::{CompileError, CudaError, StepError, TooLittleMemory};
use pushpull_messages::device::Device;

use crate::stages::StageError;

/// The reason why a replica cannot compute a step or an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A batch does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A card cannot be used, or has failed.
    #[error(transparent)]
    Card(#[from] DriverError),
    /// A card has too little memory.
    #[error(transparent)]
    Memory(Box<TooLittleMemory>),
    /// The host lacks a card.
    #[error("there is no device cuda:{index}: the NVIDIA driver of this host finds {found} card(s)")]
    MissingCard {
        /// The index of the card.
        index: u32,
        /// The number of cards that there are.
        found: usize,
    },
    /// An operation requests a device that differs from the device of a replica.
    #[error(
        "{node} requests {asked}, which does not match {device}, but each device of this worker runs every operation: \
         request a device that matches all of them, or allow soft placement"
    )]
    Device {
        /// The name of the operation.
        node: String,
        /// The device that the operation requests.
        asked: String,
        /// The device that the operation would run on.
        device: Device,
    },
    /// A batch has fewer examples than the worker has devices.
    #[error(
        "a batch of {examples} examples cannot be split among {devices} devices: use fewer devices, or a larger batch"
    )]
    Share {
        /// The number of examples in a batch.
        examples: usize,
        /// The number of devices of this worker.
        devices: usize,
    },
    /// The job's strategy has one device, but the worker has several.
    #[error(
        "strategy one_device has one device, but this worker has the devices {0}: use --devices 1, or the strategy mirrored"
    )]
    OneDevice(String),
    /// Another stage of this worker's replica has failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A value that crosses between stages does not fit into a message.
    #[error(
        "a value of {bytes} bytes crosses between stages, expected at most {bytes_max}: use smaller batches, or more micro-batches"
    )]
    LargeStageValue {
        /// The size of the value in bytes.
        bytes: u64,
        /// The maximum size in bytes.
        bytes_max: u64,
    },
    /// The leader of a staged replica has several devices, or another one than the processor.
    #[error(
        "the graph has stages, each of which runs on the processor of its task, but this worker has the devices {0}: use --devices 1"
    )]
    StageDevices(String),
    /// The operating system refused to start threads.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// The number of threads requested.
        threads: usize,
        /// The reason that the operating system gave.
        reason: String,
    },
}

impl From<CudaError> for ReplicaError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Step(error) => Self::Step(error),
            CudaError::Device(error) => Self::Card(error),
            CudaError::Memory(error) => Self::Memory(error),
        }
    }
}

/// An error that occurs while a device computes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// The replica could not compute.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The device's mailbox is closed, which happens only if its thread panicked.
    #[error(transparent)]
    Panicked(#[from] MailboxError),
}
