//! Divides the instructions of a step into segments, at points where a value is needed that was not needed
//! before. So a device can begin while later values are still being copied to it, and repeat each segment as
//! one graph. This module must not depend on devices.
//!
//! Required properties: (A) the segments are consecutive and have all instructions; (B) an instruction needs
//! only variables of its segment or of an earlier one; (C) each segment but the last has enough bytes.

use std::collections::BTreeSet;
use std::ops::Range;

use pushpull_messages::id::VariableId;

use crate::memory::{Instruction, Place};

/// Consecutive instructions, and the variables that they need first, in the order in which they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub instructions: Range<usize>,
    pub needs: Vec<VariableId>,
}

/// Divides instructions into segments whose variables have at least `wanted` bytes together. `bytes` returns
/// the size of a variable.
pub(super) fn segments(
    instructions: &[Instruction],
    bytes: impl Fn(VariableId) -> u64,
    wanted: u64,
) -> Vec<Segment> {
    let (mut known, mut segments, mut has) = (BTreeSet::new(), Vec::<Segment>::new(), 0);
    for (position, instruction) in instructions.iter().enumerate() {
        let variables = instruction.inputs.iter().filter_map(|place| match *place {
            Place::Variable(variable) => Some(variable),
            _ => None,
        });
        let needs: Vec<VariableId> = variables.filter(|&variable| known.insert(variable)).collect();
        let needed: u64 = needs.iter().map(|&variable| bytes(variable)).sum();
        match segments.last_mut() {
            Some(segment) if needs.is_empty() || has < wanted => {
                segment.instructions.end = position + 1;
                segment.needs.extend(needs);
                has += needed;
            }
            _ => {
                segments.push(Segment { instructions: position..position + 1, needs });
                has = needed;
            }
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::NodeId;

    use super::*;
    use crate::fetch::Groups;
    use crate::ir::Kernel;
    use crate::memory::Sizes;

    fn instruction(variables: &[u32]) -> Instruction {
        Instruction {
            kernel: Kernel::Share,
            sizes: Sizes { inputs: Vec::new(), outputs: Vec::new() },
            inputs: variables.iter().map(|&id| Place::Variable(VariableId(id))).collect(),
            outputs: Vec::new(),
            in_place: false,
            scratch: 0..0,
            completes: None,
            origin: NodeId(0),
            groups: Groups::ALWAYS,
        }
    }

    proptest! {
        #[test]
        fn segments_keep_their_properties(
            reads in prop::collection::vec(prop::collection::vec(0u32..12, 0..3), 0..30),
            sizes in prop::collection::vec(0u64..100, 12),
            wanted in 0u64..200,
        ) {
            let instructions: Vec<Instruction> = reads.iter().map(|read| instruction(read)).collect();
            let bytes = |variable: VariableId| sizes[variable.index()];
            let segments = segments(&instructions, bytes, wanted);
            let (mut next, mut known) = (0, BTreeSet::new());
            for (at, Segment { instructions, needs }) in segments.iter().enumerate() {
                prop_assert_eq!(instructions.start, next);
                prop_assert!(!instructions.is_empty());
                next = instructions.end;
                for &variable in needs {
                    prop_assert!(known.insert(variable), "no variable is needed first twice");
                }
                let all_known = reads[instructions.clone()].iter().flatten().all(|&id| known.contains(&VariableId(id)));
                prop_assert!(all_known);
                let has: u64 = needs.iter().map(|&variable| bytes(variable)).sum();
                prop_assert!(at + 1 == segments.len() || has >= wanted);
            }
            prop_assert_eq!(next, reads.len());
        }
    }
}
