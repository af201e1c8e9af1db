//! The interface to an engine that computes gradients. pushpull's own engine implements this interface, and
//! other engines can implement it too. This module must not depend on shards or connections.

use std::sync::Arc;

use pushpull_cuda::Worked;
use pushpull_engine::{Feed, Fetch, OpTime};
use pushpull_input::Batch;
use pushpull_messages::device::Device;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::ColumnSpec;

use super::compute::Compute;
use super::error::ReplicaError;
use crate::client::{Gradients, Values};

/// A callback that is called for each gradient as soon as the gradient is final. It may take the gradient's
/// buffer, for example to send it.
pub type Complete<'a> = dyn FnMut(&mut Gradients, VariableId) + Send + 'a;

/// A function that creates the replica for one device of a worker.
pub type MakeReplica = Arc<dyn Fn(ReplicaConfig<'_>) -> Result<Box<dyn Replica>, ReplicaError> + Send + Sync>;

/// A clone of the model on one device.
pub trait Replica: Send {
    /// Computes the mean loss over this replica's part of a batch from the variables' `values`, and writes
    /// the gradient of every variable. The gradients are those of this mean, multiplied by the part's
    /// fraction of the batch. Therefore the sum over all replicas is the gradient of the mean loss over the
    /// batch. Calls `complete` for each gradient as soon as it is final. Also computes the tensors in the
    /// fetch groups of `feed`.
    ///
    /// # Errors
    /// If the batch does not fit the model; the gradients must then not be used.
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError>;

    /// Returns whether the replica copies batches to a device. It can then copy the batch that a feed
    /// announces as the next one before its step.
    fn copies(&self) -> bool {
        false
    }

    /// Returns the tensors that the most recent call of `step` has fetched: those of the groups in that
    /// call's feed, one after another in the order of [`ReplicaConfig::fetches`], each row-major. An engine
    /// that fetches no tensors returns an empty slice; its jobs then have no metrics before the evaluation.
    fn fetched(&self) -> &[f32] {
        &[]
    }

    /// Returns the time of each operation of the most recent call of `step`, if the feed of that call
    /// requested these times. An engine that does not measure them returns an empty list.
    fn op_times(&self) -> Vec<OpTime> {
        Vec::new()
    }

    /// Returns when the device copied and computed in the most recent call of `step`, if the feed of that
    /// call requested it. A replica on a processor, which copies nothing, returns an empty list.
    fn worked(&self) -> Vec<Worked> {
        Vec::new()
    }

    /// Prepares [`step`](Self::step), so that an error shows before the training begins. A task that only
    /// evaluates does not call it.
    ///
    /// # Errors
    /// If the model cannot be trained on the replica's device.
    fn prepare_training(&mut self) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Prepares the evaluation of batches of `examples` examples.
    ///
    /// # Errors
    /// If the model cannot be computed on such batches.
    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError>;

    /// Computes the loss and every metric over a whole batch from the variables' `values`. A result is a
    /// mean over the batch or, for a metric such as AUC, two histograms of counts.
    ///
    /// # Errors
    /// If the batch does not fit the model.
    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError>;
}

/// Everything that is needed to create a replica.
pub struct ReplicaConfig<'a> {
    /// The model.
    pub graph: &'a GraphSpec,
    /// The number of examples in this replica's part of a batch.
    pub examples: usize,
    /// The specs of the columns of the data.
    pub columns: &'a [ColumnSpec],
    /// The tensors that the replica must be able to fetch; a step fetches some groups of them.
    pub fetches: &'a [Fetch],
    /// The device that the replica runs on.
    pub device: Device,
    /// The threads that the replica computes with.
    pub compute: Compute,
}
