//! The memory that the programs of one clone share on a device: an arena, and a copy of each column, variable
//! and gradient that an instruction reads or writes. This module must not depend on operations.
//!
//! Required property: a buffer is as large as the largest program needs it. Only one program runs at a time.

use std::collections::BTreeMap;

use pushpull_cuda::{Driver, DriverError, Memory, Place as Address, StepNumbers};

use crate::memory::{Instruction, Place};
use crate::program::Program;

/// The number of bytes of a float, and of an integer.
pub(super) const WORD: u64 = 4;

/// A buffer on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The arena.
    Arena,
    /// The numbers that differ from step to step.
    Step,
    Column(usize),
    Variable(usize),
    Gradient(usize),
    /// A column of the next batch. It is allocated only if there is room.
    Ahead(usize),
}

impl Key {
    pub(super) const fn of(place: &Place) -> Self {
        match place {
            Place::Arena(_) => Self::Arena,
            Place::Column(column) => Self::Column(*column),
            Place::Variable(variable) => Self::Variable(variable.index()),
            Place::Gradient(variable) => Self::Gradient(variable.index()),
        }
    }
}

/// Returns the size of each buffer that a program needs, in bytes.
pub(super) fn buffers(program: &Program) -> BTreeMap<Key, u64> {
    let mut sizes = BTreeMap::from([(Key::Step, StepNumbers::BYTES)]);
    for (place, elements) in program.instructions.iter().flat_map(places) {
        sizes.insert(Key::of(place), WORD * elements as u64);
    }
    sizes.insert(Key::Arena, WORD * program.arena as u64);
    sizes
}

/// The memory of some programs on a device.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    buffers: BTreeMap<Key, Memory>,
    /// How many times buffers were replaced.
    generation: u64,
}

impl DeviceMemory {
    /// Returns those of some buffers with their sizes that do not exist or are too small.
    pub(super) fn missing(&self, mut sizes: BTreeMap<Key, u64>) -> BTreeMap<Key, u64> {
        sizes.retain(|key, bytes| self.buffers.get(key).is_none_or(|buffer| buffer.bytes() < *bytes));
        sizes
    }

    /// Returns the number of bytes of the buffers that would be replaced by these.
    pub(super) fn replaced_bytes(&self, missing: &BTreeMap<Key, u64>) -> u64 {
        missing.keys().filter_map(|key| self.buffers.get(key)).map(Memory::bytes).sum()
    }

    /// Allocates the missing buffers of a program. The device must have done all that was asked of it.
    ///
    /// # Errors
    /// If the device has too little memory.
    pub(super) fn grow(
        &mut self,
        missing: BTreeMap<Key, u64>,
        driver: &mut dyn Driver,
    ) -> Result<(), DriverError> {
        self.generation += u64::from(!missing.is_empty());
        self.replace(missing, driver)
    }

    /// Allocates missing buffers, to which no captured graph refers. The device must have done all that was
    /// asked of it.
    ///
    /// # Errors
    /// If the device has too little memory.
    pub(super) fn replace(
        &mut self,
        missing: BTreeMap<Key, u64>,
        driver: &mut dyn Driver,
    ) -> Result<(), DriverError> {
        for key in missing.keys() {
            if let Some(small) = self.buffers.remove(key) {
                driver.release(small)?;
            }
        }
        for (key, bytes) in missing {
            self.buffers.insert(key, driver.allocate(bytes)?);
        }
        Ok(())
    }

    /// Releases the buffers for the next batch. The device must have done all that was asked of it.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn release_ahead(&mut self, driver: &mut dyn Driver) -> Result<(), DriverError> {
        while let Some((&key, _)) = self.buffers.range(Key::Ahead(0)..).next() {
            let memory = self.buffers.remove(&key).expect("it is there");
            driver.release(memory)?;
        }
        Ok(())
    }

    /// Returns where a column of the next batch is; `None` if there is no room for it.
    pub(super) fn ahead(&self, column: usize) -> Option<Address> {
        self.buffers.get(&Key::Ahead(column)).map(Memory::place)
    }

    /// Returns a number that changes if an address may have changed.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.buffers.values().map(Memory::bytes).sum()
    }

    /// Returns where a value is.
    pub(super) fn address(&self, place: &Place) -> Address {
        match place {
            Place::Arena(range) => self.first(Key::Arena).behind(WORD * range.start as u64),
            other => self.first(Key::of(other)),
        }
    }

    /// Returns where the numbers of the step are.
    pub(super) fn step(&self) -> Address {
        self.first(Key::Step)
    }

    fn first(&self, key: Key) -> Address {
        self.buffers.get(&key).expect("the buffers of a program exist").place()
    }
}

/// Returns the places of an instruction, with the number of elements of each.
fn places(instruction: &Instruction) -> impl Iterator<Item = (&Place, usize)> {
    let Instruction { sizes, inputs, outputs, in_place, .. } = instruction;
    let read = inputs.iter().zip(sizes.inputs.iter().copied().skip(usize::from(*in_place)));
    read.chain(outputs.iter().zip(sizes.outputs.iter().copied()))
}
