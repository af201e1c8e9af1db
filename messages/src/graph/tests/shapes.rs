//! Tests each operation by two tables: one lists the operation's output for valid inputs, the other its
//! error if an input or a number has a fault.

use super::every_op::{BINARY, REDUCTIONS, UNARY, every_op};
use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::VariableSpec;

/// Parses the type and shape of a tensor, such as `f32[2, 3]`.
fn tensor(text: &str) -> TensorSpec {
    let (dtype, extents) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let extents = extents.split(", ").filter(|extent| !extent.is_empty());
    let shape = Shape(extents.map(|extent| extent.parse().unwrap()).collect());
    if dtype == "i32" { TensorSpec::i32(shape) } else { TensorSpec::f32(shape) }
}

/// Returns the type and shape of the operation's output, or its error. Inputs of floats become variables,
/// which have no batch axis. Inputs of integers become columns of a dataset with batch size 2, so their
/// first extent is 2.
fn gives(op: &Op, inputs: &[&str]) -> Result<String, String> {
    let mut graph = classifier();
    (graph.nodes, graph.variables) = (Vec::new(), Vec::new());
    for (position, input) in inputs.iter().enumerate() {
        let tensor = tensor(input);
        let name = format!("input{position}");
        let op = match input.strip_prefix("i32[2") {
            Some(_) => {
                Op::Input { example: TensorSpec { shape: Shape(tensor.shape.0[1..].to_vec()), ..tensor } }
            }
            None => {
                assert!(input.starts_with("f32"), "integers have the batch 2: {input}");
                let (name, initializer) = (name.clone(), InitializerSpec::Zeros);
                let trainable = !(matches!(op, Op::BatchNorm { .. }) && position >= 3);
                let shape = tensor.shape;
                graph.variables.push(VariableSpec {
                    name,
                    shape,
                    dtype: DType::F32,
                    initializer,
                    trainable,
                    device: None,
                });
                Op::Variable { variable: VariableId(graph.variables.len() as u32 - 1) }
            }
        };
        graph.nodes.push(NodeSpec { name, op, inputs: Vec::new(), device: None });
    }
    let inputs = (0..inputs.len() as u32).map(NodeId).collect();
    graph.nodes.push(NodeSpec { name: "it".into(), op: op.clone(), inputs, device: None });
    let id = NodeId(graph.nodes.len() as u32 - 1);
    let message = |error: GraphError| {
        let message = error.to_string();
        assert!(message.contains(&format!("({} 'it')", op.name())), "{message}");
        message
    };
    graph.validate_links(id, &mut Default::default()).map_err(message)?;
    Ok(graph.infer(2).map_err(message)?.pop().unwrap().to_string())
}

const fn matmul(transpose_a: bool, transpose_b: bool) -> Op {
    Op::MatMul { transpose_a, transpose_b }
}

fn conv2d(stride: [usize; 2], padding: Padding) -> Op {
    Op::Conv2d(Stride { stride, padding })
}

fn pools(window: [usize; 2], stride: [usize; 2], padding: Padding) -> [Op; 2] {
    let window = Window { window, stride, padding };
    [Op::MaxPool2d(window), Op::AveragePool2d(window)]
}

fn reduce(axes: &[usize], keep: bool) -> [Op; 3] {
    REDUCTIONS.map(|reduction| Op::Reduce { reduction, axes: axes.to_vec(), keep })
}

fn reshape(shape: &[usize]) -> Op {
    Op::Reshape { shape: Shape(shape.to_vec()) }
}

fn transpose(axes: &[usize]) -> Op {
    Op::Transpose { axes: axes.to_vec() }
}

fn slice(axis: usize, start: usize, length: usize) -> Op {
    Op::Slice { axis, start, length }
}

/// A row of a table: an operation, its inputs, and the expected output or a part of the expected error.
type Row = (Op, Vec<&'static str>, &'static str);

const BATCH_NORM: Op = Op::BatchNorm { epsilon: 1e-3, momentum: 0.99 };
const LAYER_NORM: Op = Op::LayerNorm { epsilon: 1e-5 };

