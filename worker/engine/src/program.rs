//! A compiled graph, for batches of one size on one device: the instructions in order, and the place of
//! every value. This module must not depend on the data.

use std::time::Instant;

use pushpull_cuda::Multiplier;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::{DType, TensorSpec};

use super::attend::attend;
use super::error::CompileError;
use super::feed::Feed;
use super::fetch::{Fetch, Groups};
use super::fuse::fuse;
use super::ir::{Ir, Kernel, Value};
use super::lower::{Lowered, Mode, lower};
use super::memory::{Instruction, Memory, Place, lay_out};
use super::narrow::narrow;
use super::op_time::OpTime;
use super::target::Target;
use super::training::Training;
use super::values::ValueSource;

/// The number of outputs that an error about memory names.
const LARGEST: usize = 3;

/// A graph that was compiled for batches of one size.
#[derive(Debug)]
pub struct Program {
    pub(super) instructions: Vec<Instruction>,
    /// The size of the arena, in floats.
    pub(super) arena: usize,
    /// The results. In training: the loss, then each fetch. In an evaluation: the loss, then each metric in
    /// the graph's order. In a prediction: the outputs in the graph's order.
    pub(super) results: Vec<ResultPlace>,
    /// The variables whose gradients are zero, because the loss does not depend on them.
    pub(super) unused: Vec<VariableId>,
    /// For each column, the number of elements of one example and their type; `None` if no instruction reads
    /// the column.
    pub(super) columns: Vec<Option<(usize, DType)>>,
    pub(super) batch: usize,
    pub(super) target: Target,
    /// The names of the nodes with the largest outputs in the arena, and the sizes of the outputs in floats.
    pub(super) largest: Vec<(String, usize)>,
    /// The labels of the nodes that can fail or lose an input, for use in error messages.
    labels: Vec<(NodeId, String)>,
}

/// The place of a result, its number of elements, and the groups that it belongs to.
#[derive(Debug)]
pub(super) struct ResultPlace {
    pub place: Place,
    pub elements: usize,
    pub groups: Groups,
}

impl Program {
    /// Compiles the loss and every variable's gradient, for batches of `batch` examples with these columns.
    ///
    /// # Errors
    /// If the graph cannot be compiled or differentiated.
    pub fn training(
        graph: &GraphSpec,
        batch: usize,
        columns: &[ColumnSpec],
        target: impl Into<Target>,
    ) -> Result<Self, CompileError> {
        Self::training_with(graph, batch, columns, target, &[])
    }

    /// Compiles what [`training`](Self::training) compiles, and the fetches. A step computes a fetch if its
    /// feed asks for one of the fetch's groups. Normalisations and dropout act in fetches as they do in the
    /// loss.
    ///
    /// # Errors
    /// The same as those of [`training`](Self::training).
    ///
    /// # Panics
    /// If a fetch is not a node of the graph.
    pub fn training_with(
        graph: &GraphSpec,
        batch: usize,
        columns: &[ColumnSpec],
        target: impl Into<Target>,
        fetches: &[Fetch],
    ) -> Result<Self, CompileError> {
        let training = Training::lower(graph, batch, columns)?;
        let Training { ir, values, .. } = &training;
        let loss = (values[graph.loss.index()], Groups::ALWAYS);
        let fetched = fetches.iter().map(|fetch| (values[fetch.node.index()], fetch.groups));
        let results: Vec<_> = std::iter::once(loss).chain(fetched).collect();
        let gradients: Vec<(VariableId, Value)> = training.computed().collect();
        let mut program = Self::new(graph, batch, columns, target.into(), ir, &results, &gradients)?;
        program.unused = training.unused().collect();
        Ok(program)
    }

