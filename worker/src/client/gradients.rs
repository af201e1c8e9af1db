//! The gradients of one step, in pooled buffers. A push may begin before all gradients are computed: its
//! payloads then consist of promises, and each promise is kept when the gradients of its buffer are complete,
//! the last one when the computation has ended. If the job compresses gradients, they are encoded when they
//! are complete. This module must not depend on graphs.

use std::ops::Range;
use std::sync::Arc;

use pushpull_engine::GradientSink;
use pushpull_kernels::cpu::{Threads, accumulate, scale_in_place};
use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Promise, Segment};

use super::completion::{Completed, Completion};
use super::layout::{GradientPlace, Layout, ShardLayout, SlicePart, VariableLayout};
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
    /// The buffers of the layout; `None` after the promised gradients of a buffer were completed, because the
    /// buffer is then being sent.
    buffers: Vec<Option<Buffer>>,
    promises: Promises,
    /// The sums over the earlier batches of the same step; `None` for the step's first batch.
    earlier: Option<Box<EarlierBatches>>,
}

/// The sums of the gradients over a step's earlier batches. The sum for a variable is added to the gradient
/// of the current batch when that gradient is complete.
#[derive(Debug)]
struct EarlierBatches {
    /// The sums, in the buffers of the layout; `None` after all of a buffer was added to the gradients of the
    /// current batch.
    sums: Vec<Option<Buffer>>,
    /// The gradients of the current batch to which the sum was added.
    added: Completion,
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
        let buffers = layout.buffers.iter().map(|buffer| Some(pool.take(buffer.bytes)));
        let (buffers, promises) = (buffers.collect(), Promises::default());
        let (layout, pool, residuals) = (Arc::clone(layout), pool.clone(), Arc::clone(residuals));
        Self { layout, pool, residuals, buffers, promises, earlier: None }
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
        for variable in (0..self.layout.variables.len() as u32).map(VariableId) {
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
        let (sums, added) = (sum.buffers, Completion::new(&self.layout));
        self.earlier = Some(Box::new(EarlierBatches { sums, added, factor }));
    }

