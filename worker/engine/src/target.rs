//! What a program is compiled for. It decides how much scratch memory kernels need. This module must not
//! depend on the memory plan.

use pushpull_cuda::Multiplier;
use pushpull_kernels::cpu::Threads;

use super::arena::ARENA_ELEMENTS_MAX;
use super::execute;
use super::ir::Kernel;
use super::memory::Sizes;
use super::operation::operation;

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The processor, with this number of threads.
    Cpu(Threads),
    /// A device that runs CUDA kernels: see [`CudaDevice::target`](crate::CudaDevice::target).
    Cuda {
        /// What multiplies matrices there.
        multiplier: Multiplier,
        /// Whether attention is one kernel.
        attention: bool,
    },
}

impl From<Threads> for Target {
    fn from(threads: Threads) -> Self {
        Self::Cpu(threads)
    }
}

impl Target {
    /// Returns the maximum size of an arena, in floats. A device has its own limit, which is checked when its
    /// memory is allocated.
    pub(super) const fn elements_max(self) -> usize {
        match self {
            Self::Cpu(_) => ARENA_ELEMENTS_MAX,
            Self::Cuda { .. } => usize::MAX / 8,
        }
    }

    /// Returns what multiplies in attention, if that becomes one kernel.
    pub(super) const fn attends(self) -> Option<Multiplier> {
        match self {
            Self::Cuda { multiplier, attention: true } => Some(multiplier),
            _ => None,
        }
    }

    /// Returns the number of floats of scratch memory that a kernel needs for values of these sizes.
    pub(super) fn scratch(self, kernel: &Kernel, sizes: &Sizes) -> usize {
        match self {
            Self::Cpu(threads) => execute::scratch(kernel, threads),
            Self::Cuda { multiplier, .. } => {
                operation(kernel, sizes, multiplier).scratch_bytes().div_ceil(4) as usize
            }
        }
    }
}
