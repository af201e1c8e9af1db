//! What a device can do: keep memory, copy to and from it, and run kernels. This module must not depend on
//! what the kernels compute.

use crate::source::{LANES, Source};

/// The reason why a device could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The device cannot be used at all, for this reason.
    #[error("{0}")]
    Unavailable(String),
    /// The source of kernels cannot be compiled.
    #[error("the kernels '{name}' cannot be compiled: {reason}")]
    Source {
        /// The name of the source.
        name: String,
        /// What the compiler says.
        reason: String,
    },
    /// The device refuses a request, and can still be used.
    #[error("{0}")]
    Refused(String),
    /// The device has failed, and can no longer be used.
    #[error("the device has failed: {0}")]
    Failed(String),
}

/// A piece of a device's memory. It is released with [`Driver::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Memory {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
}

/// A place in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(crate) id: u64,
    pub(crate) offset: u64,
}

impl Memory {
    /// Returns the size of the memory in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the place of the first byte.
    pub const fn place(&self) -> Place {
        Place { id: self.id, offset: 0 }
    }
}

impl Place {
    /// Returns the place that is this number of bytes behind this one.
    #[must_use]
    pub const fn behind(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// The number of blocks of a kernel, and the number of threads in each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The number of blocks in each dimension.
    pub blocks: [u32; 3],
    /// The number of threads of a block in each dimension.
    pub threads: [u32; 3],
}

impl Grid {
    /// The largest number of blocks of our kernels. With more elements, a thread gets several of them.
    pub(crate) const BLOCKS_MAX: u64 = 1024;

    /// Returns the grid of a kernel that gives each of `elements` elements to one thread.
    pub fn for_each(elements: u64) -> Self {
        let blocks = elements.div_ceil(LANES.into()).clamp(1, Self::BLOCKS_MAX);
        Self { blocks: [blocks as u32, 1, 1], threads: [LANES, 1, 1] }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A pointer to a place in the device's memory.
    Place(Place),
    /// An `unsigned int`.
    U32(u32),
    /// An `unsigned long long`.
    U64(u64),
    /// A `float`.
    F32(f32),
}

/// A call of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch<'a> {
    /// The name of the kernel, which a loaded source contains.
    pub kernel: &'a str,
    /// The kernel's blocks and threads.
    pub grid: Grid,
    /// The kernel's arguments, in their order.
    pub arguments: &'a [Argument],
}

/// A device. All requests are carried out in their order.
pub trait Driver {
    /// Compiles kernels and makes them available.
    ///
    /// # Errors
    /// If they cannot be compiled.
    fn load(&mut self, source: &Source) -> Result<(), DriverError>;

    /// Returns new memory of this size in bytes. It contains garbage.
    ///
    /// # Errors
    /// If the device has too little memory.
    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError>;

    /// Releases memory. Nothing may use it any more.
    ///
    /// # Errors
    /// If the device has failed.
    fn release(&mut self, memory: Memory) -> Result<(), DriverError>;

    /// Copies bytes to the device.
    ///
    /// # Errors
    /// If they reach beyond the memory.
    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError>;

    /// Copies bytes from the device, when all that was requested before is done.
    ///
    /// # Errors
    /// If they reach beyond the memory.
    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Runs a kernel.
    ///
    /// # Errors
    /// If the kernel does not exist, has other arguments, or fails.
    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError>;
}
