//! The border to whatever computes gradients: our own graph executor here, another engine behind the same trait.

use std::collections::BTreeMap;

use kernels::cpu::{LabelOutOfRange, Threads};
use messages::graph::GraphSpec;
use messages::tensor::Shape;

use crate::gradients::Gradients;
use crate::graph::{CompileError, Executor, Program};
use crate::input::Batch;
use crate::values::Values;

/// A clone of the model on one device.
pub trait Replica: Send {
    /// Computes the loss of a batch at these values, and writes the gradient of every variable.
    ///
    /// # Errors
    /// Where the batch does not fit the model; the gradients are not to be used then.
    fn step(
        &mut self,
        batch: &Batch,
        values: &Values,
        gradients: &mut Gradients,
    ) -> Result<f32, ReplicaError>;

    /// Computes the loss and every metric of a batch, of any size, at these values: means over the batch.
    ///
    /// # Errors
    /// Where the batch does not fit the model.
    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError>;
}

/// Why a replica cannot compute.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The graph cannot run.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The data have another shape than the model takes.
    #[error("the model takes features of shape {expected} per example, and the data have {got}")]
    Features {
        /// The model's.
        expected: Shape,
        /// The data's.
        got: Shape,
    },
    /// The data have more classes than the model.
    #[error("{0}")]
    Label(LabelOutOfRange),
    /// No threads to be had.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// Why not.
        reason: String,
    },
}

/// Our own engine: the graph, compiled for each batch size that comes.
pub struct GraphReplica {
    graph: GraphSpec,
    training: Executor,
    /// Compiled when first asked for: a test set has at most two sizes of batches.
    evaluation: BTreeMap<usize, Executor>,
    pool: Option<rayon::ThreadPool>,
    threads: Threads,
}

impl GraphReplica {
    /// Compiles the graph for batches of `batch` examples, each of shape `features`; computes on `threads` threads.
    ///
    /// # Errors
    /// Where the graph cannot run, or not on such data.
    pub fn new(
        graph: GraphSpec,
        batch: usize,
        features: &Shape,
        threads: usize,
    ) -> Result<Self, ReplicaError> {
        let program = Program::training(&graph, batch)?;
        if let Some(expected) = program.features()
            && expected != features
        {
            return Err(ReplicaError::Features { expected: expected.clone(), got: features.clone() });
        }
        let pool = (threads > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
        let pool =
            pool.transpose().map_err(|error| ReplicaError::Threads { threads, reason: error.to_string() })?;
        Ok(Self {
            graph,
            training: Executor::new(program),
            evaluation: BTreeMap::new(),
            pool,
            threads: if threads > 1 { Threads::Pool(threads) } else { Threads::One },
        })
    }
}

/// Runs on the pool where there is one: the product kernels fork within the pool that they are called on.
fn within<T: Send>(pool: Option<&rayon::ThreadPool>, work: impl FnOnce() -> T + Send) -> T {
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

impl Replica for GraphReplica {
    fn step(
        &mut self,
        batch: &Batch,
        values: &Values,
        gradients: &mut Gradients,
    ) -> Result<f32, ReplicaError> {
        let (executor, threads) = (&mut self.training, self.threads);
        within(self.pool.as_ref(), || {
            let scalars = executor.run(batch, values, Some(gradients), threads);
            scalars.map(|scalars| scalars[0]).map_err(ReplicaError::Label)
        })
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        let examples = batch.labels.len();
        if !self.evaluation.contains_key(&examples) {
            let program = Program::evaluation(&self.graph, examples)?;
            self.evaluation.insert(examples, Executor::new(program));
        }
        let executor = self.evaluation.get_mut(&examples).expect("just inserted");
        let threads = self.threads;
        within(self.pool.as_ref(), || {
            let scalars = executor.run(batch, values, None, threads);
            scalars.map(<[f32]>::to_vec).map_err(ReplicaError::Label)
        })
    }
}
