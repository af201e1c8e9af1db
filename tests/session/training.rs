//! Tests of training with sessions: explicit devices, in-graph and between-graph replication, and changes of
//! gradients within the graph.

use pushpull::{
    DType, GraphBuilder, GraphSpec, InitializerSpec, NodeId, OptimizerSpec, ReductionOp, Session, Tensor,
    TensorSpec, UnaryOp,
};

use crate::harness::Servers;

/// A network with two weights and a loss on a batch that is a constant.
struct Network {
    graph: GraphSpec,
    loss: NodeId,
    train: NodeId,
    gradients: Vec<NodeId>,
}

/// Builds a network of two layers, with the devices of its weights and of its layers.
fn network(weights: [&str; 2], layers: [&str; 2]) -> Network {
    let mut g = GraphBuilder::new("network");
    let normal = InitializerSpec::Normal { mean: 0.0, stddev: 0.3 };
    let w1 = g.device(weights[0], |g| g.variable("w1", [4, 16], normal.clone()));
    let w2 = g.device(weights[1], |g| g.variable("w2", [16, 1], normal));
    let wave = |index: usize, step: f32| (index as f32 * step).sin();
    let x: Vec<f32> = (0..32).map(|index| wave(index, 0.7)).collect();
    let y: Vec<f32> = (0..8).map(|index| wave(index, 1.3)).collect();
    let x = g.device(layers[0], |g| g.value(Tensor::new([8, 4], x).unwrap()));
    let hidden = g.device(layers[0], |g| {
        let product = g.matmul(x, w1);
        g.unary(UnaryOp::Tanh, product)
    });
    let loss = g.device(layers[1], |g| {
        let y = g.value(Tensor::new([8, 1], y).unwrap());
        let out = g.matmul(hidden, w2);
        g.mean_squared_error(out, y)
    });
    let gradients = g.gradients(loss).into_iter().map(|(_, gradient)| gradient).collect();
    let train = g.minimize(&OptimizerSpec::sgd(0.05), loss);
    Network { graph: g.finish_session().unwrap(), loss, train, gradients }
}

fn scalar(session: &Session, graph: &GraphSpec, node: NodeId) -> f32 {
    session.run(graph, &[], &[node]).unwrap()[0].f32s().unwrap()[0]
}

/// The number of steps of the field's listing.
const STEPS: u64 = 10_000;

#[test]
fn weights_on_ps_tasks_are_trained_from_afar() {
    let servers = Servers::start(&[("ps", 2), ("worker", 8)], &[]);
    let session = servers.session("worker/7");
    let own = "/job:worker/task:7";
    let Network { graph, loss, train, .. } = network(["/job:ps/task:0", "/job:ps/task:1"], [own, own]);
    let before = scalar(&session, &graph, loss);
    for _ in 0..STEPS {
        session.run_targets(&graph, &[], &[train]).unwrap();
    }
    let after = scalar(&session, &graph, loss);
    assert!(after < 0.2 * before, "{before} to {after}");
    let described = session.describe().unwrap();
    let changes: Vec<(String, u64)> = described
        .tasks
        .iter()
        .flat_map(|task| &task.containers)
        .flat_map(|container| &container.variables)
        .map(|variable| (variable.name.clone(), variable.changes))
        .collect();
    assert_eq!(changes, [("w1".to_owned(), STEPS), ("w2".to_owned(), STEPS)]);
}

#[test]
fn gradients_over_three_tasks_are_those_of_one() {
    let servers = Servers::start(&[("ps", 1), ("worker", 2)], &[]);
    let run = |container: &str, network: Network| -> Vec<Vec<u32>> {
        let session = servers.session_in("worker/0", container);
        let mut bits = Vec::new();
        for _ in 0..3 {
            let fetches = [vec![network.loss], network.gradients.clone()].concat();
            let values = session.run_with(&network.graph, &[], &fetches, &[network.train]).unwrap();
            let of = |value: &Tensor| value.f32s().unwrap().iter().map(|x| x.to_bits()).collect();
            bits.extend(values.iter().map(of));
        }
        bits
    };
    let [ps, first, second] = ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"];
    let alone = run("alone", network([first; 2], [first; 2]));
    assert_eq!(run("cut", network([ps, second], [first, second])), alone);
    assert_eq!(run("afar", network([second, first], [ps, ps])), alone);
    assert!(alone[0] != alone[3], "the loss changes");
}

