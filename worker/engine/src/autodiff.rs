//! Reverse-mode differentiation at compile time: appends the nodes of the backward pass to the nodes of the
//! forward pass. This module must not depend on fusion or memory.

use pushpull_kernels::cpu::{Binary, Broadcast, Extent, Reduction, Saved, Side, Unary};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};

use super::error::CompileError;
use super::extent::extent;
use super::ir::{Epilogue, Factors, Ir, Kernel, Node, Value};

/// Appends the nodes that compute the gradient of `loss` with respect to every trained variable, and returns
/// the gradients. The gradient is `None` for a variable that the loss does not depend on.
///
/// # Errors
/// If an operation between a variable and the loss has no gradient.
pub(super) fn differentiate(
    ir: &mut Ir,
    graph: &GraphSpec,
    loss: Value,
) -> Result<Vec<Option<Value>>, CompileError> {
    let variable = |node: &Node| match node.kernel {
        Kernel::Variable(variable) => Some(variable).filter(|id| graph.variables[id.index()].trainable),
        _ => None,
    };
    let variables: Vec<Option<VariableId>> = ir.nodes.iter().map(variable).collect();
    let wanted: Vec<bool> = variables.iter().map(Option::is_some).collect();
    let adjoints = adjoints(ir, graph, (graph.loss, loss), &wanted)?;
    let mut gradients = vec![None; graph.variables.len()];
    for (variable, adjoint) in variables.into_iter().zip(adjoints) {
        if let Some(VariableId(variable)) = variable {
            gradients[variable as usize] = adjoint;
        }
    }
    Ok(gradients)
}

/// Appends the nodes that compute the adjoints of the wanted nodes: the gradients of `loss`, a node of the
/// graph with its value, which has one element. `wanted` is true for each node whose adjoint is wanted.
/// Returns the adjoint of the first output of each node; `None` if the loss does not depend on it. Only the
/// adjoints of wanted nodes are complete.
///
/// # Errors
/// If an operation between a wanted node and the loss has no gradient.
pub(super) fn adjoints(
    ir: &mut Ir,
    graph: &GraphSpec,
    (origin, loss): (NodeId, Value),
    wanted: &[bool],
) -> Result<Vec<Option<Value>>, CompileError> {
    let forward = ir.nodes.len();
    let depends = depends(ir, wanted);
    let mut tape = Tape { ir, graph, depends, adjoints: vec![None; forward], origin };
    if tape.depends[loss.node] {
        let shape = tape.shape(loss);
        let share = tape.push(Kernel::Share, &[], shape);
        tape.adjoints[loss.node] = Some(share);
    }
    for node in (0..forward).rev() {
        let Node { inputs, origin, .. } = &tape.ir.nodes[node];
        let goes_on = inputs.iter().any(|input| tape.depends[input.node]);
        if let (true, Some(adjoint)) = (goes_on, tape.adjoints[node]) {
            tape.origin = *origin;
            tape.backward(Value { node, output: 0 }, adjoint)?;
        }
    }
    Ok(tape.adjoints)
}

/// Returns, for each node, whether it is wanted or depends on a wanted node.
pub(super) fn depends(ir: &Ir, wanted: &[bool]) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::with_capacity(ir.nodes.len());
    for (node, &wanted) in ir.nodes.iter().zip(wanted) {
        depends.push(wanted || node.inputs.iter().any(|input| depends[input.node]));
    }
    depends
}

/// The list of nodes to which the backward pass is appended, and the adjoint of the first output of each
/// forward node.
struct Tape<'a> {
    ir: &'a mut Ir,
    graph: &'a GraphSpec,
    depends: Vec<bool>,
    adjoints: Vec<Option<Value>>,
    /// The node of the graph whose gradient rule is being applied.
    origin: NodeId,
}

