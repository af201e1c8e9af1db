//! A stage of a job's graph, compiled for batches of one size.

use pushpull_engine::{CompileError, Stage, Stages};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::input::ColumnSpec;

/// A stage, compiled for micro-batches of one size.
pub(super) struct CompiledStage {
    pub stage: Stage,
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
    /// If the graph cannot be compiled.
    pub fn training(&self, examples: usize) -> Result<CompiledStage, CompileError> {
        let Self { graph, columns, .. } = *self;
        let stages = graph.stages();
        let (nodes, owners, count) = (stages.nodes(), stages.owners(), stages.count());
        self.compile(&Stages::training(graph, nodes, owners, count, examples, columns)?, count, examples)
    }

    /// Compiles the evaluation of batches of `examples` examples.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub fn evaluation(&self, examples: usize) -> Result<CompiledStage, CompileError> {
        let Self { graph, columns, .. } = *self;
        let stages = graph.stages();
        let (nodes, owners, count) = (stages.nodes(), stages.owners(), stages.count());
        self.compile(&Stages::evaluation(graph, nodes, owners, count, examples, columns)?, count, examples)
    }

    fn compile(
        &self,
        stages: &Stages<'_>,
        count: u32,
        examples: usize,
    ) -> Result<CompiledStage, CompileError> {
        let stage = stages.compile(self.number, self.threads)?;
        let results = stages.result_elements().sum();
        Ok(CompiledStage { stage, number: self.number, count, results, examples })
    }
}