/// Returns rows with valid inputs for sources and for operations that move or convert elements.
fn good_moves() -> Vec<Row> {
    vec![
        (Op::Input { example: TensorSpec::f32([3]) }, vec![], "f32[2, 3]"),
        (Op::Input { example: TensorSpec::i32([]) }, vec![], "i32[2]"),
        (Op::Constant { value: 3.0 }, vec![], "f32[]"),
        (Op::ToFloat, vec!["i32[2, 3]"], "f32[2, 3]"),
        (reshape(&[6]), vec!["f32[5, 2, 3]"], "f32[5, 6]"),
        (reshape(&[]), vec!["f32[5, 1]"], "f32[5]"),
        (reshape(&[3, 1, 2]), vec!["i32[2, 6]"], "i32[2, 3, 1, 2]"),
        (transpose(&[0, 2, 1]), vec!["f32[5, 2, 3]"], "f32[5, 3, 2]"),
        (transpose(&[2, 0, 1]), vec!["f32[5, 2, 3]"], "f32[3, 5, 2]"),
        (transpose(&[]), vec!["f32[]"], "f32[]"),
        (Op::Concat { axis: 1 }, vec!["f32[5, 2]", "f32[5, 3]", "f32[5, 1]"], "f32[5, 6]"),
        (Op::Concat { axis: 0 }, vec!["f32[5]", "f32[2]"], "f32[7]"),
        (slice(1, 1, 2), vec!["f32[5, 3]"], "f32[5, 2]"),
        (slice(0, 4, 1), vec!["f32[5, 3]"], "f32[1, 3]"),
    ]
}

/// Returns rows with valid inputs for products, convolutions and similar operations.
fn good_products() -> Vec<Row> {
    use Padding::{Same, Valid};
    vec![
        (matmul(false, false), vec!["f32[5, 3]", "f32[3, 7]"], "f32[5, 7]"),
        (matmul(true, false), vec!["f32[3, 5]", "f32[3, 7]"], "f32[5, 7]"),
        (matmul(false, true), vec!["f32[5, 3]", "f32[7, 3]"], "f32[5, 7]"),
        (matmul(true, true), vec!["f32[3, 5]", "f32[7, 3]"], "f32[5, 7]"),
        (matmul(false, false), vec!["f32[2, 4, 5, 3]", "f32[2, 4, 3, 7]"], "f32[2, 4, 5, 7]"),
        (matmul(true, true), vec!["f32[2, 3, 5]", "f32[2, 7, 3]"], "f32[2, 5, 7]"),
        (matmul(false, false), vec!["f32[2, 4, 5, 3]", "f32[3, 7]"], "f32[2, 4, 5, 7]"),
        (matmul(false, true), vec!["f32[2, 5, 3]", "f32[7, 3]"], "f32[2, 5, 7]"),
        (Op::BiasAdd, vec!["f32[5, 3]", "f32[3]"], "f32[5, 3]"),
        (Op::BiasAdd, vec!["f32[5, 4, 4, 3]", "f32[3]"], "f32[5, 4, 4, 3]"),
        (Op::Embedding, vec!["f32[10, 3]", "i32[2]"], "f32[2, 3]"),
        (Op::Embedding, vec!["f32[10, 3]", "i32[2, 4, 5]"], "f32[2, 4, 5, 3]"),
        (conv2d([1, 1], Valid), vec!["f32[5, 8, 9, 3]", "f32[3, 2, 3, 4]"], "f32[5, 6, 8, 4]"),
        (conv2d([2, 3], Valid), vec!["f32[5, 8, 9, 3]", "f32[3, 2, 3, 4]"], "f32[5, 3, 3, 4]"),
        (conv2d([2, 3], Same), vec!["f32[5, 9, 9, 3]", "f32[3, 3, 3, 4]"], "f32[5, 5, 3, 4]"),
        (conv2d([1, 1], Same), vec!["f32[5, 2, 2, 3]", "f32[5, 5, 3, 4]"], "f32[5, 2, 2, 4]"),
        (Op::GlobalAveragePool, vec!["f32[5, 8, 8, 3]"], "f32[5, 3]"),
    ]
}

