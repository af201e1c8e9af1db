//! The memory of a program on a device: the arena, and a copy of each column, variable and gradient that an
//! instruction reads or writes. This module must not depend on operations.

use std::ops::Range;

use pushpull_cuda::{Driver, DriverError, Memory, Place as Address, Span, StepNumbers};
use pushpull_messages::id::VariableId;

use crate::memory::{Instruction, Place};
use crate::program::Program;

/// The number of bytes of a float, and of an integer.
pub(super) const WORD: u64 = 4;

/// The memory of a program on a device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    arena: Memory,
    /// The numbers that differ from step to step.
    step: Memory,
    columns: Vec<Option<Memory>>,
    variables: Vec<Option<Memory>>,
    gradients: Vec<Option<Memory>>,
}

impl DeviceMemory {
    /// Allocates all memory that the program needs.
    ///
    /// # Errors
    /// If the device has too little memory.
    pub(super) fn new(program: &Program, driver: &mut dyn Driver) -> Result<Self, DriverError> {
        let (mut columns, mut variables, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for instruction in &program.instructions {
            for (place, elements) in places(instruction) {
                let (all, index) = match *place {
                    Place::Arena(_) => continue,
                    Place::Column(column) => (&mut columns, column),
                    Place::Variable(VariableId(variable)) => (&mut variables, variable as usize),
                    Place::Gradient(VariableId(variable)) => (&mut gradients, variable as usize),
                };
                if all.len() <= index {
                    all.resize_with(index + 1, || None);
                }
                if all[index].is_none() {
                    all[index] = Some(driver.allocate(WORD * elements as u64)?);
                }
            }
        }
        let arena = driver.allocate(WORD * program.arena as u64)?;
        let step = driver.allocate(StepNumbers::BYTES)?;
        Ok(Self { arena, step, columns, variables, gradients })
    }

    /// Returns the memory of a value.
    pub(super) fn span(&self, place: &Place) -> Span {
        let of = |all: &[Option<Memory>], index: usize| {
            let memory =
                all[index].as_ref().expect("the memory of a value that an instruction reads or writes");
            (memory.place(), memory.bytes())
        };
        match *place {
            Place::Arena(ref range) => self.in_arena(range),
            Place::Column(column) => of(&self.columns, column),
            Place::Variable(variable) => of(&self.variables, variable.index()),
            Place::Gradient(variable) => of(&self.gradients, variable.index()),
        }
    }

    /// Returns the memory of a range of the arena.
    pub(super) const fn in_arena(&self, range: &Range<usize>) -> Span {
        (self.arena.place().behind(WORD * range.start as u64), WORD * (range.end - range.start) as u64)
    }

    /// Returns where the numbers of the step are.
    pub(super) const fn step(&self) -> Address {
        self.step.place()
    }

    /// Returns the columns that the device needs, and where they are.
    pub(super) fn columns(&self) -> impl Iterator<Item = (usize, Address)> {
        self.columns.iter().enumerate().filter_map(|(index, memory)| Some((index, memory.as_ref()?.place())))
    }

    /// Releases all memory.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn release(self, driver: &mut dyn Driver) -> Result<(), DriverError> {
        let Self { arena, step, columns, variables, gradients } = self;
        let tensors = columns.into_iter().chain(variables).chain(gradients).flatten();
        tensors.chain([arena, step]).try_for_each(|memory| driver.release(memory))
    }
}

/// Returns the places of an instruction, with the number of elements of each.
pub(super) fn places(instruction: &Instruction) -> impl Iterator<Item = (&Place, usize)> {
    let Instruction { sizes, inputs, outputs, in_place, .. } = instruction;
    let read = inputs.iter().zip(sizes.inputs.iter().copied().skip(usize::from(*in_place)));
    read.chain(outputs.iter().zip(sizes.outputs.iter().copied()))
}
