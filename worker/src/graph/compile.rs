//! From a graph to a program: the nodes that matter, in order, each with the places it reads and writes.

use std::ops::Range;

use messages::graph::{GraphError, GraphSpec, Op};
use messages::id::{NodeId, VariableId};
use messages::tensor::{DType, Shape, TensorSpec};

use super::autodiff::{DifferentiateError, NoGradient, differentiate};
use super::plan::{Lifetime, plan};

/// The input that is fed with an example's numbers.
pub const FEATURES: &str = "features";
/// The input that is fed with an example's class.
pub const LABELS: &str = "labels";

/// Most floats in a program's arena: 16 GiB.
const ARENA_ELEMENTS_MAX: usize = 1 << 32;

/// A graph made ready to run on batches of one size.
#[derive(Debug)]
pub struct Program {
    pub(super) instructions: Vec<Instruction>,
    /// Floats.
    pub(super) arena: usize,
    /// The loss, and each metric in the graph's order.
    pub(super) scalars: Vec<Place>,
    /// Variables whose gradient is zero, since the loss does not depend on them.
    pub(super) unused: Vec<VariableId>,
    pub(super) batch: usize,
    features: Option<Shape>,
}

/// One step of a program.
#[derive(Debug)]
pub(super) struct Instruction {
    pub kernel: Kernel,
    pub output: Place,
    /// Without the input that the output is written over, for a kernel that works in place.
    pub inputs: Vec<Place>,
}

/// What is called. Matrices carry their sizes, as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernel {
    Constant(f32),
    Copy,
    MatMul { a: Matrix, b: Matrix },
    BiasAdd { in_place: bool, relu: bool },
    Relu { in_place: bool },
    Add { in_place: bool },
    ReluGrad { in_place: bool },
    SumRows,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    Accuracy,
}

/// A matrix operand: how it is stored, and whether it is read the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub transposed: bool,
}

/// Where a value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In floats.
    Arena(Range<usize>),
    Variable(VariableId),
    Gradient(VariableId),
    Features,
    Labels,
}

/// Why a graph cannot be made into a program.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It is no valid graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// It cannot be trained.
    #[error(transparent)]
    NoGradient(#[from] NoGradient),
    /// It asks for something that no dataset has.
    #[error("input '{name}' is {example} per example: expected f32 '{FEATURES}' or an i32 scalar '{LABELS}'")]
    UnknownInput {
        /// The node's name.
        name: String,
        /// What it asks for.
        example: TensorSpec,
    },
    /// It needs too much memory.
    #[error("one step would need {0} floats of working memory, and may need at most {ARENA_ELEMENTS_MAX}")]
    TooLarge(usize),
}

impl From<DifferentiateError> for CompileError {
    fn from(error: DifferentiateError) -> Self {
        match error {
            DifferentiateError::Graph(error) => Self::Graph(error),
            DifferentiateError::NoGradient(error) => Self::NoGradient(error),
        }
    }
}

impl Program {
    /// The loss and every variable's gradient, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the graph cannot be run or differentiated.
    pub fn training(graph: &GraphSpec, batch: usize) -> Result<Self, CompileError> {
        graph.validate(batch)?;
        let differentiated = differentiate(graph, batch)?;
        compile(&differentiated.graph, batch, &[graph.loss], &differentiated.gradients)
    }

    /// The loss and every metric, for batches of `batch` examples.
    ///
    /// # Errors
    /// Where the graph cannot be run.
    pub fn evaluation(graph: &GraphSpec, batch: usize) -> Result<Self, CompileError> {
        graph.validate(batch)?;
        let scalars: Vec<NodeId> =
            std::iter::once(graph.loss).chain(graph.metrics.iter().map(|metric| metric.node)).collect();
        compile(graph, batch, &scalars, &[])
    }

    /// Examples in a batch.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// The shape of one example's features, where the graph reads any.
    pub const fn features(&self) -> Option<&Shape> {
        self.features.as_ref()
    }

    /// Bytes of working memory that a step needs, beside values and gradients.
    pub const fn arena_bytes(&self) -> usize {
        self.arena * 4
    }
}

/// Everything that is known of the graph while it is compiled.
struct Compiler<'a> {
    graph: &'a GraphSpec,
    tensors: Vec<TensorSpec>,
    /// For every node the one whose memory it has: itself, or behind a reshape the node that was reshaped.
    root: Vec<usize>,
    /// For every node, how many live nodes read its memory.
    readers: Vec<usize>,
    live: Vec<bool>,
}

