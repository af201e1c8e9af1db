//! The slices of each shard, the part of a variable that each slice holds, and the encodings in which they
//! are sent. Computed once from the placement and the job. This module must not depend on tensors.

use std::collections::BTreeMap;
use std::ops::Range;

use pushpull_kernels::cpu::Encoding;
use pushpull_messages::compression::{EncodingSpec, SentAs};
use pushpull_messages::graph::Stages;
use pushpull_messages::id::{PlacementEpoch, ShardId, SliceId, VariableId};
use pushpull_messages::placement::Placement;
use pushpull_messages::tensor::ALIGNMENT;
use pushpull_messages::variable::VariableSpec;

/// The layout of all shards and variables of a job.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) epoch: PlacementEpoch,
    pub(crate) digest: u32,
    pub(crate) shards: Vec<ShardLayout>,
    pub(crate) variables: Vec<VariableLayout>,
    /// The buffers of the gradients.
    pub(crate) buffers: Vec<BufferLayout>,
}

/// The slices of one shard, in the order of the placement.
#[derive(Clone, Debug)]
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
    pub elements: usize,
    /// How the gradient of the part is sent.
    pub gradient: SentPart,
    /// The encoding of the part's values in the reply to a push; `None` if they are sent exactly.
    pub values: Option<Encoding>,
}

/// How the gradient of a part of a variable is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPart {
    /// Where the part begins among what is sent of the gradient of its variable, in bytes.
    pub start: usize,
    pub bytes: usize,
    /// The encoding; `None` if the part is sent exactly.
    pub encoding: Option<Encoding>,
}

/// The slices of one variable, and the shards that own them.
#[derive(Clone, Debug)]
pub(crate) struct VariableLayout {
    pub elements: usize,
    /// The number of bytes in which the gradient is sent, if a part of it is encoded. Otherwise the gradient
    /// is sent from the memory in which it was computed.
    pub encoded_bytes: Option<usize>,
    /// Where the gradient is computed.
    pub place: GradientPlace,
    /// The slices in the order of the variable's rows; a single slice if the variable is not split.
    pub parts: Vec<ShardPart>,
}

/// The place of a gradient among the buffers of all gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GradientPlace {
    pub buffer: usize,
    /// Where the gradient begins in the buffer, in bytes.
    pub start: usize,
}

/// A buffer of gradients: of one variable, or of several small ones that are sent one after the other. Many
/// small buffers take longer to manage and to send than to fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferLayout {
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The variables, in the order in which their gradients are sent.
    pub variables: Vec<VariableId>,
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

/// The size of the largest gradient, in bytes, that shares a buffer with others.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// The size of the largest buffer, in bytes, that gradients share. They are sent when the last one is
/// complete.
const SHARED_BUFFER_BYTES_MAX: usize = 1 << 20;

/// Returns the encoding of a part with `elements` elements; `None` if it would not make the part smaller.
/// The shard's `encoding`, in its compression, must decide in the same way.
fn encoding(spec: Option<EncodingSpec>, elements: usize) -> Option<Encoding> {
    let encoding = match spec? {
        EncodingSpec::Fp16 => Encoding::Fp16,
        EncodingSpec::Bf16 => Encoding::Bf16,
        EncodingSpec::Int8 => Encoding::Int8,
        EncodingSpec::TopK { fraction } => Encoding::TopK { fraction },
    };
    Some(encoding).filter(|encoding| encoding.shrinks(elements))
}

/// Returns the shards of each stage's variables, in the order of the placement. Shards without slices are
/// left out.
///
/// # Errors
/// Returns a shard that has variables of several stages.
pub(crate) fn shards_of_stages(placement: &Placement, stages: &Stages) -> Result<Vec<Vec<ShardId>>, ShardId> {
    let mut owners: BTreeMap<ShardId, u32> = BTreeMap::new();
    for placed in &placement.slices {
        let owner = stages.owner(placed.slice.variable);
        if *owners.entry(placed.shard).or_insert(owner) != owner {
            return Err(placed.shard);
        }
    }
    let mut shards = vec![Vec::new(); stages.count() as usize];
    let with_slices = placement.shards_with_slices();
    for &shard in placement.shards.iter().filter(|shard| with_slices.contains(shard)) {
        shards[owners.get(&shard).map_or(0, |&owner| owner as usize)].push(shard);
    }
    Ok(shards)
}

