//! What a device can do: keep memory, copy to and from it, and run kernels, on streams that have an order
//! among each other only where events give them one. This module must not depend on what the kernels compute.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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
        /// The compiler's message.
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

/// A sequence of requests that a device carries out in their order. Requests on different streams may be
/// carried out in any order, or at the same time, unless events or the caller's own waits order them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// The stream of kernels. It is selected at the start.
    Compute,
    /// The stream of copies to the device, beside the kernels.
    Upload,
    /// The stream of copies from the device, beside the kernels.
    Download,
}

impl Stream {
    /// All streams, in their order.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Upload, Self::Download];

    /// Returns the position of the stream in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A point in a stream, which [`Driver::record`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The device that has recorded the event.
    pub(crate) device: u64,
    pub(crate) number: u64,
    /// Whether it was recorded in a capture.
    pub(crate) of_graph: bool,
}

/// A copy from the device that has begun. [`Driver::finish`] and [`Driver::abandon`] take it, so no copy can
/// end twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the device keeps the bytes until the transfer is finished or abandoned"]
pub struct Transfer {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
}

impl Transfer {
    /// Returns the number of bytes that are copied.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A time during which a stream carried out a request: a copy, a launch, or the replay of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worked {
    /// The stream.
    pub stream: Stream,
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// Requests that a device has captured, and carries out at each [`Driver::replay`].
#[derive(Debug, PartialEq, Eq)]
pub struct Graph {
    pub(crate) id: u64,
}

/// Returns a number that no other call of this process returns. So a place, a transfer or an event of one
/// device is unknown to the others.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A device.
///
/// Uploads, downloads and launches are ordered on the selected stream. They are carried out later, so an
/// error of one of them may be returned by a later request; [`synchronise`](Self::synchronise) returns the
/// last of them.
pub trait Driver {
    /// Returns the name of the device.
    fn name(&self) -> &str;

    /// Returns the number of free bytes of the device's memory, and of all.
    ///
    /// # Errors
    /// If the device has failed.
    fn memory_info(&mut self) -> Result<[u64; 2], DriverError>;

    /// Returns whether the device has a library for products of matrices, which can be used: see
    /// [`Multiplier::Library`](crate::Multiplier).
    fn has_library(&mut self) -> bool {
        false
    }

    /// Checks that the device multiplies factors with less precision than `f32`.
    ///
    /// # Errors
    /// If the device is too old.
    fn rounds_factors(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Compiles kernels and makes them available. A kernel replaces an earlier one of its name in the
    /// launches that follow.
    ///
    /// # Errors
    /// If they cannot be compiled.
    fn load(&mut self, source: &Source) -> Result<(), DriverError>;

    /// Returns new memory of this size in bytes. It contains garbage.
    ///
    /// # Errors
    /// If the device has too little memory.
    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError>;

    /// Releases memory. All that uses it must be done, as the caller knows from a download, from
    /// [`finish`](Self::finish) or from [`synchronise`](Self::synchronise). A graph that uses it can no
    /// longer be replayed.
    ///
    /// # Errors
    /// If a request that uses the memory may not be done yet (a device may also wait for it), or the device
    /// has failed.
    fn release(&mut self, memory: Memory) -> Result<(), DriverError>;

    /// Orders the uploads, downloads, launches, events and waits that follow on this stream.
    fn select(&mut self, stream: Stream);

    /// Copies bytes to the device. The caller may change them as soon as this returns.
    ///
    /// # Errors
    /// If they reach beyond the memory.
    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError>;

    /// Copies bytes from one place on the device to another, which must not overlap.
    ///
    /// # Errors
    /// If they reach beyond the memory, or overlap.
    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), DriverError>;

    /// Copies bytes from the device, and waits for them. All that the selected stream was asked before is
    /// done then; other streams may go on.
    ///
    /// # Errors
    /// If they reach beyond the memory.
    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Begins to copy bytes from the device, and does not wait for them. Nothing may write to them on the
    /// device until the copy is done.
    ///
    /// # Errors
    /// If they reach beyond the memory.
    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError>;

    /// Waits for the bytes of a transfer. All that its stream was asked before it is done then.
    ///
    /// # Errors
    /// If `bytes` has another length than the transfer, which ends in any case.
    fn finish(&mut self, transfer: Transfer, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Waits for a transfer, and drops its bytes. A transfer that is dropped without this or
    /// [`finish`](Self::finish) keeps its memory for as long as the device exists. This is possible in a
    /// capture as well, so that a caller can clean up after an error.
    ///
    /// # Errors
    /// If this device has not begun the transfer, or if the copy has failed. The transfer ends in any case.
    fn abandon(&mut self, transfer: Transfer) -> Result<(), DriverError>;

    /// Declares the bytes that the next launch reads and those that it writes. A device without a card checks
    /// the declaration, and with it the order of launches on different streams.
    fn touches(&mut self, _reads: &[(Place, u64)], _writes: &[(Place, u64)]) {}

    /// Runs a kernel.
    ///
    /// # Errors
    /// If the kernel does not exist or has other arguments.
    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError>;

    /// Returns an event after all that the selected stream was asked so far. An event that is recorded in a
    /// capture stands for this point of the latest replay.
    ///
    /// # Errors
    /// If the device has failed.
    fn record(&mut self) -> Result<Event, DriverError>;

    /// Lets all that the selected stream is asked from now on begin after the event.
    ///
    /// # Errors
    /// If this device has not recorded the event, or if it is that of a graph that was not replayed yet.
    fn wait(&mut self, event: Event) -> Result<(), DriverError>;

    /// Waits until all streams have done what they were asked.
    ///
    /// # Errors
    /// If any of it has failed.
    fn synchronise(&mut self) -> Result<(), DriverError>;

    /// Records from now on when the streams work, for [`watched`](Self::watched), of up to 4096 requests. All
    /// that was asked before is done then. A device that has no clock records nothing.
    ///
    /// # Errors
    /// If the device has failed.
    fn watch(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Returns when the streams worked since [`watch`](Self::watch), in the order of the requests, and ends
    /// the record. All that was asked is done then.
    ///
    /// # Errors
    /// If the device has failed.
    fn watched(&mut self) -> Result<Vec<Worked>, DriverError> {
        Ok(Vec::new())
    }

    /// Captures what follows instead of carrying it out. The stream of kernels must be selected. Only
    /// launches and events can be captured, and waits for events of the same capture; all other requests are
    /// refused until [`end_capture`](Self::end_capture), which must follow after an error as well.
    ///
    /// # Errors
    /// If a capture is under way, or if another stream is selected.
    fn begin_capture(&mut self) -> Result<(), DriverError>;

    /// Ends the capture, in case of an error as well. The stream of kernels must be selected.
    ///
    /// # Errors
    /// If no capture is under way, if another stream is selected, or if the device cannot replay the capture.
    /// If a launch, an event or a wait of the capture has failed, this returns the first such error: without
    /// the request, a replay would do something else than the caller has asked.
    fn end_capture(&mut self) -> Result<Graph, DriverError>;

    /// Carries out what was captured, with the same arguments, on the stream of kernels, which must be
    /// selected. The places of the arguments must still exist.
    ///
    /// # Errors
    /// If memory that the graph uses was released.
    fn replay(&mut self, graph: &Graph) -> Result<(), DriverError>;

    /// Frees what the device keeps for a graph.
    ///
    /// # Errors
    /// If the device has failed.
    fn discard(&mut self, graph: Graph) -> Result<(), DriverError>;
}