fn compile(
    graph: &GraphSpec,
    batch: usize,
    scalars: &[NodeId],
    gradients: &[Option<NodeId>],
) -> Result<Program, CompileError> {
    let tensors = graph.infer(batch)?;
    let targets = scalars.iter().chain(gradients.iter().flatten());
    let mut compiler = Compiler::new(graph, tensors, targets.copied());
    let features = compiler.check_inputs()?;
    let drafts = compiler.draft(scalars, gradients);
    let (places, arena) = lay_out(&drafts, &compiler.tensors, &compiler.root, scalars);
    if arena > ARENA_ELEMENTS_MAX {
        return Err(CompileError::TooLarge(arena));
    }
    let place = |source: &Source| match source {
        Source::Node(root) => places[*root].clone().expect("a value that is read has been written"),
        Source::Fixed(place) => place.clone(),
    };
    let instructions = drafts
        .iter()
        .map(|draft| Instruction {
            kernel: draft.kernel,
            output: place(&draft.output),
            inputs: draft.inputs.iter().map(place).collect(),
        })
        .collect();
    let scalar = |id: &NodeId| place(&compiler.source(*id));
    let unused = gradients.iter().enumerate().filter(|(_, gradient)| gradient.is_none());
    Ok(Program {
        instructions,
        arena,
        scalars: scalars.iter().map(scalar).collect(),
        unused: unused.map(|(variable, _)| VariableId(variable as u32)).collect(),
        batch,
        features,
    })
}

/// An instruction whose values have no memory yet.
struct Draft {
    kernel: Kernel,
    output: Source,
    inputs: Vec<Source>,
    /// The value whose memory the output takes over.
    over: Option<usize>,
}

/// A value: a node's, by the node that owns its memory, or one that lies outside of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Node(usize),
    Fixed(Place),
}

impl<'a> Compiler<'a> {
    fn new(graph: &'a GraphSpec, tensors: Vec<TensorSpec>, targets: impl Iterator<Item = NodeId>) -> Self {
        let count = graph.nodes.len();
        let mut live = vec![false; count];
        let mut readers = vec![0; count];
        let mut root: Vec<usize> = (0..count).collect();
        for (position, node) in graph.nodes.iter().enumerate() {
            if matches!(node.op, Op::Reshape { .. }) {
                root[position] = root[node.inputs[0].index()];
            }
        }
        for target in targets {
            live[target.index()] = true;
            readers[root[target.index()]] += 1;
        }
        // Inputs stand before their readers, so one pass from the end reaches everything that is needed.
        for position in (0..count).rev() {
            if !live[position] {
                continue;
            }
            for input in &graph.nodes[position].inputs {
                live[input.index()] = true;
                if root[position] != root[input.index()] {
                    readers[root[input.index()]] += 1;
                }
            }
        }
        Self { graph, tensors, root, readers, live }
    }

    fn check_inputs(&self) -> Result<Option<Shape>, CompileError> {
        let mut features = None;
        for (node, _) in self.graph.nodes.iter().zip(&self.live).filter(|(_, live)| **live) {
            let Op::Input { example } = &node.op else { continue };
            match (node.name.as_str(), example.dtype, example.shape.rank()) {
                (FEATURES, DType::F32, _) => features = Some(example.shape.clone()),
                (LABELS, DType::I32, 0) => {}
                _ => {
                    let (name, example) = (node.name.clone(), example.clone());
                    return Err(CompileError::UnknownInput { name, example });
                }
            }
        }
        Ok(features)
    }

    /// Where a node's value is read from.
    fn source(&self, id: NodeId) -> Source {
        let root = self.root[id.index()];
        match &self.graph.nodes[root].op {
            Op::Variable { variable } => Source::Fixed(Place::Variable(*variable)),
            Op::Input { .. } if self.graph.nodes[root].name == LABELS => Source::Fixed(Place::Labels),
            Op::Input { .. } => Source::Fixed(Place::Features),
            _ => Source::Node(root),
        }
    }