/// Returns rows with valid inputs for normalisations, dropout and softmax.
fn good_norms() -> Vec<Row> {
    vec![
        (BATCH_NORM, vec!["f32[5, 3]", "f32[3]", "f32[3]", "f32[3]", "f32[3]"], "f32[5, 3]"),
        (BATCH_NORM, vec!["f32[5, 2, 2, 3]", "f32[3]", "f32[3]", "f32[3]", "f32[3]"], "f32[5, 2, 2, 3]"),
        (LAYER_NORM, vec!["f32[5, 4, 3]", "f32[3]", "f32[3]"], "f32[5, 4, 3]"),
        (Op::Dropout { rate: 0.0 }, vec!["f32[5, 3]"], "f32[5, 3]"),
        (Op::Dropout { rate: 0.999 }, vec!["f32[]"], "f32[]"),
        (Op::Softmax { causal: false }, vec!["f32[5, 3]"], "f32[5, 3]"),
        (Op::Softmax { causal: true }, vec!["f32[5, 3, 3]"], "f32[5, 3, 3]"),
        (Op::LogSoftmax, vec!["f32[3]"], "f32[3]"),
    ]
}

/// Returns rows with valid inputs for losses and metrics.
fn good_losses() -> Vec<Row> {
    vec![
        (Op::SoftmaxCrossEntropy, vec!["f32[2, 3]", "i32[2]"], "f32[]"),
        (Op::SoftmaxCrossEntropy, vec!["f32[2, 4, 3]", "i32[2, 4]"], "f32[]"),
        (Op::SoftmaxCrossEntropy, vec!["f32[5, 3]", "f32[5, 3]"], "f32[]"),
        (Op::SigmoidCrossEntropy, vec!["f32[5]", "f32[5]"], "f32[]"),
        (Op::SigmoidCrossEntropy, vec!["f32[]", "f32[]"], "f32[]"),
        (Op::MeanSquaredError, vec!["f32[5, 3]", "f32[5, 3]"], "f32[]"),
        (Op::Accuracy, vec!["f32[2, 3]", "i32[2]"], "f32[]"),
        (Op::Accuracy, vec!["f32[2, 4, 3]", "i32[2, 4]"], "f32[]"),
        (Op::TopK { k: 5 }, vec!["f32[2, 3]", "i32[2]"], "f32[]"),
        (Op::AucCounts { bins: 2 }, vec!["f32[2]", "i32[2]"], "f32[2, 2]"),
        (Op::AucCounts { bins: 1 << 16 }, vec!["f32[2, 1]", "i32[2, 1]"], "f32[2, 65536]"),
    ]
}

/// Returns the whole table of valid inputs.
fn good() -> Vec<Row> {
    use Padding::{Same, Valid};
    let mut table = [good_moves(), good_products(), good_norms(), good_losses()].concat();
    for op in UNARY {
        table.push((Op::Unary(op), vec!["f32[5, 3]"], "f32[5, 3]"));
        table.push((Op::Unary(op), vec!["f32[]"], "f32[]"));
    }
    for (a, b, both) in [
        ("f32[5, 3]", "f32[5, 3]", "f32[5, 3]"),
        ("f32[5, 3]", "f32[3]", "f32[5, 3]"),
        ("f32[3]", "f32[5, 3]", "f32[5, 3]"),
        ("f32[5, 1]", "f32[1, 3]", "f32[5, 3]"),
        ("f32[5, 3]", "f32[]", "f32[5, 3]"),
        ("f32[]", "f32[]", "f32[]"),
        ("f32[2, 1, 4]", "f32[3, 1]", "f32[2, 3, 4]"),
    ] {
        table.extend(BINARY.map(|op| (Op::Binary(op), vec![a, b], both)));
    }
    for (axes, keep, gives) in [
        (&[0, 1, 2][..], false, "f32[]"),
        (&[0, 1, 2], true, "f32[1, 1, 1]"),
        (&[1], false, "f32[5, 2]"),
        (&[0, 2], true, "f32[1, 3, 1]"),
    ] {
        table.extend(reduce(axes, keep).map(|op| (op, vec!["f32[5, 3, 2]"], gives)));
    }
    for (window, stride, padding, gives) in [
        ([2, 2], [2, 2], Valid, "f32[5, 4, 4, 3]"),
        ([3, 1], [1, 2], Valid, "f32[5, 6, 5, 3]"),
        ([3, 3], [2, 2], Same, "f32[5, 4, 5, 3]"),
        ([16, 16], [1, 1], Same, "f32[5, 8, 9, 3]"),
    ] {
        table.extend(pools(window, stride, padding).map(|op| (op, vec!["f32[5, 8, 9, 3]"], gives)));
    }
    table
}

