//! Tests of the builder's methods for sessions, and of the parts of a graph that a run needs.

use super::*;
use crate::device::OpDeviceSpec;
use crate::id::{NodeId, VariableId};
use crate::optimizer::OptimizerSpec;
use crate::tensor::{DType, Tensor, TensorSpec};

fn spec(graph: &GraphSpec, node: NodeId, batch: usize) -> Result<String, GraphError> {
    let tensors = graph.infer_session(batch, &graph.needed(&[node]))?;
    Ok(tensors[node.index()].as_ref().expect("the node is needed").to_string())
}

#[test]
fn a_counter_of_integers_needs_no_loss() {
    let mut g = GraphBuilder::new("counter");
    let counter = g.variable_of("counter", [], DType::I64, InitializerSpec::Zeros);
    let one = g.value(1i64);
    let next = g.assign_add(counter, one);
    let twice = g.add(next, next);
    let limit = g.placeholder("limit", TensorSpec::new(DType::I64, []));
    let reached = g.greater_equal(twice, limit);
    let name = g.text("done");
    let other = g.text("");
    let shown = g.select(reached, name, other);
    let start = g.initialize();
    let graph = g.finish_session().unwrap();
    assert_eq!(spec(&graph, twice, 1).unwrap(), "i64[]");
    assert_eq!(spec(&graph, shown, 1).unwrap(), "text[]");
    assert_eq!(spec(&graph, start, 1).unwrap(), "bool[]");
    let needed = graph.needed(&[reached]);
    assert!(needed[limit.index()] && needed[one.index()]);
    assert!(!needed[counter.index()] && !needed[name.index()] && !needed[start.index()]);
    let error = graph.validate(1).unwrap_err().to_string();
    assert!(error.starts_with("variable 'counter' has the type i64, expected f32: only sessions"), "{error}");
    assert_eq!(graph.needed(&[NodeId(u32::MAX)]), vec![false; graph.nodes.len()]);
}

#[test]
fn the_type_of_the_operand_chooses_the_operation() {
    let mut g = GraphBuilder::new("types");
    let floats = g.value(vec![1f32, 2.0]);
    let ints = g.value([1i64, 2]);
    for (x, of_session) in [(floats, false), (ints, true)] {
        let sum = g.add(x, x);
        let nodes =
            [sum, g.unary(UnaryOp::Abs, sum), g.reduce(ReductionOp::Max, sum, &[0], false), g.identity(sum)];
        for node in nodes {
            assert_eq!(matches!(g.graph().nodes[node.index()].op, Op::Session(_)), of_session);
        }
        let total = g.add_n(&[sum, sum, x]);
        let op = &g.graph().nodes[total.index()].op;
        assert_eq!(*op == Op::Session(SessionOp::AddN), of_session, "{op:?}");
    }
    let scalar = g.value(0.5f32);
    let labels = g.labels("labels");
    let cast = [g.cast(labels, DType::F32), g.cast(labels, DType::I64)];
    assert_eq!(g.graph().nodes[scalar.index()].op, Op::Constant { value: 0.5 });
    assert_eq!(g.graph().nodes[cast[0].index()].op, Op::ToFloat);
    let graph = g.finish_session().unwrap();
    assert_eq!(cast.map(|node| spec(&graph, node, 3).unwrap()), ["f32[3]", "i64[3]"]);
}

/// Checks that only trained variables on which the loss depends by differentiable operations are updated.
#[test]
fn minimize_updates_the_variables_of_the_loss() {
    let mut g = GraphBuilder::new("linear");
    let device: OpDeviceSpec = "/job:worker/task:1".parse().unwrap();
    let x = g.input("x", [3]);
    let kernel = g.on_op_device(device, |g| g.variable("kernel", [3, 2], InitializerSpec::Zeros));
    let moving = g.untrained("moving", [2], InitializerSpec::Zeros);
    g.variable("unused", [2], InitializerSpec::Zeros);
    let behind = g.variable("behind", [2], InitializerSpec::Zeros);
    let y = g.matmul(x, kernel);
    let y = g.add(y, moving);
    let chosen = g.value([true, false]);
    let chosen = g.select(chosen, behind, behind);
    let y = g.add(y, chosen);
    let loss = g.l2_loss(y);
    let parts = g.add_n(&[loss, loss]);
    let adam = OptimizerSpec::adam(0.1);
    let step = g.minimize(&adam, parts);
    let graph = g.finish_session().unwrap();
    assert_eq!(spec(&graph, step, 5).unwrap(), "bool[]");
    let [apply] = graph.nodes[step.index()].inputs[..] else { panic!("one variable is trained") };
    let variable = VariableId(0);
    let apply = &graph.nodes[apply.index()];
    assert_eq!(apply.op, Op::Session(SessionOp::Apply { variable, optimizer: adam }));
    let gradient = &graph.nodes[apply.inputs[0].index()];
    assert_eq!(gradient.op, Op::Session(SessionOp::Gradient { variable }));
    assert_eq!(gradient.inputs, [parts]);
    assert_eq!([apply.device, gradient.device], [Some(device); 2]);
    assert_eq!(graph.nodes[loss.index()].device, None);
}