    /// Returns the gradient of one variable, row-major. The caller must overwrite all of it.
    ///
    /// # Panics
    /// If the gradient was promised and is complete, because its buffer is then being sent.
    pub fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        let (buffer, place) = self.layout.place_of(variable);
        &mut self.buffers[buffer].as_mut().expect("a gradient that has not been sent").as_f32_mut()[place]
    }

    /// Returns the gradient of one variable, row-major.
    ///
    /// # Panics
    /// If the gradient was promised and is complete, because its buffer is then being sent.
    pub fn variable(&self, variable: VariableId) -> &[f32] {
        let (buffer, place) = self.layout.place_of(variable);
        &self.buffers[buffer].as_ref().expect("a gradient that has not been sent").as_f32()[place]
    }

    /// Adds the gradients of another device to these gradients.
    ///
    /// # Panics
    /// If `other` has another layout, or if a gradient was promised and is complete.
    pub fn add(&mut self, other: &Self) {
        assert!(Arc::ptr_eq(&self.layout, &other.layout), "gradients of another layout");
        for variable in (0..self.layout.variables.len() as u32).map(VariableId) {
            accumulate(self.variable_mut(variable), other.variable(variable), Threads::One);
        }
    }

    /// Returns a payload for each shard, with one segment for each slice. A segment is a promise until its
    /// gradient is [`complete`](Self::complete), and the last one until these gradients are dropped. The last
    /// slice is sent first, because the backward pass computes the gradients of the first layer last.
    ///
    /// # Panics
    /// If the gradients have been promised before.
    pub fn promise(&mut self) -> Vec<Payload> {
        assert!(!self.promises.are_made(), "gradients are promised once");
        let promises: Vec<Promise> =
            (0..self.buffers.len()).map(|buffer| Promise::new(self.layout.sent_bytes_of(buffer))).collect();
        let payloads = self.payloads(|buffer, bytes| promises[buffer].segment(bytes.start, bytes.len()));
        self.promises = Promises::new(promises, &self.layout);
        payloads
    }

    /// Returns a payload for each shard. `segment` returns a range of the bytes that are sent of a buffer.
    fn payloads(&self, segment: impl Fn(usize, Range<usize>) -> Segment) -> Vec<Payload> {
        let of_shard = |shard: &ShardLayout| {
            let parts = shard.parts.iter().rev();
            let segments = parts.map(|SlicePart { variable, gradient, .. }| {
                let GradientPlace { buffer, start } = self.layout.variables[variable.index()].place;
                let start = start + gradient.start;
                segment(buffer, start..start + gradient.bytes)
            });
            Payload::new(segments.collect())
        };
        self.layout.shards.iter().map(of_shard).collect()
    }

    /// Marks the gradient of one variable as computed. The sum over earlier batches is then added to it. A
    /// promised gradient is encoded if the job says so. When all gradients of its buffer are complete, they
    /// can be sent, and can no longer be accessed here. The buffer that is completed last can be sent when
    /// these gradients are dropped.
    pub fn complete(&mut self, variable: VariableId) {
        self.add_earlier(variable);
        let buffer = self.layout.variables[variable.index()].place.buffer;
        if let Some(promise) = self.promises.complete(variable, buffer) {
            let sent = self.take_sent(buffer);
            self.promises.keep(promise, sent);
        }
    }

    /// Returns what is sent of the complete gradients of a buffer.
    fn take_sent(&mut self, buffer: usize) -> Buffer {
        let gradients = self.buffers[buffer].take().expect("gradients are there until they are sent");
        match self.layout.encoded(buffer) {
            Some((variable, bytes)) => self.encode(variable, &gradients, bytes),
            None => gradients,
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
        let Some(mut earlier) = self.earlier.take() else { return };
        let (buffer, place) = self.layout.place_of(variable);
        let EarlierBatches { sums, added, factor } = &mut *earlier;
        let done = added.complete(variable, buffer);
        if done != Completed::Before {
            let sum = sums[buffer].as_ref().expect("a sum is there until it is added");
            self.add_sum(variable, &sum.as_f32()[place], *factor);
        }
        if done == Completed::LastOfBuffer {
            sums[buffer] = None;
        }
        self.earlier = Some(earlier);
    }

    fn add_sum(&mut self, variable: VariableId, sum: &[f32], factor: f32) {
        let gradient = self.variable_mut(variable);
        accumulate(gradient, sum, Threads::One);
        // Only the last batch of a step has a factor other than 1. The sums before it are not scaled.
        if factor != 1.0 {
            scale_in_place(gradient, factor, Threads::One);
        }
    }

    /// Marks all gradients as computed. If they are promised, the last buffer can be sent when they are
    /// dropped.
    pub fn complete_all(&mut self) {
        (0..self.layout.variables.len() as u32).for_each(|variable| self.complete(VariableId(variable)));
    }

    /// Converts the gradients to values of the variables. The elements remain the same, and are not copied.
    ///
    /// # Panics
    /// If a gradient was promised and is already complete, because that gradient may have been sent.
    pub fn into_values(self) -> Values {
        let whole = |buffer: Option<Buffer>| Arc::new(buffer.expect("gradients that have not been sent"));
        let buffers: Vec<Arc<Buffer>> = self.buffers.into_iter().map(whole).collect();
        let segment =
            |VariableLayout { place: GradientPlace { buffer, start }, elements, .. }: &VariableLayout| {
                Segment::new(Arc::clone(&buffers[*buffer]), *start, elements * 4)
            };
        Values::new(self.layout.variables.iter().map(segment).collect())
    }

    /// Completes all gradients, and returns a payload for each shard.
    ///
    /// # Panics
    /// If the gradients have been promised.
    pub fn into_payloads(mut self) -> Vec<Payload> {
        assert!(!self.promises.are_made(), "promised gradients have payloads already");
        self.complete_all();
        let buffers: Vec<Arc<Buffer>> =
            (0..self.buffers.len()).map(|buffer| Arc::new(self.take_sent(buffer))).collect();
        self.payloads(|buffer, bytes| Segment::new(Arc::clone(&buffers[buffer]), bytes.start, bytes.len()))
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
