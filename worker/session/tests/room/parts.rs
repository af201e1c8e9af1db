//! Tests that a graph on random devices of several tasks computes what it computes on one device, bit for
//! bit: values, gradients, and the variables after some steps.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use pushpull_messages::graph::{GraphSpec, NodeSpec, Op, SessionOp};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{DType, Tensor};
use pushpull_session::SessionConfig;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::random_graph::{Choice, KINDS, RandomGraph};
use crate::trial::Bounds;

const TASKS: usize = 3;
const CPUS: u32 = 3;

/// A graph, its feeds, and what to run.
#[derive(Debug)]
struct Case {
    graph: GraphSpec,
    feeds: Vec<(NodeId, Tensor)>,
    /// The forward nodes, and the gradients of all variables.
    fetches: Vec<NodeId>,
    /// The variables.
    variables: Vec<NodeId>,
    /// The operations that change the variables.
    applies: Vec<NodeId>,
}

/// A stream of pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

impl Case {
    fn new(choices: &[Choice], end: [u8; 6], examples: usize, seed: u64) -> Self {
        let (mut graph, bounds) = RandomGraph::new(examples, false).draw(choices, end);
        let mut numbers = Numbers(seed);
        let feeds = feeds(&graph, &bounds, examples, &mut numbers);
        let forward = graph.nodes.len() as u32;
        let (loss, mut variables, mut applies) = (graph.loss, Vec::new(), Vec::new());
        let mut fetches: Vec<NodeId> = (0..forward).filter(|at| at % 3 == 0).map(NodeId).collect();
        fetches.push(loss);
        for variable in (0..graph.variables.len() as u32).map(VariableId) {
            let reads =
                |node: &NodeSpec| matches!(node.op, Op::Variable { variable: own } if own == variable);
            let Some(read) = graph.nodes.iter().position(reads) else { continue };
            let mut push = |op, input| {
                let (name, op) = (format!("more{}", graph.nodes.len()), Op::Session(op));
                graph.nodes.push(NodeSpec { name, op, inputs: vec![input], device: None });
                NodeId(graph.nodes.len() as u32 - 1)
            };
            let gradient = push(SessionOp::Gradient { variable }, loss);
            let optimizer = OptimizerSpec::sgd(0.1);
            applies.push(push(SessionOp::Apply { variable, optimizer }, gradient));
            fetches.push(gradient);
            variables.push(NodeId(read as u32));
        }
        Self { graph, feeds, fetches, variables, applies }
    }

    /// Requests random devices of the first `tasks` tasks.
    fn spread(&self, tasks: usize, seed: u64) -> GraphSpec {
        let (mut graph, mut numbers) = (self.graph.clone(), Numbers(seed));
        for node in &mut graph.nodes {
            let (task, cpu) = (numbers.below(tasks), numbers.below(CPUS as usize));
            let device = format!("/job:worker/task:{task}/device:CPU:{cpu}");
            node.device = (numbers.below(5) > 0).then(|| device.parse().unwrap());
        }
        graph
    }

    /// Runs the case: the values and gradients twice, and the variables after two steps. The second run is
    /// small, unless several devices take part.
    fn run(&self, client: &Client, container: &str, graph: &GraphSpec) -> Result<Vec<u8>, String> {
        let open = client.open_in(container, graph).map_err(|error| error.to_string())?;
        let Self { feeds, fetches, variables, applies, .. } = self;
        let (values, step) = ((feeds, fetches, &vec![]), (feeds, &vec![], applies));
        let runs = [values, values, step, step];
        let mut all = Vec::new();
        for (feeds, fetches, targets) in runs.into_iter().chain([(&vec![], variables, &vec![])]) {
            let values = client.run(open, feeds, fetches, targets);
            let values = values.map_err(|error| error.to_string());
            values?.iter().for_each(|value| all.extend(value.to_bytes()));
        }
        client.close(open);
        Ok(all)
    }
}

fn feeds(
    graph: &GraphSpec,
    bounds: &Bounds,
    examples: usize,
    numbers: &mut Numbers,
) -> Vec<(NodeId, Tensor)> {
    let mut feeds = Vec::new();
    for (position, node) in graph.nodes.iter().enumerate() {
        let Op::Input { example } = &node.op else { continue };
        let shape = example.shape.with_leading(examples);
        let count = shape.elements();
        let value = if example.dtype == DType::F32 {
            Tensor::new(shape, (0..count).map(|_| numbers.below(1000) as f32 / 999.0).collect::<Vec<_>>())
        } else {
            let bound = bounds.get(&node.name).copied().unwrap_or(2);
            Tensor::new(shape, (0..count).map(|_| numbers.below(bound) as i32).collect::<Vec<_>>())
        };
        feeds.push((NodeId(position as u32), value.unwrap()));
    }
    feeds
}

#[test]
fn random_devices_compute_the_same_bits() {
    let config = SessionConfig { cpus: CPUS, ..SessionConfig::default() };
    let (one, many) = (Cluster::new(1, &config), Cluster::new(TASKS, &config));
    let (one, many) = (one.client(0), many.client(0));
    let choices = prop::collection::vec((0..KINDS, any::<[u8; 6]>()), 1..14);
    let strategy = (choices, any::<[u8; 6]>(), 1usize..4, 1..=TASKS, any::<u64>());
    let cases = std::cell::Cell::new(0);
    // Both clusters run the same cases one after another, so the random numbers of their runs are the same.
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&strategy, |(choices, end, examples, tasks, seed)| {
        let case = cases.replace(cases.get() + 1);
        let (container, drawn) = (format!("case{case}"), Case::new(&choices, end, examples, seed));
        let expected = drawn.run(&one, &container, &drawn.graph);
        let got = drawn.run(&many, &container, &drawn.spread(tasks, seed.rotate_left(9)));
        prop_assert!(expected.is_ok(), "{:?}", expected.err());
        prop_assert!(got.is_ok(), "{:?}", got.err());
        prop_assert!(got == expected, "other bits");
        Ok(())
    });
    checked.unwrap();
}
