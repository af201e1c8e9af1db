//! What a card needs of NVIDIA's driver, as values that release themselves. Their users hold three rules: the
//! context is bound to the thread; a piece of pinned memory is not used until the copy of it is done; and
//! all is done before anything but a stream's own order needs it is dropped.
//!
//! Beside cublas.rs, this is the only file about cards with unsafe code.

use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use rayon::prelude::*;

use crate::driver::Grid;

/// An error of the driver.
pub(super) type Fault = result::DriverError;
/// The driver's answer to a request.
pub(super) type Asked<T> = Result<T, Fault>;

/// A pointer of the driver to something that it keeps.
#[derive(Debug)]
struct Handle<T>(*mut T);

// SAFETY: what the driver keeps may be used by each thread to which the context is bound, and a handle has
// one owner.
#[expect(unsafe_code)]
unsafe impl<T> Send for Handle<T> {}

/// Returns whether there is a driver. Nothing else here may be called before: `cudarc` loads the library at
/// the first call, and panics if there is none.
pub(super) fn is_present() -> bool {
    // SAFETY: to load a library runs the code with which it begins. The library that the system has under
    // this name is trusted, as all libraries of the system are.
    #[expect(unsafe_code)]
    unsafe {
        sys::is_culib_present()
    }
}

/// Starts the driver, and returns the version of CUDA that it supports.
pub(super) fn start() -> Asked<[i32; 2]> {
    let mut version = 0;
    // SAFETY: the pointer is to a number of the type that the function writes.
    #[expect(unsafe_code)]
    let answer = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    answer.result()?;
    result::init()?;
    Ok([version / 1000, version % 1000 / 10])
}

/// Lets the end of the process call a function, after those that were added later.
pub(super) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function is one of this program, which exists until the process has ended. Without memory
    // for it, the process ends as it would without this call.
    #[expect(unsafe_code)]
    let _ = unsafe { libc::atexit(function) };
}

/// A card, as the driver counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device(sys::CUdevice);

impl Device {
    pub fn count() -> Asked<usize> {
        Ok(usize::try_from(result::device::get_count()?).unwrap_or(0))
    }

    /// Returns the card with an index below [`count`](Self::count).
    pub fn get(index: usize) -> Asked<Self> {
        result::device::get(i32::try_from(index).unwrap_or(i32::MAX)).map(Self)
    }

    pub fn name(self) -> Asked<String> {
        result::device::get_name(self.0)
    }

    /// Returns the major and the minor number of the compute capability.
    pub fn capability(self) -> Asked<[u32; 2]> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let get = |attribute| {
            // SAFETY: the driver has returned the device.
            #[expect(unsafe_code)]
            let number = unsafe { result::device::get_attribute(self.0, attribute) }?;
            Ok(number.unsigned_abs())
        };
        Ok([get(MAJOR)?, get(MINOR)?])
    }

    /// Returns the size of the memory in bytes.
    pub fn memory_bytes(self) -> Asked<u64> {
        // SAFETY: the driver has returned the device.
        #[expect(unsafe_code)]
        let bytes = unsafe { result::device::total_mem(self.0) }?;
        Ok(bytes as u64)
    }
}

/// The state of a card that this process shares: all values for one card have the same context. So nothing
/// here waits for a whole context, which the driver forbids while any stream of it captures.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    handle: Handle<sys::CUctx_st>,
}

impl Context {
    /// Returns the context of a card, after binding it to this thread.
    pub fn of(Device(device): Device) -> Asked<Self> {
        // SAFETY: the driver has returned the device.
        #[expect(unsafe_code)]
        let handle = unsafe { result::primary_ctx::retain(device) }?;
        let context = Self { device, handle: Handle(handle) };
        context.bind()?;
        Ok(context)
    }

