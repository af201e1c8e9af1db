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
    /// Whether the optimizer makes a gradient into an update, or the update comes as it is.
    trainable: bool,
    slots: Vec<Buffer>,
}

/// What is pushed for a variable that is not trained is taken off it.
const TAKE_OFF: OptimizerSpec = OptimizerSpec::Sgd { learning_rate: 1.0 };

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
        let trainable = variable.trainable;
        let slots = if trainable { optimizer::slots(optimizer) } else { 0 };
        let slots = (0..slots).map(|_| Buffer::zeroed(bytes)).collect();
        Self { id, variable: variable.name.clone(), value: Arc::new(value), trainable, slots }
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
        let optimizer = if self.trainable { optimizer } else { &TAKE_OFF };
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
