//! The operation of a CUDA device that computes a kernel. This module must not depend on memory.

use pushpull_cuda::{Epilogue as CudaEpilogue, Multiplier, Operation};

use super::ir::{Epilogue, Kernel};
use super::memory::Sizes;

/// Returns the operation that computes a kernel for values of these sizes. Its inputs and outputs are those
/// of the kernel. `multiplier` multiplies matrices.
///
/// # Panics
/// If the kernel is never an instruction.
pub(super) fn operation(kernel: &Kernel, sizes: &Sizes, multiplier: Multiplier) -> Operation {
    let Sizes { inputs, outputs } = sizes;
    // The number of rows of a matrix of the size of the first output.
    let rows = |width: usize| outputs[0].checked_div(width).unwrap_or(0);
    match kernel {
        Kernel::Column(_) | Kernel::Variable(_) | Kernel::View | Kernel::Unary(_) | Kernel::UnaryGrad(_) => {
            unreachable!("{kernel:?} is never an instruction")
        }
        Kernel::Constant(number) => Operation::fill(*number, outputs[0]),
        Kernel::Share => Operation::share(),
        Kernel::Copy => Operation::copy(outputs[0]),
        Kernel::ToFloat => Operation::to_float(outputs[0]),
        Kernel::Binary(f, shapes) => Operation::binary(*f, shapes),
        Kernel::Chain(steps) => Operation::chain(steps, &inputs[1..], outputs[0]),
        Kernel::Reduce(reduction, shapes) => Operation::reduce(*reduction, shapes),
        Kernel::MaxGrad(shapes) => Operation::max_grad(shapes),
        Kernel::Expand(shapes) => Operation::expand(shapes),
        Kernel::SumRows => Operation::sum_rows(inputs[0].checked_div(outputs[0]).unwrap_or(0), outputs[0]),
        Kernel::Transpose { shape, axes } => Operation::transpose(shape, axes),
        Kernel::Concat { shape, parts } => Operation::concat(shape, parts),
        Kernel::Slice { shape, part } => Operation::slice(shape, *part),
        Kernel::Paste { shape, part } => Operation::paste(shape, *part),
        Kernel::Product(factors, end) => Operation::product(&factors.product(), epilogue(*end), multiplier),
        Kernel::Narrow { elements, precision } => Operation::narrow(*elements, *precision),
        Kernel::BatchedProduct(batch, factors) => {
            Operation::batched_product(*batch, &factors.product(), multiplier)
        }
        Kernel::Gather { width } => {
            Operation::gather(inputs[0].checked_div(*width).unwrap_or(0), *width, inputs[1])
        }
        Kernel::Scatter { width } => Operation::scatter(rows(*width), *width, inputs[0]),
        Kernel::Conv2d(conv, end) => Operation::conv2d(conv, epilogue(*end)),
        Kernel::Conv2dInputGrad(conv) => Operation::conv2d_input_grad(conv),
        Kernel::Conv2dKernelGrad(conv) => Operation::conv2d_kernel_grad(conv),
        Kernel::MaxPool2d(pool) => Operation::max_pool(pool),
        Kernel::MaxPool2dGrad(pool) => Operation::max_pool_grad(pool),
        Kernel::AveragePool2d(pool) => Operation::average_pool(pool),
        Kernel::AveragePool2dGrad(pool) => Operation::average_pool_grad(pool),
        Kernel::GlobalAveragePool(shape) => Operation::global_average_pool(*shape),
        Kernel::GlobalAveragePoolGrad(shape) => Operation::global_average_pool_grad(*shape),
        Kernel::Moments { rows } => Operation::moments(*rows),
        Kernel::ReciprocalStddev { epsilon } => Operation::reciprocal_stddev(outputs[0], *epsilon),
        Kernel::BatchNorm => Operation::batch_norm(rows(inputs[1]), inputs[1]),
        Kernel::BatchNormGrad { rows } => Operation::batch_norm_grad(*rows),
        Kernel::LayerNorm { epsilon } => Operation::layer_norm([outputs[1], inputs[1]], *epsilon),
        Kernel::LayerNormGrad { rows } => Operation::layer_norm_grad(*rows),
        Kernel::Dropout { rate, stream, example } => Operation::dropout(outputs[0], *rate, *stream, *example),
        Kernel::Softmax { width, causal: false } => Operation::softmax(rows(*width), *width),
        Kernel::Softmax { width, causal: true } => Operation::causal_softmax(rows(*width), *width),
        Kernel::SoftmaxGrad { width } => Operation::softmax_grad(rows(*width), *width),
        Kernel::LogSoftmax { width } => Operation::log_softmax(rows(*width), *width),
        Kernel::LogSoftmaxGrad { width } => Operation::log_softmax_grad(rows(*width), *width),
        Kernel::Attention(attention) => Operation::attention(attention),
        Kernel::AttentionGrad(attention) => Operation::attention_grad(attention),
        Kernel::SoftmaxCrossEntropy
        | Kernel::SoftmaxCrossEntropyGrad
        | Kernel::SoftmaxCrossEntropyDense { .. }
        | Kernel::SoftmaxCrossEntropyDenseGrad { .. }
        | Kernel::SigmoidCrossEntropy
        | Kernel::SigmoidCrossEntropyGrad
        | Kernel::MeanSquaredError
        | Kernel::MeanSquaredErrorGrad
        | Kernel::TopK { .. }
        | Kernel::AucCounts => score(kernel, sizes),
    }
}

/// Returns the operation that computes a loss, its gradient or a metric.
fn score(kernel: &Kernel, sizes: &Sizes) -> Operation {
    let Sizes { inputs, outputs } = sizes;
    let rows = |width: usize| inputs[0].checked_div(width).unwrap_or(0);
    // The number of classes of logits with one label in each row.
    let (labels, classes) = (inputs[1], rows(inputs[1]));
    match kernel {
        Kernel::SoftmaxCrossEntropy => Operation::softmax_cross_entropy(labels, classes),
        Kernel::SoftmaxCrossEntropyGrad => Operation::softmax_cross_entropy_grad(labels, classes),
        Kernel::SoftmaxCrossEntropyDense { classes } => {
            Operation::softmax_cross_entropy_dense(rows(*classes), *classes)
        }
        Kernel::SoftmaxCrossEntropyDenseGrad { classes } => {
            Operation::softmax_cross_entropy_dense_grad(rows(*classes), *classes)
        }
        Kernel::SigmoidCrossEntropy => Operation::sigmoid_cross_entropy(inputs[0]),
        Kernel::SigmoidCrossEntropyGrad => Operation::sigmoid_cross_entropy_grad(inputs[0]),
        Kernel::MeanSquaredError => Operation::mean_squared_error(inputs[0]),
        Kernel::MeanSquaredErrorGrad => Operation::mean_squared_error_grad(inputs[0]),
        Kernel::TopK { k } => Operation::top_k(labels, classes, *k),
        Kernel::AucCounts => Operation::auc_counts(inputs[0], outputs[0] / 2),
        kernel => unreachable!("{kernel:?} is no score"),
    }
}

const fn epilogue(epilogue: Epilogue) -> CudaEpilogue {
    match epilogue {
        Epilogue::Bare => CudaEpilogue::Bare,
        Epilogue::Bias => CudaEpilogue::Bias,
        Epilogue::BiasRelu => CudaEpilogue::BiasRelu,
    }
}