/// Returns rows whose inputs or numbers have a fault, for sources and for operations that move or convert
/// elements.
fn bad_moves() -> Vec<Row> {
    const MAX: usize = usize::MAX;
    let [nan, infinite] = [f32::NAN, f32::INFINITY];
    vec![
        (Op::Input { example: TensorSpec::f32([0]) }, vec![], "expects examples with all extents above 0"),
        (Op::Input { example: TensorSpec::f32([MAX, 3]) }, vec![], "at most 4294967296 elements and 8 axes"),
        (Op::Input { example: TensorSpec::f32([1; 8]) }, vec![], "at most 4294967296 elements and 8 axes"),
        (Op::Constant { value: nan }, vec![], "has the value NaN, expected a finite number"),
        (Op::ToFloat, vec!["f32[2]"], "expects i32, got f32[2]"),
        (Op::ToFloat, vec![], "has 0 inputs, expected 1"),
        (
            Op::Unary(UnaryOp::LeakyRelu { slope: infinite }),
            vec!["f32[3]"],
            "has the slope inf, expected a finite",
        ),
        (reshape(&[5]), vec!["f32[5, 6]"], "expects examples with as many elements as [5], got f32[5, 6]"),
        (reshape(&[0]), vec!["f32[5, 6]"], "as many elements as [0]"),
        (reshape(&[MAX, 6]), vec!["f32[5, 6]"], "examples with as many elements as"),
        (reshape(&[]), vec!["f32[]"], "as many elements as [], got f32[]"),
        (
            transpose(&[0, 0]),
            vec!["f32[5, 3]"],
            "expects an f32 tensor whose axes are each listed once in [0, 0]",
        ),
        (transpose(&[0, 2]), vec!["f32[5, 3]"], "[0, 2]"),
        (transpose(&[0]), vec!["f32[5, 3]"], "[0]"),
        (transpose(&[MAX, 0]), vec!["f32[5, 3]"], "each listed once in"),
        (transpose(&[1, 0]), vec!["i32[2, 3]"], "i32[2, 3]"),
        (Op::Concat { axis: 1 }, vec!["f32[5, 2]", "f32[4, 2]"], "of the same shape, except along axis 1"),
        (Op::Concat { axis: 2 }, vec!["f32[5, 2]", "f32[5, 2]"], "axis 2"),
        (Op::Concat { axis: MAX }, vec!["f32[5]", "f32[5]"], "except along axis"),
        (Op::Concat { axis: 0 }, vec!["f32[]", "f32[]"], "axis 0"),
        (Op::Concat { axis: 0 }, vec!["f32[5]", "f32[5, 1]"], "axis 0"),
        (Op::Concat { axis: 0 }, vec!["f32[2]", "i32[2]"], "got f32[2], i32[2]"),
        (Op::Concat { axis: 0 }, vec!["f32[2]"], "has 1 inputs, expected 2 or more"),
        (Op::Concat { axis: 0 }, vec![], "has 0 inputs, expected 2 or more"),
        (slice(1, 2, 2), vec!["f32[5, 3]"], "expects an f32 tensor with elements 2..4 along axis 1"),
        (slice(1, 0, 0), vec!["f32[5, 3]"], "0..0 along axis 1, and a slice of at least one element"),
        (slice(2, 0, 1), vec!["f32[5, 3]"], "along axis 2"),
        (slice(1, MAX, MAX), vec!["f32[5, 3]"], "along axis 1"),
        (slice(0, 0, 1), vec!["i32[2]"], "got i32[2]"),
    ]
}

