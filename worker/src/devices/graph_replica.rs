//! The replica that runs pushpull's own engine. This module must not depend on shards.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pushpull_engine::{Executor, Feed, GradientSink, OpTime, Program};
use pushpull_input::Batch;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::ColumnSpec;

use super::compute::Compute;
use super::error::ReplicaError;
use super::replica::{Complete, Replica, ReplicaConfig};
use crate::client::{Gradients, Values};

/// A replica that runs pushpull's own engine. The graph is compiled separately for each batch size.
pub struct GraphReplica {
    graph: GraphSpec,
    training: Executor,
    columns: Vec<ColumnSpec>,
    /// The compiled evaluation for each batch size. A test set needs at most two batch sizes: that of the
    /// full batches, and that of the last batch.
    evaluation: BTreeMap<usize, Executor>,
    compute: Compute,
}

impl GraphReplica {
    /// Compiles the graph.
    ///
    /// # Errors
    /// If the graph cannot be compiled, or if the data lack one of the graph's inputs.
    pub fn new(config: ReplicaConfig<'_>) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, fetches, compute, .. } = config;
        let program = Program::training_with(graph, examples, columns, compute.threads(), fetches)?;
        Ok(Self {
            graph: graph.clone(),
            training: Executor::new(program),
            columns: columns.to_vec(),
            evaluation: BTreeMap::new(),
            compute,
        })
    }
}

/// A wrapper of gradients that calls `complete` for each gradient as soon as that gradient is final.
pub(super) struct Announced<'a, 'c> {
    pub gradients: &'a mut Gradients,
    pub complete: &'a mut Complete<'c>,
}

impl GradientSink for Announced<'_, '_> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.gradients.variable_mut(variable)
    }

    fn complete(&mut self, variable: VariableId) {
        (self.complete)(self.gradients, variable);
    }
}

impl Replica for GraphReplica {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        let Self { training, compute, .. } = self;
        let mut gradients = Announced { gradients, complete };
        Ok(compute.run(|| training.train(feed, values, &mut gradients))?)
    }

    fn fetched(&self) -> &[f32] {
        self.training.fetched()
    }

    fn op_times(&self) -> Vec<OpTime> {
        self.training.op_times().collect()
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if let Entry::Vacant(entry) = self.evaluation.entry(examples) {
            let program = Program::evaluation(&self.graph, examples, &self.columns, self.compute.threads())?;
            entry.insert(Executor::new(program));
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.prepare(batch.examples)?;
        let executor = self.evaluation.get_mut(&batch.examples).expect("just prepared");
        let feed = Feed::whole(&batch.columns, batch.examples);
        Ok(self.compute.run(|| executor.evaluate(feed, values).map(<[f32]>::to_vec))?)
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::device::{Device, DeviceKind};
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::TaskId;
    use pushpull_messages::tensor::{DType, Shape, TensorSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    #[test]
    fn a_graph_that_fits_only_one_batch_size_is_refused() {
        let mut g = GraphBuilder::new("fixed");
        let x = g.input("x", [2]);
        let labels = g.labels("labels");
        let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
        let table = g.variable("table", [2, 2], InitializerSpec::Zeros);
        let logits = g.matmul(x, kernel);
        let logits = g.add(logits, table);
        let loss = g.softmax_cross_entropy(logits, labels);
        let graph = g.finish(loss, &[]).unwrap();
        let example = |name: &str, example| ColumnSpec { name: name.into(), example };
        let labels = TensorSpec { shape: Shape::scalar(), dtype: DType::I32 };
        let columns = [example("x", TensorSpec::f32([2])), example("labels", labels)];
        let device = Device { task: TaskId::worker(0), kind: DeviceKind::Cpu, index: 0 };
        let compute = Compute::new(1, 1).unwrap();
        let config =
            ReplicaConfig { graph: &graph, examples: 2, columns: &columns, fetches: &[], device, compute };
        let mut replica = GraphReplica::new(config).unwrap();
        assert!(replica.prepare(2).is_ok());
        assert!(replica.prepare(3).unwrap_err().to_string().contains("(add 'add')"));
    }
}
