//! The values of all variables as a pull returned them. A variable that is neither split nor encoded is read
//! directly in its receive buffer, without a copy. This module must not depend on connections.

use std::sync::Arc;

use pushpull_engine::ValueSource;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::{ShardId, VariableId};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};

use super::layout::{Layout, ShardPart, SlicePart};
use super::value_set::ValueSet;

/// The values of all variables of a job.
#[derive(Clone, Debug)]
pub struct Values {
    variables: Vec<Segment>,
    /// The set that other stages keep their parts of; `None` if the replica has one stage.
    set: Option<Arc<ValueSet>>,
}

/// The error for a reply whose slices do not match the placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValuesError {
    /// The reply has more or fewer slices than the shard owns.
    #[error("{shard} sent {got} slices, but the placement assigns {expected} slices to it")]
    Count {
        /// The shard that sent the reply.
        shard: ShardId,
        /// The number of slices that the placement gives to the shard.
        expected: usize,
        /// The number of slices received.
        got: usize,
    },
    /// The shard sent the wrong slices, or its slices in the wrong order.
    #[error("{shard} sent the wrong slices for its placement, or sent them in the wrong order")]
    Slices {
        /// The shard that sent the reply.
        shard: ShardId,
    },
    /// The size of a slice is not its size in the placement.
    #[error("slice {position} of {shard} arrived with {got} bytes, but the placement says {expected} bytes")]
    Size {
        /// The shard that sent the reply.
        shard: ShardId,
        /// The position of the slice among the slices of the shard.
        position: usize,
        /// The number of bytes that the slice should have.
        expected: usize,
        /// The number of bytes received.
        got: usize,
    },
}

impl Values {
    /// Creates values from one segment for each variable, in the order of the variables' ids.
    pub const fn new(variables: Vec<Segment>) -> Self {
        Self { variables, set: None }
    }

    /// Returns these values as the leader's part of a set.
    pub(crate) fn in_set(mut self, set: Arc<ValueSet>) -> Self {
        self.set = Some(set);
        self
    }

    /// Returns the set that these values are a part of; `None` if the replica has one stage.
    pub(crate) fn set(&self) -> Option<&ValueSet> {
        self.set.as_deref()
    }

    /// Assembles exact values from `shards`, which has the payload of each shard in the order of the layout.
    /// A variable that is split among shards is copied into one buffer; all others stay in the buffers that
    /// they were received into.
    ///
    /// # Errors
    /// If the segments of a payload do not match the shard's slices.
    pub fn assemble(layout: &Layout, shards: &[Payload], pool: &BufferPool) -> Result<Self, ValuesError> {
        Self::assemble_sent(layout, shards, &vec![false; shards.len()], pool)
    }

    /// Assembles the values from `shards`, as [`assemble`](Self::assemble) does. `encoded` says for each
    /// shard whether its values are in the encodings of the layout. They are decoded.
    pub(super) fn assemble_sent(
        layout: &Layout,
        shards: &[Payload],
        encoded: &[bool],
        pool: &BufferPool,
    ) -> Result<Self, ValuesError> {
        let encoding = |shard: usize, part: &SlicePart| part.values.filter(|_| encoded[shard]);
        for (index, (shard, payload)) in layout.shards.iter().zip(shards).enumerate() {
            let (expected, got) = (shard.parts.len(), payload.segments().len());
            if expected != got {
                return Err(ValuesError::Count { shard: shard.shard, expected, got });
            }
            for (position, (part, segment)) in shard.parts.iter().zip(payload.segments()).enumerate() {
                let encoding = encoding(index, part);
                let expected = encoding.map_or(part.elements * 4, |encoding| encoding.bytes(part.elements));
                let got = segment.len();
                if expected != got {
                    return Err(ValuesError::Size { shard: shard.shard, position, expected, got });
                }
            }
        }
        let encoding =
            |part: &ShardPart| encoding(part.shard, &layout.shards[part.shard].parts[part.position]);
        let variables = layout.variables.iter().map(|variable| match &variable.parts[..] {
            [whole] if encoding(whole).is_none() => shards[whole.shard].segments()[whole.position].clone(),
            parts => {
                let mut piece = pool.take(variable.elements * 4);
                for part in parts {
                    let from = &shards[part.shard].segments()[part.position];
                    let to = part.first_element..part.first_element + part.elements;
                    let to = &mut piece.as_f32_mut()[to];
                    match encoding(part) {
                        None => to.copy_from_slice(from.as_f32()),
                        Some(encoding) => {
                            let decoded = encoding.decode(to, from.as_bytes(), Threads::One);
                            decoded.expect("values have no indices");
                        }
                    }
                }
                Segment::whole(Arc::new(piece))
            }
        });
        Ok(Self::new(variables.collect()))
    }

    /// Returns the value of one variable, row-major; empty if the variable is on another stage of the
    /// replica.
    pub fn variable(&self, variable: VariableId) -> &[f32] {
        self.variables[variable.index()].as_f32()
    }

    /// Returns the value of one variable as bytes.
    pub fn bytes(&self, variable: VariableId) -> &[u8] {
        self.variables[variable.index()].as_bytes()
    }
}

impl ValueSource for Values {
    fn variable(&self, variable: VariableId) -> &[f32] {
        self.variable(variable)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_transport::buffer::Buffer;

    use super::*;
    use crate::client::Gradients;
    use crate::client::tests::placed;

    proptest! {
        /// Draws variables and their placement, turns gradients into payloads, and assembles the payloads as
        /// values. The values must equal the gradients.
        #[test]
        fn gradients_and_values_agree_on_every_layout(
            variables in prop::collection::vec((1usize..6, 1usize..20, any::<u8>()), 1..6),
            shards in 1u32..4,
        ) {
            let (placement, specs) = placed(&variables, shards);
            let layout = Arc::new(Layout::new(&placement, &specs));
            let pool = BufferPool::default();
            let mut gradients = Gradients::take(&layout, &pool);
            let mut expected = Vec::new();
            for (id, spec) in specs.iter().enumerate() {
                let numbers: Vec<f32> = (0..spec.shape.elements()).map(|i| (id * 1000 + i) as f32).collect();
                gradients.variable_mut(VariableId(id as u32)).copy_from_slice(&numbers);
                expected.push(numbers);
            }
            // Gradients are sent in the reverse order: the last slice first.
            let reversed = |payload: Payload| Payload::new(payload.into_segments().into_iter().rev().collect());
            let payloads: Vec<Payload> = gradients.into_payloads().into_iter().map(reversed).collect();
            let values = Values::assemble(&layout, &payloads, &pool).unwrap();
            for (id, expected) in expected.iter().enumerate() {
                prop_assert_eq!(values.variable(VariableId(id as u32)), &expected[..]);
            }
            // A slice that is too short is refused.
            let mut wrong = payloads;
            let odd = wrong.iter().position(|payload| !payload.segments().is_empty()).unwrap();
            let mut segments = wrong[odd].clone().into_segments();
            segments[0] = Segment::whole(Arc::new(Buffer::zeroed(2)));
            wrong[odd] = Payload::new(segments);
            prop_assert!(Values::assemble(&layout, &wrong, &pool).is_err());
        }
    }
}
