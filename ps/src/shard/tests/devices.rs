//! Devices for tests: an emulated one, and one that fails on request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pushpull_cuda::{
    Compiler, Driver, DriverError, Emulator, Event, Graph, Launch, Memory, Place, Source, Stream, Transfer,
};

use crate::device::MakeDevice;

/// Returns a function that opens an emulated device; `None`, after a warning, if this machine has no C++
/// compiler.
pub(crate) fn emulated() -> Option<MakeDevice> {
    let compiler = compiler()?;
    Some(MakeDevice::new(move || Ok(Box::new(Emulator::start(compiler, 3)?))))
}

/// Returns a function that opens a device of [`emulated`] that fails when it has run this number of kernels,
/// and the number of kernels that it still runs.
pub(crate) fn failing(kernels: u64) -> Option<(MakeDevice, Arc<AtomicU64>)> {
    let (compiler, kernels) = (compiler()?, Arc::new(AtomicU64::new(kernels)));
    let left = Arc::clone(&kernels);
    let make = MakeDevice::new(move || {
        Ok(Box::new(Failing { device: Emulator::start(compiler, 3)?, kernels: Arc::clone(&left) }))
    });
    Some((make, kernels))
}

fn compiler() -> Option<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler, DriverError>> = OnceLock::new();
    let find = || Compiler::find(std::env::temp_dir().join("pushpull-emulator-tests"));
    match COMPILER.get_or_init(find) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("SKIPPED: {error}, so shards on a CUDA device are NOT tested.");
            None
        }
    }
}

/// A device that fails when it has run a number of kernels.
struct Failing {
    device: Emulator,
    /// The number of kernels that it still runs.
    kernels: Arc<AtomicU64>,
}

impl Driver for Failing {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn memory_info(&mut self) -> Result<[u64; 2], DriverError> {
        self.device.memory_info()
    }

    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        self.device.load(source)
    }

    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError> {
        self.device.allocate(bytes)
    }

    fn release(&mut self, memory: Memory) -> Result<(), DriverError> {
        self.device.release(memory)
    }

    fn select(&mut self, stream: Stream) {
        self.device.select(stream);
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError> {
        self.device.upload(to, bytes)
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), DriverError> {
        self.device.copy(from, to, bytes)
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.device.download(from, bytes)
    }

    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError> {
        self.device.begin_download(from, bytes)
    }

    fn finish(&mut self, transfer: Transfer, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.device.finish(transfer, bytes)
    }

    fn abandon(&mut self, transfer: Transfer) -> Result<(), DriverError> {
        self.device.abandon(transfer)
    }

    fn touches(&mut self, reads: &[(Place, u64)], writes: &[(Place, u64)]) {
        self.device.touches(reads, writes);
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let left = self.kernels.load(Ordering::Relaxed);
        if left == 0 {
            return Err(DriverError::Failed("it fell off the bus".to_owned()));
        }
        self.kernels.store(left.saturating_sub(u64::from(left < u64::MAX)), Ordering::Relaxed);
        self.device.launch(launch)
    }

    fn record(&mut self) -> Result<Event, DriverError> {
        self.device.record()
    }

    fn wait(&mut self, event: Event) -> Result<(), DriverError> {
        self.device.wait(event)
    }

    fn synchronise(&mut self) -> Result<(), DriverError> {
        self.device.synchronise()
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.device.begin_capture()
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        self.device.end_capture()
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DriverError> {
        self.device.replay(graph)
    }

    fn discard(&mut self, graph: Graph) -> Result<(), DriverError> {
        self.device.discard(graph)
    }
}

/// Checks that numbers of a device are those of the processor, up to rounding.
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= 1e-6 * expected.abs().max(1.0);
        assert!(close, "{what}: element {at} is {got}, expected {expected}");
    }
}