/// Returns rows whose inputs or numbers have a fault, for products, convolutions and similar operations.
fn bad_products() -> Vec<Row> {
    use Padding::{Same, Valid};
    let image = || vec!["f32[5, 8, 8, 3]", "f32[3, 3, 3, 4]"];
    vec![
        (matmul(false, false), vec!["f32[5, 3]", "f32[4, 7]"], "expects f32 [.., m, k] and [.., k, n]"),
        (matmul(true, true), vec!["f32[5, 3]", "f32[3, 7]"], "expects f32 [.., k, m] and [.., n, k]"),
        (matmul(false, false), vec!["f32[3]", "f32[3, 7]"], "got f32[3], f32[3, 7]"),
        (matmul(false, false), vec!["f32[2, 5, 3]", "f32[4, 3, 7]"], "with equal leading axes"),
        (matmul(true, false), vec!["f32[2, 3, 5]", "f32[3, 7]"], "with equal leading axes"),
        (matmul(false, false), vec!["f32[5, 3]", "f32[2, 3, 7]"], "with equal leading axes"),
        (matmul(false, false), vec!["i32[2, 3]", "f32[3, 7]"], "got i32[2, 3]"),
        (Op::BiasAdd, vec!["f32[5, 3]", "f32[4]"], "expects f32 [.., n] of two axes or more, and f32 [n]"),
        (Op::BiasAdd, vec!["f32[3]", "f32[3]"], "two axes or more"),
        (Op::BiasAdd, vec!["f32[5, 3]", "f32[1, 3]"], "and f32 [n]"),
        (Op::Embedding, vec!["f32[10]", "i32[2]"], "expects an f32 table [rows, n] and i32 ids"),
        (Op::Embedding, vec!["f32[10, 3]", "f32[2]"], "got f32[10, 3], f32[2]"),
        (conv2d([0, 1], Valid), image(), "expects room for the kernel"),
        (conv2d([1, 0], Same), image(), "expects room for the kernel"),
        (conv2d([1, 1], Valid), vec!["f32[5, 2, 8, 3]", "f32[3, 3, 3, 4]"], "expects room for the kernel"),
        (conv2d([1, 1], Valid), vec!["f32[5, 8, 8, 2]", "f32[3, 3, 3, 4]"], "kernel [kh, kw, cin, cout]"),
        (
            conv2d([1, 1], Valid),
            vec!["f32[8, 8, 3]", "f32[3, 3, 3, 4]"],
            "expects f32 images [batch, h, w, cin]",
        ),
        (Op::GlobalAveragePool, vec!["f32[5, 3]"], "expects f32 images [batch, h, w, c], got f32[5, 3]"),
    ]
}