#[test]
fn an_assignment_is_on_the_device_of_its_variable() {
    let mut g = GraphBuilder::new("devices");
    let device = |task: u32| format!("/job:worker/task:{task}").parse::<OpDeviceSpec>().unwrap();
    let v = g.on_op_device(device(0), |g| g.variable("v", [2], InitializerSpec::Zeros));
    let w = g.variable("w", [2], InitializerSpec::Zeros);
    let nodes = g.on_op_device(device(1), |g| [g.assign(v, w), g.assign_sub(w, v), g.add(v, w)]);
    let graph = g.finish_session().unwrap();
    let devices = nodes.map(|node| graph.nodes[node.index()].device);
    assert_eq!(devices, [Some(device(0)), None, Some(device(1))]);
}

#[test]
fn a_run_ignores_shapes_that_it_does_not_need() {
    let mut g = GraphBuilder::new("batches");
    let x = g.input("x", [2]);
    let two = g.value(vec![1f32, 2.0]);
    let two = g.reshape(two, []);
    let product = g.mul(x, two);
    let pair = g.slice(x, 0, 1, 1);
    let graph = g.finish_session().unwrap();
    assert_eq!(spec(&graph, product, 1).unwrap(), "f32[1, 2]");
    assert!(spec(&graph, pair, 1).unwrap_err().to_string().contains("elements 1..2 along axis 0"));
    assert_eq!(spec(&graph, pair, 2).unwrap(), "f32[1, 2]");
}

#[test]
fn faults_of_a_session_are_refused_by_name() {
    type Build<'a> = &'a dyn Fn(&mut GraphBuilder);
    let finish = |build: Build<'_>| {
        let mut g = GraphBuilder::new("faults");
        build(&mut g);
        g.finish_session().unwrap_err().to_string()
    };
    let relu = |g: &mut GraphBuilder| {
        let x = g.input("x", [2]);
        g.relu(x)
    };
    let faults: [(&str, Build<'_>); _] = [
        ("node 1 (relu 'relu') is not a variable", &|g| {
            relu(g);
            g.assign(NodeId(1), NodeId(0));
        }),
        ("node 7 is not a variable", &|g| _ = g.gradient(NodeId(0), NodeId(7))),
        ("the loss node 0 (constant 'constant') depends on no trained variable", &|g| {
            let loss = g.constant(1.0);
            g.minimize(&OptimizerSpec::sgd(0.1), loss);
        }),
        ("node 'x' is defined twice", &|g| {
            relu(g);
            g.placeholder("x", TensorSpec::f32([]));
        }),
        ("the initializer of variable 'v' does not fit the type text", &|g| {
            let initializer = InitializerSpec::Constant { value: 1.0 };
            g.variable_of("v", [], DType::Text, initializer);
        }),
        ("has the type text, expected f32 or i32: feed other types to a placeholder", &|g| {
            g.push("x", Op::Input { example: TensorSpec::new(DType::Text, []) }, &[]);
        }),
        ("the constants of the graph have 67108865 bytes, expected at most 67108864", &|g| {
            g.value(Tensor::vector(vec![0u8; CONSTANT_BYTES_MAX - 8]));
            g.value(Tensor::vector(vec![false; 1]));
            g.value(1i64);
        }),
    ];
    for (expected, build) in faults {
        let error = finish(build);
        assert!(error.contains(expected), "expected '{expected}' in: {error}");
    }
}

#[test]
fn large_constants_within_the_limit_are_accepted() {
    let mut g = GraphBuilder::new("constants");
    g.value(Tensor::vector(vec![0u8; CONSTANT_BYTES_MAX]));
    g.finish_session().unwrap();
}
