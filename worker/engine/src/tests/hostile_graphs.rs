//! Tests graphs that an attacker might write. Each graph compiles and runs, whole or cut, or is rejected with
//! an error; none causes a panic.

use proptest::prelude::*;
use pushpull_messages::graph::{
    Arity, BinaryOp, GraphSpec, MetricSpec, NodeSpec, Op, OutputSpec, Padding, ReductionOp, Stride, UnaryOp,
    Window,
};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::{DType, Shape, TensorSpec};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};

use super::trial::{Bounds, Trial};
use super::{cut, stages};
use crate::{Executor, Feed, Program};

const EXAMPLES: usize = 2;
/// The size of the largest arena that these tests allocate, in bytes.
const ARENA_BYTES_MAX: usize = 1 << 20;

/// Draws mostly numbers below 9, which may be valid, and sometimes a number so large that products with it
/// may overflow.
fn any_number() -> impl Strategy<Value = usize> {
    prop_oneof![
        12 => 0usize..4,
        2 => 4usize..9,
        1 => prop::sample::select(vec![1 << 16, 1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, usize::MAX]),
    ]
}

fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -2.0f32..2.0,
        2 => 0.0f32..1.0,
        1 => prop::sample::select(vec![0.0, -0.0, 1.0, f32::MIN_POSITIVE, f32::MAX, f32::NAN, f32::INFINITY, -1.0]),
    ]
}

fn any_numbers() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any_number(), 0..5)
}

fn any_window() -> impl Strategy<Value = Window> {
    let pair = || (any_number(), any_number()).prop_map(|(down, right)| [down, right]);
    let padding = prop::sample::select(vec![Padding::Valid, Padding::Same]);
    (pair(), pair(), padding).prop_map(|(window, stride, padding)| Window { window, stride, padding })
}

fn any_example() -> impl Strategy<Value = TensorSpec> {
    let dtype = prop::sample::select(vec![DType::F32, DType::I32]);
    (any_numbers(), dtype).prop_map(|(extents, dtype)| TensorSpec { shape: Shape(extents), dtype })
}

fn any_op() -> impl Strategy<Value = Op> {
    let reduction = prop::sample::select(vec![ReductionOp::Sum, ReductionOp::Mean, ReductionOp::Max]);
    let binary = prop::sample::select(vec![BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div]);
    let unary = prop::sample::select(vec![
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Square,
        UnaryOp::Sqrt,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Sigmoid,
        UnaryOp::Tanh,
        UnaryOp::Relu,
        UnaryOp::Gelu,
    ]);
    let plain = prop::sample::select(vec![
        Op::ToFloat,
        Op::BiasAdd,
        Op::Embedding,
        Op::GlobalAveragePool,
        Op::LogSoftmax,
        Op::SoftmaxCrossEntropy,
        Op::SigmoidCrossEntropy,
        Op::MeanSquaredError,
        Op::Accuracy,
    ]);
    let shaped = prop_oneof![
        any_example().prop_map(|example| Op::Input { example }),
        (0u32..12).prop_map(|variable| Op::Variable { variable: VariableId(variable) }),
        (prop::collection::btree_set(any_number(), 0..4), reduction, any::<bool>()).prop_map(
            |(axes, reduction, keep)| Op::Reduce { reduction, axes: axes.into_iter().collect(), keep }
        ),
        any_numbers().prop_map(|extents| Op::Reshape { shape: Shape(extents) }),
        Just(vec![0usize, 1, 2, 3])
            .prop_shuffle()
            .prop_flat_map(|axes| (0usize..5).prop_map(move |rank| axes[..rank.min(4)].to_vec()))
            .prop_map(|axes| Op::Transpose { axes }),
        any_numbers().prop_map(|axes| Op::Transpose { axes }),
        any_number().prop_map(|axis| Op::Concat { axis }),
        (any_number(), any_number(), any_number()).prop_map(|(axis, start, length)| Op::Slice {
            axis,
            start,
            length
        }),
        any::<(bool, bool)>().prop_map(|(transpose_a, transpose_b)| Op::MatMul { transpose_a, transpose_b }),
        any_window().prop_map(|w| Op::Conv2d(Stride { stride: w.stride, padding: w.padding })),
        any_window().prop_map(Op::MaxPool2d),
        any_window().prop_map(Op::AveragePool2d),
    ];
    let numbered = prop_oneof![
        any_float().prop_map(|value| Op::Constant { value }),
        any_float().prop_map(|slope| Op::Unary(UnaryOp::LeakyRelu { slope })),
        (any_float(), any_float()).prop_map(|(epsilon, momentum)| Op::BatchNorm { epsilon, momentum }),
        any_float().prop_map(|epsilon| Op::LayerNorm { epsilon }),
        any_float().prop_map(|rate| Op::Dropout { rate }),
        any::<bool>().prop_map(|causal| Op::Softmax { causal }),
        any_number().prop_map(|k| Op::TopK { k }),
        any_number().prop_map(|bins| Op::AucCounts { bins }),
    ];
    prop_oneof![
        4 => shaped,
        2 => numbered,
        2 => plain,
        1 => unary.prop_map(Op::Unary),
        2 => binary.prop_map(Op::Binary),
    ]
}

