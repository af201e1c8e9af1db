//! The replica that runs pushpull's own engine on a device that runs CUDA kernels. This module must not
//! depend on shards.

use std::collections::BTreeMap;

use pushpull_cuda::{Driver, Precision, Worked};
use pushpull_engine::{CudaDevice, CudaExecutor, Feed, OpTime, Program};
use pushpull_input::Batch;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::input::ColumnSpec;

use super::error::ReplicaError;
use super::graph_replica::Announced;
use super::replica::{Complete, Replica, ReplicaConfig};
use crate::client::{Gradients, Values};

/// A replica on a device that runs CUDA kernels. The graph is compiled separately for each batch size.
pub struct CudaReplica {
    device: CudaDevice,
    graph: GraphSpec,
    /// The training, until it is prepared.
    compiled: Option<Program>,
    training: Option<CudaExecutor>,
    columns: Vec<ColumnSpec>,
    /// The compiled evaluation for each batch size.
    evaluation: BTreeMap<usize, CudaExecutor>,
}

impl CudaReplica {
    /// Compiles the graph for a device. The replica takes at most `memory_fraction` of the device's memory,
    /// and rounds the factors of products to `precision`.
    ///
    /// # Errors
    /// If the graph cannot be compiled, if the data lack one of the graph's inputs, or if the device has
    /// failed or cannot multiply with the precision.
    pub fn new(
        config: ReplicaConfig<'_>,
        driver: Box<dyn Driver + Send>,
        memory_fraction: f64,
        precision: Precision,
    ) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, fetches, .. } = config;
        let device = CudaDevice::new(driver, memory_fraction, precision)?;
        let compiled = Some(Program::training_with(graph, examples, columns, device.target(), fetches)?);
        let (graph, columns) = (graph.clone(), columns.to_vec());
        Ok(Self { device, graph, compiled, training: None, columns, evaluation: BTreeMap::new() })
    }

    /// Returns the training, and the device on which it runs.
    fn training(&mut self) -> Result<(&mut CudaExecutor, &mut CudaDevice), ReplicaError> {
        self.prepare_training()?;
        Ok((self.training.as_mut().expect("just prepared"), &mut self.device))
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
        let (training, device) = self.training()?;
        Ok(training.train(device, feed, values, &mut gradients)?)
    }

    fn copies(&self) -> bool {
        true
    }

    fn fetched(&self) -> &[f32] {
        self.training.as_ref().map_or(&[], CudaExecutor::fetched)
    }

    fn op_times(&self) -> Vec<OpTime> {
        self.training.iter().flat_map(CudaExecutor::op_times).collect()
    }

    fn worked(&self) -> Vec<Worked> {
        self.training.as_ref().map_or_else(Vec::new, |training| training.worked().to_vec())
    }

    fn prepare_training(&mut self) -> Result<(), ReplicaError> {
        if let Some(program) = self.compiled.take() {
            self.training = Some(CudaExecutor::new(program, &mut self.device)?);
        }
        Ok(())
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if !self.evaluation.contains_key(&examples) {
            let program = Program::evaluation(&self.graph, examples, &self.columns, self.device.target())?;
            self.evaluation.insert(examples, CudaExecutor::new(program, &mut self.device)?);
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.prepare(batch.examples)?;
        let executor = self.evaluation.get_mut(&batch.examples).expect("just prepared");
        let feed = Feed::whole(&batch.columns, batch.examples);
        Ok(executor.evaluate(&mut self.device, feed, values)?.to_vec())
    }
}
