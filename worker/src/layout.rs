//! Where each variable's slices lie in what travels to and from each shard: one buffer a shard, slices one after the
//! other, each on a cache line. Made once from the placement.

use std::collections::BTreeMap;

use messages::buffer::ALIGNMENT;
use messages::id::{PlacementEpoch, ShardId, SliceId, VariableId};
use messages::placement::Placement;
use messages::variable::VariableSpec;

use crate::values::ValuesError;

/// The layout of all shards and variables.
#[derive(Debug)]
pub struct Layout {
    pub(crate) epoch: PlacementEpoch,
    pub(crate) digest: u32,
    pub(crate) shards: Vec<ShardLayout>,
    pub(crate) variables: Vec<VariableLayout>,
}

/// What one shard owns, in the placement's order.
#[derive(Debug)]
pub(crate) struct ShardLayout {
    pub shard: ShardId,
    pub slices: Vec<SliceId>,
    /// Where each slice lies in the shard's buffer, in bytes, and how long it is.
    pub segments: Vec<(usize, usize)>,
    /// Bytes of the shard's buffer.
    pub bytes: usize,
}

impl ShardLayout {
    /// Whether a reply bears all slices of this shard, in order.
    pub fn check(&self, slices: &[SliceId]) -> Result<(), ValuesError> {
        if self.slices == slices { Ok(()) } else { Err(ValuesError::Slices { shard: self.shard }) }
    }
}

/// Where the slices of one variable are.
#[derive(Debug)]
pub(crate) struct VariableLayout {
    pub elements: usize,
    /// In the order of rows; one, where the variable is whole.
    pub parts: Vec<Part>,
}

/// One slice, by its shard and its position among that shard's slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub shard: usize,
    pub position: usize,
    /// In the variable, in elements.
    pub first_element: usize,
    pub elements: usize,
}

impl Layout {
    /// For a placement that has been validated against these variables.
    pub fn new(placement: &Placement, variables: &[VariableSpec]) -> Self {
        let mut shards: Vec<ShardLayout> = placement
            .shards
            .iter()
            .map(|&shard| ShardLayout { shard, slices: Vec::new(), segments: Vec::new(), bytes: 0 })
            .collect();
        let mut layouts: Vec<VariableLayout> = variables
            .iter()
            .map(|variable| VariableLayout { elements: variable.shape.elements(), parts: Vec::new() })
            .collect();
        let positions = placement.shards.iter().enumerate().map(|(position, &shard)| (shard, position));
        let positions: BTreeMap<ShardId, usize> = positions.collect();
        for (id, placed) in placement.slices.iter().enumerate() {
            let variable = &variables[placed.slice.variable.index()];
            let shard = *positions.get(&placed.shard).expect("a valid placement lists every shard");
            let ShardLayout { slices, segments, bytes, .. } = &mut shards[shard];
            let (start, elements) = (bytes.next_multiple_of(ALIGNMENT), placed.slice.elements(variable));
            let first_element = placed.slice.first_element(variable);
            let part = Part { shard, position: slices.len(), first_element, elements };
            layouts[placed.slice.variable.index()].parts.push(part);
            slices.push(SliceId(id as u32));
            segments.push((start, elements * 4));
            *bytes = start + elements * 4;
        }
        Self { epoch: placement.epoch, digest: placement.digest(), shards, variables: layouts }
    }

    pub(crate) fn variable(&self, variable: VariableId) -> &VariableLayout {
        &self.variables[variable.index()]
    }

    /// Where a part lies in its shard's buffer, in floats.
    pub(crate) fn floats(&self, part: &Part) -> std::ops::Range<usize> {
        let (start, bytes) = self.shards[part.shard].segments[part.position];
        start / 4..(start + bytes) / 4
    }

    /// The bytes that one push sends, to all shards together.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }
}