/// Returns a graph with variables of all ranks, trained and untrained, and columns of all types.
fn start() -> GraphSpec {
    let shapes: [&[usize]; 10] =
        [&[], &[2], &[2, 2], &[2, 2, 2], &[2, 2, 1, 2], &[1], &[1, 2], &[3, 2], &[2], &[2]];
    let variables: Vec<VariableSpec> = shapes
        .into_iter()
        .enumerate()
        .map(|(id, shape)| VariableSpec {
            name: format!("v{id}"),
            shape: Shape(shape.to_vec()),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: id < 8,
            device: None,
        })
        .collect();
    let mut nodes = Vec::new();
    let node = |name: String, op| NodeSpec { name, op, inputs: Vec::new(), device: None };
    for id in 0..variables.len() as u32 {
        nodes.push(node(format!("v{id}"), Op::Variable { variable: VariableId(id) }));
    }
    for (name, example) in [
        ("x", TensorSpec::f32([2])),
        ("labels", TensorSpec::i32([])),
        ("images", TensorSpec::f32([2, 2, 1])),
        ("ids", TensorSpec::i32([2])),
    ] {
        nodes.push(node(name.into(), Op::Input { example }));
    }
    GraphSpec {
        name: "wild".into(),
        variables,
        nodes,
        loss: NodeId(0),
        metrics: Vec::new(),
        outputs: Vec::new(),
        summaries: Vec::new(),
    }
}

fn any_graph() -> impl Strategy<Value = GraphSpec> {
    let node = (any_op(), prop::collection::vec(any::<prop::sample::Index>(), 5), any::<u8>());
    let ends = prop::collection::vec(any::<prop::sample::Index>(), 3);
    (prop::collection::vec(node, 1..14), ends).prop_map(|(ops, ends)| {
        let mut graph = start();
        let mut tensors = graph.infer(EXAMPLES).unwrap();
        for (op, picks, try_hard) in ops {
            // The first combination of inputs that fits is used, if there is one. With random inputs, almost
            // no graph would be valid.
            let count = graph.nodes.len();
            let op = match op {
                Op::Variable { variable } => Op::Variable { variable: VariableId(variable.0 % 10) },
                op => op,
            };
            let (arity, name) = match op.arity() {
                Arity::Exactly(count) => (count, format!("n{count}_{}", graph.nodes.len())),
                Arity::AtLeast(least) => (least + usize::from(try_hard % 3), format!("c{count}")),
            };
            let tries = if arity == 0 { 1 } else { 400 };
            for shift in 0..tries {
                let pick = |position: usize| {
                    let moved = match position {
                        0 => shift,
                        1 => shift / count,
                        other => shift * (2 * other + 1),
                    };
                    // The moving statistics of a batch norm are always chosen from the same two nodes.
                    match (&op, position) {
                        (Op::BatchNorm { .. }, 3 | 4) => NodeId(8 + (picks[position].index(2) as u32)),
                        _ => NodeId(((picks[position].index(count) + moved) % count) as u32),
                    }
                };
                let inputs: Vec<NodeId> = (0..arity).map(pick).collect();
                graph.nodes.push(NodeSpec { name: name.clone(), op: op.clone(), inputs, device: None });
                if let Ok(tensor) = graph.infer_node(NodeId(count as u32), &tensors, EXAMPLES) {
                    tensors.push(tensor);
                    break;
                }
                graph.nodes.pop();
            }
        }
        // Scalars are chosen as loss and metrics if there are any, since most other nodes are rejected at
        // once.
        let scalars: Vec<usize> =
            (0..tensors.len()).filter(|&node| tensors[node].shape.rank() == 0).collect();
        let scalar = |end: &prop::sample::Index| match end.index(8) {
            0 => NodeId(end.index(graph.nodes.len() + 1) as u32),
            _ => NodeId(scalars[scalars.len() - 1 - end.index(scalars.len())] as u32),
        };
        let (loss, metrics): (NodeId, Vec<NodeId>) =
            (scalar(&ends[0]), ends[1..].iter().map(scalar).collect());
        let auc = graph.nodes.iter().rposition(|node| matches!(node.op, Op::AucCounts { .. }));
        let metrics = metrics.into_iter().chain(auc.map(|node| NodeId(node as u32)));
        graph.metrics = metrics
            .enumerate()
            .map(|(position, node)| MetricSpec { name: format!("m{position}"), node })
            .collect();
        graph.loss = loss;
        add_outputs(&mut graph, &ends);
        graph
    })
}

