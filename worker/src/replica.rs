//! The border to whatever computes gradients: our own graph executor here, another engine behind the same trait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::device::Device;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::ColumnSpec;

use crate::gradients::Gradients;
use crate::values::Values;
use pushpull_engine::{CompileError, Executor, Feed, GradientSink, Program, StepError};
use pushpull_input::Batch;

/// Is told of a gradient that nothing changes any more, and may take it away.
pub type Complete<'a> = dyn FnMut(&mut Gradients, VariableId) + Send + 'a;

/// A clone of the model on one device.
pub trait Replica: Send {
    /// Computes the mean loss of this replica's part of a batch at these values, and writes the gradient of every
    /// variable: of that mean times the part's share of the batch, so that those of all replicas add up. `complete` is
    /// told of each gradient as soon as nothing of it changes any more, and may take it away.
    ///
    /// # Errors
    /// Where the batch does not fit the model; the gradients are not to be used then.
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError>;

    /// Makes ready to evaluate batches of that size.
    ///
    /// # Errors
    /// Where the model cannot be computed on such batches.
    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError>;

    /// Computes the loss and every metric of a whole batch at these values: means over the batch, or counts.
    ///
    /// # Errors
    /// Where the batch does not fit the model.
    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError>;
}

/// What a replica is made of.
pub struct ReplicaConfig<'a> {
    /// The model.
    pub graph: &'a GraphSpec,
    /// Examples in this replica's part of a batch.
    pub examples: usize,
    /// What the data have.
    pub columns: &'a [ColumnSpec],
    /// Where it runs.
    pub device: Device,
    /// Where its work is done.
    pub compute: Compute,
}

/// The threads of one worker, and how many of them one device may use at a time.
#[derive(Clone, Debug)]
pub struct Compute {
    /// All of the worker's; none where the thread that asks does the work.
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: Threads,
}

impl Compute {
    /// For a worker that computes on so many threads, with so many devices: they share the threads.
    ///
    /// # Errors
    /// Where the system has no threads to give.
    pub fn new(threads: usize, devices: usize) -> Result<Self, ReplicaError> {
        // Rounded up: the pool bounds them together.
        let each = threads.div_ceil(devices.max(1)).max(1);
        let pool = (threads > 1 || devices > 1).then(|| {
            let named = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("compute-{index}"));
            named.num_threads(threads).build().map(Arc::new)
        });
        let pool =
            pool.transpose().map_err(|error| ReplicaError::Threads { threads, reason: error.to_string() })?;
        Ok(Self { pool, threads: if each > 1 { Threads::Pool(each) } else { Threads::One } })
    }

    /// Does the work on the pool where there is one: the kernels fork within the pool that they are called on.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// Why a replica cannot compute.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The graph cannot run.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A batch does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A node asks for a device that its clone of the graph does not run on.
    #[error(
        "{node} asks for {asked}, and runs on every device of this worker, as on {device}: ask for a kind of device that all of them are, or allow soft placement"
    )]
    Device {
        /// The node.
        node: String,
        /// What it asks for.
        asked: String,
        /// Where it would run.
        device: Device,
    },
    /// A batch cannot be shared among so many devices.
    #[error(
        "a batch of {examples} examples cannot be shared by {devices} devices: use fewer, or a larger batch"
    )]
    Share {
        /// In a batch.
        examples: usize,
        /// On this worker.
        devices: usize,
    },
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
    columns: Vec<ColumnSpec>,
    /// By batch size: a test set has at most two.
    evaluation: BTreeMap<usize, Executor>,
    compute: Compute,
}

impl GraphReplica {
    /// Compiles the graph.
    ///
    /// # Errors
    /// Where the graph cannot run, or the data lack an input of it.
    pub fn new(config: ReplicaConfig<'_>) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, compute, .. } = config;
        let program = Program::training(graph, examples, columns, compute.threads)?;
        Ok(Self {
            graph: graph.clone(),
            training: Executor::new(program),
            columns: columns.to_vec(),
            evaluation: BTreeMap::new(),
            compute,
        })
    }
}

/// Gradients that are handed to `complete` one by one as they become complete.
struct Announced<'a, 'c> {
    gradients: &'a mut Gradients,
    complete: &'a mut Complete<'c>,
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

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if let Entry::Vacant(entry) = self.evaluation.entry(examples) {
            let program = Program::evaluation(&self.graph, examples, &self.columns, self.compute.threads)?;
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
    use pushpull_messages::device::DeviceKind;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::TaskId;
    use pushpull_messages::tensor::{DType, Shape, TensorSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    #[test]
    fn a_graph_that_fits_only_one_batch_is_refused_before_the_training() {
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
        let config = ReplicaConfig { graph: &graph, examples: 2, columns: &columns, device, compute };
        let mut replica = GraphReplica::new(config).unwrap();
        assert!(replica.prepare(2).is_ok());
        assert!(replica.prepare(3).unwrap_err().to_string().contains("(add 'add')"));
    }
}
