//! A list of all operations, a strategy that also draws invalid ones, and tests of properties that all
//! operations have.

use proptest::prelude::*;

use super::*;
use crate::id::VariableId;
use crate::tensor::{DType, Shape, TensorSpec};

pub(super) const UNARY: [UnaryOp; 11] = [
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Square,
    UnaryOp::Sqrt,
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Sigmoid,
    UnaryOp::Tanh,
    UnaryOp::Relu,
    UnaryOp::LeakyRelu { slope: 0.01 },
    UnaryOp::Gelu,
];
pub(super) const BINARY: [BinaryOp; 4] = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div];
pub(super) const REDUCTIONS: [ReductionOp; 3] = [ReductionOp::Sum, ReductionOp::Mean, ReductionOp::Max];

/// Returns every operation of training jobs at least once, with valid numbers.
pub(super) fn every_op() -> Vec<Op> {
    let window = Window { window: [3, 2], stride: [2, 1], padding: Padding::Same };
    let mut ops = vec![
        Op::Input { example: TensorSpec::i32([3]) },
        Op::Variable { variable: VariableId(1) },
        Op::Constant { value: -0.5 },
        Op::ToFloat,
        Op::Reshape { shape: [3, 2].into() },
        Op::Transpose { axes: vec![1, 0, 2] },
        Op::Concat { axis: 1 },
        Op::Slice { axis: 1, start: 2, length: 3 },
        Op::MatMul { transpose_a: true, transpose_b: false },
        Op::BiasAdd,
        Op::Embedding,
        Op::Conv2d(Stride { stride: [2, 1], padding: Padding::Same }),
        Op::MaxPool2d(window),
        Op::AveragePool2d(window),
        Op::GlobalAveragePool,
        Op::BatchNorm { epsilon: 1e-3, momentum: 0.99 },
        Op::LayerNorm { epsilon: 1e-5 },
        Op::Dropout { rate: 0.1 },
        Op::Softmax { causal: false },
        Op::Softmax { causal: true },
        Op::LogSoftmax,
        Op::SoftmaxCrossEntropy,
        Op::SigmoidCrossEntropy,
        Op::MeanSquaredError,
        Op::Accuracy,
        Op::TopK { k: 5 },
        Op::AucCounts { bins: 4096 },
    ];
    ops.extend(UNARY.map(Op::Unary));
    ops.extend(BINARY.map(Op::Binary));
    ops.extend(REDUCTIONS.map(|reduction| Op::Reduce { reduction, axes: vec![0, 2], keep: true }));
    ops
}

pub(super) fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0usize..5, 1 => Just(1 << 33), 1 => Just(usize::MAX), 1 => Just(usize::MAX / 2 + 1)]
}

/// Draws a shape. It may have one axis more than is allowed.
pub(super) fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![4 => 0..4usize, 1 => 4..=RANK_MAX + 1]
        .prop_flat_map(|rank| prop::collection::vec(extent(), rank).prop_map(Shape))
}

pub(super) fn number() -> impl Strategy<Value = f32> {
    prop_oneof![2 => 0f32..1.0, 1 => any::<f32>(), 1 => Just(f32::NAN), 1 => Just(f32::INFINITY)]
}

/// Draws an operation of training jobs: a valid one from [`every_op`], or one with random numbers, many of
/// which are invalid.
pub(super) fn any_op() -> impl Strategy<Value = Op> {
    let axes = || prop::collection::vec(extent(), 0..=RANK_MAX + 1);
    let pair = || [extent(), extent()];
    let padding = || prop::sample::select(vec![Padding::Valid, Padding::Same]);
    let stride = || (pair(), padding()).prop_map(|(stride, padding)| Stride { stride, padding });
    let window = || {
        let parts = (pair(), pair(), padding());
        parts.prop_map(|(window, stride, padding)| Window { window, stride, padding })
    };
    let sources = prop_oneof![
        (shape(), prop::sample::select(vec![DType::F32, DType::I32]))
            .prop_map(|(shape, dtype)| Op::Input { example: TensorSpec { shape, dtype } }),
        (0u32..5).prop_map(|variable| Op::Variable { variable: VariableId(variable) }),
        number().prop_map(|value| Op::Constant { value }),
    ];
    let moves = prop_oneof![
        shape().prop_map(|shape| Op::Reshape { shape }),
        axes().prop_map(|axes| Op::Transpose { axes }),
        extent().prop_map(|axis| Op::Concat { axis }),
        [extent(), extent(), extent()].prop_map(|[axis, start, length]| Op::Slice { axis, start, length }),
        (prop::sample::select(REDUCTIONS.to_vec()), axes(), any::<bool>())
            .prop_map(|(reduction, axes, keep)| Op::Reduce { reduction, axes, keep }),
        any::<[bool; 2]>().prop_map(|[transpose_a, transpose_b]| Op::MatMul { transpose_a, transpose_b }),
    ];
    let numbered = prop_oneof![
        number().prop_map(|slope| Op::Unary(UnaryOp::LeakyRelu { slope })),
        stride().prop_map(Op::Conv2d),
        window().prop_map(Op::MaxPool2d),
        window().prop_map(Op::AveragePool2d),
        [number(), number()].prop_map(|[epsilon, momentum]| Op::BatchNorm { epsilon, momentum }),
        number().prop_map(|epsilon| Op::LayerNorm { epsilon }),
        number().prop_map(|rate| Op::Dropout { rate }),
        extent().prop_map(|k| Op::TopK { k }),
        extent().prop_map(|bins| Op::AucCounts { bins }),
    ];
    prop_oneof![2 => sources, 2 => moves, 2 => numbered, 3 => prop::sample::select(every_op())]
}

