//! All stages of a job's graph, and the edges between them. Each task of a replica cuts the whole graph,
//! which gives the same edges everywhere, and compiles only its own stage. This module must not depend on the
//! memory of a program or on the transport of values.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::ColumnSpec;

use super::edge::Edge;
use super::homes::Home;
use super::split::Split;
use super::stage::{Destination, Held, Origin, Stage, Wanted};
use crate::error::CompileError;
use crate::ir::{Ir, Kernel, Value};
use crate::lower::{Lowered, Mode, lower};
use crate::training::Training;

/// The stage that has the batch and wants the results.
const LEADER: u32 = 0;

/// All stages of a job's graph. They compute the values of the program of the whole graph, bit for bit.
///
/// In a run of the graph on some examples, each stage runs its program once. Stages may run at the same time,
/// and a stage may have several runs in flight. No run waits in a circle, if each stage gives its values when
/// the run begins, and advances every run that can go on.
pub struct Stages<'a> {
    layout: Layout<'a>,
    split: Split,
    requests: Vec<Request>,
    /// The variables whose gradients are zero.
    unused: Vec<VariableId>,
}

/// The stages of the nodes and of the variables of a graph.
struct Layout<'a> {
    graph: &'a GraphSpec,
    parts: &'a [u32],
    owners: &'a [u32],
    stages: u32,
}

/// A value that the stage `by` wants.
struct Request {
    value: Value,
    by: u32,
    wanted: Wanted,
}

impl<'a> Stages<'a> {
    /// Cuts a training step on `examples` examples with these columns. Stage 0 wants the loss, and the owner
    /// of each variable wants the variable's gradient. The loss is the mean over the examples, and the
    /// gradients are those of this mean. The gradient of a variable that batch normalisations move is what
    /// has to be subtracted from it.
    ///
    /// `parts` holds the stage of each node, and `owners` the stage of each variable, all below `stages`.
    /// Stage 0 holds the columns of the batch, and the owner of a variable holds its value, so `parts` does
    /// not count for inputs and variables. The addition of a bias runs where its product or convolution does.
    ///
    /// # Errors
    /// If the graph cannot be compiled or differentiated.
    ///
    /// # Panics
    /// If a list does not have the length of the graph's nodes or variables, or a stage is out of range.
    pub fn training(
        graph: &'a GraphSpec,
        parts: &'a [u32],
        owners: &'a [u32],
        stages: u32,
        examples: usize,
        columns: &[ColumnSpec],
    ) -> Result<Self, CompileError> {
        let layout = Layout::new(graph, parts, owners, stages);
        let training = Training::lower(graph, examples, columns)?;
        let loss = (Wanted::Results(0..1), training.values[graph.loss.index()]);
        let gradients =
            training.computed().map(|(variable, gradient)| (Wanted::Gradient(variable), gradient));
        let wanted = std::iter::once(loss).chain(gradients).collect();
        let unused = training.unused().collect();
        Ok(Self { unused, ..Self::cut(layout, examples, training.ir, wanted)? })
    }

    /// Cuts an evaluation of `examples` examples: stage 0 wants the loss and every metric. The arguments are
    /// those of [`training`](Self::training).
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    ///
    /// # Panics
    /// If a list does not have the length of the graph's nodes or variables, or a stage is out of range.
    pub fn evaluation(
        graph: &'a GraphSpec,
        parts: &'a [u32],
        owners: &'a [u32],
        stages: u32,
        examples: usize,
        columns: &[ColumnSpec],
    ) -> Result<Self, CompileError> {
        let layout = Layout::new(graph, parts, owners, stages);
        graph.validate(examples)?;
        let Lowered { ir, values, .. } = lower(graph, examples, columns, Mode::Evaluation)?;
        let mut first = 0;
        let nodes = std::iter::once(graph.loss).chain(graph.metrics.iter().map(|metric| metric.node));
        let wanted = nodes.map(|node| {
            let value = values[node.index()];
            let results = first..first + ir.elements(value);
            first = results.end;
            (Wanted::Results(results), value)
        });
        let wanted = wanted.collect();
        Self::cut(layout, examples, ir, wanted)
    }

