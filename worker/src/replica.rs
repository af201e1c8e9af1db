//! The border to whatever computes gradients: our own graph executor here, another engine behind the same trait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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

    /// Makes ready to evaluate batches of that size.
    ///
    /// # Errors
    /// Where the model cannot be computed on such batches.
    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError>;

    /// Computes the loss and every metric of a batch at these values: means over the batch.
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
    features: Shape,
    /// By batch size: a test set has at most two.
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
        check_features(&program, features)?;
        let pool = (threads > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
        let pool =
            pool.transpose().map_err(|error| ReplicaError::Threads { threads, reason: error.to_string() })?;
        Ok(Self {
            graph,
            training: Executor::new(program),
            features: features.clone(),
            evaluation: BTreeMap::new(),
            pool,
            threads: if threads > 1 { Threads::Pool(threads) } else { Threads::One },
        })
    }
}

fn check_features(program: &Program, features: &Shape) -> Result<(), ReplicaError> {
    match program.features() {
        Some(expected) if expected != features => {
            Err(ReplicaError::Features { expected: expected.clone(), got: features.clone() })
        }
        _ => Ok(()),
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

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if let Entry::Vacant(entry) = self.evaluation.entry(examples) {
            let program = Program::evaluation(&self.graph, examples)?;
            check_features(&program, &self.features)?;
            entry.insert(Executor::new(program));
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        let examples = batch.labels.len();
        self.prepare(examples)?;
        let executor = self.evaluation.get_mut(&examples).expect("just prepared");
        let threads = self.threads;
        within(self.pool.as_ref(), || {
            let scalars = executor.run(batch, values, None, threads);
            scalars.map(<[f32]>::to_vec).map_err(ReplicaError::Label)
        })
    }
}