impl Tape<'_> {
    fn push(&mut self, kernel: Kernel, inputs: &[Value], output: Vec<usize>) -> Value {
        self.ir.push(self.origin, kernel, inputs, [output])
    }

    fn shape(&self, value: Value) -> Vec<usize> {
        self.ir.shape(value).to_vec()
    }

    fn wanted(&self, value: Value) -> bool {
        self.depends[value.node]
    }

    /// Adds `adjoint` to the adjoint of a forward value. A value that is used twice gets the sum of both
    /// adjoints.
    fn contribute(&mut self, to: Value, adjoint: Value) {
        let sum = match self.adjoints[to.node] {
            None => adjoint,
            Some(so_far) => {
                let shape = self.shape(to);
                self.binary(Binary::Add, so_far, adjoint, shape)
            }
        };
        self.adjoints[to.node] = Some(sum);
    }

    /// Appends a node that computes a ∘ b, where a and b are broadcast to the shape `output`.
    fn binary(&mut self, op: Binary, a: Value, b: Value, output: Vec<usize>) -> Value {
        // An adjoint with as many elements as `output` may have another shape, for example after a flatten.
        // It counts as having the shape `output`.
        let as_output = |tape: &Self, value: Value| match tape.ir.elements(value) {
            all if all == output.iter().product::<usize>() => output.clone(),
            _ => tape.shape(value),
        };
        let (of_a, of_b) = (as_output(self, a), as_output(self, b));
        let shapes = Broadcast::new(&of_a, &of_b).expect("checked in the forward pass");
        self.push(Kernel::Binary(op, shapes), &[a, b], output)
    }

    fn unary(&mut self, op: Unary, x: Value) -> Value {
        let shape = self.shape(x);
        self.push(Kernel::Unary(op), &[x], shape)
    }

    /// Appends a kernel that computes the adjoint of an operand that was broadcast: the sum of `dy` over all
    /// positions at which the operand was used.
    fn sum_to(&mut self, dy: Value, from: &[usize], operand: Value) -> Value {
        let to = self.shape(operand);
        match extent(&to, from) {
            Some(Extent::Whole) => dy,
            Some(Extent::Row) => self.push(Kernel::SumRows, &[dy], vec![to.iter().product()]),
            _ => {
                let shapes = Broadcast::new(&to, from).expect("checked in the forward pass");
                self.push(Kernel::Reduce(Reduction::Sum, shapes), &[dy], to)
            }
        }
    }

    /// Appends a kernel whose output has the shape of `to`, and adds that output to the adjoint of `to`.
    fn contribute_as(&mut self, to: Value, kernel: Kernel, inputs: &[Value]) {
        let shape = self.shape(to);
        let adjoint = self.push(kernel, inputs, shape);
        self.contribute(to, adjoint);
    }

    /// Applies the gradient rule of one kernel: uses `dy`, the adjoint of its first output `y`, to add to
    /// the adjoints of its inputs.
    fn backward(&mut self, y: Value, dy: Value) -> Result<(), CompileError> {
        let Node { kernel, inputs, outputs, .. } = self.ir.nodes[y.node].clone();
        match kernel {
            Kernel::Column(_) | Kernel::Variable(_) | Kernel::Constant(_) | Kernel::ToFloat => {}
            Kernel::View | Kernel::Copy => self.contribute(inputs[0], dy),
            Kernel::Unary(op) => {
                let dx = self.unary_grad(op, inputs[0], y, dy);
                self.contribute(inputs[0], dx);
            }
            Kernel::Binary(op, _) => self.binary_grad(op, [inputs[0], inputs[1]], y, dy),
            Kernel::Reduce(reduction, shapes) => {
                let dx = self.reduce_grad(reduction, shapes, inputs[0], y, dy);
                self.contribute(inputs[0], dx);
            }
            Kernel::Transpose { axes, .. } => {
                let mut back = vec![0; axes.len()];
                for (to, &from) in axes.iter().enumerate() {
                    back[from] = to;
                }
                let shape = outputs[0].clone();
                self.contribute_as(inputs[0], Kernel::Transpose { shape, axes: back }, &[dy]);
            }
            Kernel::Concat { shape, parts } => {
                for (&input, part) in inputs.iter().zip(parts) {
                    if self.wanted(input) {
                        self.contribute_as(input, Kernel::Slice { shape: shape.clone(), part }, &[dy]);
                    }
                }
            }
            Kernel::Slice { shape, part } => {
                self.contribute_as(inputs[0], Kernel::Paste { shape, part }, &[dy])
            }
            Kernel::Product(factors, _) => {
                let kernel = |factors| Kernel::Product(factors, Epilogue::Bare);
                self.product_grad(kernel, factors, [inputs[0], inputs[1]], dy);
            }
            Kernel::BatchedProduct(batch, factors) => {
                let kernel = |factors| Kernel::BatchedProduct(batch, factors);
                self.product_grad(kernel, factors, [inputs[0], inputs[1]], dy);
            }
            Kernel::Gather { width } => {
                self.contribute_as(inputs[0], Kernel::Scatter { width }, &[inputs[1], dy]);
            }
            kernel @ (Kernel::Conv2d(..)
            | Kernel::MaxPool2d(_)
            | Kernel::AveragePool2d(_)
            | Kernel::GlobalAveragePool(_)) => self.image_grad(kernel, &inputs, y, dy),
            kernel @ (Kernel::SoftmaxCrossEntropy
            | Kernel::SoftmaxCrossEntropyDense { .. }
            | Kernel::SigmoidCrossEntropy
            | Kernel::MeanSquaredError
            | Kernel::TopK { .. }
            | Kernel::AucCounts) => self.score_grad(&kernel, &inputs, dy)?,
            kernel => self.row_grad(kernel, &inputs, y, dy)?,
        }
        Ok(())
    }

    /// Applies the gradient rule of a convolution or a pooling.
    fn image_grad(&mut self, kernel: Kernel, inputs: &[Value], y: Value, dy: Value) {
        let images = inputs[0];
        match kernel {
            Kernel::Conv2d(conv, _) => {
                let filter = inputs[1];
                if self.wanted(filter) {
                    self.contribute_as(filter, Kernel::Conv2dKernelGrad(conv), &[images, dy]);
                }
                if self.wanted(images) {
                    self.contribute_as(images, Kernel::Conv2dInputGrad(conv), &[filter, dy]);
                }
            }
            Kernel::MaxPool2d(pool) => {
                self.contribute_as(images, Kernel::MaxPool2dGrad(pool), &[y.output(1), dy]);
            }
            Kernel::AveragePool2d(pool) => {
                self.contribute_as(images, Kernel::AveragePool2dGrad(pool), &[dy]);
            }
            Kernel::GlobalAveragePool(shape) => {
                self.contribute_as(images, Kernel::GlobalAveragePoolGrad(shape), &[dy]);
            }
            kernel => unreachable!("{kernel:?} works on no images"),
        }
    }

    /// Applies the gradient rule of a kernel that works on rows: a normalisation, a dropout or a softmax.
    fn row_grad(
        &mut self,
        kernel: Kernel,
        inputs: &[Value],
        y: Value,
        dy: Value,
    ) -> Result<(), CompileError> {
        match kernel {
            Kernel::BatchNorm => {
                let [x, mean, scale, gamma, beta] = inputs.try_into().expect("5 inputs");
                // The rule is that of the batch's statistics, which only training uses.
                if !matches!(self.ir.nodes[mean.node].kernel, Kernel::Moments { .. }) {
                    return Err(self.no_gradient("its input, except in training"));
                }
                let rows = self.rows(x, gamma);
                self.norm_grad(Kernel::BatchNormGrad { rows }, [x, gamma, beta], [mean, scale], dy);
            }
            // The rule of the whole normalisation already includes the gradient through the statistics.
            Kernel::Moments { .. } | Kernel::ReciprocalStddev { .. } => {}
            Kernel::LayerNorm { .. } => {
                let [x, gamma, beta] = inputs.try_into().expect("3 inputs");
                let (rows, statistics) = (self.rows(x, gamma), [y.output(1), y.output(2)]);
                self.norm_grad(Kernel::LayerNormGrad { rows }, [x, gamma, beta], statistics, dy);
            }
            kernel @ Kernel::Dropout { .. } => self.contribute_as(inputs[0], kernel, &[dy]),
            Kernel::Softmax { width, .. } => {
                self.contribute_as(inputs[0], Kernel::SoftmaxGrad { width }, &[y, dy]);
            }
            Kernel::LogSoftmax { width } => {
                self.contribute_as(inputs[0], Kernel::LogSoftmaxGrad { width }, &[y, dy]);
            }
            kernel => unreachable!("{kernel:?} is never in a forward pass"),
        }
        Ok(())
    }

    /// Applies the gradient rule of a loss. A metric has no gradient.
    fn score_grad(&mut self, kernel: &Kernel, inputs: &[Value], dy: Value) -> Result<(), CompileError> {
        match *kernel {
            Kernel::SoftmaxCrossEntropy => self.loss_grad(Kernel::SoftmaxCrossEntropyGrad, inputs, dy),
            Kernel::SoftmaxCrossEntropyDense { classes } => {
                self.loss_grad(Kernel::SoftmaxCrossEntropyDenseGrad { classes }, inputs, dy)
            }
            Kernel::SigmoidCrossEntropy => self.loss_grad(Kernel::SigmoidCrossEntropyGrad, inputs, dy),
            Kernel::MeanSquaredError => {
                for [to, other] in [[inputs[0], inputs[1]], [inputs[1], inputs[0]]] {
                    if self.wanted(to) {
                        self.contribute_as(to, Kernel::MeanSquaredErrorGrad, &[to, other, dy]);
                    }
                }
                Ok(())
            }
            _ => Err(self.no_gradient("its logits")),
        }
    }

    fn no_gradient(&self, input: &'static str) -> CompileError {
        CompileError::NoGradient { node: self.graph.label(self.origin), input }
    }

    fn unary_grad(&mut self, op: Unary, x: Value, y: Value, dy: Value) -> Value {
        let saved = match op.saved() {
            // Only negation has a constant slope.
            Saved::Nothing => return self.unary(op, dy),
            Saved::Input => x,
            Saved::Output => y,
        };
        let shape = self.shape(x);
        self.push(Kernel::UnaryGrad(op), &[saved, dy], shape)
    }

    fn binary_grad(&mut self, op: Binary, [a, b]: [Value; 2], y: Value, dy: Value) {
        let shape = self.shape(y);
        if self.wanted(a) {
            let da = match op {
                Binary::Add | Binary::Sub => dy,
                Binary::Mul => self.binary(Binary::Mul, dy, b, shape.clone()),
                Binary::Div => self.binary(Binary::Div, dy, b, shape.clone()),
            };
            let da = self.sum_to(da, &shape, a);
            self.contribute(a, da);
        }
        if self.wanted(b) {
            let db = match op {
                Binary::Add => dy,
                Binary::Sub => self.unary(Unary::Neg, dy),
                Binary::Mul => self.binary(Binary::Mul, dy, a, shape.clone()),
                // d(a / b) / db = −(a / b) / b
                Binary::Div => {
                    let slope = self.binary(Binary::Mul, dy, y, shape.clone());
                    let slope = self.binary(Binary::Div, slope, b, shape.clone());
                    self.unary(Unary::Neg, slope)
                }
            };
            let db = self.sum_to(db, &shape, b);
            self.contribute(b, db);
        }
    }

    fn reduce_grad(
        &mut self,
        reduction: Reduction,
        shapes: Broadcast,
        x: Value,
        y: Value,
        dy: Value,
    ) -> Value {
        let shape = self.shape(x);
        match reduction {
            Reduction::Max => self.push(Kernel::MaxGrad(shapes), &[x, y, dy], shape),
            Reduction::Sum => self.push(Kernel::Expand(shapes), &[dy], shape),
            Reduction::Mean => {
                let share = shapes.operand_len(Side::A) as f32 / shapes.len() as f32;
                let share = self.push(Kernel::Constant(share), &[], vec![]);
                let of = self.shape(dy);
                let scaled = self.binary(Binary::Mul, dy, share, of);
                self.push(Kernel::Expand(shapes), &[scaled], shape)
            }
        }
    }

    /// Applies the gradient rule of a product: dA = dC·Bᵀ and dB = Aᵀ·dC, where A and B are the factors
    /// after any transposition. If an operand is stored transposed, its gradient is transposed too. dB is
    /// computed first, because B is usually a variable, and the shard of the variable waits for dB.
    fn product_grad(
        &mut self,
        kernel: impl Fn(Factors) -> Kernel,
        Factors { m, k, n, transpose_a, transpose_b }: Factors,
        [a, b]: [Value; 2],
        dc: Value,
    ) {
        let product =
            |m, k, n, transpose_a, transpose_b| kernel(Factors { m, k, n, transpose_a, transpose_b });
        if self.wanted(b) {
            let of = self.shape(b);
            let db = if transpose_b {
                self.push(product(n, m, k, true, transpose_a), &[dc, a], of)
            } else {
                self.push(product(k, m, n, !transpose_a, false), &[a, dc], of)
            };
            self.contribute(b, db);
        }
        if self.wanted(a) {
            let of = self.shape(a);
            let da = if transpose_a {
                self.push(product(k, n, m, transpose_b, true), &[b, dc], of)
            } else {
                self.push(product(m, n, k, false, !transpose_b), &[dc, b], of)
            };
            self.contribute(a, da);
        }
    }

    /// Returns the number of rows of x, and the length of a row, which is the length of gamma.
    fn rows(&self, x: Value, gamma: Value) -> [usize; 2] {
        let width = self.ir.elements(gamma);
        [self.ir.elements(x) / width, width]
    }

    /// Appends one kernel that computes the adjoints of x, gamma and beta.
    fn norm_grad(&mut self, kernel: Kernel, [x, gamma, beta]: [Value; 3], statistics: [Value; 2], dy: Value) {
        let [mean, scale] = statistics;
        let shapes = [x, gamma, beta].map(|value| self.shape(value));
        let dx = self.ir.push(self.origin, kernel, &[x, dy, mean, scale, gamma], shapes);
        for (output, to) in [x, gamma, beta].into_iter().enumerate() {
            if self.wanted(to) {
                self.contribute(to, dx.output(output));
            }
        }
    }

    fn loss_grad(&mut self, kernel: Kernel, inputs: &[Value], dy: Value) -> Result<(), CompileError> {
        let &[logits, labels] = inputs else { unreachable!("2 inputs, by validation") };
        if self.wanted(labels) {
            return Err(self.no_gradient("its labels"));
        }
        self.contribute_as(logits, kernel, &[logits, labels, dy]);
        Ok(())
    }
}
