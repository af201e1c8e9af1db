//! Reverse-mode differentiation ahead of time: the backward pass is more graph, appended behind the forward pass.

use messages::graph::{GraphError, GraphSpec, NodeSpec, Op};
use messages::id::NodeId;
use messages::tensor::{Shape, TensorSpec};

/// A graph with its backward pass.
pub(super) struct Differentiated {
    /// The forward nodes, as they were, and the backward ones behind them.
    pub graph: GraphSpec,
    /// For every variable the node that gives the gradient of the loss; none where the loss does not depend on it.
    pub gradients: Vec<Option<NodeId>>,
}

/// An operation on the way from a variable to the loss cannot be differentiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} lies between a variable and the loss, and this operation has no gradient")]
pub struct NoGradient {
    /// The node.
    pub node: String,
}

/// Appends to a valid graph the nodes that give every variable's gradient.
pub(super) fn differentiate(graph: &GraphSpec, batch: usize) -> Result<Differentiated, DifferentiateError> {
    let tensors = graph.infer(batch)?;
    let mut tape = Tape { graph: graph.clone(), adjoints: vec![None; graph.nodes.len()] };
    let depends = depends_on_a_variable(graph);
    if depends[graph.loss.index()] {
        let one = tape.push(Op::Constant { value: 1.0 }, &[]);
        tape.adjoints[graph.loss.index()] = Some(one);
    }
    for position in (0..graph.nodes.len()).rev() {
        if let (true, Some(adjoint)) = (depends[position], tape.adjoints[position]) {
            backward(&mut tape, NodeId(position as u32), adjoint, &depends, &tensors)?;
        }
    }
    let mut gradients = vec![None; graph.variables.len()];
    for (position, node) in graph.nodes.iter().enumerate() {
        if let (Op::Variable { variable }, Some(adjoint)) = (&node.op, tape.adjoints[position]) {
            let sum = &mut gradients[variable.index()];
            *sum = Some(match *sum {
                None => adjoint,
                Some(so_far) => tape.push(Op::Add, &[so_far, adjoint]),
            });
        }
    }
    Ok(Differentiated { graph: tape.graph, gradients })
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DifferentiateError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    NoGradient(#[from] NoGradient),
}

/// The graph as it grows, and for every forward node the node that gives its adjoint: d loss / d output.
struct Tape {
    graph: GraphSpec,
    adjoints: Vec<Option<NodeId>>,
}

impl Tape {
    fn push(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        let id = NodeId(self.graph.nodes.len() as u32);
        let name = format!("backward/{id}");
        self.graph.nodes.push(NodeSpec { name, op, inputs: inputs.to_vec() });
        id
    }

    /// Adds to the adjoint of a forward node: what is used twice gets the sum of both.
    fn contribute(&mut self, to: NodeId, adjoint: NodeId) {
        let sum = match self.adjoints[to.index()] {
            None => adjoint,
            Some(so_far) => self.push(Op::Add, &[so_far, adjoint]),
        };
        self.adjoints[to.index()] = Some(sum);
    }
}

fn depends_on_a_variable(graph: &GraphSpec) -> Vec<bool> {
    let mut depends = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let is_variable = matches!(node.op, Op::Variable { .. });
        depends.push(is_variable || node.inputs.iter().any(|input| depends[input.index()]));
    }
    depends
}

/// The shape of one example of a node's output.
fn example(tensors: &[TensorSpec], node: NodeId) -> Shape {
    Shape(tensors[node.index()].shape.0[1..].to_vec())
}

