//! Divides the instructions of a step into segments, at the points where a value is needed that was not
//! needed before. So a device can begin while later values are still being copied to it, and repeat each
//! segment as one graph. This module must not depend on devices.
//!
//! Required properties: (A) the segments are consecutive and have all instructions; (B) no instruction but
//! the first of a segment needs a variable that no earlier instruction needs.

use std::collections::BTreeSet;
use std::ops::Range;

use pushpull_messages::id::VariableId;

use crate::memory::{Instruction, Place};

/// Consecutive instructions, and the variables that the first of them needs first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub instructions: Range<usize>,
    pub needs: Vec<VariableId>,
}

/// Divides instructions into segments.
pub(super) fn segments(instructions: &[Instruction]) -> Vec<Segment> {
    let (mut known, mut segments) = (BTreeSet::new(), Vec::<Segment>::new());
    for (position, instruction) in instructions.iter().enumerate() {
        let variables = instruction.inputs.iter().filter_map(|place| match *place {
            Place::Variable(variable) => Some(variable),
            _ => None,
        });
        let needs: Vec<VariableId> = variables.filter(|&variable| known.insert(variable)).collect();
        match segments.last_mut() {
            Some(segment) if needs.is_empty() => segment.instructions.end = position + 1,
            _ => segments.push(Segment { instructions: position..position + 1, needs }),
        }
    }
    segments
}
