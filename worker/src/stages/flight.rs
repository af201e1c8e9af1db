//! One micro-batch on its way through a stage: the values that it reads, and the places for those that it
//! computes. This module must not depend on the order of micro-batches.

use std::cell::Cell;

use pushpull_engine::{ColumnRef, ColumnSource, Destination, GradientSink, Held, Lost, Origin, Wanted};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::Column;
use pushpull_messages::tensor::{DType, TensorSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::compiled::CompiledStage;
use super::transfers::Transfers;
use crate::client::{Gradients, Values};

/// A value that has arrived.
pub(super) enum Arrived {
    F32(Segment),
    I32(Vec<i32>),
}

impl Arrived {
    /// Reads a value of this type and size; `None` if the bytes do not fit.
    pub fn new(spec: &TensorSpec, value: Segment) -> Option<Self> {
        let fits = value.len() == spec.shape.elements() * 4;
        match spec.dtype {
            DType::F32 if fits => Some(Self::F32(value)),
            DType::I32 if fits => {
                let words = value.as_bytes().chunks_exact(4);
                Some(Self::I32(
                    words.map(|word| i32::from_le_bytes(word.try_into().expect("4 bytes"))).collect(),
                ))
            }
            _ => None,
        }
    }

    fn as_column(&self) -> ColumnRef<'_> {
        match self {
            Self::F32(value) => ColumnRef::F32(value.as_f32()),
            Self::I32(value) => ColumnRef::I32(value),
        }
    }
}

/// The examples of a batch that belong to one micro-batch.
#[derive(Clone, Copy)]
pub(super) struct MicroBatch<'a> {
    /// The columns of the whole batch; empty on all stages but the first.
    pub columns: &'a [Column],
    /// The number of examples in the whole batch.
    pub batch: usize,
    /// The index of the micro-batch's first example.
    pub first: usize,
    /// The number of examples in the micro-batch.
    pub examples: usize,
}

impl<'a> MicroBatch<'a> {
    fn column(&self, index: usize) -> ColumnRef<'a> {
        let range = |elements: usize| {
            let each = elements / self.batch;
            self.first * each..(self.first + self.examples) * each
        };
        match &self.columns[index] {
            Column::F32(elements) => ColumnRef::F32(&elements[range(elements.len())]),
            Column::I32(elements) => ColumnRef::I32(&elements[range(elements.len())]),
        }
    }
}

/// The values that a micro-batch reads.
pub(super) struct Sources<'a> {
    pub compiled: &'a CompiledStage,
    pub batch: MicroBatch<'a>,
    pub values: &'a Values,
    /// For each edge of the stage's `arrives`, the value; `None` until it has arrived.
    pub arrived: &'a [Option<Arrived>],
    /// What is called before the next instruction.
    pub before: Cell<Option<&'a dyn Fn()>>,
}

impl<'a> Sources<'a> {
    fn held(&self, held: Held) -> ColumnRef<'a> {
        match held {
            Held::Column(column) => self.batch.column(column),
            Held::Variable(variable) => ColumnRef::F32(self.values.variable(variable)),
        }
    }

    /// Returns a value; `None` if it has not arrived.
    pub fn value(&self, origin: Origin) -> Option<ColumnRef<'a>> {
        match origin {
            Origin::Held(held) => Some(self.held(held)),
            Origin::Arrives(edge) => self.arrived[edge].as_ref().map(Arrived::as_column),
        }
    }

    /// Returns a held value as the payload of a message.
    pub fn payload(&self, held: Held, pool: &BufferPool) -> Payload {
        let buffer = match self.held(held) {
            ColumnRef::F32(floats) => {
                let mut buffer = pool.take(floats.len() * 4);
                buffer.as_f32_mut().copy_from_slice(floats);
                buffer
            }
            ColumnRef::I32(integers) => {
                let mut buffer = pool.take(integers.len() * 4);
                let words = buffer.as_bytes_mut().chunks_exact_mut(4);
                words.zip(integers).for_each(|(word, integer)| word.copy_from_slice(&integer.to_le_bytes()));
                buffer
            }
        };
        payload_of(buffer)
    }
}

impl ColumnSource for Sources<'_> {
    fn check(&self) -> Result<(), Lost> {
        self.before.take().into_iter().for_each(|before| before());
        Ok(())
    }

    fn is_ready(&self, index: usize) -> bool {
        self.value(self.compiled.stage.columns[index]).is_some()
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        let value = self.value(self.compiled.stage.columns[index]);
        value.ok_or_else(|| Lost("a value was read before it had arrived".into()))
    }
}

/// The places for the values that a micro-batch computes.
pub(super) struct Sinks<'a> {
    pub compiled: &'a CompiledStage,
    pub micro_batch: u32,
    /// For each sink of the program, the buffer of a value that is sent, while it is written.
    pub buffers: &'a mut [Option<Buffer>],
    pub pool: &'a BufferPool,
    pub transfers: &'a dyn Transfers,
    /// The gradients of the stage's variables; `None` if the micro-batch has to wait for them.
    pub gradients: Option<&'a mut Gradients>,
    pub results: &'a mut [f32],
}

impl Sinks<'_> {
    /// Writes a value that is wanted.
    pub fn want(&mut self, wanted: &Wanted, value: ColumnRef<'_>) {
        let ColumnRef::F32(value) = value else { unreachable!("gradients and results are floats") };
        match wanted {
            Wanted::Results(range) => self.results[range.clone()].copy_from_slice(value),
            Wanted::Gradient(variable) => self.gradient(*variable).copy_from_slice(value),
        }
    }

    fn gradient(&mut self, variable: VariableId) -> &mut [f32] {
        let gradients = self.gradients.as_deref_mut();
        gradients.expect("a micro-batch writes gradients in its turn").variable_mut(variable)
    }
}

impl GradientSink for Sinks<'_> {
    fn is_ready(&self, sink: VariableId) -> bool {
        let destination = &self.compiled.stage.sends[sink.index()];
        self.gradients.is_some() || !matches!(destination, Destination::Wanted(Wanted::Gradient(_)))
    }

    fn variable_mut(&mut self, sink: VariableId) -> &mut [f32] {
        match &self.compiled.stage.sends[sink.index()] {
            Destination::Sent(edge) => {
                let bytes = edge.spec.shape.elements() * 4;
                self.buffers[sink.index()].get_or_insert_with(|| self.pool.take(bytes)).as_f32_mut()
            }
            Destination::Wanted(Wanted::Gradient(variable)) => self.gradient(*variable),
            Destination::Wanted(Wanted::Results(range)) => &mut self.results[range.clone()],
        }
    }

    fn complete(&mut self, sink: VariableId) {
        if let Destination::Sent(edge) = &self.compiled.stage.sends[sink.index()]
            && let Some(buffer) = self.buffers[sink.index()].take()
        {
            self.transfers.send(edge, self.micro_batch, payload_of(buffer));
        }
    }
}

fn payload_of(buffer: Buffer) -> Payload {
    Payload::new(vec![Segment::whole(std::sync::Arc::new(buffer))])
}
