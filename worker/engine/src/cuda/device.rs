//! A device, and the memory that the programs of one clone share on it. This module must not depend on
//! operations.

use std::collections::BTreeMap;

use pushpull_cuda::{Driver, DriverError, Multiplier, Precision};

use super::ahead::Ahead;
use super::error::CudaError;
use super::memory::{DeviceMemory, Key, buffers};
use super::need::{MemoryNeed, TooLittleMemory};
use crate::program::Program;
use crate::target::Target;

/// A device for the programs of one clone of a graph, which run one at a time.
pub struct CudaDevice {
    pub(crate) driver: Box<dyn Driver + Send>,
    pub(crate) memory: DeviceMemory,
    /// The number of bytes that the programs may take.
    bytes_max: u64,
    multiplier: Multiplier,
    /// Whether attention is one kernel.
    attention: bool,
    /// The least number of bytes of variables that are waited for at once.
    pub(crate) segment_bytes: u64,
    /// The batch that was copied before its step; `None` if there is none.
    pub(crate) ahead: Option<Ahead>,
    /// Whether there was no room for a batch before its step.
    has_no_room: bool,
}

/// A card copies this number of bytes in about the time that the host needs to wake the threads that copy, to
/// begin a graph and to begin a copy.
const SEGMENT_BYTES: u64 = 8 << 20;

/// The part of a device's memory that the next batch leaves free: one of this number of parts.
const FREE_PART: u64 = 16;

impl CudaDevice {
    /// Returns a device whose programs take at most `memory_fraction` of its memory, from 0 to 1, and round
    /// the factors of products to `precision`.
    ///
    /// # Errors
    /// If the device has failed, or if it is too old or has no library to multiply with less precision than
    /// `f32`.
    pub fn new(
        mut driver: Box<dyn Driver + Send>,
        memory_fraction: f64,
        precision: Precision,
    ) -> Result<Self, DriverError> {
        let [_, total] = driver.memory_info()?;
        let bytes_max = (total as f64 * memory_fraction) as u64;
        if precision != Precision::F32 {
            driver.rounds_factors()?;
        }
        let multiplier = match (driver.has_library(), precision) {
            (true, precision) => Multiplier::Library(precision),
            (false, Precision::F32) => Multiplier::Own,
            (false, precision) => {
                return Err(DriverError::Unavailable(format!(
                    "products in {precision} need cuBLASLt, but there is no libcublasLt for this driver in the library \
                     path; NVIDIA has it as the package nvidia-cublas for Python"
                )));
            }
        };
        let (memory, segment_bytes) = (DeviceMemory::default(), SEGMENT_BYTES);
        let (attention, ahead, has_no_room) = (true, None, false);
        Ok(Self { driver, memory, bytes_max, multiplier, attention, segment_bytes, ahead, has_no_room })
    }

    /// Returns the target for which programs for this device are compiled.
    pub const fn target(&self) -> Target {
        Target::Cuda { multiplier: self.multiplier, attention: self.attention }
    }

    /// Returns the device with programs whose attention consists of separate operations, for comparisons.
    #[must_use]
    pub fn without_attention(self) -> Self {
        Self { attention: false, ..self }
    }

    /// Returns the driver of the device, for work beside the programs.
    pub fn driver(&mut self) -> &mut dyn Driver {
        &mut *self.driver
    }

    /// Returns the number of bytes that the programs take.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Makes room for a program.
    ///
    /// # Errors
    /// If the device has too little memory, or has failed.
    pub(super) fn fit(&mut self, program: &Program) -> Result<(), CudaError> {
        let Self { driver, memory, bytes_max, .. } = self;
        let missing = memory.missing(buffers(program));
        if missing.is_empty() {
            return Ok(());
        }
        driver.synchronise()?;
        // A program needs the memory more than the next batch does.
        (self.ahead, self.has_no_room) = (None, false);
        memory.release_ahead(&mut **driver)?;
        let ([free, total], added) = (driver.memory_info()?, missing.values().sum::<u64>());
        let (taken, replaced) = (memory.bytes(), memory.replaced_bytes(&missing));
        let allowed = bytes_max.saturating_sub(taken - replaced);
        let too_little = |device: &str| {
            let allowed = (allowed < free + replaced).then_some(allowed);
            let (device, need) = (device.to_owned(), MemoryNeed::of(program));
            CudaError::Memory(Box::new(TooLittleMemory { device, free, total, allowed, need }))
        };
        if added > allowed.min(free + replaced) {
            return Err(too_little(driver.name()));
        }
        match memory.grow(missing, &mut **driver) {
            // Others may have taken the memory meanwhile.
            Err(DriverError::Refused(_)) => Err(too_little(driver.name())),
            grown => Ok(grown?),
        }
    }

    /// Makes room for a batch beside that of the current step. Returns whether there is room. A part of the
    /// memory stays free, for graphs and for other programs.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn has_room_ahead(&mut self, sizes: BTreeMap<Key, u64>) -> Result<bool, DriverError> {
        let Self { driver, memory, bytes_max, has_no_room, .. } = self;
        let missing = memory.missing(sizes);
        if missing.is_empty() {
            return Ok(true);
        }
        if *has_no_room {
            return Ok(false);
        }
        let ([free, total], added) = (driver.memory_info()?, missing.values().sum::<u64>());
        let replaced = memory.replaced_bytes(&missing);
        let allowed = bytes_max.saturating_sub(memory.bytes() - replaced);
        *has_no_room = added > allowed.min((free + replaced).saturating_sub(total / FREE_PART));
        if *has_no_room {
            return Ok(false);
        }
        // A copy from a buffer that is too small may be under way.
        driver.synchronise()?;
        match memory.replace(missing, &mut **driver) {
            Ok(()) => Ok(true),
            // Others may have taken the memory meanwhile.
            Err(DriverError::Refused(_)) => {
                *has_no_room = true;
                memory.release_ahead(&mut **driver)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
