//! A device, and the memory that the programs of one clone share on it. This module must not depend on
//! operations.

use pushpull_cuda::{Driver, DriverError};

use super::error::CudaError;
use super::memory::DeviceMemory;
use super::need::{MemoryNeed, TooLittleMemory};
use crate::program::Program;

/// A device for the programs of one clone of a graph, which run one at a time.
pub struct CudaDevice {
    pub(crate) driver: Box<dyn Driver + Send>,
    pub(crate) memory: DeviceMemory,
    /// The number of bytes that the programs may take.
    bytes_max: u64,
}

impl CudaDevice {
    /// Returns a device whose programs take at most `memory_fraction` of its memory, from 0 to 1.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn new(mut driver: Box<dyn Driver + Send>, memory_fraction: f64) -> Result<Self, DriverError> {
        let [_, total] = driver.memory_info()?;
        let bytes_max = (total as f64 * memory_fraction) as u64;
        Ok(Self { driver, memory: DeviceMemory::default(), bytes_max })
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
        let Self { driver, memory, bytes_max } = self;
        let missing = memory.missing(program);
        if missing.is_empty() {
            return Ok(());
        }
        driver.synchronise()?;
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
}
