//! The gradients of one step, in one pooled buffer for each variable. A push may begin before all gradients
//! are computed: its payloads then consist of promises, and each promise is fulfilled when its gradient is
//! complete. If the job compresses gradients, they are encoded when they are complete. This module must not
//! depend on graphs.

use std::ops::Range;
use std::sync::Arc;

use pushpull_engine::GradientSink;
use pushpull_kernels::cpu::{Threads, accumulate, scale_in_place};
use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Promise, Segment};

use super::layout::{Layout, ShardLayout, SlicePart, VariableLayout};
use super::promises::Promises;
use super::residuals::Residuals;
use super::values::Values;

/// The gradients of all variables. Until a gradient is written, its buffer contains the bytes of earlier
/// steps.
#[derive(Debug)]
pub struct Gradients {
    layout: Arc<Layout>,
    /// The memory for encoded gradients.
    pool: BufferPool,
    residuals: Arc<Residuals>,
    /// The buffer of each gradient; `None` after a promised gradient was completed, because its buffer is
    /// then being sent.
    variables: Vec<Option<Buffer>>,
    promises: Promises,
    /// The sums over the earlier batches of the same step; `None` for the step's first batch.
    earlier: Option<Box<EarlierBatches>>,
}

/// The sums of the gradients over a step's earlier batches. The sum for a variable is added to the gradient
/// of the current batch when that gradient is complete.
#[derive(Debug)]
struct EarlierBatches {
    /// The sum for each variable; `None` after it was added to the gradient of the current batch.
    sums: Vec<Option<Buffer>>,
    /// The factor by which each gradient is multiplied after the sum over the earlier batches was added to
    /// it.
    factor: f32,
}

impl Gradients {
    /// Takes buffers for all gradients from the pool. What encodings drop of these gradients is lost.
    pub fn take(layout: &Arc<Layout>, pool: &BufferPool) -> Self {
        Self::with_residuals(layout, pool, &Arc::new(Residuals::new(layout.variables.len())))
    }

    /// Takes buffers for all gradients from the pool. What earlier encodings have dropped is in `residuals`.
    pub(super) fn with_residuals(
        layout: &Arc<Layout>,
        pool: &BufferPool,
        residuals: &Arc<Residuals>,
    ) -> Self {
        let variables = layout.variables.iter().map(|variable| Some(pool.take(variable.elements * 4)));
        let (variables, promises) = (variables.collect(), Promises::default());
        let (layout, pool, residuals) = (Arc::clone(layout), pool.clone(), Arc::clone(residuals));
        Self { layout, pool, residuals, variables, promises, earlier: None }
    }

    /// Takes buffers for all gradients from the same pool.
    pub(crate) fn another(&self) -> Self {
        Self::with_residuals(&self.layout, &self.pool, &self.residuals)
    }

    /// Multiplies all gradients by a factor.
    ///
    /// # Panics
    /// If a gradient was promised and is complete.
    pub(crate) fn scale(&mut self, factor: f32) {
        for variable in (0..self.variables.len() as u32).map(VariableId) {
            scale_in_place(self.variable_mut(variable), factor, Threads::One);
        }
    }

    /// Declares that these gradients belong to a further batch of a step. `sum` is the sum of the gradients
    /// of the earlier batches. All batches use the same values of the variables. When a gradient is
    /// [`complete`](Self::complete), the gradient of the same variable in `sum` is added to it, and the
    /// result is multiplied by `factor`.
    ///
    /// # Panics
    /// If `sum` has another layout.
    pub fn follow(&mut self, sum: Self, factor: f32) {
        assert!(Arc::ptr_eq(&self.layout, &sum.layout), "gradients of another layout");
        self.earlier = Some(Box::new(EarlierBatches { sums: sum.variables, factor }));
    }

