//! The builder's methods for the operations. With one method for each operation, a model reads like
//! formulas. [`GraphBuilder::push`] checks the operations.

use super::builder::GraphBuilder;
use super::element::{BinaryOp, ReductionOp, UnaryOp};
use super::geometry::{Stride, Window};
use super::op::Op;
use super::session_op::SessionOp;
use crate::id::NodeId;
use crate::tensor::Shape;

impl GraphBuilder {
    /// Applies a function to each element. In a session, the elements may have other types than f32; see
    /// [`SessionOp::Unary`].
    pub fn unary(&mut self, op: UnaryOp, x: NodeId) -> NodeId {
        let op = self.typed(x, Op::Unary(op), SessionOp::Unary(op));
        self.push(op.name(), op, &[x])
    }

    /// Computes max(x, 0).
    pub fn relu(&mut self, x: NodeId) -> NodeId {
        self.unary(UnaryOp::Relu, x)
    }

    /// Applies a function to pairs of elements; shapes are broadcast as in NumPy. In a session, the elements
    /// may have other types than f32; see [`SessionOp::Binary`].
    pub fn binary(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> NodeId {
        let op = self.typed(a, Op::Binary(op), SessionOp::Binary(op));
        self.push(op.name(), op, &[a, b])
    }

    /// Computes a + b.
    pub fn add(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.binary(BinaryOp::Add, a, b)
    }

    /// Computes a − b.
    pub fn sub(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.binary(BinaryOp::Sub, a, b)
    }

    /// Computes a · b, element by element.
    pub fn mul(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.binary(BinaryOp::Mul, a, b)
    }

    /// Computes a / b.
    pub fn div(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.binary(BinaryOp::Div, a, b)
    }

    /// Multiplies x by a number.
    pub fn scale(&mut self, x: NodeId, factor: f32) -> NodeId {
        let factor = self.constant(factor);
        self.mul(x, factor)
    }

    /// Computes the sum, mean or maximum along these axes, which must ascend; axis 0 is the batch. If `keep`
    /// is true, the axes remain with extent 1; otherwise they are removed.
    pub fn reduce(&mut self, reduction: ReductionOp, x: NodeId, axes: &[usize], keep: bool) -> NodeId {
        let axes = axes.to_vec();
        let of_session = SessionOp::Reduce { reduction, axes: axes.clone(), keep };
        let op = self.typed(x, Op::Reduce { reduction, axes, keep }, of_session);
        self.push(reduction.name(), op, &[x])
    }

    /// Computes Σ x² / 2 over all elements: the L2 loss.
    pub fn l2_loss(&mut self, x: NodeId) -> NodeId {
        let square = self.unary(UnaryOp::Square, x);
        let axes: Vec<usize> = (0..self.rank(x)).collect();
        let sum = if axes.is_empty() { square } else { self.reduce(ReductionOp::Sum, square, &axes, false) };
        self.scale(sum, 0.5)
    }

    /// Converts i32 to f32.
    pub fn to_float(&mut self, x: NodeId) -> NodeId {
        self.push("to_float", Op::ToFloat, &[x])
    }

    /// Gives each example another shape with the same number of elements.
    pub fn reshape(&mut self, x: NodeId, example: impl Into<Shape>) -> NodeId {
        self.push("reshape", Op::Reshape { shape: example.into() }, &[x])
    }

    /// Permutes the axes: axis `axes[i]` of x becomes axis i.
    pub fn transpose(&mut self, x: NodeId, axes: &[usize]) -> NodeId {
        self.push("transpose", Op::Transpose { axes: axes.to_vec() }, &[x])
    }

    /// Concatenates along an axis.
    pub fn concat(&mut self, parts: &[NodeId], axis: usize) -> NodeId {
        self.push("concat", Op::Concat { axis }, parts)
    }

    /// Takes a part of x: along one axis, the `length` elements that begin at `start`.
    pub fn slice(&mut self, x: NodeId, axis: usize, start: usize, length: usize) -> NodeId {
        self.push("slice", Op::Slice { axis, start, length }, &[x])
    }

    /// Computes a·b, where a is `[…, m, k]`, b is `[…, k, n]` or `[k, n]`, and the result is `[…, m, n]`.
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.matmul_transposed(a, b, [false, false])
    }

    /// Computes a·b. `transpose` says for each operand whether to exchange its last two axes first.
    pub fn matmul_transposed(&mut self, a: NodeId, b: NodeId, transpose: [bool; 2]) -> NodeId {
        let [transpose_a, transpose_b] = transpose;
        self.push("mat_mul", Op::MatMul { transpose_a, transpose_b }, &[a, b])
    }

    /// Adds `bias` to every row of `x`: `[.., n]`, `[n]` → `[.., n]`.
    pub fn bias_add(&mut self, x: NodeId, bias: NodeId) -> NodeId {
        self.push("bias_add", Op::BiasAdd, &[x, bias])
    }

