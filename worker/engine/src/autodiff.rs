//! Reverse-mode differentiation ahead of time: the backward pass is more nodes, appended behind the forward
//! pass.

use pushpull_kernels::cpu::{Binary, Broadcast, Extent, Reduction, Saved, Side, Unary};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};

use super::error::CompileError;
use super::extent::extent;
use super::ir::{Epilogue, Factors, Ir, Kernel, Node, Value};

/// Appends the nodes that give the gradient of `loss` by every variable that is trained; none where the loss
/// does not depend on it.
pub(super) fn differentiate(
    ir: &mut Ir,
    graph: &GraphSpec,
    loss: Value,
) -> Result<Vec<Option<Value>>, CompileError> {
    let forward = ir.nodes.len();
    let depends = depends_on_a_variable(ir, graph);
    let mut tape = Tape { ir, graph, depends, adjoints: vec![None; forward], origin: graph.loss };
    if tape.depends[loss.node] {
        let share = tape.push(Kernel::Share, &[], vec![]);
        tape.adjoints[loss.node] = Some(share);
    }
    for node in (0..forward).rev() {
        if let (true, Some(adjoint)) = (tape.depends[node], tape.adjoints[node]) {
            tape.origin = tape.ir.nodes[node].origin;
            tape.backward(Value { node, output: 0 }, adjoint)?;
        }
    }
    let mut gradients = vec![None; graph.variables.len()];
    for (node, adjoint) in tape.adjoints.iter().enumerate() {
        if let (Kernel::Variable(VariableId(variable)), Some(adjoint)) =
            (&tape.ir.nodes[node].kernel, adjoint)
        {
            gradients[*variable as usize] = Some(*adjoint);
        }
    }
    Ok(gradients)
}

/// The list as it grows, and for every forward node the value that is the adjoint of its first output.
struct Tape<'a> {
    ir: &'a mut Ir,
    graph: &'a GraphSpec,
    depends: Vec<bool>,
    adjoints: Vec<Option<Value>>,
    /// The node of the graph whose rule is at work.
    origin: NodeId,
}