    fn cut(
        layout: Layout<'a>,
        examples: usize,
        ir: Ir,
        wanted: Vec<(Wanted, Value)>,
    ) -> Result<Self, CompileError> {
        let request = |(wanted, value): (Wanted, Value)| {
            let by = match wanted {
                Wanted::Gradient(variable) => layout.owners[variable.index()],
                Wanted::Results(_) => LEADER,
            };
            Request { value: ir.root(value), by, wanted }
        };
        let requests: Vec<Request> = wanted.into_iter().map(request).collect();
        let mut split =
            Split::new(ir, |node| layout.stage(node), requests.iter().map(|request| request.value));
        let remote = |request: &&Request| match split.home(request.value) {
            Home::Everywhere => false,
            Home::Beside(stage) | Home::Within(stage) => stage != request.by,
        };
        let crossing: Vec<_> =
            requests.iter().filter(remote).map(|request| (request.value, request.by)).collect();
        let tensors = layout.graph.infer(examples)?;
        split.connect(crossing.into_iter(), |node| tensors[node.index()].clone());
        Ok(Self { layout, split, requests, unused: Vec::new() })
    }

    /// Returns the number of elements of each result: that of the loss and, in an evaluation, that of each
    /// metric in the graph's order.
    pub fn result_elements(&self) -> impl Iterator<Item = usize> + '_ {
        self.requests.iter().filter_map(|request| match &request.wanted {
            Wanted::Results(elements) => Some(elements.len()),
            Wanted::Gradient(_) => None,
        })
    }

    /// Returns the edges between different stages, in the order of their keys.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        let edges = self.split.crossings.iter().map(|crossing| &crossing.edge);
        edges.filter(|edge| edge.from != edge.to)
    }

    /// Compiles one stage, whose kernels may use this number of threads.
    ///
    /// # Errors
    /// If the stage needs too much memory.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn compile(&self, stage: u32, threads: Threads) -> Result<Stage, CompileError> {
        let Self { layout, split, requests, unused } = self;
        assert!(stage < layout.stages, "stage {stage} of {}", layout.stages);
        let arrives = || split.crossings.iter().filter(|own| own.edge.to == stage && own.edge.from != stage);
        let index: BTreeMap<Value, usize> =
            arrives().enumerate().map(|(index, crossing)| (crossing.value, index)).collect();
        let origin = |value: Value| match index.get(&value) {
            Some(&index) => Origin::Arrives(index),
            None => Origin::Held(self.held(value)),
        };
        let computed_here =
            |request: &&Request| [Home::Everywhere, Home::Within(stage)].contains(&split.home(request.value));
        let wanted = requests.iter().filter(|request| request.by == stage);
        let (computed, delivered): (Vec<&Request>, Vec<_>) = wanted.partition(computed_here);
        let sent = split.sends(stage);
        let sent = sent.map(|crossing| (crossing.value, Destination::Sent(crossing.edge.clone())));
        let computed = computed.iter().map(|own| (own.value, Destination::Wanted(own.wanted.clone())));
        let (sinks, sends): (Vec<Value>, Vec<Destination>) = sent.chain(computed).unzip();
        let others = split.gives(stage).filter(|crossing| crossing.edge.to != stage);
        let is_owned = |variable: &VariableId| layout.owners[variable.index()] == stage;
        Ok(Stage {
            program: split.program(layout.graph, stage, &sinks, threads)?.map(Arc::new),
            arrives: arrives().map(|crossing| crossing.edge.clone()).collect(),
            columns: split.columns(stage).map(|crossing| origin(crossing.value)).collect(),
            sends,
            gives: others.map(|own| (self.held(own.value), own.edge.clone())).collect(),
            delivered: delivered.iter().map(|own| (origin(own.value), own.wanted.clone())).collect(),
            unused: unused.iter().copied().filter(is_owned).collect(),
        })
    }

    /// Returns what a value is that no program computes.
    fn held(&self, value: Value) -> Held {
        match self.split.ir.nodes[value.node].kernel {
            Kernel::Column(column) => Held::Column(column),
            Kernel::Variable(variable) => Held::Variable(variable),
            ref kernel => unreachable!("no stage holds the value of {kernel:?}"),
        }
    }
}

impl<'a> Layout<'a> {
    fn new(graph: &'a GraphSpec, parts: &'a [u32], owners: &'a [u32], stages: u32) -> Self {
        let (nodes, variables) = (graph.nodes.len(), graph.variables.len());
        assert!(
            (parts.len(), owners.len()) == (nodes, variables),
            "the lists have {} of {nodes} nodes and {} of {variables} variables",
            parts.len(),
            owners.len()
        );
        assert!(parts.iter().chain(owners).all(|&stage| stage < stages), "a stage is out of range");
        Self { graph, parts, owners, stages }
    }

    /// Returns the stage that computes or holds the value of a node.
    fn stage(&self, node: NodeId) -> u32 {
        match self.graph.nodes[node.index()].op {
            Op::Input { .. } => LEADER,
            Op::Variable { variable } => self.owners[variable.index()],
            _ => self.parts[node.index()],
        }
    }
}