/// The rule of each operation: how the adjoint of its output reaches those of its inputs.
fn backward(
    tape: &mut Tape,
    id: NodeId,
    dy: NodeId,
    depends: &[bool],
    tensors: &[TensorSpec],
) -> Result<(), NoGradient> {
    let NodeSpec { op, inputs, .. } = tape.graph.nodes[id.index()].clone();
    let wanted = |position: usize| depends[inputs[position].index()];
    match op {
        Op::Input { .. } | Op::Variable { .. } | Op::Constant { .. } => {}
        Op::MatMul { transpose_a, transpose_b } => {
            let (a, b) = (inputs[0], inputs[1]);
            // With A and B the operands as multiplied: dA = dC·Bᵀ and dB = Aᵀ·dC; a transposed operand gets the
            // transpose of that.
            if wanted(0) {
                let da = if transpose_a {
                    tape.push(Op::MatMul { transpose_a: transpose_b, transpose_b: true }, &[b, dy])
                } else {
                    tape.push(Op::MatMul { transpose_a: false, transpose_b: !transpose_b }, &[dy, b])
                };
                tape.contribute(a, da);
            }
            if wanted(1) {
                let db = if transpose_b {
                    tape.push(Op::MatMul { transpose_a: true, transpose_b: transpose_a }, &[dy, a])
                } else {
                    tape.push(Op::MatMul { transpose_a: !transpose_a, transpose_b: false }, &[a, dy])
                };
                tape.contribute(b, db);
            }
        }
        Op::BiasAdd => {
            if wanted(0) {
                tape.contribute(inputs[0], dy);
            }
            if wanted(1) {
                let db = tape.push(Op::SumRows, &[dy]);
                tape.contribute(inputs[1], db);
            }
        }
        Op::Relu => {
            let dx = tape.push(Op::ReluGrad, &[id, dy]);
            tape.contribute(inputs[0], dx);
        }
        Op::Add => {
            for (position, &input) in inputs.iter().enumerate() {
                if wanted(position) {
                    tape.contribute(input, dy);
                }
            }
        }
        Op::Reshape { .. } => {
            let dx = tape.push(Op::Reshape { shape: example(tensors, inputs[0]) }, &[dy]);
            tape.contribute(inputs[0], dx);
        }
        Op::Conv2d(geometry) => {
            let (images, kernel) = (inputs[0], inputs[1]);
            if wanted(0) {
                let example = example(tensors, images);
                let dx = tape.push(Op::Conv2dInputGrad { geometry, example }, &[kernel, dy]);
                tape.contribute(images, dx);
            }
            if wanted(1) {
                let shape = &tensors[kernel.index()].shape.0;
                let window = [shape[0], shape[1]];
                let dk = tape.push(Op::Conv2dKernelGrad { geometry, window }, &[images, dy]);
                tape.contribute(kernel, dk);
            }
        }
        Op::MaxPool2d(geometry) => {
            let example = example(tensors, inputs[0]);
            let dx = tape.push(Op::MaxPool2dGrad { geometry, example }, &[id, dy]);
            tape.contribute(inputs[0], dx);
        }
        Op::AveragePool2d(geometry) => {
            let example = example(tensors, inputs[0]);
            let dx = tape.push(Op::AveragePool2dGrad { geometry, example }, &[dy]);
            tape.contribute(inputs[0], dx);
        }
        Op::GlobalAveragePool => {
            let example = example(tensors, inputs[0]);
            let dx = tape.push(Op::GlobalAveragePoolGrad { example }, &[dy]);
            tape.contribute(inputs[0], dx);
        }
        Op::SoftmaxCrossEntropy => {
            if wanted(0) {
                let dx = tape.push(Op::SoftmaxCrossEntropyGrad, &[inputs[0], inputs[1], dy]);
                tape.contribute(inputs[0], dx);
            }
        }
        Op::Accuracy
        | Op::ReluGrad
        | Op::SumRows
        | Op::Conv2dInputGrad { .. }
        | Op::Conv2dKernelGrad { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::AveragePool2dGrad { .. }
        | Op::GlobalAveragePoolGrad { .. }
        | Op::SoftmaxCrossEntropyGrad => {
            return Err(NoGradient { node: tape.graph.label(id) });
        }
    }
    Ok(())
}
