//! The builder's methods for the operations of sessions. [`GraphBuilder::push`] checks the operations.

use std::collections::BTreeSet;

use super::builder::GraphBuilder;
use super::element::{BinaryOp, UnaryOp};
use super::error::GraphError;
use super::op::Op;
use super::session_op::{Comparison, Logic, SessionOp, VariableUpdate};
use crate::id::{NodeId, VariableId};
use crate::optimizer::OptimizerSpec;
use crate::tensor::{DType, Shape, Tensor, TensorSpec};
use crate::variable::InitializerSpec;

impl GraphBuilder {
    /// Returns `of_session` if the elements of x are numbers or other elements than f32, and `op` otherwise.
    /// Training jobs have only operations on f32 and i32, and convert i32 to f32 before they compute.
    pub(super) fn typed(&self, x: NodeId, op: Op, of_session: SessionOp) -> Op {
        match self.tensor(x) {
            Some(tensor) if tensor.dtype != DType::F32 => Op::Session(of_session),
            _ => op,
        }
    }

    fn session(&mut self, op: SessionOp, inputs: &[NodeId]) -> NodeId {
        self.push(op.name(), Op::Session(op), inputs)
    }

    /// Adds a constant tensor. A finite f32 scalar is the same as [`constant`](Self::constant).
    pub fn value(&mut self, value: impl Into<Tensor>) -> NodeId {
        let value = value.into();
        match value.f32s() {
            Some(&[number]) if value.shape().rank() == 0 && number.is_finite() => self.constant(number),
            _ => self.session(SessionOp::Constant { value }, &[]),
        }
    }

    /// Adds a constant text.
    pub fn text(&mut self, text: &str) -> NodeId {
        self.value(text)
    }

    /// Adds a placeholder: a tensor that the client feeds under this name. The open scopes are not put before
    /// the name. Unlike an [`input`](Self::input), it has no axis for the batch.
    pub fn placeholder(&mut self, name: &str, tensor: TensorSpec) -> NodeId {
        self.push(name, Op::Session(SessionOp::Placeholder { tensor }), &[])
    }

    /// Converts numbers or truth values to another type. The conversion of i32 to f32 is
    /// [`to_float`](Self::to_float).
    pub fn cast(&mut self, x: NodeId, to: DType) -> NodeId {
        match self.tensor(x) {
            Some(tensor) if tensor.dtype == DType::I32 && to == DType::F32 => self.to_float(x),
            _ => self.session(SessionOp::Cast { to }, &[x]),
        }
    }

    /// Compares pairs of elements; shapes are broadcast as in NumPy.
    pub fn compare(&mut self, comparison: Comparison, a: NodeId, b: NodeId) -> NodeId {
        self.session(SessionOp::Compare(comparison), &[a, b])
    }

