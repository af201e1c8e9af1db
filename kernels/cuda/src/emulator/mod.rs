//! A device without a card: kernels compiled as C++, run by a process of their own, under the address and
//! undefined-behaviour sanitizers. Threads, and requests on different streams, run one after the other, in an
//! order that depends on a seed. So a missing barrier, an access beyond a piece of memory, a wait without end
//! or a request without an order fails here. Of shared memory, only accesses through the name of an array are
//! checked.

mod compiler;
mod order;
mod process;
mod queues;
mod requests;
mod work;

use std::collections::BTreeMap;

pub use compiler::Compiler;

use self::order::Order;
use self::process::Process;
use self::queues::Queues;
use self::work::Captured;
use crate::driver::{DriverError, Place};
use crate::ledger::Ledger;

/// The longest time that a kernel may run, in seconds.
const KERNEL_SECONDS_MAX: u32 = 60;

/// The size of the memory, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// The name of every emulated device.
const NAME: &str = "the emulator";

/// An emulated device. Its process ends when this value is dropped.
#[derive(Debug)]
pub struct Emulator {
    process: Process,
    ledger: Ledger,
    order: Order,
    queues: Queues,
    /// The number of requests so far, which tells equal requests apart in errors.
    requests: u64,
    /// The bytes that the next launch reads and those that it writes, if they were declared.
    touches: Option<[Vec<(Place, u64)>; 2]>,
    /// The requests of the capture that is under way.
    captured: Vec<Captured>,
    graphs: BTreeMap<u64, Vec<Captured>>,
    transfers: BTreeMap<u64, Arriving>,
    has_library: bool,
    rounds_factors: bool,
}

/// A transfer that was not finished.
#[derive(Debug)]
struct Arriving {
    clock: [u64; 3],
    /// The bytes, after the copy was carried out.
    bytes: Option<Vec<u8>>,
}

impl Emulator {
    /// Starts an emulated device. `seed` decides the order in which threads and requests run. A kernel may
    /// run for a minute.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start(compiler: &Compiler, seed: u64) -> Result<Self, DriverError> {
        Self::start_with_limit(compiler, seed, KERNEL_SECONDS_MAX)
    }

    /// Starts an emulated device whose kernels may run for this number of seconds. A kernel that runs for
    /// longer ends the device.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start_with_limit(compiler: &Compiler, seed: u64, seconds: u32) -> Result<Self, DriverError> {
        Ok(Self {
            process: Process::start(compiler, seed, seconds)?,
            ledger: Ledger::new(),
            order: Order::default(),
            queues: Queues::new(seed),
            requests: 0,
            touches: None,
            captured: Vec::new(),
            graphs: BTreeMap::new(),
            transfers: BTreeMap::new(),
            has_library: false,
            rounds_factors: true,
        })
    }

    /// Returns the device with a library for products, for which kernels stand in.
    #[must_use]
    pub fn with_library(self) -> Self {
        Self { has_library: true, ..self }
    }

    /// Returns the device without precisions below `f32`, as cards before Ampere are.
    #[must_use]
    pub fn before_ampere(self) -> Self {
        Self { rounds_factors: false, ..self }
    }

    /// Ends the device.
    ///
    /// # Errors
    /// If a request fails that was still to be carried out, and if memory was not released or a transfer was
    /// not finished.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.run_all()?;
        let memories = self.ledger.memories().map(|(id, bytes)| format!("memory {id} of {bytes} bytes"));
        let transfers = self.transfers.keys().map(|id| format!("transfer {id}"));
        let leaks: Vec<String> = memories.chain(transfers).collect();
        match leaks.is_empty() {
            true => Ok(()),
            false => Err(DriverError::Refused(format!("not released or finished: {}", leaks.join(", ")))),
        }
    }

    /// Carries out all requests, and returns the first error after the last of them.
    fn run_all(&mut self) -> Result<(), DriverError> {
        let mut first = Ok(());
        loop {
            match self.run_next() {
                Ok(true) => (),
                Ok(false) => return first,
                Err(error) => first = first.and(Err(error)),
            }
        }
    }
}
