//! G1: every gradient agrees with finite differences, taken in f64 of a plain interpreter of the same graph; and
//! the compiled program computes what the interpreter does, whatever was fused and written over.

use std::sync::Arc;

use kernels::cpu::Threads;
use messages::buffer::{BufferPool, Payload};
use messages::graph::{GraphBuilder, GraphSpec, Op};
use messages::id::{NodeId, PlacementEpoch, ShardId, VariableId};
use messages::placement::{PlacedSlice, Placement, SliceSpec};
use messages::tensor::Shape;
use messages::variable::InitializerSpec;
use proptest::prelude::*;

use super::compile::Kernel;
use super::*;
use crate::gradients::Gradients;
use crate::input::Batch;
use crate::layout::Layout;
use crate::values::Values;

/// Every node's value, in f64, computed in the plainest way.
fn interpret(graph: &GraphSpec, batch: &Batch, variables: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let tensors = graph.infer(batch.examples).unwrap();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for node in &graph.nodes {
        let input = |position: usize| &values[node.inputs[position].index()];
        let shape = |position: usize| &tensors[node.inputs[position].index()].shape.0;
        let labels = || batch.labels.iter().map(|&label| label as usize);
        let value = match &node.op {
            Op::Input { .. } if node.name == LABELS => labels().map(|label| label as f64).collect(),
            Op::Input { .. } => batch.features.iter().map(|&x| f64::from(x)).collect(),
            Op::Variable { variable } => variables[variable.index()].clone(),
            Op::Constant { value } => vec![f64::from(*value)],
            Op::MatMul { transpose_a, transpose_b } => {
                let at = |position: usize, row: usize, col: usize, transposed: bool| {
                    let (row, col) = if transposed { (col, row) } else { (row, col) };
                    input(position)[row * shape(position)[1] + col]
                };
                let (m, k) = (shape(0)[usize::from(*transpose_a)], shape(0)[usize::from(!*transpose_a)]);
                let n = shape(1)[usize::from(!*transpose_b)];
                let cell = |row: usize, col: usize| {
                    (0..k).map(|i| at(0, row, i, *transpose_a) * at(1, i, col, *transpose_b)).sum()
                };
                (0..m)
                    .flat_map(|row| (0..n).map(move |col| (row, col)))
                    .map(|(row, col)| cell(row, col))
                    .collect()
            }
            Op::BiasAdd => {
                let bias = input(1);
                input(0).iter().enumerate().map(|(i, x)| x + bias[i % bias.len()]).collect()
            }
            Op::Relu => input(0).iter().map(|x| x.max(0.0)).collect(),
            Op::Add => input(0).iter().zip(input(1)).map(|(a, b)| a + b).collect(),
            Op::Reshape { .. } => input(0).clone(),
            Op::SoftmaxCrossEntropy => {
                let rows = input(0).chunks(shape(0)[1]).zip(labels());
                let loss =
                    rows.map(|(row, label)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[label]);
                vec![loss.sum::<f64>() / batch.examples as f64]
            }
            Op::Accuracy => {
                let rows = input(0).chunks(shape(0)[1]).zip(labels());
                // Of equal logits the first counts.
                let right = rows.filter(|(row, label)| {
                    row[..*label].iter().all(|x| *x < row[*label]) && row.iter().all(|x| *x <= row[*label])
                });
                let right = right.count();
                vec![right as f64 / batch.examples as f64]
            }
            Op::ReluGrad | Op::SumRows | Op::SoftmaxCrossEntropyGrad => {
                unreachable!("only the backward pass has these")
            }
        };
        values.push(value);
    }
    values
}

/// One shard that owns everything.
fn layout(graph: &GraphSpec) -> Arc<Layout> {
    let shard = ShardId::new(0, 0);
    let slices = graph.variables.iter().enumerate();
    let slices = slices.map(|(id, variable)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id as u32), variable),
        shard,
    });
    let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: slices.collect() };
    Arc::new(Layout::new(&placement, &graph.variables))
}

fn values(layout: &Arc<Layout>, variables: &[Vec<f64>]) -> Values {
    let pool = BufferPool::default();
    let mut buffers = Gradients::take(layout, &pool);
    for (id, variable) in variables.iter().enumerate() {
        let floats = buffers.variable_mut(VariableId(id as u32));
        floats.iter_mut().zip(variable).for_each(|(to, from)| *to = *from as f32);
    }
    let payloads: Vec<Payload> = buffers.into_payloads();
    Values::assemble(layout, &payloads, &pool).unwrap()
}

/// A repeatable stream of numbers in −1..1.
fn numbers(mut seed: u64) -> impl FnMut() -> f64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }
}

