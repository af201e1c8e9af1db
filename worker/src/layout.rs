//! Which slices travel to and from each shard, and which part of its variable each is. Made once from the placement.

use std::collections::BTreeMap;

use pushpull_messages::id::{PlacementEpoch, ShardId, SliceId, VariableId};
use pushpull_messages::placement::Placement;
use pushpull_messages::variable::VariableSpec;

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
    /// What each slice is.
    pub parts: Vec<SlicePart>,
}

/// One slice, by its variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlicePart {
    pub variable: VariableId,
    /// In the variable, in elements.
    pub first_element: usize,
    pub elements: usize,
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
            .map(|&shard| ShardLayout { shard, slices: Vec::new(), parts: Vec::new() })
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
            let ShardLayout { slices, parts, .. } = &mut shards[shard];
            let (first_element, elements) =
                (placed.slice.first_element(variable), placed.slice.elements(variable));
            let part = Part { shard, position: slices.len(), first_element, elements };
            layouts[placed.slice.variable.index()].parts.push(part);
            slices.push(SliceId(id as u32));
            parts.push(SlicePart { variable: placed.slice.variable, first_element, elements });
        }
        Self { epoch: placement.epoch, digest: placement.digest(), shards, variables: layouts }
    }
}
