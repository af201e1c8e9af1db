//! The reasons why a program cannot run on a device.

use pushpull_cuda::DriverError;

use super::need::TooLittleMemory;
use crate::error::StepError;

/// The reason why a program cannot run on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The batch does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// The device has too little memory.
    #[error(transparent)]
    Memory(Box<TooLittleMemory>),
}