impl Layout {
    /// Creates the layout of a placement that has been validated against these variables. Shards without
    /// slices are left out. Everything is sent exactly.
    ///
    /// # Panics
    /// If the placement does not match the variables.
    pub fn new(placement: &Placement, variables: &[VariableSpec]) -> Self {
        let with_slices = placement.shards_with_slices();
        let shards = placement.shards.iter().copied().filter(|shard| with_slices.contains(shard));
        Self::of_shards(placement, &shards.collect::<Vec<_>>(), variables)
    }

    /// Creates the layout of some shards of a placement, in their order. A variable on another shard has no
    /// elements.
    ///
    /// # Panics
    /// If the placement does not match the variables, or a variable is only partly on these shards.
    pub(crate) fn of_shards(placement: &Placement, own: &[ShardId], variables: &[VariableSpec]) -> Self {
        let mut shards: Vec<ShardLayout> =
            own.iter().map(|&shard| ShardLayout { shard, slices: Vec::new(), parts: Vec::new() }).collect();
        let mut layouts: Vec<VariableLayout> = variables
            .iter()
            .map(|variable| VariableLayout {
                elements: variable.shape.elements(),
                encoded_bytes: None,
                place: GradientPlace::default(),
                parts: Vec::new(),
            })
            .collect();
        let positions = own.iter().enumerate().map(|(position, &shard)| (shard, position));
        let positions: BTreeMap<ShardId, usize> = positions.collect();
        for (id, placed) in placement.slices.iter().enumerate() {
            let variable = &variables[placed.slice.variable.index()];
            let Some(&shard) = positions.get(&placed.shard) else { continue };
            let ShardLayout { slices, parts, .. } = &mut shards[shard];
            let (first_element, elements) =
                (placed.slice.first_element(variable), placed.slice.elements(variable));
            let part = ShardPart { shard, position: slices.len(), first_element, elements };
            layouts[placed.slice.variable.index()].parts.push(part);
            slices.push(SliceId(id as u32));
            let gradient = SentPart { start: first_element * 4, bytes: elements * 4, encoding: None };
            let variable = placed.slice.variable;
            parts.push(SlicePart { variable, elements, gradient, values: None });
        }
        for (layout, variable) in layouts.iter_mut().zip(variables) {
            let placed: usize = layout.parts.iter().map(|part| part.elements).sum();
            assert!([0, variable.shape.elements()].contains(&placed), "variable '{}' is cut", variable.name);
            layout.elements = placed;
        }
        let (epoch, digest) = (placement.epoch, placement.digest());
        let mut layout = Self { epoch, digest, shards, variables: layouts, buffers: Vec::new() };
        layout.place_gradients();
        layout
    }

    /// Sets the places of the gradients.
    fn place_gradients(&mut self) {
        let Self { shards, variables, buffers, .. } = self;
        buffers.clear();
        let is_small = |variable: &VariableLayout| {
            let is_whole = variable.parts.len() == 1 && variable.encoded_bytes.is_none();
            is_whole && variable.elements * 4 <= SMALL_BYTES_MAX
        };
        for shard in shards.iter() {
            let mut shared: Option<BufferLayout> = None;
            // The last slice is sent first.
            for part in shard.parts.iter().rev() {
                let variable = &mut variables[part.variable.index()];
                if !is_small(variable) {
                    buffers.extend(shared.take());
                    continue;
                }
                let bytes = variable.elements * 4;
                let has_room = |shared: &BufferLayout| {
                    shared.bytes.next_multiple_of(ALIGNMENT) + bytes <= SHARED_BUFFER_BYTES_MAX
                };
                if !shared.as_ref().is_some_and(has_room) {
                    buffers.extend(shared.take());
                }
                let shared = shared.get_or_insert_default();
                let start = shared.bytes.next_multiple_of(ALIGNMENT);
                variable.place = GradientPlace { buffer: buffers.len(), start };
                shared.bytes = start + bytes;
                shared.variables.push(part.variable);
            }
            buffers.extend(shared);
        }
        for (id, variable) in variables.iter_mut().enumerate().filter(|(_, variable)| !is_small(variable)) {
            variable.place = GradientPlace { buffer: buffers.len(), start: 0 };
            let variables = vec![VariableId(id as u32)];
            buffers.push(BufferLayout { bytes: variable.elements * 4, variables });
        }
    }

