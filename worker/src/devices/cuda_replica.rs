//! The replica that runs pushpull's own engine on a device that runs CUDA kernels. This module must not
//! depend on shards.

use std::collections::BTreeMap;

use pushpull_cuda::Driver;
use pushpull_engine::{CudaExecutor, Feed, OpTime, Program, Target};
use pushpull_input::Batch;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::input::ColumnSpec;

use super::error::ReplicaError;
use super::graph_replica::Announced;
use super::replica::{Complete, Replica, ReplicaConfig};
use crate::client::{Gradients, Values};

/// A replica on a device that runs CUDA kernels. The graph is compiled separately for each batch size.
pub struct CudaReplica {
    driver: Box<dyn Driver + Send>,
    graph: GraphSpec,
    training: CudaExecutor,
    columns: Vec<ColumnSpec>,
    /// The compiled evaluation for each batch size.
    evaluation: BTreeMap<usize, CudaExecutor>,
}

impl CudaReplica {
    /// Compiles the graph for a device.
    ///
    /// # Errors
    /// If the graph cannot be compiled, if the data lack one of the graph's inputs, or if the device has too
    /// little memory.
    pub fn new(config: ReplicaConfig<'_>, mut driver: Box<dyn Driver + Send>) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, fetches, .. } = config;
        let program = Program::training_with(graph, examples, columns, Target::Cuda, fetches)?;
        let training = CudaExecutor::new(program, &mut *driver)?;
        let (graph, columns) = (graph.clone(), columns.to_vec());
        Ok(Self { driver, graph, training, columns, evaluation: BTreeMap::new() })
    }
}

impl Replica for CudaReplica {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        let mut gradients = Announced { gradients, complete };
        Ok(self.training.train(&mut *self.driver, feed, values, &mut gradients)?)
    }

    fn fetched(&self) -> &[f32] {
        self.training.fetched()
    }

    fn op_times(&self) -> Vec<OpTime> {
        self.training.op_times().collect()
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if !self.evaluation.contains_key(&examples) {
            let program = Program::evaluation(&self.graph, examples, &self.columns, Target::Cuda)?;
            self.evaluation.insert(examples, CudaExecutor::new(program, &mut *self.driver)?);
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.prepare(batch.examples)?;
        let executor = self.evaluation.get_mut(&batch.examples).expect("just prepared");
        let feed = Feed::whole(&batch.columns, batch.examples);
        Ok(executor.evaluate(&mut *self.driver, feed, values)?.to_vec())
    }
}
