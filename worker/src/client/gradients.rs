//! The gradients of one step, in one pooled buffer for each variable. A push may begin before all gradients
//! are computed: its payloads then consist of promises, and each promise is fulfilled when its gradient is
//! complete. This module must not depend on graphs.

use std::sync::Arc;

use pushpull_engine::GradientSink;
use pushpull_kernels::cpu::{Threads, accumulate};
use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Promise, Segment};

use super::layout::Layout;
use super::values::Values;

/// The gradients of all variables. Until a gradient is written, its buffer contains the bytes of earlier
/// steps.
#[derive(Debug)]
pub struct Gradients {
    layout: Arc<Layout>,
    /// The buffer of each gradient; `None` after a promised gradient was completed, because its buffer is
    /// then being sent.
    variables: Vec<Option<Buffer>>,
    /// The promise of each gradient; `None` if the gradient is complete. Empty until the gradients are
    /// promised.
    promises: Vec<Option<Promise>>,
}

impl Gradients {
    /// Takes buffers for all gradients from the pool.
    pub fn take(layout: &Arc<Layout>, pool: &BufferPool) -> Self {
        let variables = layout.variables.iter().map(|variable| Some(pool.take(variable.elements * 4)));
        Self { variables: variables.collect(), promises: Vec::new(), layout: Arc::clone(layout) }
    }

    /// Returns the gradient of one variable, row-major. The caller must overwrite all of it.
    ///
    /// # Panics
    /// If the gradient was promised and is complete.
    pub fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.variables[variable.index()].as_mut().expect("a gradient that has not been sent").as_f32_mut()
    }

    /// Returns the gradient of one variable, row-major.
    ///
    /// # Panics
    /// If the gradient was promised and is complete.
    pub fn variable(&self, variable: VariableId) -> &[f32] {
        self.variables[variable.index()].as_ref().expect("a gradient that has not been sent").as_f32()
    }

    /// Adds the gradients of another device to these gradients.
    ///
    /// # Panics
    /// If `other` has another layout, or if a gradient was promised and is complete.
    pub fn add(&mut self, other: &Self) {
        assert!(Arc::ptr_eq(&self.layout, &other.layout), "gradients of another layout");
        for variable in (0..self.variables.len() as u32).map(VariableId) {
            accumulate(self.variable_mut(variable), other.variable(variable), Threads::One);
        }
    }

    /// Returns a payload for each shard, with one segment for each slice. A segment is a promise until its
    /// gradient is [`complete`](Self::complete). The last slice is sent first, because the backward pass
    /// computes the gradients of the first layer last.
    ///
    /// # Panics
    /// If the gradients have been promised before.
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

    /// Marks one gradient as final. A promised gradient can then be sent, and can no longer be accessed
    /// here.
    pub fn complete(&mut self, variable: VariableId) {
        if let Some(promise) = self.promises.get_mut(variable.index()).and_then(Option::take) {
            promise.keep(
                self.variables[variable.index()]
                    .take()
                    .expect("a promised gradient is kept until it is complete"),
            );
        }
    }

    /// Marks all gradients as final.
    pub fn complete_all(&mut self) {
        (0..self.variables.len() as u32).for_each(|variable| self.complete(VariableId(variable)));
    }

    /// Converts the gradients to values of the variables. The elements remain the same, and are not copied.
    ///
    /// # Panics
    /// If a gradient was promised and is already complete, because it may have been sent.
    pub fn into_values(self) -> Values {
        let whole = |buffer: Option<Buffer>| {
            Segment::whole(Arc::new(buffer.expect("a gradient that has not been sent")))
        };
        Values::new(self.variables.into_iter().map(whole).collect())
    }

    /// Completes all gradients, and returns a payload for each shard.
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