/// What a random network is made of, layer by layer.
#[derive(Clone, Debug)]
struct Layer {
    width: usize,
    transposed: bool,
    bias: bool,
    relu: bool,
    /// The layer's output is added to itself after another product with the same, shared kernel.
    residual: bool,
}

fn any_layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer = (1usize..7, any::<[bool; 4]>()).prop_map(|(width, [transposed, bias, relu, residual])| {
        Layer { width, transposed, bias, relu, residual }
    });
    prop::collection::vec(layer, 1..4)
}

fn network(layers: &[Layer], features: [usize; 2], classes: usize) -> GraphSpec {
    let mut g = GraphBuilder::new("network");
    let x = g.input(FEATURES, features);
    let labels = g.labels(LABELS);
    let mut width = features[0] * features[1];
    let mut x = g.reshape(x, [width]);
    let normal = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
    for (position, layer) in layers.iter().enumerate() {
        let shape = if layer.transposed { [layer.width, width] } else { [width, layer.width] };
        let kernel = g.variable(&format!("{position}/kernel"), shape, normal.clone());
        let product = Op::MatMul { transpose_a: false, transpose_b: layer.transposed };
        x = g.push("product", product, &[x, kernel]);
        width = layer.width;
        if layer.bias {
            let bias = g.variable(&format!("{position}/bias"), [width], normal.clone());
            x = g.bias_add(x, bias);
        }
        if layer.relu {
            x = g.relu(x);
        }
        if layer.residual {
            let square = g.variable(&format!("{position}/square"), [width, width], normal.clone());
            let once = g.matmul(x, square);
            let twice =
                g.push("again", Op::MatMul { transpose_a: false, transpose_b: true }, &[once, square]);
            x = g.add(x, twice);
        }
    }
    let kernel = g.variable("logits/kernel", [width, classes], normal);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).unwrap()
}