/// Returns rows whose inputs or numbers have a fault, for normalisations, dropout and softmax.
fn bad_norms() -> Vec<Row> {
    let [nan, infinite] = [f32::NAN, f32::INFINITY];
    let five = |x| vec![x, "f32[3]", "f32[3]", "f32[3]", "f32[3]"];
    vec![
        (
            BATCH_NORM,
            five("f32[5, 4]"),
            "expects f32 x [.., c], and gamma, beta, moving mean and variance [c]",
        ),
        (BATCH_NORM, five("f32[3]"), "expects f32 x"),
        (BATCH_NORM, vec!["f32[5, 3]"; 5], "expects f32 x"),
        (BATCH_NORM, vec!["f32[5, 3]", "f32[3]", "f32[3]"], "has 3 inputs, expected 5"),
        (
            BATCH_NORM,
            vec!["f32[2, 1]", "f32[1]", "f32[1]", "i32[2]", "f32[1]"],
            "that are variables with \"trainable\": false",
        ),
        (Op::BatchNorm { epsilon: 0.0, momentum: 0.9 }, five("f32[5, 3]"), "has the epsilon 0"),
        (Op::BatchNorm { epsilon: nan, momentum: 0.9 }, five("f32[5, 3]"), "has the epsilon NaN"),
        (
            Op::BatchNorm { epsilon: 0.1, momentum: 1.1 },
            five("f32[5, 3]"),
            "has the momentum 1.1, expected from 0 to 1",
        ),
        (Op::BatchNorm { epsilon: 0.1, momentum: nan }, five("f32[5, 3]"), "has the momentum NaN"),
        (LAYER_NORM, vec!["f32[5, 3]", "f32[4]", "f32[4]"], "expects f32 x [.., n], gamma [n] and beta [n]"),
        (LAYER_NORM, vec!["f32[]", "f32[1]", "f32[1]"], "expects f32 x"),
        (Op::LayerNorm { epsilon: infinite }, vec!["f32[5, 3]", "f32[3]", "f32[3]"], "has the epsilon inf"),
        (Op::Dropout { rate: 1.0 }, vec!["f32[5]"], "has the rate 1, expected from 0 to less than 1"),
        (Op::Dropout { rate: -0.1 }, vec!["f32[5]"], "has the rate -0.1"),
        (Op::Dropout { rate: nan }, vec!["f32[5]"], "has the rate NaN"),
        (Op::Dropout { rate: 0.1 }, vec!["i32[2]"], "expects f32, got i32[2]"),
        (Op::Softmax { causal: false }, vec!["f32[]"], "expects f32 [.., n]"),
        (Op::Softmax { causal: true }, vec!["f32[5, 3]"], "expects f32 [.., n, n], got f32[5, 3]"),
        (Op::LogSoftmax, vec!["i32[2, 3]"], "expects f32 [.., n]"),
    ]
}

/// Returns rows whose inputs or numbers have a fault, for losses and metrics.
fn bad_losses() -> Vec<Row> {
    const MAX: usize = usize::MAX;
    vec![
        (
            Op::SoftmaxCrossEntropy,
            vec!["f32[2, 3]", "i32[2, 3]"],
            "i32 labels [..] or f32 labels [.., classes]",
        ),
        (Op::SoftmaxCrossEntropy, vec!["f32[2, 3]", "f32[2]"], "got f32[2, 3], f32[2]"),
        (Op::SoftmaxCrossEntropy, vec!["f32[3]", "f32[3]"], "expects f32 logits"),
        (Op::SigmoidCrossEntropy, vec!["f32[5, 1]", "f32[5]"], "expects two f32 tensors of the same shape"),
        (
            Op::MeanSquaredError,
            vec!["f32[5, 1]", "f32[5]"],
            "expects two f32 tensors of the same shape, got f32[5, 1], f32[5]",
        ),
        (Op::MeanSquaredError, vec!["f32[2]", "i32[2]"], "expects two f32 tensors of the same shape"),
        (
            Op::Accuracy,
            vec!["f32[2, 3]", "f32[2, 3]"],
            "expects f32 logits [.., classes] and i32 labels [..]",
        ),
        (Op::TopK { k: 0 }, vec!["f32[2, 3]", "i32[2]"], "has the k 0, expected at least 1"),
        (Op::TopK { k: 1 }, vec!["f32[3]", "i32[2]"], "expects f32 logits"),
        (Op::AucCounts { bins: 1 }, vec!["f32[2]", "i32[2]"], "has the bins 1, expected from 2 to 65536"),
        (Op::AucCounts { bins: MAX }, vec!["f32[2]", "i32[2]"], "expected from 2 to 65536"),
        (
            Op::AucCounts { bins: 8 },
            vec!["f32[2, 1]", "i32[2]"],
            "expects f32 logits and i32 labels of the same shape",
        ),
    ]
}

