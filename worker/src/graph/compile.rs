//! From a graph to a program: the nodes that matter, in order, each with the places it reads and writes.

use std::ops::Range;

use kernels::cpu::{BadGeometry, Conv2d, Padding, Pool2d};
use messages::graph::{GraphError, GraphSpec, Op, Stride, Window};
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
    /// Memory that holds nothing before and after.
    pub scratch: Range<usize>,
    /// What it leaves beside its output, for its gradient.
    pub saved: Range<usize>,
}

/// What is called. Matrices carry their sizes, as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernel {
    Constant(f32),
    Copy,
    MatMul {
        a: Matrix,
        b: Matrix,
    },
    BiasAdd {
        in_place: bool,
        relu: bool,
    },
    Relu {
        in_place: bool,
    },
    Add {
        in_place: bool,
    },
    ReluGrad {
        in_place: bool,
    },
    SumRows,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    Accuracy,
    Conv2d {
        conv: Conv2d,
        bias: Bias,
    },
    Conv2dInputGrad(Conv2d),
    Conv2dKernelGrad(Conv2d),
    /// Saves where each maximum was.
    MaxPool2d(Pool2d),
    /// Reads what the forward pass has saved in place of its output.
    MaxPool2dGrad(Pool2d),
    AveragePool2d(Pool2d),
    AveragePool2dGrad(Pool2d),
    /// Images, pixels, channels.
    GlobalAveragePool([usize; 3]),
    GlobalAveragePoolGrad([usize; 3]),
}