    /// Binds the context to this thread.
    pub fn bind(&self) -> Asked<()> {
        // SAFETY: the context was retained, and is released only when `self` is dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::ctx::set_current(self.handle.0)
        }
    }

    /// Returns the number of free bytes of the card's memory, and of all.
    pub fn memory() -> Asked<[u64; 2]> {
        result::mem_get_info().map(|(free, total)| [free, total].map(|bytes| bytes as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of the card.
#[derive(Debug)]
pub(super) struct Buffer {
    /// The address on the card.
    pub address: u64,
}

impl Buffer {
    pub fn allocate(bytes: u64) -> Asked<Self> {
        // The driver has no memory without bytes.
        let bytes = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: what the memory contains is read only as bytes.
        #[expect(unsafe_code)]
        let address = unsafe { result::malloc_sync(bytes) }?;
        Ok(Self { address })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `allocate` has returned the memory, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Memory of this machine that a card copies while the processor does something else.
#[derive(Debug)]
pub(super) struct Pinned {
    bytes: Handle<u8>,
    length: usize,
}

impl Pinned {
    pub fn allocate(length: usize) -> Asked<Self> {
        // SAFETY: the memory becomes initialised below, before anything reads it.
        #[expect(unsafe_code)]
        let bytes = unsafe { result::malloc_host(length, 0) }?.cast::<u8>();
        // SAFETY: the driver has returned `length` bytes.
        #[expect(unsafe_code)]
        unsafe {
            bytes.write_bytes(0, length);
        }
        Ok(Self { bytes: Handle(bytes), length })
    }

    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns a pointer to a part.
    fn part(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.length, "a part of the pinned memory");
        self.bytes.0.wrapping_add(range.start)
    }

    /// Copies bytes into a part that no copy uses, piece by piece. `there` gets the range of each piece, in
    /// their order, as soon as it is there, while several threads go on with the next ones. The first error
    /// of it is returned.
    pub fn write(
        &self,
        range: &Range<usize>,
        bytes: &[u8],
        mut there: impl FnMut(Range<usize>) -> Asked<()>,
    ) -> Asked<()> {
        assert_eq!(bytes.len(), range.len(), "the part has the length of the bytes");
        // SAFETY: the part lies in the memory, which was initialised, and only this function uses it until a
        // piece is there.
        #[expect(unsafe_code)]
        let part = unsafe { std::slice::from_raw_parts_mut(self.part(range), range.len()) };
        if bytes.len() < SHARED_FROM {
            part.copy_from_slice(bytes);
            return there(range.clone());
        }
        // The number of parts of each piece that are missing.
        let missing: Vec<AtomicUsize> =
            bytes.chunks(PIECE).map(|piece| AtomicUsize::new(piece.len().div_ceil(COPIED_AT_ONCE))).collect();
        rayon::in_place_scope(|scope| {
            // Parts that threads halve among themselves would be there all at once, at the end.
            for ((to, from), missing) in part.chunks_mut(PIECE).zip(bytes.chunks(PIECE)).zip(&missing) {
                for (to, from) in to.chunks_mut(COPIED_AT_ONCE).zip(from.chunks(COPIED_AT_ONCE)) {
                    scope.spawn(move |_| {
                        to.copy_from_slice(from);
                        missing.fetch_sub(1, Ordering::Release);
                    });
                }
            }
            for (number, missing) in missing.iter().enumerate() {
                while missing.load(Ordering::Acquire) > 0 {
                    if rayon::yield_now() != Some(rayon::Yield::Executed) {
                        std::thread::yield_now();
                    }
                }
                let first = range.start + number * PIECE;
                there(first..range.end.min(first + PIECE))?;
            }
            Ok(())
        })
    }

    /// Copies bytes from the beginning, to which no copy writes.
    pub fn read(&self, bytes: &mut [u8]) {
        // SAFETY: the part lies in the memory, which was initialised, and nothing writes to it.
        #[expect(unsafe_code)]
        let part = unsafe { std::slice::from_raw_parts(self.part(&(0..bytes.len())), bytes.len()) };
        copy(bytes, part);
    }
}

/// The number of bytes that one thread copies at once. One thread is several times slower than the bus to a
/// card.
const COPIED_AT_ONCE: usize = 128 << 10;
/// The number of bytes from which on several threads share a copy.
const SHARED_FROM: usize = 256 << 10;
/// The number of bytes that a card copies at once, while threads go on with the next ones.
const PIECE: usize = 2 << 20;

/// Copies bytes, with several threads if they are many.
fn copy(to: &mut [u8], from: &[u8]) {
    if to.len() < SHARED_FROM {
        return to.copy_from_slice(from);
    }
    let parts = to.par_chunks_mut(COPIED_AT_ONCE).zip(from.par_chunks(COPIED_AT_ONCE));
    parts.for_each(|(to, from)| to.copy_from_slice(from));
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the driver has returned the memory, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::free_host(self.bytes.0.cast()) };
    }
}

/// How long a thread looks whether an event is done before it sleeps.
const LOOKED_FOR: Duration = Duration::from_micros(50);

/// An event.
#[derive(Debug)]
pub(super) struct Mark(Handle<sys::CUevent_st>);

impl Mark {
    /// Returns an event that measures no time, which is the fastest kind. A thread that waits for it sleeps:
    /// by default it would spin, and take a core from the tasks of the same host that have work for it.
    pub fn create() -> Asked<Self> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC as SLEEP, CU_EVENT_DISABLE_TIMING as NO_TIME};
        Self::with(SLEEP as u32 | NO_TIME as u32)
    }

    fn with(flags: u32) -> Asked<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle of the type that the function writes.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::cuEventCreate(&raw mut event, flags) };
        answer.result()?;
        Ok(Self(Handle(event)))
    }

    /// Returns whether all before the mark is done.
    pub fn is_done(&self) -> Asked<bool> {
        // SAFETY: the event was created, and is destroyed only when `self` is dropped.
        #[expect(unsafe_code)]
        let answer = unsafe { result::event::query(self.0.0) };
        match answer {
            Ok(()) => Ok(true),
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Waits until all before the mark is done. The thread looks for a moment, and then sleeps: to be woken
    /// takes it longer than most operations take.
    pub fn synchronise(&self) -> Asked<()> {
        let began = Instant::now();
        while began.elapsed() < LOOKED_FOR {
            if self.is_done()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // SAFETY: the event was created, and is destroyed only when `self` is dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::event::synchronize(self.0.0)
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event was created. The driver keeps it for as long as a stream still needs it.
        #[expect(unsafe_code)]
        let _ = unsafe { result::event::destroy(self.0.0) };
    }
}

/// An event that measures time.
#[derive(Debug)]
pub(super) struct TimedMark(Mark);

impl TimedMark {
    pub fn create() -> Asked<Self> {
        Mark::with(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32).map(Self)
    }

    /// Records the mark after all that was requested of a stream.
    pub fn record(&self, queue: &Queue) -> Asked<()> {
        queue.record(&self.0)
    }

    /// Waits until all before the mark is done.
    pub fn synchronise(&self) -> Asked<()> {
        self.0.synchronise()
    }

    /// Returns the time between an earlier mark and this one in seconds, at least 0. Both must be done, and
    /// the driver must support CUDA 12.8 or newer.
    pub fn seconds_since(&self, earlier: &Self) -> Asked<f64> {
        // SAFETY: both events were recorded, measure time, and exist until their owners are dropped.
        #[expect(unsafe_code)]
        let ms = unsafe { result::event::elapsed(earlier.0.0.0, self.0.0.0) }?;
        Ok(f64::from(ms.max(0.0)) / 1e3)
    }
}

/// Kernels that are loaded.
#[derive(Debug)]
pub(super) struct Module(Handle<sys::CUmod_st>);

/// A kernel of a module, which must not be dropped before the kernel was used for the last time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: a function may be used by each thread to which the context is bound.
#[expect(unsafe_code)]
unsafe impl Send for Function {}

impl Module {
    /// Loads what the compiler has made: a program for the card, or PTX with a 0 behind it.
    pub fn load(program: &[u8]) -> Asked<Self> {
        // SAFETY: the compiler has made the program, which says itself where it ends.
        #[expect(unsafe_code)]
        let module = unsafe { result::module::load_data(program.as_ptr().cast()) }?;
        Ok(Self(Handle(module)))
    }

    /// Returns a kernel, which is on the card then: a capture cannot load it.
    pub fn function(&self, name: CString) -> Asked<Function> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS as REGISTERS;
        // SAFETY: the module is loaded, and is unloaded only when `self` is dropped.
        #[expect(unsafe_code)]
        let function = unsafe { result::module::get_function(self.0.0, name) }?;
        // SAFETY: the driver has just returned the function.
        #[expect(unsafe_code)]
        unsafe {
            result::function::get_function_attribute(function, REGISTERS)?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is loaded, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::module::unload(self.0.0) };
    }
}

/// Launches that were captured.
#[derive(Debug)]
pub(super) struct Executable(Handle<sys::CUgraphExec_st>);

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the graph was instantiated, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::graph::exec_destroy(self.0.0) };
    }
}