/// Returns the whole table of faults. In each row, the inputs do not fit or a number is out of range.
fn bad() -> Vec<Row> {
    use Padding::{Same, Valid};
    const MAX: usize = usize::MAX;
    let mut table = [bad_moves(), bad_products(), bad_norms(), bad_losses()].concat();
    table.extend(UNARY.map(|op| (Op::Unary(op), vec!["i32[2]"], "expects f32, got i32[2]")));
    for inputs in [vec!["f32[5, 3]", "f32[2, 3]"], vec!["f32[5]", "f32[5, 3]"], vec!["f32[2]", "i32[2]"]] {
        let expected = "expects two f32 tensors whose extents, compared from the last axis, are equal or 1";
        table.extend(BINARY.map(|op| (Op::Binary(op), inputs.clone(), expected)));
    }
    for axes in [&[][..], &[1, 0], &[0, 0], &[2], &[0, MAX]] {
        let expected = "expects an f32 tensor with the axes";
        table.extend(reduce(axes, true).map(|op| (op, vec!["f32[5, 3]"], expected)));
    }
    for (window, stride, padding) in [
        ([0, 2], [1, 1], Valid),
        ([2, 2], [0, 1], Same),
        ([9, 2], [1, 1], Valid),
        ([17, 16], [1, 1], Same),
        ([MAX, 2], [1, 1], Same),
        ([MAX, MAX], [MAX, MAX], Same),
    ] {
        let expected = "expects room for the window";
        table.extend(pools(window, stride, padding).map(|op| (op, vec!["f32[5, 8, 8, 3]"], expected)));
    }
    table.extend(pools([2, 2], [2, 2], Valid).map(|op| (op, vec!["f32[5, 8, 8]"], "[batch, h, w, c]")));
    table
}

#[test]
fn shapes_follow_from_the_inputs() {
    for (op, inputs, expected) in good() {
        assert_eq!(gives(&op, &inputs).as_deref(), Ok(expected), "{op:?} of {inputs:?}");
    }
}

#[test]
fn an_error_names_the_node_that_does_not_fit() {
    for (op, inputs, expected) in bad() {
        let message = gives(&op, &inputs).expect_err(&format!("{op:?} of {inputs:?} was accepted"));
        assert!(message.contains(expected), "expected '{expected}' in: {message}");
    }
}

/// Checks that both tables have every operation, except the one that reads a variable: its shape and faults
/// are those of the variable's spec.
#[test]
fn the_tables_have_every_operation() {
    for op in every_op().iter().filter(|op| !matches!(op, Op::Variable { .. })) {
        let there =
            |table: Vec<(Op, Vec<&str>, &str)>| table.iter().any(|(other, ..)| other.name() == op.name());
        assert!(there(good()), "no row with valid inputs for {op:?}");
        assert!(there(bad()), "no row with a fault for {op:?}");
    }
}

#[test]
fn too_many_and_too_few_inputs_are_refused() {
    for op in every_op().iter().filter(|op| !matches!(op, Op::Variable { .. })) {
        let wrong = match op.arity() {
            Arity::Exactly(count) => [count + 1, count.wrapping_sub(1)],
            Arity::AtLeast(count) => [0, count - 1],
        };
        for count in wrong.into_iter().filter(|&count| count < 8) {
            let message = gives(op, &vec!["f32[2]"; count]).unwrap_err();
            assert!(message.contains(&format!("has {count} inputs, expected {}", op.arity())), "{message}");
        }
    }
}

#[test]
fn shapes_follow_the_batch() {
    let graph = classifier();
    let of =
        |batch: usize, name: &str| graph.infer(batch).unwrap()[graph.find(name).unwrap().index()].to_string();
    assert_eq!(of(5, "features"), "f32[5, 2, 3]");
    assert_eq!(of(5, "labels"), "i32[5]");
    assert_eq!(of(7, "reshape"), "f32[7, 6]");
    assert_eq!(of(7, "relu"), "f32[7, 4]");
    assert_eq!(of(7, "mat_mul_1"), "f32[7, 3]");
    assert_eq!(of(7, "accuracy"), "f32[]");
}
