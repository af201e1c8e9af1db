//! A stage of a job's graph, compiled for batches of one size.

use pushpull_engine::{Edge, Stage, Stages};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::input::ColumnSpec;
use pushpull_transport::wire::Limits;

use crate::devices::ReplicaError;

/// A stage, compiled for micro-batches of one size.
pub(super) struct CompiledStage {
    pub stage: Stage,
    /// For each edge of the stage's `arrives`, whether its value is that of a variable, which is the same for
    /// all micro-batches of a run and arrives with the first.
    pub constant: Vec<bool>,
    /// The number of this stage.
    pub number: u32,
    /// The number of stages.
    pub count: u32,
    /// The number of elements of all results of a run.
    pub results: usize,
    /// The number of examples in a micro-batch.
    pub examples: usize,
}

/// What a stage is compiled from.
#[derive(Clone, Copy)]
pub(super) struct StageSource<'a> {
    pub graph: &'a GraphSpec,
    pub columns: &'a [ColumnSpec],
    pub number: u32,
    pub threads: Threads,
}

impl StageSource<'_> {
    /// Compiles the training of micro-batches of `examples` examples.
    ///
    /// # Errors
    /// If the graph cannot be compiled; if a value that crosses does not fit into a message.
    pub fn training(&self, examples: usize) -> Result<CompiledStage, ReplicaError> {
        let Self { graph, columns, .. } = *self;
        let own = graph.stages();
        let (nodes, owners, count) = (own.nodes(), own.owners(), own.count());
        self.compile(&Stages::training(graph, nodes, owners, count, examples, columns)?, count, examples)
    }

    /// Compiles the evaluation of batches of `examples` examples.
    ///
    /// # Errors
    /// If the graph cannot be compiled; if a value that crosses does not fit into a message.
    pub fn evaluation(&self, examples: usize) -> Result<CompiledStage, ReplicaError> {
        let Self { graph, columns, .. } = *self;
        let own = graph.stages();
        let (nodes, owners, count) = (own.nodes(), own.owners(), own.count());
        self.compile(&Stages::evaluation(graph, nodes, owners, count, examples, columns)?, count, examples)
    }

    fn compile(&self, cut: &Stages<'_>, count: u32, examples: usize) -> Result<CompiledStage, ReplicaError> {
        let Self { graph, number, threads, .. } = *self;
        let bytes = |edge: &Edge| edge.spec.shape.elements() as u64 * 4;
        let largest = cut.edges().map(bytes).max().unwrap_or(0);
        let bytes_max = Limits::default().payload_bytes_max;
        if largest > bytes_max {
            return Err(ReplicaError::LargeStageValue { bytes: largest, bytes_max });
        }
        let stage = cut.compile(number, threads)?;
        let is_variable = |edge: &Edge| {
            edge.given.is_some_and(|node| matches!(graph.nodes[node.index()].op, Op::Variable { .. }))
        };
        let constant = stage.arrives.iter().map(is_variable).collect();
        let results = cut.result_elements().sum();
        Ok(CompiledStage { stage, constant, number, count, results, examples })
    }
}
