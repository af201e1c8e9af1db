//! The slices of each shard, and the part of a variable that each slice holds. Computed once from the
//! placement. This module must not depend on tensors.

use std::collections::BTreeMap;

use pushpull_messages::id::{PlacementEpoch, ShardId, SliceId, VariableId};
use pushpull_messages::placement::Placement;
use pushpull_messages::variable::VariableSpec;

/// The layout of all shards and variables of a job.
#[derive(Debug)]
pub struct Layout {
    pub(crate) epoch: PlacementEpoch,
    pub(crate) digest: u32,
    pub(crate) shards: Vec<ShardLayout>,
    pub(crate) variables: Vec<VariableLayout>,
}

/// The slices of one shard, in the order of the placement.
#[derive(Debug)]
pub(crate) struct ShardLayout {
    pub shard: ShardId,
    pub slices: Vec<SliceId>,
    /// For each slice, the part of a variable that it holds.
    pub parts: Vec<SlicePart>,
}

/// The part of a variable that a slice holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlicePart {
    pub variable: VariableId,
    /// The offset of the part in the variable, in elements.
    pub first_element: usize,
    pub elements: usize,
}

/// The slices of one variable, and the shards that own them.
#[derive(Debug)]
pub(crate) struct VariableLayout {
    pub elements: usize,
    /// The slices in the order of the variable's rows; a single slice if the variable is not split.
    pub parts: Vec<ShardPart>,
}

/// The location of a slice: its shard, and its position among the slices of the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPart {
    /// The position of the shard in the layout.
    pub shard: usize,
    /// The position of the slice among the slices of the shard.
    pub position: usize,
    /// The offset of the slice in the variable, in elements.
    pub first_element: usize,
    pub elements: usize,
}

impl Layout {
    /// Creates the layout of a placement that has been validated against these variables.
    ///
    /// # Panics
    /// If the placement does not match the variables.
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
            let part = ShardPart { shard, position: slices.len(), first_element, elements };
            layouts[placed.slice.variable.index()].parts.push(part);
            slices.push(SliceId(id as u32));
            parts.push(SlicePart { variable: placed.slice.variable, first_element, elements });
        }
        Self { epoch: placement.epoch, digest: placement.digest(), shards, variables: layouts }
    }
}
