//! A slice as its shard holds it: the current value, which is never changed once it can be read, and its slots.

use std::sync::Arc;

use messages::buffer::{Buffer, BufferPool, Segment};
use messages::id::{SliceId, Version};
use messages::optimizer::OptimizerSpec;
use messages::placement::SliceSpec;
use messages::variable::VariableSpec;

use super::{initial, optimizer};

/// One slice and the optimizer's state beside it.
pub(super) struct Slice {
    id: SliceId,
    /// The variable's name, for messages to people.
    variable: String,
    value: Arc<Buffer>,
    slots: Vec<Buffer>,
}

impl Slice {
    /// With its initial value.
    pub(super) fn new(
        id: SliceId,
        slice: &SliceSpec,
        variable: &VariableSpec,
        optimizer: &OptimizerSpec,
        seed: u64,
        pool: &BufferPool,
    ) -> Self {
        let bytes = slice.elements(variable) * 4;
        let mut value = pool.take(bytes);
        initial::fill(value.as_f32_mut(), variable, slice, seed);
        let slots = (0..optimizer::slots(optimizer)).map(|_| Buffer::zeroed(bytes)).collect();
        Self { id, variable: variable.name.clone(), value: Arc::new(value), slots }
    }

    pub(super) const fn id(&self) -> SliceId {
        self.id
    }

    pub(super) fn variable(&self) -> &str {
        &self.variable
    }

    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }

    /// The value as it is now. It stays as it is for whoever reads it, whatever is applied meanwhile.
    pub(super) fn snapshot(&self) -> Segment {
        Segment::whole(Arc::clone(&self.value))
    }

    /// Applies a gradient out of place: the next value is written beside the current one, which others may be
    /// reading, and then takes its place. The old one goes back to the pool with its last reader.
    pub(super) fn apply(
        &mut self,
        gradient: &[f32],
        optimizer: &OptimizerSpec,
        version: Version,
        pool: &BufferPool,
    ) {
        let mut next = pool.take(self.value.len());
        optimizer::apply(
            optimizer,
            next.as_f32_mut(),
            self.value.as_f32(),
            gradient,
            &mut self.slots,
            version,
        );
        self.value = Arc::new(next);
    }
}