    /// Sets how each variable is sent, in the order of the variables.
    ///
    /// # Panics
    /// If `sent` does not have an item for each variable.
    pub fn compress(&mut self, sent: &[SentAs]) {
        let Self { shards, variables, .. } = self;
        assert_eq!(sent.len(), variables.len(), "each variable is sent in some way");
        for (variable, sent) in variables.iter_mut().zip(sent) {
            let (mut end, mut is_encoded) = (0usize, false);
            for part in &variable.parts {
                let slice = &mut shards[part.shard].parts[part.position];
                slice.values = encoding(sent.values, part.elements);
                let encoding = encoding(sent.gradients, part.elements);
                let bytes = encoding.map_or(part.elements * 4, |encoding| encoding.bytes(part.elements));
                // A part that begins a cache line can be lent to a task of this host.
                let start = end.next_multiple_of(ALIGNMENT);
                slice.gradient = SentPart { start, bytes, encoding };
                (end, is_encoded) = (start + bytes, is_encoded || encoding.is_some());
            }
            variable.encoded_bytes = is_encoded.then_some(end);
            if !is_encoded {
                for part in &variable.parts {
                    shards[part.shard].parts[part.position].gradient.start = part.first_element * 4;
                }
            }
        }
        self.place_gradients();
    }

    /// Returns the buffer of a variable's gradient, and the elements of the buffer that the gradient takes.
    pub(crate) fn place_of(&self, variable: VariableId) -> (usize, Range<usize>) {
        let VariableLayout { place: GradientPlace { buffer, start }, elements, .. } =
            self.variables[variable.index()];
        (buffer, start / 4..start / 4 + elements)
    }

    /// Returns the variable whose gradient is in a buffer, and the number of bytes in which it is encoded;
    /// `None` if the gradients of the buffer are sent exactly.
    pub(crate) fn encoded(&self, buffer: usize) -> Option<(VariableId, usize)> {
        let [variable] = self.buffers[buffer].variables[..] else { return None };
        Some((variable, self.variables[variable.index()].encoded_bytes?))
    }

    /// Returns the number of bytes that are sent of a buffer.
    pub(crate) fn sent_bytes_of(&self, buffer: usize) -> usize {
        self.encoded(buffer).map_or(self.buffers[buffer].bytes, |(_, bytes)| bytes)
    }

    /// Returns the number of bytes of all gradients as they are sent, of all values in the replies to pushes,
    /// and of either if they were sent exactly.
    pub(crate) fn sent_bytes(&self) -> [usize; 3] {
        let parts = self.shards.iter().flat_map(|shard| &shard.parts);
        parts.fold([0; 3], |[gradients, values, exact], part| {
            let bytes = part.elements * 4;
            let sent = part.values.map_or(bytes, |encoding| encoding.bytes(part.elements));
            [gradients + part.gradient.bytes, values + sent, exact + bytes]
        })
    }

    /// Returns whether any values are not exact in the replies to pushes.
    pub(crate) fn has_encoded_values(&self) -> bool {
        self.shards.iter().flat_map(|shard| &shard.parts).any(|part| part.values.is_some())
    }
}
