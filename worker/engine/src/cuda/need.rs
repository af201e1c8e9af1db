//! The memory that a program needs on a device, and who takes it. This module must not depend on devices.

use std::fmt;

use super::memory::{Key, WORD, buffers};
use crate::program::Program;

/// The memory that a program needs on a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// The number of examples in a batch.
    pub examples: usize,
    /// The values that instructions pass on to each other, and their scratch memory.
    pub between: u64,
    /// The values of variables.
    pub variables: u64,
    /// The gradients of variables.
    pub gradients: u64,
    /// The columns of a batch.
    pub columns: u64,
    /// The largest outputs between instructions, with the names of their nodes.
    pub largest: Vec<(String, u64)>,
}

impl MemoryNeed {
    pub(super) fn of(program: &Program) -> Self {
        let (mut between, mut variables, mut gradients, mut columns) = (0, 0, 0, 0);
        for (key, bytes) in buffers(program) {
            let part = match key {
                Key::Arena | Key::Step => &mut between,
                Key::Variable(_) => &mut variables,
                Key::Gradient(_) => &mut gradients,
                Key::Column(_) | Key::Ahead(_) => &mut columns,
            };
            *part += bytes;
        }
        let largest =
            program.largest.iter().map(|(name, floats)| (name.clone(), WORD * *floats as u64)).collect();
        Self { examples: program.batch, between, variables, gradients, columns, largest }
    }

    /// Returns the number of bytes in all.
    pub const fn bytes(&self) -> u64 {
        self.between + self.variables + self.gradients + self.columns
    }
}

/// Says who takes the memory.
impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { examples, between, variables, gradients, columns, largest } = self;
        write!(f, "{} for batches of {examples} examples: ", Mib(self.bytes()))?;
        write!(f, "{} for values between operations", Mib(*between))?;
        if !largest.is_empty() {
            let names = largest.iter().map(|(name, bytes)| format!("{name} {}", Mib(*bytes)));
            write!(f, " (the largest: {})", names.collect::<Vec<_>>().join(", "))?;
        }
        let [variables, gradients, columns] = [*variables, *gradients, *columns].map(Mib);
        write!(f, ", {variables} for variables, {gradients} for gradients, {columns} for the batch")
    }
}

/// A number of bytes, written in MiB.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// The error for a device with too little memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} has {} free of {}{}, but the model needs {need}; use smaller batches or more devices",
    Mib(*.free), Mib(*.total), share(*.allowed)
)]
pub struct TooLittleMemory {
    /// The name of the device.
    pub device: String,
    /// The free memory of the device, in bytes.
    pub free: u64,
    /// The memory of the device, in bytes.
    pub total: u64,
    /// What the program may take, in bytes; `None` if it may take all that is free.
    pub allowed: Option<u64>,
    /// What it needs.
    pub need: MemoryNeed,
}

/// Says what a program may take.
fn share(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", of which this model may take {}", Mib(bytes)))
}
