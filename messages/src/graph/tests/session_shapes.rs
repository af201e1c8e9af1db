//! Tests each operation of sessions by two tables: one lists the operation's output for valid inputs, the
//! other its error if an input or a number has a fault.

use super::*;
use crate::id::{NodeId, VariableId};
use crate::optimizer::OptimizerSpec;
use crate::tensor::{DType, Shape, Tensor, TensorSpec};
use crate::variable::VariableSpec;

/// Parses the type and shape of a tensor, such as `f32[2, 3]`.
fn tensor(text: &str) -> TensorSpec {
    let (dtype, extents) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let extents = extents.split(", ").filter(|extent| !extent.is_empty());
    let shape = Shape(extents.map(|extent| extent.parse().unwrap()).collect());
    TensorSpec { shape, dtype: DType::ALL.into_iter().find(|known| known.name() == dtype).unwrap() }
}

/// Returns the type and shape of the operation's output, or its error. The inputs are placeholders. Variable
/// 0 is `f32[3]`, variable 1 is `i64[]`, and variable 2 is `text[]`.
fn gives(op: SessionOp, inputs: &[&str]) -> Result<String, String> {
    let mut graph = classifier();
    graph.nodes.clear();
    let variable = |(name, spec): (&str, &str)| {
        let TensorSpec { shape, dtype } = tensor(spec);
        let initializer = InitializerSpec::Zeros;
        VariableSpec { name: name.into(), shape, dtype, initializer, trainable: false, device: None }
    };
    graph.variables = [("w", "f32[3]"), ("n", "i64[]"), ("t", "text[]")].map(variable).into();
    for (position, input) in inputs.iter().enumerate() {
        let op = Op::Session(SessionOp::Placeholder { tensor: tensor(input) });
        graph.nodes.push(NodeSpec { name: format!("x{position}"), op, inputs: vec![], device: None });
    }
    let inputs = (0..inputs.len() as u32).map(NodeId).collect();
    graph.nodes.push(NodeSpec { name: "it".into(), op: Op::Session(op), inputs, device: None });
    let name = graph.nodes.last().unwrap().op.name();
    let message = |error: GraphError| {
        let message = error.to_string();
        assert!(message.contains(&format!("({name} 'it')")), "{message}");
        message
    };
    graph.validate_session().map_err(message)?;
    let all = vec![true; graph.nodes.len()];
    Ok(graph.infer_session(2, &all).map_err(message)?.pop().unwrap().unwrap().to_string())
}

const W: VariableId = VariableId(0);
const N: VariableId = VariableId(1);
const T: VariableId = VariableId(2);

fn assign(variable: VariableId, update: VariableUpdate) -> SessionOp {
    SessionOp::Assign { variable, update }
}

fn apply(variable: VariableId) -> SessionOp {
    SessionOp::Apply { variable, optimizer: OptimizerSpec::sgd(0.5) }
}

fn reduce(reduction: ReductionOp, axes: &[usize]) -> SessionOp {
    SessionOp::Reduce { reduction, axes: axes.to_vec(), keep: true }
}

#[test]
fn every_output_of_sessions_has_its_spec() {
    use SessionOp::*;
    for (op, inputs, expected) in [
        (Constant { value: Tensor::from(["a", "b"]) }, &[][..], "text[2]"),
        (Placeholder { tensor: tensor("u8[4, 4]") }, &[], "u8[4, 4]"),
        (Cast { to: DType::I64 }, &["bool[2]"], "i64[2]"),
        (Cast { to: DType::Bool }, &["f32[]"], "bool[]"),
        (Unary(UnaryOp::Neg), &["i64[2]"], "i64[2]"),
        (Unary(UnaryOp::Relu), &["u8[2]"], "u8[2]"),
        (Unary(UnaryOp::Gelu), &["f64[2]"], "f64[2]"),
        (Binary(BinaryOp::Div), &["i64[2, 1]", "i64[3]"], "i64[2, 3]"),
        (reduce(ReductionOp::Sum, &[0]), &["i32[2, 3]"], "i32[1, 3]"),
        (reduce(ReductionOp::Mean, &[0, 1]), &["f64[2, 3]"], "f64[1, 1]"),
        (Compare(Comparison::Equal), &["text[2]", "text[]"], "bool[2]"),
        (Compare(Comparison::NotEqual), &["bool[2]", "bool[2]"], "bool[2]"),
        (Compare(Comparison::Less), &["f32[4, 1]", "f32[2]"], "bool[4, 2]"),
        (Logical(Logic::And), &["bool[2]", "bool[]"], "bool[2]"),
        (Logical(Logic::Not), &["bool[2]"], "bool[2]"),
        (Select, &["bool[]", "text[2]", "text[]"], "text[2]"),
        (Select, &["bool[3, 1]", "f32[2]", "f32[]"], "f32[3, 2]"),
        (ArgMax { axis: 1 }, &["f32[2, 3, 4]"], "i64[2, 4]"),
        (TopValues { k: 2 }, &["i64[5, 3]"], "i64[5, 2]"),
        (TopIndices { k: 3 }, &["f32[3]"], "i32[3]"),
        (AddN, &["f32[3]"], "f32[3]"),
        (AddN, &["i64[3]", "i64[3]", "i64[3]"], "i64[3]"),
        (Identity, &["text[1]"], "text[1]"),
        (assign(W, VariableUpdate::Sub), &["f32[3]"], "f32[3]"),
        (assign(T, VariableUpdate::Set), &["text[]"], "text[]"),
        (Initialize { variable: T }, &[], "bool[]"),
        (Group, &[], "bool[]"),
        (Group, &["text[2]", "f32[]"], "bool[]"),
        (Gradient { variable: W }, &["f32[]"], "f32[3]"),
        (apply(W), &["f32[3]"], "bool[]"),
    ] {
        assert_eq!(gives(op.clone(), inputs), Ok(expected.to_owned()), "{op:?} of {inputs:?}");
    }
}