/// Returns a number for the operation's variant. If a variant is added, this function does not compile until
/// it has a line for the variant. Then raise the count in the test below, which fails until [`every_op`]
/// returns the variant.
fn variant(op: &Op) -> usize {
    match op {
        Op::Input { .. } => 0,
        Op::Variable { .. } => 1,
        Op::Constant { .. } => 2,
        Op::ToFloat => 3,
        Op::Unary(_) => 4,
        Op::Binary(_) => 5,
        Op::Reduce { .. } => 6,
        Op::Reshape { .. } => 7,
        Op::Transpose { .. } => 8,
        Op::Concat { .. } => 9,
        Op::Slice { .. } => 10,
        Op::MatMul { .. } => 11,
        Op::BiasAdd => 12,
        Op::Embedding => 13,
        Op::Conv2d(_) => 14,
        Op::MaxPool2d(_) => 15,
        Op::AveragePool2d(_) => 16,
        Op::GlobalAveragePool => 17,
        Op::BatchNorm { .. } => 18,
        Op::LayerNorm { .. } => 19,
        Op::Dropout { .. } => 20,
        Op::Softmax { .. } => 21,
        Op::LogSoftmax => 22,
        Op::SoftmaxCrossEntropy => 23,
        Op::SigmoidCrossEntropy => 24,
        Op::MeanSquaredError => 25,
        Op::Accuracy => 26,
        Op::TopK { .. } => 27,
        Op::AucCounts { .. } => 28,
        Op::Session(_) => unreachable!("`session_ops` lists the operations of sessions"),
    }
}

#[test]
fn every_variant_is_covered() {
    let mut variants: Vec<usize> = every_op().iter().map(variant).collect();
    variants.sort_unstable();
    variants.dedup();
    assert_eq!(variants, (0..29).collect::<Vec<_>>());
}

/// Checks that an error names each operation as a job file does. The names are part of the job file's
/// format.
#[test]
fn every_name_is_the_same_in_errors_and_job_files() {
    for op in every_op() {
        let json = serde_json::to_value(&op).unwrap();
        let key = |value: &serde_json::Value| match value {
            serde_json::Value::String(name) => name.clone(),
            value => value.as_object().unwrap().keys().next().unwrap().clone(),
        };
        let expected = match &op {
            Op::Unary(_) => key(&json["unary"]),
            Op::Binary(_) => key(&json["binary"]),
            Op::Reduce { .. } => format!("reduce_{}", json["reduce"]["reduction"].as_str().unwrap()),
            Op::Softmax { .. } => "softmax".into(),
            _ => key(&json),
        };
        assert_eq!(op.name(), expected);
    }
}

#[test]
fn optional_fields_of_a_job_file_have_defaults() {
    for (json, op) in [
        (r#"{"mat_mul": {}}"#, Op::MatMul { transpose_a: false, transpose_b: false }),
        (r#"{"softmax": {}}"#, Op::Softmax { causal: false }),
        (r#"{"conv2d": {"stride": [1, 1]}}"#, Op::Conv2d(Stride::ONE)),
        (
            r#"{"reduce": {"reduction": "mean", "axes": [0]}}"#,
            Op::Reduce { reduction: ReductionOp::Mean, axes: vec![0], keep: false },
        ),
    ] {
        assert_eq!(serde_json::from_str::<Op>(json).unwrap(), op);
    }
    for json in [r#"{"relu": {}}"#, r#""relu""#, r#"{"top_k": {"k": 1, "l": 2}}"#, r#"{"top_k": {"k": -1}}"#]
    {
        assert!(serde_json::from_str::<Op>(json).is_err(), "{json} was accepted");
    }
}

#[track_caller]
pub(super) fn round_trips(op: &Op) {
    let json = serde_json::to_string(op).unwrap();
    assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), *op, "by JSON");
    let bytes = rmp_serde::to_vec_named(op).unwrap();
    assert_eq!(rmp_serde::from_slice::<Op>(&bytes).unwrap(), *op, "by MessagePack");
}

#[test]
fn every_operation_round_trips() {
    every_op().iter().for_each(round_trips);
}

proptest! {
    /// Checks that drawn operations stay the same if they are encoded and decoded. Operations with NaN or
    /// infinity are skipped: JSON cannot express these numbers, NaN does not equal itself, and a graph that
    /// contains one of them is refused anyway.
    #[test]
    fn any_operation_round_trips(op in any_op()) {
        let text = format!("{op:?}");
        if !text.contains("NaN") && !text.contains("inf") {
            round_trips(&op);
        }
    }
}