/// What is taken into a convolution from behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    None,
    Add,
    AddRelu,
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
    /// A window does not fit its images, for the kernels.
    #[error("{node}: {error:?}")]
    Geometry {
        /// The node.
        node: String,
        /// What does not fit.
        error: BadGeometry,
    },
    /// The gradient of a pooling that is not given the pooling.
    #[error("{node} must be given the max_pool2d node that it is the gradient of")]
    NoPooling {
        /// The node.
        node: String,
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
    let drafts = compiler.draft(scalars, gradients)?;
    let memory = lay_out(&drafts, &compiler.tensors, &compiler.root, scalars);
    let arena = memory.arena;
    if arena > ARENA_ELEMENTS_MAX {
        return Err(CompileError::TooLarge(arena));
    }
    let written = "a value that is read has been written";
    let place = |source: &Source| match source {
        Source::Node(root) => Place::Arena(memory.values[*root].clone().expect(written)),
        Source::Saved(root) => Place::Arena(memory.saved[*root].clone().expect(written)),
        Source::Fixed(place) => place.clone(),
    };
    let instructions = drafts
        .iter()
        .zip(&memory.scratch)
        .map(|(draft, scratch)| Instruction {
            kernel: draft.kernel,
            output: place(&draft.output),
            inputs: draft.inputs.iter().map(place).collect(),
            scratch: scratch.clone(),
            saved: memory.saved[draft.node].clone().unwrap_or_default(),
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
    /// The node whose value it computes.
    node: usize,
    kernel: Kernel,
    output: Source,
    inputs: Vec<Source>,
    /// The value whose memory the output takes over.
    over: Option<usize>,
    /// Floats that it needs while it runs.
    scratch: usize,
    /// Floats that it leaves for its gradient.
    saved: usize,
}

/// A value: a node's, by the node that owns its memory, or one that lies outside of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Node(usize),
    /// What a node has left beside its value.
    Saved(usize),
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

    /// The instructions in order, without memory: dead nodes left out, what can be done in one pass taken together,
    /// and outputs written over inputs that nobody else reads.
    fn draft(
        &mut self,
        scalars: &[NodeId],
        gradients: &[Option<NodeId>],
    ) -> Result<Vec<Draft>, CompileError> {
        let chains = self.chains();
        let mut drafts: Vec<Draft> = Vec::new();
        for (position, chain) in chains.iter().enumerate() {
            if let (true, Some(chain)) = (self.live[position], chain) {
                drafts.extend(self.draft_chain(position, chain)?);
            }
        }
        let mut writer_of: Vec<Option<usize>> = vec![None; self.graph.nodes.len()];
        for (time, draft) in drafts.iter().enumerate() {
            if draft.over.is_none() {
                writer_of[draft.node] = Some(time);
            }
        }
        for (variable, gradient) in gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let output = Source::Fixed(Place::Gradient(VariableId(variable as u32)));
            let from = self.source(*gradient);
            // Straight into the gradient's own memory where nobody else reads it, which is nearly always.
            if let Source::Node(root) = from
                && self.readers[root] == 1
                && let Some(writer) = writer_of[root]
            {
                drafts[writer].output = output;
                continue;
            }
            drafts.push(Draft {
                node: gradient.index(),
                kernel: Kernel::Copy,
                output,
                inputs: vec![from],
                over: None,
                scratch: 0,
                saved: 0,
            });
        }
        debug_assert!(scalars.iter().all(|scalar| self.live[scalar.index()]));
        Ok(drafts)
    }

    /// For every node the nodes that are computed with it in one pass, the first of them first and itself last;
    /// `None` for a node that is computed with a later one.
    fn chains(&self) -> Vec<Option<Vec<usize>>> {
        let mut chains: Vec<Option<Vec<usize>>> = Vec::with_capacity(self.graph.nodes.len());
        for (position, node) in self.graph.nodes.iter().enumerate() {
            let before = node.inputs.first().map(|input| input.index());
            // Taken along only where nobody else reads what comes before: targets count as readers.
            let taken = before.filter(|&before| {
                let pair = (&self.graph.nodes[before].op, &node.op);
                let takes = matches!(pair, (Op::BiasAdd, Op::Relu) | (Op::Conv2d(_), Op::BiasAdd));
                takes && self.live[position] && self.readers[before] == 1
            });
            let mut chain = taken.and_then(|before| chains[before].take()).unwrap_or_default();
            chain.push(position);
            chains.push(Some(chain));
        }
        chains
    }

    fn draft_chain(&self, position: usize, chain: &[usize]) -> Result<Option<Draft>, CompileError> {
        let first = &self.graph.nodes[chain[0]];
        let mut inputs: Vec<Source> = first.inputs.iter().map(|&input| self.source(input)).collect();
        let mut bias = Bias::None;
        for &next in &chain[1..] {
            match self.graph.nodes[next].op {
                Op::BiasAdd => {
                    inputs.push(self.source(self.graph.nodes[next].inputs[1]));
                    bias = Bias::Add;
                }
                _ => bias = Bias::AddRelu,
            }
        }
        // An input that only this node reads, and that is read at the same element as is written, can be written
        // over. Which one is it for this operation?
        let over_input = match first.op {
            Op::BiasAdd | Op::Relu | Op::Add => Some(0),
            Op::ReluGrad => Some(1),
            _ => None,
        };
        let over = over_input.and_then(|input| match inputs[input] {
            Source::Node(root) if self.readers[root] == 1 => Some((input, root)),
            _ => None,
        });
        let in_place = over.is_some();
        let (mut scratch, mut saved) = (0, 0);
        let kernel = match &first.op {
            Op::Input { .. } | Op::Variable { .. } | Op::Reshape { .. } => return Ok(None),
            Op::Constant { value } => Kernel::Constant(*value),
            Op::MatMul { transpose_a, transpose_b } => {
                let matrix = |input: usize, transposed: bool| {
                    let shape = self.shape_of(first.inputs[input]);
                    Matrix { rows: shape[0], cols: shape[1], transposed }
                };
                Kernel::MatMul { a: matrix(0, *transpose_a), b: matrix(1, *transpose_b) }
            }
            Op::BiasAdd => Kernel::BiasAdd { in_place, relu: bias == Bias::AddRelu },
            Op::Relu => Kernel::Relu { in_place },
            Op::Add => Kernel::Add { in_place },
            Op::ReluGrad => Kernel::ReluGrad { in_place },
            Op::SumRows => Kernel::SumRows,
            Op::SoftmaxCrossEntropy => Kernel::SoftmaxCrossEntropy,
            Op::SoftmaxCrossEntropyGrad => Kernel::SoftmaxCrossEntropyGrad,
            Op::Accuracy => Kernel::Accuracy,
            Op::Conv2d(geometry) => {
                let (images, kernel) = (self.shape_of(first.inputs[0]), self.shape_of(first.inputs[1]));
                let conv = self.conv2d(chain[0], images, kernel, geometry)?;
                scratch = conv.forward_scratch();
                Kernel::Conv2d { conv, bias }
            }
            Op::Conv2dInputGrad { geometry, .. } => {
                let kernel = self.shape_of(first.inputs[0]);
                let conv = self.conv2d(position, self.own_shape(position), kernel, geometry)?;
                scratch = conv.input_grad_scratch();
                Kernel::Conv2dInputGrad(conv)
            }
            Op::Conv2dKernelGrad { geometry, .. } => {
                let images = self.shape_of(first.inputs[0]);
                let conv = self.conv2d(position, images, self.own_shape(position), geometry)?;
                scratch = conv.kernel_grad_scratch();
                Kernel::Conv2dKernelGrad(conv)
            }
            Op::MaxPool2d(geometry) => {
                let images = self.shape_of(first.inputs[0]);
                // A byte for every output.
                saved = self.tensors[position].shape.elements().div_ceil(size_of::<f32>());
                Kernel::MaxPool2d(self.pool2d(position, images, geometry)?)
            }
            Op::MaxPool2dGrad { geometry, .. } => {
                let pool = self.pool2d(position, self.own_shape(position), geometry)?;
                let forward = first.inputs[0].index();
                let images = match &self.graph.nodes[forward] {
                    node if node.op == Op::MaxPool2d(*geometry) => self.shape_of(node.inputs[0]),
                    _ => return Err(CompileError::NoPooling { node: self.label(position) }),
                };
                if images != self.own_shape(position) {
                    return Err(CompileError::NoPooling { node: self.label(position) });
                }
                inputs[0] = Source::Saved(forward);
                Kernel::MaxPool2dGrad(pool)
            }
            Op::AveragePool2d(geometry) => {
                Kernel::AveragePool2d(self.pool2d(position, self.shape_of(first.inputs[0]), geometry)?)
            }
            Op::AveragePool2dGrad { geometry, .. } => {
                Kernel::AveragePool2dGrad(self.pool2d(position, self.own_shape(position), geometry)?)
            }
            Op::GlobalAveragePool => Kernel::GlobalAveragePool(pixels(self.shape_of(first.inputs[0]))),
            Op::GlobalAveragePoolGrad { .. } => {
                Kernel::GlobalAveragePoolGrad(pixels(self.own_shape(position)))
            }
        };
        let read = inputs.into_iter().enumerate();
        let inputs =
            read.filter(|(input, _)| over.map(|(over, _)| over) != Some(*input)).map(|(_, from)| from);
        Ok(Some(Draft {
            node: position,
            kernel,
            output: Source::Node(position),
            inputs: inputs.collect(),
            over: over.map(|(_, root)| root),
            scratch,
            saved,
        }))
    }

    fn label(&self, position: usize) -> String {
        self.graph.label(NodeId(position as u32))
    }

    fn shape_of(&self, node: NodeId) -> &[usize] {
        &self.tensors[node.index()].shape.0
    }

    fn own_shape(&self, position: usize) -> &[usize] {
        &self.tensors[position].shape.0
    }

    fn conv2d(
        &self,
        position: usize,
        images: &[usize],
        kernel: &[usize],
        geometry: &Stride,
    ) -> Result<Conv2d, CompileError> {
        let [images, kernel] = [images, kernel].map(|shape| shape.try_into().expect("4 axes, by inference"));
        Conv2d::new(images, kernel, geometry.stride, padding(geometry.padding))
            .map_err(|error| CompileError::Geometry { node: self.label(position), error })
    }

    fn pool2d(&self, position: usize, images: &[usize], geometry: &Window) -> Result<Pool2d, CompileError> {
        let images = images.try_into().expect("4 axes, by inference");
        Pool2d::new(images, geometry.window, geometry.stride, padding(geometry.padding))
            .map_err(|error| CompileError::Geometry { node: self.label(position), error })
    }
}

