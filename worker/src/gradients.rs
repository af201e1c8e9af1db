//! The gradients of one step, one pooled buffer a variable. They may be on their way to the shards before all of them
//! are written: what is sent is promised, and each promise is kept when its gradient is complete.

use std::sync::Arc;

use pushpull_engine::GradientSink;
use pushpull_kernels::cpu::{Threads, accumulate};
use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Promise, Segment};

use crate::layout::Layout;
use crate::values::Values;

/// Memory for every variable's gradient. What is in it is left over from earlier steps until it is written.
#[derive(Debug)]
pub struct Gradients {
    layout: Arc<Layout>,
    /// A gradient that is on its way has none any more.
    variables: Vec<Option<Buffer>>,
    /// Of each gradient that has been promised and is not on its way yet.
    promises: Vec<Option<Promise>>,
}

impl Gradients {
    /// From the pool.
    pub fn take(layout: &Arc<Layout>, pool: &BufferPool) -> Self {
        let variables = layout.variables.iter().map(|variable| Some(pool.take(variable.elements * 4)));
        Self { variables: variables.collect(), promises: Vec::new(), layout: Arc::clone(layout) }
    }

    /// One variable's gradient, row-major, to be written whole.
    ///
    /// # Panics
    /// Where it is on its way.
    pub fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.variables[variable.index()].as_mut().expect("a gradient that is not on its way").as_f32_mut()
    }

    /// One variable's gradient, row-major.
    ///
    /// # Panics
    /// Where it is on its way.
    pub fn variable(&self, variable: VariableId) -> &[f32] {
        self.variables[variable.index()].as_ref().expect("a gradient that is not on its way").as_f32()
    }

    /// Adds the same variables' gradients of another device.
    ///
    /// # Panics
    /// Where the other is of another layout, or one of them is on its way.
    pub fn add(&mut self, other: &Self) {
        assert!(Arc::ptr_eq(&self.layout, &other.layout), "gradients of another layout");
        for variable in (0..self.variables.len() as u32).map(VariableId) {
            accumulate(self.variable_mut(variable), other.variable(variable), Threads::One);
        }
    }

    /// What is sent to each shard, one segment a slice: promised, until each gradient is [`complete`](Self::complete).
    /// The last slice goes first, as the backward pass ends with the first.
    ///
    /// # Panics
    /// Where they have been promised before.
    pub fn promise(&mut self) -> Vec<Payload> {
        assert!(self.promises.is_empty(), "gradients are promised once");
        let promise = |variable: &Option<Buffer>| Promise::new(variable.as_ref().map_or(0, Buffer::len));
        let promises: Vec<Promise> = self.variables.iter().map(promise).collect();
        let payloads = self.layout.shards.iter().map(|shard| {
            let segments = shard.parts.iter().rev().map(|part| {
                promises[part.variable.index()].segment(part.first_element * 4, part.elements * 4)
            });
            Payload::new(segments.collect())
        });
        let payloads = payloads.collect();
        self.promises = promises.into_iter().map(Some).collect();
        payloads
    }

    /// Nothing of that gradient changes any more: it may leave, where it is promised.
    pub fn complete(&mut self, variable: VariableId) {
        if let Some(promise) = self.promises.get_mut(variable.index()).and_then(Option::take) {
            promise.keep(self.variables[variable.index()].take().expect("what is promised is here"));
        }
    }

    /// Nothing changes any more.
    pub fn complete_all(&mut self) {
        (0..self.variables.len() as u32).for_each(|variable| self.complete(VariableId(variable)));
    }

    /// The same numbers as values of the variables.
    ///
    /// # Panics
    /// Where one of them is on its way.
    pub fn into_values(self) -> Values {
        let whole =
            |buffer: Option<Buffer>| Segment::whole(Arc::new(buffer.expect("a gradient that is here")));
        Values::new(self.variables.into_iter().map(whole).collect())
    }

    /// What is sent to each shard, all of it complete.
    pub fn into_payloads(mut self) -> Vec<Payload> {
        let payloads = self.promise();
        self.complete_all();
        payloads
    }
}

impl GradientSink for Gradients {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.variable_mut(variable)
    }

    fn complete(&mut self, variable: VariableId) {
        self.complete(variable);
    }
}