    /// The instructions in order, without memory: dead nodes left out, a relu behind a bias taken into it, and
    /// outputs written over inputs that nobody else reads.
    fn draft(&mut self, scalars: &[NodeId], gradients: &[Option<NodeId>]) -> Vec<Draft> {
        let fused = self.fuse_bias_relu(scalars, gradients);
        let mut drafts: Vec<Draft> = Vec::new();
        for position in 0..self.graph.nodes.len() {
            if self.live[position] && !fused.contains(&Some(position)) {
                drafts.extend(self.draft_node(position, fused[position]));
            }
        }
        for (variable, gradient) in gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let into = Source::Fixed(Place::Gradient(VariableId(variable as u32)));
            let from = self.source(*gradient);
            let writer = drafts.iter_mut().find(|draft| draft.output == from && draft.over.is_none());
            // Straight into the gradient's own memory where nobody else reads it, which is nearly always.
            match (writer, &from) {
                (Some(writer), Source::Node(root)) if self.readers[*root] == 1 => writer.output = into,
                _ => {
                    drafts.push(Draft { kernel: Kernel::Copy, output: into, inputs: vec![from], over: None })
                }
            }
        }
        drafts
    }

    /// For every node that is a relu, the bias_add that it takes over: one pass over memory instead of two.
    fn fuse_bias_relu(&self, scalars: &[NodeId], gradients: &[Option<NodeId>]) -> Vec<Option<usize>> {
        let mut fused = vec![None; self.graph.nodes.len()];
        for (position, node) in self.graph.nodes.iter().enumerate() {
            if !self.live[position] || node.op != Op::Relu {
                continue;
            }
            let bias = node.inputs[0].index();
            let target = |id: &NodeId| self.root[id.index()] == bias;
            let is_target = scalars.iter().any(target) || gradients.iter().flatten().any(target);
            if self.graph.nodes[bias].op == Op::BiasAdd && self.readers[bias] == 1 && !is_target {
                fused[position] = Some(bias);
            }
        }
        fused
    }

    fn draft_node(&self, position: usize, bias: Option<usize>) -> Option<Draft> {
        let node = &self.graph.nodes[bias.unwrap_or(position)];
        let inputs: Vec<Source> = node.inputs.iter().map(|&input| self.source(input)).collect();
        let matrix = |input: usize, transposed: bool| {
            let shape = &self.tensors[node.inputs[input].index()].shape.0;
            Matrix { rows: shape[0], cols: shape[1], transposed }
        };
        // An input that only this node reads, and that is read at the same element as is written, can be written
        // over. Which one is it for this operation?
        let over_input = match node.op {
            Op::BiasAdd | Op::Relu => Some(0),
            Op::Add => Some(0),
            Op::ReluGrad => Some(1),
            _ => None,
        };
        let over = over_input.and_then(|input| match inputs[input] {
            Source::Node(root) if self.readers[root] == 1 => Some((input, root)),
            _ => None,
        });
        let in_place = over.is_some();
        let kernel = match node.op {
            Op::Input { .. } | Op::Variable { .. } | Op::Reshape { .. } => return None,
            Op::Constant { value } => Kernel::Constant(value),
            Op::MatMul { transpose_a, transpose_b } => {
                Kernel::MatMul { a: matrix(0, transpose_a), b: matrix(1, transpose_b) }
            }
            Op::BiasAdd => Kernel::BiasAdd { in_place, relu: bias.is_some() },
            Op::Relu => Kernel::Relu { in_place },
            Op::Add => Kernel::Add { in_place },
            Op::ReluGrad => Kernel::ReluGrad { in_place },
            Op::SumRows => Kernel::SumRows,
            Op::SoftmaxCrossEntropy => Kernel::SoftmaxCrossEntropy,
            Op::SoftmaxCrossEntropyGrad => Kernel::SoftmaxCrossEntropyGrad,
            Op::Accuracy => Kernel::Accuracy,
        };
        let read = inputs.into_iter().enumerate();
        let inputs =
            read.filter(|(input, _)| over.map(|(over, _)| over) != Some(*input)).map(|(_, from)| from);
        Some(Draft {
            kernel,
            output: Source::Node(position),
            inputs: inputs.collect(),
            over: over.map(|(_, root)| root),
        })
    }
}

/// Gives every value that is drafted into the arena its place there.
fn lay_out(
    drafts: &[Draft],
    tensors: &[TensorSpec],
    root: &[usize],
    scalars: &[NodeId],
) -> (Vec<Option<Place>>, usize) {
    // Values that are written one over the other share a place, and live from the first one's start to the last
    // one's end.
    let mut place_of: Vec<Option<usize>> = vec![None; tensors.len()];
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    for (time, draft) in drafts.iter().enumerate() {
        for input in &draft.inputs {
            if let Source::Node(value) = input {
                lifetimes[place_of[*value].expect("written before it is read")].last = time;
            }
        }
        let over = draft.over.map(|value| place_of[value].expect("written before it is written over"));
        if let Some(place) = over {
            lifetimes[place].last = time;
        }
        if let Source::Node(value) = draft.output {
            place_of[value] = over.or_else(|| {
                let elements = tensors[value].shape.elements();
                lifetimes.push(Lifetime { elements, first: time, last: time });
                Some(lifetimes.len() - 1)
            });
        }
    }
    for scalar in scalars {
        if let Some(place) = place_of[root[scalar.index()]] {
            lifetimes[place].last = drafts.len();
        }
    }
    let plan = plan(&lifetimes);
    let place = |place: Option<usize>| place.map(|place| Place::Arena(plan.places[place].clone()));
    (place_of.into_iter().map(place).collect(), plan.arena)
}