const fn padding(padding: messages::graph::Padding) -> Padding {
    match padding {
        messages::graph::Padding::Valid => Padding::Valid,
        messages::graph::Padding::Same => Padding::Same,
    }
}

/// Images, pixels and channels of `[n, h, w, c]`.
fn pixels(images: &[usize]) -> [usize; 3] {
    [images[0], images[1] * images[2], images[3]]
}

/// Where everything lies in the arena.
struct Memory {
    /// By node.
    values: Vec<Option<Range<usize>>>,
    /// By node.
    saved: Vec<Option<Range<usize>>>,
    /// By draft.
    scratch: Vec<Range<usize>>,
    arena: usize,
}

/// Gives everything that is drafted into the arena its place there.
fn lay_out(drafts: &[Draft], tensors: &[TensorSpec], root: &[usize], scalars: &[NodeId]) -> Memory {
    // Values that are written one over the other share a place, and live from the first one's start to the last
    // one's end.
    let mut value_place: Vec<Option<usize>> = vec![None; tensors.len()];
    let mut saved_place: Vec<Option<usize>> = vec![None; tensors.len()];
    let mut scratch_place: Vec<Option<usize>> = vec![None; drafts.len()];
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    let begin = |lifetimes: &mut Vec<Lifetime>, elements: usize, time: usize| {
        lifetimes.push(Lifetime { elements, first: time, last: time });
        Some(lifetimes.len() - 1)
    };
    for (time, draft) in drafts.iter().enumerate() {
        for input in &draft.inputs {
            let place = match input {
                Source::Node(value) => value_place[*value],
                Source::Saved(value) => saved_place[*value],
                Source::Fixed(_) => continue,
            };
            lifetimes[place.expect("written before it is read")].last = time;
        }
        let over = draft.over.map(|value| value_place[value].expect("written before it is written over"));
        if let Some(place) = over {
            lifetimes[place].last = time;
        }
        if let Source::Node(value) = draft.output {
            let elements = tensors[value].shape.elements();
            value_place[value] = over.or_else(|| begin(&mut lifetimes, elements, time));
        }
        if draft.saved > 0 {
            saved_place[draft.node] = begin(&mut lifetimes, draft.saved, time);
        }
        if draft.scratch > 0 {
            scratch_place[time] = begin(&mut lifetimes, draft.scratch, time);
        }
    }
    for scalar in scalars {
        if let Some(place) = value_place[root[scalar.index()]] {
            lifetimes[place].last = drafts.len();
        }
    }
    let plan = plan(&lifetimes);
    let place = |place: Option<usize>| place.map(|place| plan.places[place].clone());
    Memory {
        values: value_place.into_iter().map(place).collect(),
        saved: saved_place.into_iter().map(place).collect(),
        scratch: scratch_place.into_iter().map(|at| place(at).unwrap_or_default()).collect(),
        arena: plan.arena,
    }
}
