//! Runs programs on a device that runs CUDA kernels. This module must not depend on what a kernel computes.

mod ahead;
mod batch;
mod device;
mod error;
mod executor;
mod labels;
mod memory;
mod need;
mod segments;

pub use self::device::CudaDevice;
pub use self::error::CudaError;
pub use self::executor::CudaExecutor;
pub use self::need::{MemoryNeed, TooLittleMemory};