#[test]
fn a_global_step_counts_batches_that_are_fed() {
    let servers = Servers::start(&[("ps", 1), ("worker", 1)], &[]);
    let mut g = GraphBuilder::new("linear");
    let (w, step) = g.device("/job:ps", |g| {
        let w = g.variable("w", [3, 1], InitializerSpec::Zeros);
        (w, g.variable_of("global_step", [], DType::I64, InitializerSpec::Zeros))
    });
    let x = g.placeholder("x", TensorSpec::f32([16, 3]));
    let y = g.placeholder("y", TensorSpec::f32([16, 1]));
    let out = g.matmul(x, w);
    let loss = g.mean_squared_error(out, y);
    let train = g.minimize(&OptimizerSpec::sgd(0.3), loss);
    let one = g.value(1i64);
    let counted = g.assign_add(step, one);
    let graph = g.finish_session().unwrap();

    let session = servers.session("worker/0");
    let mut losses = Vec::new();
    for batch in 0..50i64 {
        let wave = |index: i64| ((batch * 48 + index) as f32 * 0.9).sin();
        let features: Vec<f32> = (0..48).map(wave).collect();
        let truth = features.chunks(3).map(|x| 2.0 * x[0] - x[1] + 0.5 * x[2]).collect::<Vec<f32>>();
        let feeds = [(x, Tensor::new([16, 3], features).unwrap()), (y, Tensor::new([16, 1], truth).unwrap())];
        let values = session.run_with(&graph, &feeds, &[loss, counted], &[train]).unwrap();
        losses.push(values[0].f32s().unwrap()[0]);
        assert_eq!(values[1].i64s().unwrap(), [batch + 1]);
    }
    assert!(losses[49] < 0.01 * losses[0], "{losses:?}");
    let wrong = [(x, Tensor::new([1, 3], vec![0.0f32; 3]).unwrap())];
    let error = session.run(&graph, &wrong, &[out]).unwrap_err().to_string();
    assert!(error.contains("'x'") && error.contains("[16, 3]"), "{error}");
}

#[test]
fn gradients_are_clipped_by_their_global_norm() {
    let servers = Servers::start(&[("ps", 2), ("worker", 1)], &[]);
    let mut g = GraphBuilder::new("clipped");
    let zeros = |g: &mut GraphBuilder, name: &str, task: u32, extent: usize| {
        g.device(&format!("/job:ps/task:{task}"), |g| g.variable(name, [extent], InitializerSpec::Zeros))
    };
    let (v, w) = (zeros(&mut g, "v", 0, 2), zeros(&mut g, "w", 1, 1));
    let (of_v, of_w) = (g.value([2.0f32, 3.0]), g.value([6.0f32]));
    let parts = [(v, of_v), (w, of_w)].map(|(variable, slope)| {
        let product = g.mul(variable, slope);
        g.reduce(ReductionOp::Sum, product, &[0], false)
    });
    let loss = g.add_n(&parts);
    let gradients = g.gradients(loss);
    let halves: Vec<NodeId> = gradients.iter().map(|&(_, gradient)| g.l2_loss(gradient)).collect();
    let half = g.add_n(&halves);
    let square = g.scale(half, 2.0);
    let norm = g.unary(UnaryOp::Sqrt, square);
    let one = g.value(1.0f32);
    let (is_large, factor) = (g.greater(norm, one), g.div(one, norm));
    let factor = g.select(is_large, factor, one);
    let mut applied = Vec::new();
    for &(variable, gradient) in &gradients {
        let clipped = g.mul(gradient, factor);
        applied.push(g.apply(&OptimizerSpec::sgd(1.0), variable, clipped));
    }
    let train = g.group(&applied);
    let graph = g.finish_session().unwrap();

    let session = servers.session("worker/0");
    let values = session.run_with(&graph, &[], &[norm], &[train]).unwrap();
    assert_eq!(values[0].f32s().unwrap(), [7.0]);
    let values = session.run(&graph, &[], &[v, w]).unwrap();
    let got: Vec<f32> = values.iter().flat_map(|value| value.f32s().unwrap().to_vec()).collect();
    for (got, expected) in got.iter().zip([-2.0 / 7.0, -3.0 / 7.0, -6.0 / 7.0]) {
        assert!((got - expected).abs() < 1e-6, "{got}, expected {expected}");
    }
}