    /// Compiles the loss and every metric, for batches of `batch` examples with these columns.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub fn evaluation(
        graph: &GraphSpec,
        batch: usize,
        columns: &[ColumnSpec],
        target: impl Into<Target>,
    ) -> Result<Self, CompileError> {
        graph.validate(batch)?;
        let nodes = std::iter::once(graph.loss).chain(graph.metrics.iter().map(|metric| metric.node));
        Self::forward(graph, nodes, batch, columns, target)
    }

    /// Compiles every output of the graph, for batches of `batch` examples with these columns. Inputs that no
    /// output needs, such as labels, need no column.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub fn prediction(
        graph: &GraphSpec,
        batch: usize,
        columns: &[ColumnSpec],
        target: impl Into<Target>,
    ) -> Result<Self, CompileError> {
        graph.validate(batch)?;
        let part = graph.prediction();
        let nodes = part.outputs.iter().map(|output| output.node);
        Self::forward(&part, nodes, batch, columns, target)
    }

    /// Compiles these nodes of a graph, without gradients.
    fn forward(
        graph: &GraphSpec,
        nodes: impl Iterator<Item = NodeId>,
        batch: usize,
        columns: &[ColumnSpec],
        target: impl Into<Target>,
    ) -> Result<Self, CompileError> {
        let Lowered { ir, values, .. } = lower(graph, batch, columns, Mode::Evaluation)?;
        let results: Vec<_> = nodes.map(|node| (values[node.index()], Groups::ALWAYS)).collect();
        Self::new(graph, batch, columns, target.into(), &ir, &results, &[])
    }

    /// Returns the number of elements of each result, in the order of the results.
    pub fn result_elements(&self) -> impl Iterator<Item = usize> + '_ {
        self.results.iter().map(|result| result.elements)
    }

    fn new(
        graph: &GraphSpec,
        batch: usize,
        columns: &[ColumnSpec],
        target: Target,
        ir: &Ir,
        results: &[(Value, Groups)],
        gradients: &[(VariableId, Value)],
    ) -> Result<Self, CompileError> {
        let examples: Vec<&TensorSpec> = columns.iter().map(|column| &column.example).collect();
        let program = Self::assemble(graph, batch, &examples, target, ir, results, gradients);
        let arena_and_results = program.result_elements().fold(program.arena, usize::saturating_add);
        if arena_and_results > target.elements_max() {
            return Err(CompileError::TooLarge {
                what: if gradients.is_empty() { "evaluating" } else { "training on" },
                examples: batch,
                elements: arena_and_results,
                node: program.largest_node(),
            });
        }
        Ok(program)
    }

    /// Compiles one part of a graph. Column i, which has the spec `columns[i]`, is used whole, and `sends[i]`
    /// is written to the sink's variable i. A part has no batch of its own: it counts as a batch of one
    /// example.
    ///
    /// # Errors
    /// If the part needs too much memory.
    pub(super) fn of_part(
        graph: &GraphSpec,
        part: u32,
        columns: &[&TensorSpec],
        threads: Threads,
        ir: &Ir,
        sends: &[(VariableId, Value)],
    ) -> Result<Self, CompileError> {
        let target = Target::Cpu(threads);
        let program = Self::assemble(graph, 1, columns, target, ir, &[], sends);
        if program.arena > target.elements_max() {
            let (elements, node) = (program.arena, program.largest_node());
            return Err(CompileError::PartTooLarge { part, elements, node });
        }
        Ok(program)
    }

    /// Fuses and lays out the kernels that the results and gradients need. `columns` holds the spec of one
    /// example of each column.
    fn assemble(
        graph: &GraphSpec,
        batch: usize,
        columns: &[&TensorSpec],
        target: Target,
        ir: &Ir,
        results: &[(Value, Groups)],
        gradients: &[(VariableId, Value)],
    ) -> Self {
        let gradient = |&(_, value): &(VariableId, Value)| (value, Groups::ALWAYS);
        let targets: Vec<_> = results.iter().copied().chain(gradients.iter().map(gradient)).collect();
        let attended = target.attends().map(|multiplier| attend(ir, &targets, multiplier));
        let ir = attended.as_ref().unwrap_or(ir);
        let fused = fuse(ir, &targets);
        let (narrowed, fused) = match target {
            Target::Cuda { multiplier: Multiplier::Library(precision), .. } if precision.is_narrow() => {
                let (ir, fused) = narrow(ir, fused, precision);
                (Some(ir), fused)
            }
            _ => (None, fused),
        };
        let ir = narrowed.as_ref().unwrap_or(ir);
        let Memory { instructions, arena, results: places } =
            lay_out(ir, fused, results, gradients, |kernel, sizes| target.scratch(kernel, sizes));
        let mut read = vec![None; columns.len()];
        for column in instructions.iter().flat_map(columns_of) {
            read[column] = Some((columns[column].shape.elements(), columns[column].dtype));
        }
        let result = |(place, &(value, groups)): (Place, &(Value, Groups))| ResultPlace {
            place,
            elements: ir.elements(value),
            groups,
        };
        let fails = |own: &&Instruction| can_fail(&own.kernel) || columns_of(own).next().is_some();
        let label = |own: &Instruction| (own.origin, graph.label(own.origin));
        Self {
            arena,
            results: places.into_iter().zip(results).map(result).collect(),
            unused: Vec::new(),
            columns: read,
            batch,
            target,
            largest: largest(graph, &instructions),
            labels: instructions.iter().filter(fails).map(label).collect(),
            instructions,
        }
    }

    /// Returns the name of the node with the largest output in the arena.
    fn largest_node(&self) -> String {
        self.largest.first().map_or_else(|| "none".into(), |(name, _)| name.clone())
    }

    /// Returns the number of examples in a batch.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the number of bytes of working memory that a step needs, in addition to values and gradients.
    pub const fn arena_bytes(&self) -> usize {
        self.arena * 4
    }

    /// Returns the number of instructions. The memory of a program grows with it.
    pub const fn instructions_count(&self) -> usize {
        self.instructions.len()
    }

    /// Returns the variables in the order in which their gradients become complete.
    pub fn gradient_order(&self) -> impl Iterator<Item = VariableId> + '_ {
        let computed = self.instructions.iter().filter_map(|instruction| instruction.completes);
        self.unused.iter().copied().chain(computed)
    }

    /// Returns the elements of a result that no instruction computes: a variable, or this device's part of a
    /// column.
    pub(super) fn given<'a>(
        &self,
        place: &Place,
        elements: usize,
        feed: Feed<'a>,
        values: &'a dyn ValueSource,
    ) -> &'a [f32] {
        match *place {
            Place::Variable(variable) => values.variable(variable),
            Place::Column(column) => {
                let first = feed.first * elements / self.batch;
                let numbers = feed.columns[column].f32().expect("an output is of floats");
                &numbers[first..first + elements]
            }
            ref other => unreachable!("{other:?} of {elements} is no given result"),
        }
    }

    /// Returns the time of each operation, given that of each instruction: its index, and when it began and
    /// ended.
    pub(super) fn op_times(&self, times: &[(usize, [Instant; 2])]) -> impl Iterator<Item = OpTime> {
        let loss = self.loss_instruction();
        times.iter().map(move |&(position, [began, ended])| {
            let Instruction { kernel, origin, groups, .. } = &self.instructions[position];
            // An instruction that only a fetch needs may run after the loss without being backward.
            let backward = position > loss && groups.meets(Groups::ALWAYS);
            OpTime { node: *origin, kind: kernel.name(), backward, began, ended }
        })
    }

    /// Returns the index of the instruction that computes the first result, the loss; 0 if none does.
    fn loss_instruction(&self) -> usize {
        let place = self.results.first().map(|result| &result.place);
        // Earlier instructions may have written other values to the same place. The last one that writes to
        // it computes the loss.
        self.instructions.iter().rposition(|own| own.outputs.first() == place).unwrap_or(0)
    }

    pub(super) fn label(&self, origin: NodeId) -> String {
        let label = self.labels.iter().find(|(node, _)| *node == origin);
        label.map_or_else(|| format!("node {origin}"), |(_, label)| label.clone())
    }
}

/// Returns the names of the nodes with the largest outputs in the arena, and the sizes of the outputs.
fn largest(graph: &GraphSpec, instructions: &[Instruction]) -> Vec<(String, usize)> {
    let size = |instruction: &Instruction| match instruction.outputs.first() {
        Some(Place::Arena(range)) => range.len(),
        _ => 0,
    };
    let mut by_size: Vec<&Instruction> = instructions.iter().filter(|own| size(own) > 0).collect();
    by_size.sort_by_key(|instruction| std::cmp::Reverse(size(instruction)));
    by_size.into_iter().take(LARGEST).map(|own| (graph.label(own.origin), size(own))).collect()
}

/// Returns the columns that an instruction reads.
pub(super) fn columns_of(instruction: &Instruction) -> impl Iterator<Item = usize> + '_ {
    instruction.inputs.iter().filter_map(|place| match *place {
        Place::Column(column) => Some(column),
        _ => None,
    })
}

/// Returns true if the kernel reads integers that may be out of range.
const fn can_fail(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Gather { .. }
            | Kernel::Scatter { .. }
            | Kernel::SoftmaxCrossEntropy
            | Kernel::SoftmaxCrossEntropyGrad
            | Kernel::AucCounts
    )
}