#[test]
fn every_fault_of_sessions_is_refused() {
    use SessionOp::*;
    const MAX: usize = usize::MAX;
    let sgd = OptimizerSpec::sgd(f32::NAN);
    for (op, inputs, expected) in [
        (
            Constant { value: Tensor::vector(vec![0i64; 0]) },
            &[][..],
            "shape [0], expected all extents above 0",
        ),
        (Placeholder { tensor: tensor("u8[4, 0]") }, &[], "has the shape [4, 0], expected all extents"),
        (Placeholder { tensor: TensorSpec::f32([MAX, 2]) }, &[], "expected at most 4294967296 elements"),
        (Placeholder { tensor: TensorSpec::f32([1; 9]) }, &[], "8 axes"),
        (Cast { to: DType::Text }, &["f32[]"], "has the type text, expected numbers or bool"),
        (Cast { to: DType::F32 }, &["text[]"], "expects numbers or bool, got text[]"),
        (Unary(UnaryOp::Neg), &["u8[2]"], "expects i32, i64 or f64, got u8[2]"),
        (Unary(UnaryOp::Exp), &["i64[2]"], "expects f64, got i64[2]"),
        (Unary(UnaryOp::Abs), &["f32[2]"], "expects i32, i64, f64 or u8, got f32[2]"),
        (Unary(UnaryOp::LeakyRelu { slope: f32::NAN }), &["f64[2]"], "has the slope NaN"),
        (Binary(BinaryOp::Add), &["f32[2]", "f32[2]"], "i32, i64, f64 or u8, whose extents"),
        (Binary(BinaryOp::Add), &["i32[2]", "i64[2]"], "two tensors of the same type"),
        (Binary(BinaryOp::Add), &["i32[2]", "i32[3]"], "are equal or 1"),
        (Binary(BinaryOp::Add), &["text[]", "text[]"], "got text[], text[]"),
        (reduce(ReductionOp::Sum, &[1, 0]), &["i32[2, 3]"], "with the axes [1, 0], in ascending order"),
        (reduce(ReductionOp::Max, &[MAX]), &["i32[2, 3]"], "got i32[2, 3]"),
        (reduce(ReductionOp::Mean, &[0]), &["i32[2]"], "expects a tensor of f64 with the axes [0]"),
        (reduce(ReductionOp::Sum, &[]), &["i32[2]"], "with the axes []"),
        (Compare(Comparison::Less), &["text[]", "text[]"], "expects two tensors of numbers"),
        (Compare(Comparison::Equal), &["text[]", "f32[]"], "expects two tensors of the same type"),
        (Logical(Logic::Or), &["bool[2]", "i32[2]"], "expects bools"),
        (Logical(Logic::Not), &["bool[2]", "bool[2]"], "has 2 inputs, expected 1"),
        (Select, &["i32[]", "f32[]", "f32[]"], "expects a bool and two tensors"),
        (Select, &["bool[]", "f32[]", "f64[]"], "of the same type"),
        (ArgMax { axis: 1 }, &["f32[2]"], "expects numbers with the axis 1, got f32[2]"),
        (ArgMax { axis: 0 }, &["bool[2]"], "expects numbers with the axis 0"),
        (TopValues { k: 0 }, &["f32[2]"], "has the k 0, expected at least 1"),
        (TopIndices { k: 3 }, &["f32[2]"], "expects numbers with at least 3 elements in each row"),
        (TopIndices { k: 1 }, &["f32[]"], "in each row, got f32[]"),
        (AddN, &[], "has 0 inputs, expected 1 or more"),
        (AddN, &["f32[2]", "f32[1]"], "expects numbers of the same type and shape"),
        (
            assign(T, VariableUpdate::Add),
            &["text[]"],
            "has the variable text[], expected a variable of numbers",
        ),
        (assign(W, VariableUpdate::Set), &["f32[2]"], "expects f32[3], as the variable, got f32[2]"),
        (assign(VariableId(3), VariableUpdate::Set), &["f32[2]"], "names variable 3, but the graph has 3"),
        (Initialize { variable: VariableId(u32::MAX) }, &[], "names variable 4294967295"),
        (Gradient { variable: N }, &["f32[]"], "has the variable i64[], expected an f32 variable"),
        (Gradient { variable: W }, &["f32[1]"], "expects a loss that is an f32 scalar, got f32[1]"),
        (apply(N), &["i64[]"], "expected an f32 variable"),
        (apply(W), &["f32[]"], "expects a gradient f32[3], as the variable, got f32[]"),
        (Apply { variable: W, optimizer: sgd }, &["f32[3]"], "has an invalid optimizer: sgd: learning_rate"),
    ] {
        let message = gives(op.clone(), inputs).expect_err("a fault was accepted");
        assert!(message.contains(expected), "expected '{expected}' in: {message}");
    }
}
