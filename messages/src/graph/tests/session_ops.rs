//! A list of all operations of sessions, a strategy that also draws invalid ones, and tests of their
//! properties.

use proptest::prelude::*;

use super::every_op::{BINARY, REDUCTIONS, UNARY, any_op, extent, number, round_trips, shape};
use super::*;
use crate::fixtures::tensors::any_tensor;
use crate::id::VariableId;
use crate::optimizer::OptimizerSpec;
use crate::tensor::{DType, Tensor, TensorSpec};

const COMPARISONS: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessEqual,
    Comparison::Greater,
    Comparison::GreaterEqual,
];
const LOGIC: [Logic; 3] = [Logic::And, Logic::Or, Logic::Not];
const UPDATES: [VariableUpdate; 3] = [VariableUpdate::Set, VariableUpdate::Add, VariableUpdate::Sub];

/// Returns every operation at least once, with valid numbers.
pub(super) fn every_session_op() -> Vec<SessionOp> {
    let variable = VariableId(1);
    let mut ops = vec![
        SessionOp::Constant { value: Tensor::from(["a", ""]) },
        SessionOp::Placeholder { tensor: TensorSpec::new(DType::Bool, [3]) },
        SessionOp::Select,
        SessionOp::ArgMax { axis: 1 },
        SessionOp::TopValues { k: 2 },
        SessionOp::TopIndices { k: 1 },
        SessionOp::AddN,
        SessionOp::Identity,
        SessionOp::Initialize { variable },
        SessionOp::Group,
        SessionOp::Gradient { variable },
        SessionOp::Apply { variable, optimizer: OptimizerSpec::adam(0.5) },
    ];
    ops.extend(DType::ALL.map(|to| SessionOp::Cast { to }));
    ops.extend(UNARY.map(SessionOp::Unary));
    ops.extend(BINARY.map(SessionOp::Binary));
    ops.extend(REDUCTIONS.map(|reduction| SessionOp::Reduce { reduction, axes: vec![0], keep: false }));
    ops.extend(COMPARISONS.map(SessionOp::Compare));
    ops.extend(LOGIC.map(SessionOp::Logical));
    ops.extend(UPDATES.map(|update| SessionOp::Assign { variable, update }));
    ops
}

/// Draws an operation of sessions: a valid one, or one with random numbers, many of which are invalid.
fn any_session_op() -> impl Strategy<Value = SessionOp> {
    let dtype = || prop::sample::select(DType::ALL.to_vec());
    let variable = || (0u32..8).prop_map(VariableId);
    let drawn = prop_oneof![
        any_tensor().prop_map(|value| SessionOp::Constant { value }),
        (dtype(), shape())
            .prop_map(|(dtype, shape)| SessionOp::Placeholder { tensor: TensorSpec { shape, dtype } }),
        (prop::sample::select(REDUCTIONS.to_vec()), prop::collection::vec(extent(), 0..4), any::<bool>())
            .prop_map(|(reduction, axes, keep)| SessionOp::Reduce { reduction, axes, keep }),
        number().prop_map(|slope| SessionOp::Unary(UnaryOp::LeakyRelu { slope })),
        extent().prop_map(|axis| SessionOp::ArgMax { axis }),
        extent().prop_map(|k| SessionOp::TopValues { k }),
        extent().prop_map(|k| SessionOp::TopIndices { k }),
        (variable(), prop::sample::select(UPDATES.to_vec()))
            .prop_map(|(variable, update)| SessionOp::Assign { variable, update }),
        variable().prop_map(|variable| SessionOp::Initialize { variable }),
        variable().prop_map(|variable| SessionOp::Gradient { variable }),
        (variable(), number()).prop_map(|(variable, rate)| {
            SessionOp::Apply { variable, optimizer: OptimizerSpec::momentum(rate, 0.5) }
        }),
    ];
    prop_oneof![1 => drawn, 1 => prop::sample::select(every_session_op())]
}

/// Draws an operation that a session's graph may contain, with valid or invalid numbers.
pub(super) fn any_op_of_sessions() -> impl Strategy<Value = Op> {
    prop_oneof![1 => any_op(), 2 => any_session_op().prop_map(Op::Session)]
}

/// Returns a number for the operation's variant. If a variant is added, this function does not compile until
/// it has a line for the variant. Then raise the count in the test below, which fails until
/// [`every_session_op`] returns the variant.
fn variant(op: &SessionOp) -> usize {
    match op {
        SessionOp::Constant { .. } => 0,
        SessionOp::Placeholder { .. } => 1,
        SessionOp::Cast { .. } => 2,
        SessionOp::Unary(_) => 3,
        SessionOp::Binary(_) => 4,
        SessionOp::Reduce { .. } => 5,
        SessionOp::Compare(_) => 6,
        SessionOp::Logical(_) => 7,
        SessionOp::Select => 8,
        SessionOp::ArgMax { .. } => 9,
        SessionOp::TopValues { .. } => 10,
        SessionOp::TopIndices { .. } => 11,
        SessionOp::AddN => 12,
        SessionOp::Identity => 13,
        SessionOp::Assign { .. } => 14,
        SessionOp::Initialize { .. } => 15,
        SessionOp::Group => 16,
        SessionOp::Gradient { .. } => 17,
        SessionOp::Apply { .. } => 18,
    }
}

#[test]
fn every_variant_of_sessions_is_covered() {
    let mut variants: Vec<usize> = every_session_op().iter().map(variant).collect();
    variants.sort_unstable();
    variants.dedup();
    assert_eq!(variants, (0..19).collect::<Vec<_>>());
}

#[test]
fn every_operation_of_sessions_round_trips() {
    every_session_op().into_iter().map(Op::Session).for_each(|op| round_trips(&op));
}

#[test]
fn a_training_job_refuses_operations_of_sessions() {
    for op in every_session_op() {
        let mut graph = classifier();
        graph.nodes.push(NodeSpec { name: "x".into(), op: Op::Session(op), inputs: vec![], device: None });
        let name = graph.nodes.last().unwrap().op.name();
        let error = graph.validate(2).unwrap_err().to_string();
        let expected = format!("({name} 'x') is an operation of sessions: a training job cannot have it");
        assert!(error.contains(&expected), "{error}");
    }
}

proptest! {
    /// Skips operations with NaN, because NaN does not equal itself, and JSON has no infinity.
    #[test]
    fn any_operation_of_sessions_round_trips(op in any_session_op()) {
        let text = format!("{op:?}");
        if !text.contains("NaN") && !text.contains("inf") {
            round_trips(&Op::Session(op));
        }
    }
}