    /// Computes a = b, element by element.
    pub fn equal(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::Equal, a, b)
    }

    /// Computes a ≠ b, element by element.
    pub fn not_equal(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::NotEqual, a, b)
    }

    /// Computes a < b, element by element.
    pub fn less(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::Less, a, b)
    }

    /// Computes a ≤ b, element by element.
    pub fn less_equal(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::LessEqual, a, b)
    }

    /// Computes a > b, element by element.
    pub fn greater(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::Greater, a, b)
    }

    /// Computes a ≥ b, element by element.
    pub fn greater_equal(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.compare(Comparison::GreaterEqual, a, b)
    }

    /// Computes whether both truth values are true.
    pub fn logical_and(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.session(SessionOp::Logical(Logic::And), &[a, b])
    }

    /// Computes whether at least one of two truth values is true.
    pub fn logical_or(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.session(SessionOp::Logical(Logic::Or), &[a, b])
    }

    /// Computes whether the truth value is false.
    pub fn logical_not(&mut self, x: NodeId) -> NodeId {
        self.session(SessionOp::Logical(Logic::Not), &[x])
    }

    /// Takes the elements of `a` where the condition is true, and the elements of `b` elsewhere. No gradient
    /// passes through.
    pub fn select(&mut self, condition: NodeId, a: NodeId, b: NodeId) -> NodeId {
        self.session(SessionOp::Select, &[condition, a, b])
    }

    /// Computes the index of the largest element along an axis, as i64.
    pub fn argmax(&mut self, x: NodeId, axis: usize) -> NodeId {
        self.session(SessionOp::ArgMax { axis }, &[x])
    }

    /// Computes the `k` largest elements of each row, in descending order.
    pub fn top_values(&mut self, x: NodeId, k: usize) -> NodeId {
        self.session(SessionOp::TopValues { k }, &[x])
    }

    /// Computes the indices of the `k` largest elements of each row, in descending order of the elements.
    pub fn top_indices(&mut self, x: NodeId, k: usize) -> NodeId {
        self.session(SessionOp::TopIndices { k }, &[x])
    }

    /// Computes the sum of one or more tensors of numbers with the same type and shape. A sum of f32 tensors,
    /// such as the parts of a loss, has a gradient.
    pub fn add_n(&mut self, tensors: &[NodeId]) -> NodeId {
        let spec = tensors.first().and_then(|&first| self.tensor(first)).cloned();
        let alike = tensors.iter().all(|&tensor| self.tensor(tensor) == spec.as_ref());
        match tensors {
            // The gradient would not pass through an operation of sessions.
            [first, rest @ ..] if alike && spec.is_some_and(|spec| spec.dtype == DType::F32) => match rest {
                [] => self.identity(*first),
                rest => rest
                    .iter()
                    .fold(*first, |sum, &next| self.push("add_n", Op::Binary(BinaryOp::Add), &[sum, next])),
            },
            _ => self.session(SessionOp::AddN, tensors),
        }
    }

    /// Returns x unchanged, for example under another name or as a copy on another device.
    pub fn identity(&mut self, x: NodeId) -> NodeId {
        // For f32, this is the leaky ReLU with slope 1: it changes no bit, and the gradient passes through.
        let op = self.typed(x, Op::Unary(UnaryOp::LeakyRelu { slope: 1.0 }), SessionOp::Identity);
        self.push("identity", op, &[x])
    }

    /// Adds a variable of any type that is not trained unless its type is f32. [`variable`](Self::variable)
    /// and [`untrained`](Self::untrained) add variables of f32.
    pub fn variable_of(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        dtype: DType,
        initializer: InitializerSpec,
    ) -> NodeId {
        self.any_variable(name, TensorSpec::new(dtype, shape), initializer, dtype == DType::F32)
    }

    /// Replaces the value of a variable. `variable` is the node that reads it. Returns the new value.
    pub fn assign(&mut self, variable: NodeId, value: NodeId) -> NodeId {
        self.assign_with(VariableUpdate::Set, variable, value)
    }

    /// Adds to the value of a variable. `variable` is the node that reads it. Returns the new value.
    pub fn assign_add(&mut self, variable: NodeId, value: NodeId) -> NodeId {
        self.assign_with(VariableUpdate::Add, variable, value)
    }

    /// Subtracts from the value of a variable. `variable` is the node that reads it. Returns the new value.
    pub fn assign_sub(&mut self, variable: NodeId, value: NodeId) -> NodeId {
        self.assign_with(VariableUpdate::Sub, variable, value)
    }

    fn assign_with(&mut self, update: VariableUpdate, variable: NodeId, value: NodeId) -> NodeId {
        match self.variable_read_by(variable) {
            Some(variable) => self.session(SessionOp::Assign { variable, update }, &[value]),
            None => variable,
        }
    }

    /// Returns the variable that a node reads. Records an error if the node is not a variable.
    fn variable_read_by(&mut self, node: NodeId) -> Option<VariableId> {
        match self.graph().nodes.get(node.index()).map(|node| &node.op) {
            Some(Op::Variable { variable }) => Some(*variable),
            _ => {
                self.fail(GraphError::NotAVariable { got: self.graph().label(node) });
                None
            }
        }
    }

    /// Adds an operation that gives all variables that the graph has so far their initial values.
    pub fn initialize(&mut self) -> NodeId {
        let variables = (0..self.graph().variables.len() as u32).map(VariableId);
        let initialize = |variable| self.session(SessionOp::Initialize { variable }, &[]);
        let done: Vec<NodeId> = variables.map(initialize).collect();
        self.group(&done)
    }

    /// Adds an operation that is done when all these nodes are computed. It returns true.
    pub fn group(&mut self, nodes: &[NodeId]) -> NodeId {
        self.session(SessionOp::Group, nodes)
    }

    /// Computes the gradient of a loss, an f32 scalar, with respect to a variable. `variable` is the node
    /// that reads the variable. The gradient is computed on the device of this node.
    pub fn gradient(&mut self, loss: NodeId, variable: NodeId) -> NodeId {
        match self.variable_read_by(variable) {
            Some(variable) => self.session(SessionOp::Gradient { variable }, &[loss]),
            None => variable,
        }
    }

    /// Computes the gradients of a loss with respect to all trained variables on which it depends. Returns
    /// the node of each variable and the node of its gradient. The gradient passes through every operation
    /// that a training job can have, and through none of the [`SessionOp`]s.
    pub fn gradients(&mut self, loss: NodeId) -> Vec<(NodeId, NodeId)> {
        let variables = self.trained_variables(loss);
        variables.into_iter().map(|variable| (variable, self.gradient(loss, variable))).collect()
    }

    /// Returns for each node whether a gradient of the loss passes through operations to it.
    fn differentiated(&self, loss: NodeId) -> Vec<bool> {
        let graph = self.graph();
        let mut reached = vec![false; graph.nodes.len()];
        if let Some(reached) = reached.get_mut(loss.index()) {
            *reached = true;
        }
        for (position, node) in graph.nodes.iter().enumerate().rev() {
            if reached[position] && !matches!(node.op, Op::Session(_)) {
                // A graph with an error may have inputs that do not exist. Its builder returns the error.
                let inputs = node.inputs.iter().map(|input| input.index()).filter(|&input| input < position);
                inputs.for_each(|input| reached[input] = true);
            }
        }
        reached
    }

    /// Returns the nodes of the moving means and variances of the batch normalisations on which the loss
    /// depends, each once.
    fn moving_statistics(&self, loss: NodeId) -> BTreeSet<NodeId> {
        let reached = self.differentiated(loss);
        let norms = self.graph().nodes.iter().zip(reached);
        let norms = norms.filter(|(node, reached)| *reached && matches!(node.op, Op::BatchNorm { .. }));
        norms.flat_map(|(node, _)| node.inputs.iter().skip(3).copied()).collect()
    }

    /// Returns the nodes of the trained variables on which a gradient of the loss does not vanish by its
    /// structure.
    fn trained_variables(&self, loss: NodeId) -> Vec<NodeId> {
        let (graph, reached) = (self.graph(), self.differentiated(loss));
        let trained = |(position, _): &(usize, &bool)| match graph.nodes[*position].op {
            Op::Variable { variable } => graph
                .variables
                .get(variable.index())
                .is_some_and(|variable| variable.trainable && variable.dtype == DType::F32),
            _ => false,
        };
        let reached = reached.iter().enumerate().filter(|(_, reached)| **reached);
        reached.filter(trained).map(|(position, _)| NodeId(position as u32)).collect()
    }

    /// Applies one update of an optimizer to a variable. `variable` is the node that reads it, and the update
    /// runs on the device of this node. Returns true when it is done.
    pub fn apply(&mut self, optimizer: &OptimizerSpec, variable: NodeId, gradient: NodeId) -> NodeId {
        match self.variable_read_by(variable) {
            Some(variable) => {
                let op = SessionOp::Apply { variable, optimizer: optimizer.clone() };
                self.session(op, &[gradient])
            }
            None => variable,
        }
    }

    /// Adds an operation that makes one training step: it computes the gradients of the loss with respect to
    /// all trained variables on which the loss depends, and applies one update to each of them. It also moves
    /// the moving means and variances of batch normalisations on which the loss depends.
    pub fn minimize(&mut self, optimizer: &OptimizerSpec, loss: NodeId) -> NodeId {
        let gradients = self.gradients(loss);
        if gradients.is_empty() {
            let got = self.graph().label(loss);
            self.fail(GraphError::NothingToTrain { got });
        }
        let apply = |(variable, gradient)| self.apply(optimizer, variable, gradient);
        let mut applied: Vec<NodeId> = gradients.into_iter().map(apply).collect();
        for moving in self.moving_statistics(loss) {
            let change = self.gradient(loss, moving);
            applied.push(self.assign_sub(moving, change));
        }
        self.group(&applied)
    }
}
