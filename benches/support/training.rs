//! Training without a cluster: computes gradients and applies them. This module must not depend on
//! what is measured.

use std::hint::black_box;
use std::sync::Arc;

use pushpull::GraphSpec;
use pushpull_engine::{Executor, Feed, Program};
use pushpull_input::{Batch, Mapped, in_order, load};
use pushpull_kernels::cpu::{GradientTerms, Threads, sgd};
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId};
use pushpull_messages::input::{ColumnSpec, DatasetSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};
use pushpull_worker::{Gradients, Layout, Values};
use rayon::prelude::*;

/// The number of examples in a batch.
pub(crate) const BATCH: usize = 64;

/// The state of training. In a cluster, a worker has one part of this state, and a shard has the rest.
pub(crate) struct Training {
    executor: Executor,
    layout: Arc<Layout>,
    pool: BufferPool,
    values: Vec<Buffer>,
    batches: Vec<Batch>,
    next: usize,
    variables: usize,
}

impl Training {
    /// Returns the training of a graph on generated digits, with this number of threads.
    pub(crate) fn new(graph: &GraphSpec, threads: usize) -> anyhow::Result<Self> {
        let data = Mapped::testing(load(&DatasetSpec::Digits { seed: 1, examples: 640 }, None)?, &[])?;
        let columns: Vec<ColumnSpec> = data.columns().to_vec();
        let threads = if threads > 1 { Threads::Pool(threads) } else { Threads::One };
        let executor = Executor::new(Program::training(graph, BATCH, &columns, threads)?);
        let shard = ShardId::new(0, 0);
        let slice = |(id, variable): (usize, &pushpull_messages::variable::VariableSpec)| PlacedSlice {
            slice: SliceSpec { variable: VariableId(id as u32), row: 0, rows: variable.rows() as u64 },
            shard,
        };
        let slices = graph.variables.iter().enumerate().map(slice).collect();
        let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices };
        // The weights are small and not all equal.
        let values = graph.variables.iter().map(|variable| {
            let number = |i: usize| ((i * 2_654_435_761) % 1000) as f32 * 1e-4 - 0.05;
            Buffer::from_f32(&(0..variable.shape.elements()).map(number).collect::<Vec<_>>())
        });
        Ok(Self {
            executor,
            layout: Arc::new(Layout::new(&placement, &graph.variables)),
            pool: BufferPool::default(),
            values: values.collect(),
            batches: in_order(&data, BATCH)?.collect(),
            next: 0,
            variables: graph.variables.len(),
        })
    }

    /// Makes one step.
    pub(crate) fn step(&mut self) {
        let segments: Vec<Segment> =
            self.values.drain(..).map(|value| Segment::whole(Arc::new(value))).collect();
        let values = Values::assemble(&self.layout, &[Payload::new(segments)], &self.pool)
            .expect("the layout's own slices");
        let mut gradients = Gradients::take(&self.layout, &self.pool);
        let batch = &self.batches[self.next % self.batches.len()];
        self.next += 1;
        let feed = Feed::whole(&batch.columns, batch.examples);
        let loss = self.executor.train(feed, &values, &mut gradients);
        black_box(loss.expect("labels are classes"));
        let update = |variable: usize| {
            let id = VariableId(variable as u32);
            let mut next = self.pool.take(values.bytes(id).len());
            let gradient = gradients.variable(id);
            sgd(next.as_f32_mut(), Some(values.variable(id)), gradient, GradientTerms::PLAIN, 0.01);
            next
        };
        self.values = (0..self.variables).into_par_iter().map(update).collect();
    }
}