fn depends_on_a_variable(ir: &Ir, graph: &GraphSpec) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::with_capacity(ir.nodes.len());
    for node in &ir.nodes {
        depends.push(match node.kernel {
            Kernel::Variable(variable) => graph.variables[variable.index()].trainable,
            _ => node.inputs.iter().any(|input| depends[input.node]),
        });
    }
    depends
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

    /// Adds to the adjoint of a forward value: what is used twice gets the sum of both.
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

    /// a ∘ b of shape `output`, which both broadcast to.
    fn binary(&mut self, op: Binary, a: Value, b: Value, output: Vec<usize>) -> Value {
        // An adjoint may come in another shape of as many elements, as from a rule that flattens.
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

    /// What reaches an operand that was broadcast: the sum over all places where it was used.
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

    /// The rule of each kernel: how the adjoint of its output reaches those of its inputs.
    fn backward(&mut self, y: Value, dy: Value) -> Result<(), CompileError> {
        let Node { kernel, inputs, outputs, .. } = self.ir.nodes[y.node].clone();
        let shape = outputs[0].clone();
        match kernel {
            Kernel::Column(_) | Kernel::Variable(_) | Kernel::Constant(_) | Kernel::ToFloat => {}
            Kernel::View | Kernel::Copy => self.contribute(inputs[0], dy),
            Kernel::Unary(op) => {
                let dx = self.unary_grad(op, inputs[0], y, dy);
                self.contribute(inputs[0], dx);
            }
            Kernel::Binary(op, _) => self.binary_grad(op, [inputs[0], inputs[1]], y, dy),
            Kernel::Reduce(reduction, shapes) => {
                let x = inputs[0];
                let dx = self.reduce_grad(reduction, shapes, x, y, dy);
                self.contribute(x, dx);
            }
            Kernel::Transpose { axes, .. } => {
                let mut back = vec![0; axes.len()];
                for (to, &from) in axes.iter().enumerate() {
                    back[from] = to;
                }
                let kernel = Kernel::Transpose { shape, axes: back };
                let of = self.shape(inputs[0]);
                let dx = self.push(kernel, &[dy], of);
                self.contribute(inputs[0], dx);
            }
            Kernel::Concat { shape, parts } => {
                for (&input, part) in inputs.iter().zip(parts) {
                    if self.wanted(input) {
                        let of = self.shape(input);
                        let dx = self.push(Kernel::Slice { shape: shape.clone(), part }, &[dy], of);
                        self.contribute(input, dx);
                    }
                }
            }
            Kernel::Slice { shape, part } => {
                let dx = self.push(Kernel::Paste { shape: shape.clone(), part }, &[dy], shape);
                self.contribute(inputs[0], dx);
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
                let of = self.shape(inputs[0]);
                let table = self.push(Kernel::Scatter { width }, &[inputs[1], dy], of);
                self.contribute(inputs[0], table);
            }
            Kernel::Conv2d(conv, _) => {
                let [images, filter] = [inputs[0], inputs[1]];
                if self.wanted(filter) {
                    let of = self.shape(filter);
                    let dk = self.push(Kernel::Conv2dKernelGrad(conv), &[images, dy], of);
                    self.contribute(filter, dk);
                }
                if self.wanted(images) {
                    let of = self.shape(images);
                    let dx = self.push(Kernel::Conv2dInputGrad(conv), &[filter, dy], of);
                    self.contribute(images, dx);
                }
            }
            Kernel::MaxPool2d(pool) => {
                let of = self.shape(inputs[0]);
                let dx = self.push(Kernel::MaxPool2dGrad(pool), &[y.output(1), dy], of);
                self.contribute(inputs[0], dx);
            }
            Kernel::AveragePool2d(pool) => {
                let of = self.shape(inputs[0]);
                let dx = self.push(Kernel::AveragePool2dGrad(pool), &[dy], of);
                self.contribute(inputs[0], dx);
            }
            Kernel::GlobalAveragePool(images) => {
                let of = self.shape(inputs[0]);
                let dx = self.push(Kernel::GlobalAveragePoolGrad(images), &[dy], of);
                self.contribute(inputs[0], dx);
            }
            Kernel::BatchNorm => {
                let [x, mean, scale, gamma, beta] = inputs[..].try_into().expect("5 inputs");
                let rows = self.rows(x, gamma);
                self.norm_grad(Kernel::BatchNormGrad { rows }, [x, gamma, beta], [mean, scale], dy);
            }
            // The gradient of the whole normalisation stands at its end; by way of the statistics nothing
            // more comes.
            Kernel::Moments { .. } | Kernel::ReciprocalStddev { .. } => {}
            Kernel::LayerNorm { .. } => {
                let [x, gamma, beta] = inputs[..].try_into().expect("3 inputs");
                let (rows, statistics) = (self.rows(x, gamma), [y.output(1), y.output(2)]);
                self.norm_grad(Kernel::LayerNormGrad { rows }, [x, gamma, beta], statistics, dy);
            }
            kernel @ Kernel::Dropout { .. } => {
                let dx = self.push(kernel, &[dy], shape);
                self.contribute(inputs[0], dx);
            }
            Kernel::Softmax { width, .. } => {
                let dx = self.push(Kernel::SoftmaxGrad { width }, &[y, dy], shape);
                self.contribute(inputs[0], dx);
            }
            Kernel::LogSoftmax { width } => {
                let dx = self.push(Kernel::LogSoftmaxGrad { width }, &[y, dy], shape);
                self.contribute(inputs[0], dx);
            }
            Kernel::SoftmaxCrossEntropy => self.loss_grad(Kernel::SoftmaxCrossEntropyGrad, &inputs, dy)?,
            Kernel::SoftmaxCrossEntropyDense { classes } => {
                self.loss_grad(Kernel::SoftmaxCrossEntropyDenseGrad { classes }, &inputs, dy)?;
            }
            Kernel::SigmoidCrossEntropy => self.loss_grad(Kernel::SigmoidCrossEntropyGrad, &inputs, dy)?,
            Kernel::MeanSquaredError => {
                for [to, other] in [[inputs[0], inputs[1]], [inputs[1], inputs[0]]] {
                    if self.wanted(to) {
                        let of = self.shape(to);
                        let dx = self.push(Kernel::MeanSquaredErrorGrad, &[to, other, dy], of);
                        self.contribute(to, dx);
                    }
                }
            }
            Kernel::TopK { .. } | Kernel::AucCounts => return Err(self.no_gradient("its logits")),
            kernel @ (Kernel::Share
            | Kernel::UnaryGrad(_)
            | Kernel::Chain(_)
            | Kernel::MaxGrad(_)
            | Kernel::Expand(_)
            | Kernel::SumRows
            | Kernel::Paste { .. }
            | Kernel::Scatter { .. }
            | Kernel::Conv2dInputGrad(_)
            | Kernel::Conv2dKernelGrad(_)
            | Kernel::MaxPool2dGrad(_)
            | Kernel::AveragePool2dGrad(_)
            | Kernel::GlobalAveragePoolGrad(_)
            | Kernel::BatchNormGrad { .. }
            | Kernel::LayerNormGrad { .. }
            | Kernel::SoftmaxGrad { .. }
            | Kernel::LogSoftmaxGrad { .. }
            | Kernel::SoftmaxCrossEntropyGrad
            | Kernel::SoftmaxCrossEntropyDenseGrad { .. }
            | Kernel::SigmoidCrossEntropyGrad
            | Kernel::MeanSquaredErrorGrad) => unreachable!("{kernel:?} is never in a forward pass"),
        }
        Ok(())
    }

    fn no_gradient(&self, input: &'static str) -> CompileError {
        CompileError::NoGradient { node: self.graph.label(self.origin), input }
    }

    fn unary_grad(&mut self, op: Unary, x: Value, y: Value, dy: Value) -> Value {
        let saved = match op.saved() {
            // The only function whose slope is the same everywhere.
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

    /// With A and B the operands as multiplied: dA = dC·Bᵀ and dB = Aᵀ·dC; a transposed operand gets the
    /// transpose of that. The second comes first: it is the one that a shard waits for.
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

    /// How many rows x has of gamma's length, and that length.
    fn rows(&self, x: Value, gamma: Value) -> [usize; 2] {
        let width = self.ir.elements(gamma);
        [self.ir.elements(x) / width, width]
    }

    /// One kernel gives the adjoints of x, gamma and beta.
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
        let of = self.shape(logits);
        let dx = self.push(kernel, &[logits, labels, dy], of);
        self.contribute(logits, dx);
        Ok(())
    }
}
