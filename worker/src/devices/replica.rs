//! The boundary to whatever computes gradients: our own engine, or another one behind the same trait.
//! Knows no shard and no connection.

use std::sync::Arc;

use pushpull_engine::Feed;
use pushpull_input::Batch;
use pushpull_messages::device::Device;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::ColumnSpec;

use super::compute::Compute;
use super::error::ReplicaError;
use crate::client::{Gradients, Values};

/// A callback that is told of each final gradient, and may take it away.
pub type Complete<'a> = dyn FnMut(&mut Gradients, VariableId) + Send + 'a;

/// Makes the replica for one device of a worker.
pub type MakeReplica = Arc<dyn Fn(ReplicaConfig<'_>) -> Result<Box<dyn Replica>, ReplicaError> + Send + Sync>;

/// A clone of the model on one device.
pub trait Replica: Send {
    /// Computes the mean loss of this replica's part of a batch at these values, and writes the gradient of
    /// every variable. The gradients are those of this mean times the part's share of the batch, so that the
    /// gradients of all replicas add up. Calls `complete` for each gradient as soon as it is final.
    ///
    /// # Errors
    /// If the batch does not fit the model; the gradients must not be used then.
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError>;

    /// Prepares the evaluation of batches of `examples` examples.
    ///
    /// # Errors
    /// If the model cannot be computed on such batches.
    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError>;

    /// Computes the loss and every metric of a whole batch at these values: means over the batch, or counts.
    ///
    /// # Errors
    /// If the batch does not fit the model.
    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError>;
}

/// The settings that a replica is made with.
pub struct ReplicaConfig<'a> {
    /// The model.
    pub graph: &'a GraphSpec,
    /// The number of examples in this replica's part of a batch.
    pub examples: usize,
    /// The columns of the data.
    pub columns: &'a [ColumnSpec],
    /// The device that the replica runs on.
    pub device: Device,
    /// The threads that do its work.
    pub compute: Compute,
}