fn batch(graph: &GraphSpec, examples: usize, classes: usize, next: &mut impl FnMut() -> f64) -> Batch {
    let features = graph.infer(examples).unwrap()[0].shape.elements();
    Batch {
        features: (0..features).map(|_| next() as f32).collect(),
        labels: (0..examples).map(|_| ((next() + 1.0) / 2.0 * classes as f64) as i32).collect(),
        examples,
        resume_at: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn gradients_agree_with_finite_differences(
        layers in any_layers(),
        features in (1usize..4, 1usize..4),
        classes in 2usize..5,
        examples in 1usize..5,
        seed: u64,
    ) {
        let graph = network(&layers, [features.0, features.1], classes);
        let mut next = numbers(seed);
        let batch = batch(&graph, examples, classes, &mut next);
        let mut variables: Vec<Vec<f64>> = graph
            .variables
            .iter()
            // Through f32, so that both sides see the same numbers.
            .map(|variable| (0..variable.shape.elements()).map(|_| f64::from(next() as f32)).collect())
            .collect();
        let layout = layout(&graph);
        let mut executor = Executor::new(Program::training(&graph, examples).unwrap());
        let pool = BufferPool::default();
        let mut gradients = Gradients::take(&layout, &pool);
        // Left-over memory must not shine through.
        for id in 0..variables.len() {
            gradients.variable_mut(VariableId(id as u32)).fill(f32::NAN);
        }
        let at = values(&layout, &variables);
        let loss = executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap()[0];
        let expected = interpret(&graph, &batch, &variables)[graph.loss.index()][0];
        prop_assert!((f64::from(loss) - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{loss} {expected}");
        // The same again, in an arena that is no longer all zeros.
        let first: Vec<Vec<f32>> =
            (0..variables.len()).map(|id| gradients.variable_mut(VariableId(id as u32)).to_vec()).collect();
        executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap();
        const STEP: f64 = 1e-5;
        for id in 0..variables.len() {
            let computed = gradients.variable_mut(VariableId(id as u32)).to_vec();
            prop_assert_eq!(&computed, &first[id]);
            for element in 0..variables[id].len() {
                let mut loss_at = |shift: f64| {
                    variables[id][element] += shift;
                    let loss = interpret(&graph, &batch, &variables)[graph.loss.index()][0];
                    variables[id][element] -= shift;
                    loss
                };
                let (up, down, here) = (loss_at(STEP), loss_at(-STEP), loss_at(0.0));
                let (right, left) = ((up - here) / STEP, (here - down) / STEP);
                // At the kink of a relu there is no derivative; both sides then differ.
                if (right - left).abs() > 1e-3 * (1.0 + right.abs()) {
                    continue;
                }
                let expected = (up - down) / (2.0 * STEP);
                let got = f64::from(computed[element]);
                prop_assert!(
                    (got - expected).abs() <= 1e-3 * (1.0 + expected.abs()),
                    "{}[{element}]: {got}, and by differences {expected}",
                    graph.variables[id].name
                );
            }
        }
    }

    #[test]
    fn evaluation_computes_the_loss_and_every_metric(
        layers in any_layers(),
        classes in 2usize..5,
        examples in 1usize..9,
        seed: u64,
    ) {
        let graph = network(&layers, [2, 3], classes);
        let mut next = numbers(seed);
        let batch = batch(&graph, examples, classes, &mut next);
        let variables: Vec<Vec<f64>> = graph
            .variables
            .iter()
            .map(|variable| (0..variable.shape.elements()).map(|_| f64::from(next() as f32)).collect())
            .collect();
        let mut executor = Executor::new(Program::evaluation(&graph, examples).unwrap());
        let at = values(&layout(&graph), &variables);
        let scalars = executor.run(&batch, &at, None, Threads::One).unwrap().to_vec();
        let expected = interpret(&graph, &batch, &variables);
        prop_assert!((f64::from(scalars[0]) - expected[graph.loss.index()][0]).abs() < 1e-3);
        prop_assert!((f64::from(scalars[1]) - expected[graph.metrics[0].node.index()][0]).abs() < 1e-6);
    }
}

fn mlp() -> GraphSpec {
    let layer = |width| Layer { width, transposed: false, bias: true, relu: true, residual: false };
    network(&[layer(32), layer(16)], [4, 4], 3)
}

#[test]
fn an_mlp_compiles_without_a_needless_pass_over_memory() {
    let program = Program::training(&mlp(), 8).unwrap();
    let kernels: Vec<Kernel> = program.instructions.iter().map(|instruction| instruction.kernel).collect();
    let count = |wanted: fn(&Kernel) -> bool| kernels.iter().filter(|kernel| wanted(kernel)).count();
    // Forward three products, backward five: nothing is computed for the features.
    assert_eq!(count(|kernel| matches!(kernel, Kernel::MatMul { .. })), 8);
    assert_eq!(count(|kernel| *kernel == Kernel::BiasAdd { in_place: true, relu: true }), 2);
    assert_eq!(count(|kernel| *kernel == Kernel::ReluGrad { in_place: true }), 2);
    assert_eq!(count(|kernel| matches!(kernel, Kernel::Copy | Kernel::Relu { .. } | Kernel::Add { .. })), 0);
    assert_eq!(count(|kernel| *kernel == Kernel::Accuracy), 0, "a metric is not computed in training");
    // Both hidden layers, their gradients, the logits: far from one place for each of the 30 nodes.
    assert!(program.arena_bytes() <= 4 * 8 * (32 + 32 + 16 + 16 + 16 + 64), "{}", program.arena_bytes());
}

#[test]
fn a_variable_beside_the_loss_has_a_zero_gradient_and_one_used_twice_the_sum() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let aside = g.variable("aside", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let again = g.push("again", Op::Variable { variable: VariableId(0) }, &[]);
    let more = g.matmul(x, again);
    let both = g.add(logits, more);
    let beside = g.matmul(x, aside);
    let metric = g.accuracy(beside, labels);
    let loss = g.softmax_cross_entropy(both, labels);
    let graph = g.finish(loss, &[("beside", metric)]).unwrap();
    let layout = layout(&graph);
    let mut gradients = Gradients::take(&layout, &BufferPool::default());
    gradients.variable_mut(VariableId(1)).fill(7.0);
    let batch = Batch { features: vec![1.0, 2.0], labels: vec![0], examples: 1, resume_at: None };
    let at = values(&layout, &[vec![0.0; 4], vec![0.0; 4]]);
    let mut executor = Executor::new(Program::training(&graph, 1).unwrap());
    executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap();
    // softmax is even, so dlogits = (−1/2, 1/2), and the kernel is there twice.
    assert_eq!(gradients.variable_mut(VariableId(0)), [-1.0, 1.0, -2.0, 2.0]);
    assert_eq!(gradients.variable_mut(VariableId(1)), [0.0; 4]);
}

#[test]
fn a_loss_that_is_a_variable_itself_runs() {
    let mut g = GraphBuilder::new("odd");
    let loss = g.variable("loss", Shape::scalar(), InitializerSpec::Zeros);
    let graph = g.finish(loss, &[]).unwrap();
    let layout = layout(&graph);
    let mut gradients = Gradients::take(&layout, &BufferPool::default());
    let batch = Batch { features: vec![], labels: vec![0], examples: 1, resume_at: None };
    let mut executor = Executor::new(Program::training(&graph, 1).unwrap());
    let at = values(&layout, &[vec![2.5]]);
    assert_eq!(executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap(), [2.5]);
    assert_eq!(gradients.variable_mut(VariableId(0)), [1.0]);
}

#[test]
fn what_cannot_be_trained_or_fed_is_refused_with_the_node_named() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input("pixels", [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let error = Program::training(&g.finish(loss, &[]).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("input 'pixels'"), "{error}");

    let mut g = GraphBuilder::new("odd");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let accuracy = g.accuracy(logits, labels);
    let error = Program::training(&g.finish(accuracy, &[]).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("(accuracy 'accuracy')"), "{error}");
}

#[test]
fn a_label_beyond_the_classes_is_an_error() {
    let graph = mlp();
    let at = values(
        &layout(&graph),
        &graph.variables.iter().map(|v| vec![0.0; v.shape.elements()]).collect::<Vec<_>>(),
    );
    let mut executor = Executor::new(Program::evaluation(&graph, 1).unwrap());
    let batch = Batch { features: vec![0.0; 16], labels: vec![3], examples: 1, resume_at: None };
    let error = executor.run(&batch, &at, None, Threads::One).unwrap_err();
    assert_eq!((error.label, error.classes), (3, 3));
}

fn any_wild_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        prop::collection::vec(1usize..4, 0..3).prop_map(|shape| Op::Reshape { shape: Shape(shape) }),
        (0u32..3).prop_map(|variable| Op::Variable { variable: VariableId(variable) }),
        any::<(bool, bool)>().prop_map(|(transpose_a, transpose_b)| Op::MatMul { transpose_a, transpose_b }),
        prop::sample::select(vec![
            Op::Constant { value: 2.0 },
            Op::BiasAdd,
            Op::Relu,
            Op::Add,
            Op::SoftmaxCrossEntropy,
            Op::Accuracy,
            Op::ReluGrad,
            Op::SumRows,
            Op::SoftmaxCrossEntropyGrad,
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A graph from outside that passes the check compiles and runs, or is refused; it never panics.
    #[test]
    fn any_valid_graph_runs_or_is_refused(
        ops in prop::collection::vec((any_wild_op(), prop::collection::vec(any::<prop::sample::Index>(), 3)), 1..12),
        loss: prop::sample::Index,
    ) {
        const EXAMPLES: usize = 2;
        let mut g = GraphBuilder::new("wild");
        g.input(FEATURES, [2]);
        g.labels(LABELS);
        for (name, shape) in [("square", vec![2, 2]), ("vector", vec![2]), ("scalar", vec![])] {
            g.variable(name, Shape(shape), InitializerSpec::Zeros);
        }
        let mut graph = g.finish(NodeId(4), &[]).unwrap();
        for (op, picks) in ops {
            // The first choice of inputs that fits, if there is any: else almost no graph would be valid.
            let count = graph.nodes.len();
            let (arity, name) = (op.arity(), format!("n{count}"));
            for shift in 0..count.pow(arity.min(2) as u32) {
                let inputs = (0..arity).map(|i| NodeId(((picks[i].index(count) + shift / count.pow(i.min(1) as u32)) % count) as u32));
                let inputs: Vec<NodeId> = inputs.collect();
                graph.nodes.push(messages::graph::NodeSpec { name: name.clone(), op: op.clone(), inputs });
                if graph.infer(EXAMPLES).is_ok() {
                    break;
                }
                graph.nodes.pop();
            }
        }
        graph.loss = NodeId(loss.index(graph.nodes.len()) as u32);
        let batch = Batch { features: vec![0.5; 4], labels: vec![0, 1], examples: EXAMPLES, resume_at: None };
        let layout = layout(&graph);
        let at = values(&layout, &[vec![0.5; 4], vec![1.0; 2], vec![3.0]]);
        if let Ok(program) = Program::training(&graph, EXAMPLES) {
            let mut gradients = Gradients::take(&layout, &BufferPool::default());
            let _ = Executor::new(program).run(&batch, &at, Some(&mut gradients), Threads::One);
        }
        if let Ok(program) = Program::evaluation(&graph, EXAMPLES) {
            let _ = Executor::new(program).run(&batch, &at, None, Threads::One);
        }
    }
}

#[test]
fn a_graph_that_fits_only_one_batch_is_refused_before_the_training() {
    use crate::replica::{GraphReplica, Replica, ReplicaError};
    let mut g = GraphBuilder::new("fixed");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let table = g.variable("table", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let logits = g.add(logits, table);
    let loss = g.softmax_cross_entropy(logits, labels);
    let graph = g.finish(loss, &[]).unwrap();
    let mut replica = GraphReplica::new(graph.clone(), 2, &[2].into(), 1).unwrap();
    assert!(replica.prepare(2).is_ok());
    assert!(replica.prepare(3).unwrap_err().to_string().contains("(add 'add')"));
    let other = GraphReplica::new(graph, 2, &[3].into(), 1).err().unwrap();
    assert!(matches!(other, ReplicaError::Features { .. }));
}