    /// Returns the gradient of one variable, row-major. The caller must overwrite all of it.
    ///
    /// # Panics
    /// If the gradient was promised and is complete, because its buffer is then being sent.
    pub fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.variables[variable.index()].as_mut().expect("a gradient that has not been sent").as_f32_mut()
    }

    /// Returns the gradient of one variable, row-major.
    ///
    /// # Panics
    /// If the gradient was promised and is complete, because its buffer is then being sent.
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
        assert!(!self.promises.are_made(), "gradients are promised once");
        let bytes = |variable: &VariableLayout| variable.encoded_bytes.unwrap_or(variable.elements * 4);
        let promises: Vec<Promise> = self.layout.variables.iter().map(bytes).map(Promise::new).collect();
        let payloads =
            self.payloads(|variable, bytes| promises[variable.index()].segment(bytes.start, bytes.len()));
        self.promises = Promises::new(promises);
        payloads
    }

    /// Returns a payload for each shard. `segment` returns a range of the bytes that are sent of a gradient.
    fn payloads(&self, segment: impl Fn(VariableId, Range<usize>) -> Segment) -> Vec<Payload> {
        let of_shard = |shard: &ShardLayout| {
            let parts = shard.parts.iter().rev();
            let segments = parts.map(|SlicePart { variable, gradient, .. }| {
                segment(*variable, gradient.start..gradient.start + gradient.bytes)
            });
            Payload::new(segments.collect())
        };
        self.layout.shards.iter().map(of_shard).collect()
    }

    /// Marks the gradient of one variable as computed. The sum over earlier batches is then added to it. A
    /// promised gradient is encoded if the job says so, can then be sent, and can no longer be accessed here.
    /// The gradient that is completed last can be sent when these gradients are dropped.
    pub fn complete(&mut self, variable: VariableId) {
        match self.promises.take(variable) {
            Some(promise) => {
                let sent = self.take_complete(variable);
                self.promises.keep(promise, sent);
            }
            None => self.add_earlier(variable),
        }
    }

    /// Marks the gradient of one variable as computed, and returns what is sent of it.
    fn take_complete(&mut self, variable: VariableId) -> Buffer {
        self.add_earlier(variable);
        let gradient = self.variables[variable.index()].take();
        let gradient = gradient.expect("a gradient is there until it is complete");
        match self.layout.variables[variable.index()].encoded_bytes {
            Some(bytes) => self.encode(variable, &gradient, bytes),
            None => gradient,
        }
    }

    /// Returns what is sent of the gradient of a variable. Keeps what is dropped of it for the next step.
    fn encode(&self, variable: VariableId, gradient: &Buffer, bytes: usize) -> Buffer {
        let mut encoded = self.pool.take(bytes);
        let mut residual = self.residuals.of(variable);
        for part in &self.layout.variables[variable.index()].parts {
            let place = part.first_element..part.first_element + part.elements;
            let sent = self.layout.shards[part.shard].parts[part.position].gradient;
            let to = &mut encoded.as_bytes_mut()[sent.start..sent.start + sent.bytes];
            match sent.encoding {
                None => to.copy_from_slice(&gradient.as_bytes()[place.start * 4..place.end * 4]),
                Some(encoding) if encoding.has_remainder() => {
                    let residual = &mut residual.numbers(gradient.len() / 4)[place.clone()];
                    encoding.encode_with_remainder(to, &gradient.as_f32()[place], residual);
                }
                Some(encoding) => encoding.encode(to, &gradient.as_f32()[place], Threads::One),
            }
        }
        encoded
    }

    fn add_earlier(&mut self, variable: VariableId) {
        let Some(EarlierBatches { sums, factor }) = self.earlier.as_deref_mut() else { return };
        let Some(sum) = sums[variable.index()].take() else { return };
        let factor = *factor;
        let gradient = self.variable_mut(variable);
        accumulate(gradient, sum.as_f32(), Threads::One);
        // Only the last batch of a step has a factor other than 1. The sums before it are not scaled.
        if factor != 1.0 {
            scale_in_place(gradient, factor, Threads::One);
        }
    }

    /// Marks all gradients as computed.
    pub fn complete_all(&mut self) {
        (0..self.variables.len() as u32).for_each(|variable| self.complete(VariableId(variable)));
    }

    /// Converts the gradients to values of the variables. The elements remain the same, and are not copied.
    ///
    /// # Panics
    /// If a gradient was promised and is already complete, because that gradient may have been sent.
    pub fn into_values(self) -> Values {
        let whole = |buffer: Option<Buffer>| {
            Segment::whole(Arc::new(buffer.expect("a gradient that has not been sent")))
        };
        Values::new(self.variables.into_iter().map(whole).collect())
    }

    /// Completes all gradients, and returns a payload for each shard.
    ///
    /// # Panics
    /// If the gradients have been promised.
    pub fn into_payloads(mut self) -> Vec<Payload> {
        assert!(!self.promises.are_made(), "gradients are promised once");
        let count = self.variables.len() as u32;
        let buffers: Vec<Arc<Buffer>> =
            (0..count).map(|variable| Arc::new(self.take_complete(VariableId(variable)))).collect();
        self.payloads(|variable, bytes| {
            Segment::new(Arc::clone(&buffers[variable.index()]), bytes.start, bytes.len())
        })
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