/// A stream.
#[derive(Debug)]
pub(super) struct Queue(Handle<sys::CUstream_st>);

impl Queue {
    /// Returns a stream that no other stream waits for.
    pub fn create() -> Asked<Self> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self(Handle(stream)))
    }

    /// Returns the driver's pointer to the stream, for libraries.
    pub const fn pointer(&self) -> *mut sys::CUstream_st {
        self.0.0
    }

    /// Waits until all is done that was requested. The stream must not be captured. The thread spins, unless
    /// a [`Mark`] has shown before that all is done.
    pub fn synchronise(&self) -> Asked<()> {
        // SAFETY: the stream exists until `self` is dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::stream::synchronize(self.0.0)
        }
    }

    /// Records a mark after all that was requested.
    pub fn record(&self, mark: &Mark) -> Asked<()> {
        // SAFETY: the stream and the event exist until their owners are dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::event::record(mark.0.0, self.0.0)
        }
    }

    /// Lets what is requested later begin after a mark.
    pub fn wait(&self, mark: &Mark) -> Asked<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the stream and the event exist until their owners are dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::stream::wait_event(self.0.0, mark.0.0, flags)
        }
    }

    /// Begins to copy a part of pinned memory to an address on the card.
    pub fn upload(&self, to: u64, from: &Pinned, range: &Range<usize>) -> Asked<()> {
        let bytes = from.part(range).cast::<c_void>();
        // SAFETY: the ledger has found that the bytes on the card exist. Those of the pinned memory do, and
        // are not changed before the copy is done.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes, range.len(), self.0.0) };
        answer.result()
    }

    /// Begins to copy between two addresses on the card.
    pub fn copy(&self, to: u64, from: u64, length: usize) -> Asked<()> {
        // SAFETY: the ledger has found that the bytes of both exist on the card and do not overlap.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, length, self.0.0) };
        answer.result()
    }

    /// Begins to copy from an address on the card to the beginning of pinned memory.
    pub fn download(&self, to: &mut Pinned, from: u64, length: usize) -> Asked<()> {
        let bytes = to.part(&(0..length)).cast::<c_void>();
        // SAFETY: the ledger has found that the bytes on the card exist. Those of the pinned memory do, and
        // are not used before the copy is done.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::cuMemcpyDtoHAsync_v2(bytes, from, length, self.0.0) };
        answer.result()
    }

    /// Begins to run a kernel. Each argument is in the first bytes of a number.
    pub fn launch(&self, Function(function): Function, grid: Grid, arguments: &mut [u64]) -> Asked<()> {
        let Grid { blocks: [x, y, z], threads: [in_x, in_y, in_z] } = grid;
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast()).collect();
        // SAFETY: the module of the function is loaded, and the ledger has found that the arguments are those
        // of the kernel's parameters, so the driver reads no others. It has copied them when this returns.
        #[expect(unsafe_code)]
        unsafe {
            let (blocks, threads) = ((x, y, z), (in_x, in_y, in_z));
            result::launch_kernel(function, blocks, threads, 0, self.0.0, &mut pointers)
        }
    }

    /// Captures what follows. Other streams and threads go on as before.
    pub fn begin_capture(&self) -> Asked<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists until `self` is dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::stream::begin_capture(self.0.0, mode)
        }
    }

    /// Ends the capture, and returns what was captured. After an error the stream is no longer captured
    /// either.
    pub fn end_capture(&self) -> Asked<Executable> {
        // SAFETY: the stream exists until `self` is dropped.
        #[expect(unsafe_code)]
        let graph = unsafe { result::stream::end_capture(self.0.0) }?;
        // SAFETY: the driver has just returned the graph.
        #[expect(unsafe_code)]
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: what was instantiated does not need the graph, which nothing else has.
        #[expect(unsafe_code)]
        let destroyed = unsafe { result::graph::destroy(graph) };
        let executable = Executable(Handle(executable?));
        destroyed?;
        Ok(executable)
    }

    /// Begins to carry out what was captured.
    pub fn replay(&self, executable: &Executable) -> Asked<()> {
        // SAFETY: the graph and the stream exist until their owners are dropped.
        #[expect(unsafe_code)]
        unsafe {
            result::graph::launch(executable.0.0, self.0.0)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the stream was created, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::stream::destroy(self.0.0) };
    }
}
