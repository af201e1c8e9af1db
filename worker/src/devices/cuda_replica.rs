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
    /// The number of bytes of the device's memory that further programs may take.
    bytes_left: u64,
    graph: GraphSpec,
    training: CudaExecutor,
    columns: Vec<ColumnSpec>,
    /// The compiled evaluation for each batch size.
    evaluation: BTreeMap<usize, CudaExecutor>,
}

impl CudaReplica {
    /// Compiles the graph for a device. All programs of the replica together take at most `memory_fraction` of
    /// the device's memory.
    ///
    /// # Errors
    /// If the graph cannot be compiled, if the data lack one of the graph's inputs, or if the device has too
    /// little memory.
    pub fn new(
        config: ReplicaConfig<'_>,
        mut driver: Box<dyn Driver + Send>,
        memory_fraction: f64,
    ) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, fetches, .. } = config;
        let program = Program::training_with(graph, examples, columns, Target::Cuda, fetches)?;
        let [_, total] = driver.memory_info()?;
        let bytes_max = (total as f64 * memory_fraction) as u64;
        let training = CudaExecutor::new(program, &mut *driver, bytes_max)?;
        let bytes_left = bytes_max.saturating_sub(training.device_bytes());
        let (graph, columns) = (graph.clone(), columns.to_vec());
        Ok(Self { driver, bytes_left, graph, training, columns, evaluation: BTreeMap::new() })
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
            let executor = CudaExecutor::new(program, &mut *self.driver, self.bytes_left)?;
            self.bytes_left = self.bytes_left.saturating_sub(executor.device_bytes());
            self.evaluation.insert(examples, executor);
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