    /// Looks up the rows of a table by their ids: `[rows, n]`, i32 `[…]` → `[…, n]`.
    pub fn embedding(&mut self, table: NodeId, ids: NodeId) -> NodeId {
        self.push("embedding", Op::Embedding, &[table, ids])
    }

    /// Convolves images: `[batch, h, w, cin]`, kernel `[kh, kw, cin, cout]` → `[batch, ho, wo, cout]`.
    pub fn conv2d(&mut self, images: NodeId, kernel: NodeId, geometry: Stride) -> NodeId {
        self.push("conv2d", Op::Conv2d(geometry), &[images, kernel])
    }

    /// Computes the maximum of each window: `[batch, h, w, c]` → `[batch, ho, wo, c]`.
    pub fn max_pool2d(&mut self, images: NodeId, geometry: Window) -> NodeId {
        self.push("max_pool2d", Op::MaxPool2d(geometry), &[images])
    }

    /// Computes the mean of each window: `[batch, h, w, c]` → `[batch, ho, wo, c]`.
    pub fn average_pool2d(&mut self, images: NodeId, geometry: Window) -> NodeId {
        self.push("average_pool2d", Op::AveragePool2d(geometry), &[images])
    }

    /// Computes the mean of each channel: `[batch, h, w, c]` → `[batch, c]`.
    pub fn global_average_pool(&mut self, images: NodeId) -> NodeId {
        self.push("global_average_pool", Op::GlobalAveragePool, &[images])
    }

    /// Normalises each channel of x to mean 0 and variance 1, then multiplies by gamma and adds beta. `mean`
    /// and `variance` are the moving mean and variance, made with [`untrained`](Self::untrained). See
    /// [`Op::BatchNorm`].
    pub fn batch_norm(
        &mut self,
        x: NodeId,
        [gamma, beta]: [NodeId; 2],
        [mean, variance]: [NodeId; 2],
        epsilon: f32,
        momentum: f32,
    ) -> NodeId {
        let inputs = [x, gamma, beta, mean, variance];
        self.push("batch_norm", Op::BatchNorm { epsilon, momentum }, &inputs)
    }

    /// Normalises each row of x to mean 0 and variance 1, then multiplies by gamma and adds beta.
    pub fn layer_norm(&mut self, x: NodeId, [gamma, beta]: [NodeId; 2], epsilon: f32) -> NodeId {
        self.push("layer_norm", Op::LayerNorm { epsilon }, &[x, gamma, beta])
    }

    /// Sets each element to 0 with probability `rate` in training, and divides the rest by 1 − rate.
    pub fn dropout(&mut self, x: NodeId, rate: f32) -> NodeId {
        self.push("dropout", Op::Dropout { rate }, &[x])
    }

    /// Computes exp(x) / Σ exp(x) of each row.
    pub fn softmax(&mut self, x: NodeId) -> NodeId {
        self.push("softmax", Op::Softmax { causal: false }, &[x])
    }

    /// Computes the softmax of the first i + 1 elements of row i, for each row of `[…, n, n]`. The other
    /// elements become 0.
    pub fn causal_softmax(&mut self, x: NodeId) -> NodeId {
        self.push("causal_softmax", Op::Softmax { causal: true }, &[x])
    }

    /// Computes the logarithm of the softmax of each row.
    pub fn log_softmax(&mut self, x: NodeId) -> NodeId {
        self.push("log_softmax", Op::LogSoftmax, &[x])
    }

    /// Computes the mean cross-entropy of softmax(logits) `[…, classes]` with i32 labels `[…]` or f32 labels
    /// `[…, classes]`.
    pub fn softmax_cross_entropy(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("softmax_cross_entropy", Op::SoftmaxCrossEntropy, &[logits, labels])
    }

    /// Computes the mean cross-entropy of sigmoid(logits) with f32 labels of the same shape.
    pub fn sigmoid_cross_entropy(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("sigmoid_cross_entropy", Op::SigmoidCrossEntropy, &[logits, labels])
    }

    /// Computes the mean of (a − b)².
    pub fn mean_squared_error(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.push("mean_squared_error", Op::MeanSquaredError, &[a, b])
    }

    /// Computes the fraction of rows in which the label's logit is the largest.
    pub fn accuracy(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("accuracy", Op::Accuracy, &[logits, labels])
    }

    /// Computes the fraction of rows in which the label's logit is among the `k` largest.
    pub fn top_k(&mut self, logits: NodeId, labels: NodeId, k: usize) -> NodeId {
        self.push("top_k", Op::TopK { k }, &[logits, labels])
    }

    /// Computes the counts for the area under the ROC curve, from logits and i32 labels of 0 or 1. If the
    /// node is a metric, its value is the area. The range of the probabilities is divided into 4096 bins.
    pub fn auc(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("auc", Op::AucCounts { bins: 4096 }, &[logits, labels])
    }
}