/// Adds an output for each node that `ends` chooses, and a second output for the first of these nodes. Omits
/// outputs that would make the graph invalid.
fn add_outputs(graph: &mut GraphSpec, ends: &[prop::sample::Index]) {
    for (position, end) in ends.iter().chain(&ends[..1]).enumerate() {
        let node = NodeId(end.index(graph.nodes.len()) as u32);
        graph.outputs.push(OutputSpec { name: format!("o{position}"), node });
        if graph.validate(EXAMPLES).is_err() {
            graph.outputs.pop();
        }
    }
}

/// Compiles the graph for each purpose, and runs the programs that are small enough, on random data that may
/// be invalid. Returns true if a training step or an evaluation succeeded.
fn run(graph: &GraphSpec, seed: u64) -> bool {
    let columns: Vec<ColumnSpec> = graph
        .nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::Input { example } => Some(ColumnSpec { name: node.name.clone(), example: example.clone() }),
            _ => None,
        })
        .collect();
    let fits = |column: &ColumnSpec| {
        column.example.shape.checked_elements().is_some_and(|elements| elements < 1 << 12)
    };
    if !columns.iter().all(fits) {
        // The graph must still compile, or be rejected.
        let threads = pushpull_kernels::cpu::Threads::One;
        let _ = Program::training(graph, EXAMPLES, &columns, threads);
        let _ = Program::evaluation(graph, EXAMPLES, &columns, threads);
        let _ = Program::prediction(graph, EXAMPLES, &columns, threads);
        return false;
    }
    let bound = 1 + seed as usize % 3;
    let bounds: Bounds = ["labels", "ids"].map(|name| (name.to_owned(), bound)).into();
    let trial = Trial::new(graph, &bounds, EXAMPLES, 2.0, seed);
    let (values, mut gradients) = (trial.values(), trial.gradients());
    let feed = Feed { random: seed, ..trial.feed() };
    let mut ran = false;
    if let Ok(program) = trial.training()
        && program.arena_bytes() <= ARENA_BYTES_MAX
    {
        let mut executor = Executor::new(program);
        ran |= executor.train(feed, &values, &mut gradients).is_ok();
    }
    if let Ok(program) = trial.evaluation()
        && program.arena_bytes() <= ARENA_BYTES_MAX
    {
        ran |= Executor::new(program).evaluate(feed, &values).is_ok();
    }
    if graph.validate(EXAMPLES).is_ok() {
        cut::run_wild(&trial, seed, ARENA_BYTES_MAX);
        stages::cut_wild(&trial, seed);
    }
    let threads = pushpull_kernels::cpu::Threads::One;
    if let Ok(program) = Program::prediction(graph, EXAMPLES, &trial.columns, threads)
        && program.arena_bytes() <= ARENA_BYTES_MAX
    {
        let _ = Executor::new(program).evaluate(feed, &values);
    }
    ran
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn any_valid_graph_runs_or_is_refused(graph in any_graph(), seed: u64) {
        run(&graph, seed);
    }

    /// Replaces the operation of one node of a graph, or the node's inputs, or both. Checks that the graph
    /// runs or is rejected.
    #[test]
    fn any_change_of_a_graph_is_taken_or_refused(
        graph in any_graph(),
        position: prop::sample::Index,
        op in prop::option::of(any_op()),
        inputs in prop::option::of(prop::collection::vec(0u32..24, 0..6)),
        seed: u64,
    ) {
        let mut graph = graph;
        let position = position.index(graph.nodes.len());
        if let Some(op) = op {
            graph.nodes[position].op = op;
        }
        if let Some(inputs) = inputs {
            graph.nodes[position].inputs = inputs.into_iter().map(NodeId).collect();
        }
        run(&graph, seed);
    }
}

/// Checks that more than half of the drawn graphs run. Otherwise the tests above would check little.
#[test]
fn most_wild_graphs_run() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = any_graph();
    let ran = (0..300).filter(|&seed| run(&strategy.new_tree(&mut runner).unwrap().current(), seed)).count();
    assert!(ran > 150, "{ran} of 300");
}
