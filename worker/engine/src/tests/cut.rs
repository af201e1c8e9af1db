//! Tests of cut graphs: the parts, each on a thread, compute what the uncut program computes, bit for bit
//! (A), nothing is computed twice (B), and they never hang (C). `cut/split.rs` defines these properties.

use std::collections::BTreeMap;

use proptest::prelude::*;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{
    BinaryOp, GraphBuilder, GraphSpec, NodeSpec, Op, Padding, ReductionOp, Stride, UnaryOp,
};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::Column;
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::InitializerSpec::Zeros;

use super::exchange::{Exchange, Incoming, Outgoing};
use super::gradients::any_choices;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Numbers, Trial};
use crate::ir::Kernel;
use crate::{CompileError, Cut, CutGradient, Executor, Part, Parts, Program};

/// A graph with everything that it needs to be cut and run.
#[derive(Clone)]
pub(super) struct Pieces {
    pub trial: Trial,
    tensors: Vec<Option<TensorSpec>>,
    parts: Vec<Option<u32>>,
    parts_count: u32,
    /// The values of the nodes that are given, except variables and inputs.
    fed: BTreeMap<NodeId, Vec<f32>>,
    pub wanted: Vec<(NodeId, u32)>,
    gradients: Vec<CutGradient>,
    training: bool,
}

impl Pieces {
    /// Puts all nodes of a trial's graph into one part, without wanted values.
    pub fn new(trial: &Trial) -> Self {
        let (tensors, parts, fed) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (wanted, gradients, trial) = (Vec::new(), Vec::new(), trial.clone());
        let mut pieces =
            Self { trial, tensors, parts, parts_count: 1, fed, wanted, gradients, training: true };
        pieces.infer();
        pieces
    }

    /// Infers the tensors of all nodes; nodes that were added run in part 0.
    fn infer(&mut self) {
        let tensors = self.trial.graph.infer(self.trial.batch.examples).unwrap();
        self.tensors = tensors.into_iter().map(Some).collect();
        self.parts.resize(self.tensors.len(), Some(0));
    }

    /// Adds a node that is the gradient of `loss` with respect to `of`, and wants it.
    fn gradient(&mut self, loss: NodeId, of: NodeId) -> NodeId {
        let nodes = &mut self.trial.graph.nodes;
        let node = NodeId(nodes.len() as u32);
        // The operation is ignored, but inference needs one.
        let is_variable = matches!(nodes[of.index()].op, Op::Variable { .. });
        let op =
            if is_variable { nodes[of.index()].op.clone() } else { Op::Variable { variable: VariableId(0) } };
        nodes.push(NodeSpec { name: format!("gradient{node}"), op, inputs: Vec::new(), device: None });
        self.gradients.push(CutGradient { node, loss, of });
        self.wanted.push((node, 0));
        self.infer();
        node
    }

    /// Wants the loss and the gradients of all variables, in the order of the variables.
    pub fn train(&mut self) {
        let loss = self.trial.graph.loss;
        self.wanted.push((loss, 0));
        for variable in (0..self.trial.graph.variables.len() as u32).map(VariableId) {
            self.gradient(loss, self.node_of(variable));
        }
    }

    fn node_of(&self, variable: VariableId) -> NodeId {
        let mut nodes = self.trial.graph.nodes.iter();
        let is_read = |node: &NodeSpec| matches!(node.op, Op::Variable { variable: own } if own == variable);
        NodeId(nodes.position(is_read).expect("every variable is read") as u32)
    }

    /// Spreads the nodes and the wanted values over parts at random.
    pub fn spread(&mut self, parts: u32, seed: u64) {
        let mut numbers = Numbers::new(seed);
        let mut part = || numbers.below(parts as usize) as u32;
        self.parts_count = parts;
        self.parts.iter_mut().for_each(|own| *own = Some(part()));
        self.wanted.iter_mut().for_each(|wanted| wanted.1 = part());
    }

    /// Returns the same cut with the data of another trial of the same graph.
    pub fn on(&self, trial: &Trial) -> Self {
        // The cut graph has gradient nodes, too.
        let graph = self.trial.graph.clone();
        Self { trial: Trial { graph, ..trial.clone() }, ..self.clone() }
    }

    pub fn compile(&self) -> Result<Vec<Part>, CompileError> {
        let nodes = (0..self.tensors.len() as u32).map(NodeId);
        let given: Vec<bool> = nodes.map(|node| self.fed.contains_key(&node)).collect();
        let Self { tensors, parts, parts_count, wanted, gradients, training, .. } = self;
        let (graph, parts_count, training) = (&self.trial.graph, *parts_count, *training);
        let cut = Cut { graph, tensors, parts, parts_count, given: &given, wanted, gradients, training };
        let parts = Parts::new(cut)?;
        let compiled: Result<Vec<Part>, _> =
            (0..parts_count).map(|part| parts.compile(part, Threads::One)).collect();
        let compiled = compiled?;
        check_edges(&parts, &compiled);
        Ok(compiled)
    }

    /// Returns the value of a given node.
    pub fn given(&self, node: NodeId) -> Column {
        if let Some(fed) = self.fed.get(&node) {
            return Column::F32(fed.clone());
        }
        match &self.trial.graph.nodes[node.index()] {
            NodeSpec { op: Op::Variable { variable }, .. } => {
                Column::F32(self.trial.values()[variable.index()].clone())
            }
            NodeSpec { name, .. } => {
                let column = self.trial.columns.iter().position(|column| column.name == *name).unwrap();
                self.trial.batch.columns[column].clone()
            }
        }
    }

    /// Runs all parts twice in the same memory, and returns the wanted values in the order of the nodes.
    fn run(&self) -> BTreeMap<NodeId, Column> {
        let mut runs: Vec<_> = self.compile().unwrap().into_iter().map(PartRun::new).collect();
        let first = self.run_once(&mut runs, None).unwrap();
        let second = self.run_once(&mut runs, None).unwrap();
        assert_eq!(bits(&first), bits(&second), "the second run gave another result");
        first
    }

    /// Runs all parts. If there is a `fault`, it is the reason why given values never arrive. Returns the
    /// wanted values, or the errors of all parts that failed.
    fn run_once(
        &self,
        runs: &mut [PartRun],
        fault: Option<&str>,
    ) -> Result<BTreeMap<NodeId, Column>, Vec<String>> {
        let exchange = &Exchange::default();
        let given: Vec<_> = runs.iter().flat_map(|run| run.gives.clone()).collect();
        let random = self.trial.random;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                runs.iter_mut().map(|run| scope.spawn(move || run.run(exchange, random))).collect();
            match fault {
                Some(reason) => exchange.abort(reason),
                None => {
                    for edge in given.into_iter().rev() {
                        exchange.send(edge.key, self.given(edge.given.unwrap()));
                        std::thread::yield_now();
                    }
                }
            }
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            let (mut values, mut errors) = (BTreeMap::new(), Vec::new());
            for result in results {
                match result {
                    Ok(own) => values.extend(own),
                    Err(error) => errors.push(error),
                }
            }
            if errors.is_empty() { Ok(values) } else { Err(errors) }
        })
    }
}

/// A part while it is run.
struct PartRun {
    executor: Option<Executor>,
    receives: Vec<crate::Edge>,
    sends: Vec<crate::Edge>,
    gives: Vec<crate::Edge>,
    wanted: Vec<(NodeId, usize)>,
}

impl PartRun {
    fn new(Part { program, receives, sends, gives, wanted }: Part) -> Self {
        Self { executor: program.map(Executor::new), receives, sends, gives, wanted }
    }

    fn run(&mut self, exchange: &Exchange, random: u64) -> Result<Vec<(NodeId, Column)>, String> {
        let incoming = Incoming::new(exchange, &self.receives);
        let mut outgoing = Outgoing::new(exchange, &self.sends);
        if let Some(executor) = &mut self.executor {
            executor.run_part(&incoming, &mut outgoing, random).map_err(|error| {
                exchange.abort(&error.to_string());
                error.to_string()
            })?;
        }
        let value = |&(node, index): &(NodeId, usize)| Ok((node, incoming.get(index)?.clone()));
        self.wanted.iter().map(value).collect::<Result<_, crate::Lost>>().map_err(|lost| lost.to_string())
    }
}

/// Checks that the parts send and receive each edge once, and that all wanted values are delivered.
fn check_edges(parts: &Parts<'_>, compiled: &[Part]) {
    let mut keys: Vec<u64> = Vec::new();
    for (number, part) in compiled.iter().enumerate() {
        let number = number as u32;
        assert!(part.receives.iter().all(|edge| edge.to == number));
        assert!(part.sends.iter().all(|edge| edge.from == number && edge.given.is_none()));
        assert!(part.gives.iter().all(|edge| edge.from == number && edge.given.is_some()));
        keys.extend(part.sends.iter().chain(&part.gives).map(|edge| edge.key));
    }
    keys.sort_unstable();
    assert_eq!(keys, parts.edges().map(|edge| edge.key).collect::<Vec<_>>());
    let mut received: Vec<u64> =
        compiled.iter().flat_map(|part| &part.receives).map(|edge| edge.key).collect();
    received.sort_unstable();
    assert_eq!(keys, received);
}

pub(super) fn bits(values: &BTreeMap<NodeId, Column>) -> Vec<Vec<u32>> {
    let bits = |column: &Column| column.f32().unwrap().iter().map(|x| x.to_bits()).collect();
    values.values().map(bits).collect()
}

/// Returns the bits of the loss and of all gradients of the uncut program.
pub(super) fn uncut(trial: &Trial) -> Vec<Vec<u32>> {
    let trained = trial.train();
    let all = std::iter::once(vec![trained.loss]).chain(trained.gradients);
    all.map(|values| values.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Cuts a graph that an attacker might write into parts, with the gradients of two of its nodes, and runs the
/// parts if they are small enough. The second loss may depend on the gradients of the first one.
pub(super) fn run_wild(trial: &Trial, seed: u64, arena_bytes_max: usize) {
    let mut numbers = Numbers::new(seed);
    let mut pieces = Pieces::new(trial);
    pieces.training = !seed.is_multiple_of(4);
    let scalar = |pieces: &Pieces, numbers: &mut Numbers| {
        let is_scalar = |node: &usize| pieces.tensors[*node].as_ref().unwrap().shape.rank() == 0;
        let scalars: Vec<usize> = (0..pieces.tensors.len()).filter(is_scalar).collect();
        NodeId(scalars[numbers.below(scalars.len())] as u32)
    };
    for _ in 0..2 {
        let loss = scalar(&pieces, &mut numbers);
        for variable in (0..trial.graph.variables.len() as u32).step_by(1 + seed as usize % 3) {
            if numbers.below(2) == 0 {
                pieces.gradient(loss, pieces.node_of(VariableId(variable)));
            }
        }
        let (a, b) = (scalar(&pieces, &mut numbers), scalar(&pieces, &mut numbers));
        let op = Op::Binary(BinaryOp::Mul);
        let name = format!("product{}", pieces.tensors.len());
        pieces.trial.graph.nodes.push(NodeSpec { name, op, inputs: vec![a, b], device: None });
        if pieces.trial.graph.infer(pieces.trial.batch.examples).is_err() {
            pieces.trial.graph.nodes.pop();
        }
        pieces.infer();
    }
    pieces.wanted.extend((0..3).map(|_| (NodeId(numbers.below(pieces.tensors.len()) as u32), 0)));
    pieces.spread(3, seed);
    let Ok(parts) = pieces.compile() else { return };
    let arenas = parts.iter().flat_map(|part| &part.program).map(Program::arena_bytes);
    if arenas.sum::<usize>() <= arena_bytes_max {
        let mut runs: Vec<_> = parts.into_iter().map(PartRun::new).collect();
        let _ = pieces.run_once(&mut runs, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks (A), (B) for products and convolutions, and (C) on random graphs that are cut at random.
    #[test]
    fn parts_compute_what_the_uncut_program_computes(
        choices in any_choices(1..12),
        end: [u8; 6],
        seed: u64,
        parts in 1u32..5,
    ) {
        let (graph, bounds) = RandomGraph::new(2, false).draw(&choices, end);
        let Some(trial) = Trial::smooth(&graph, &bounds, 2, seed) else { return Ok(()) };
        let mut pieces = Pieces::new(&trial);
        pieces.train();
        pieces.spread(parts, seed);
        prop_assert_eq!(bits(&pieces.run()), uncut(&trial));
        let programs = pieces.compile().unwrap();
        let flops: u64 = programs.iter().flat_map(|part| &part.program).map(Program::flops).sum();
        prop_assert_eq!(flops, trial.training().unwrap().flops());
    }
}

/// Returns a graph whose sums have many terms, so that a product that rounds differently shows.
fn layers() -> GraphSpec {
    let mut g = GraphBuilder::new("layers");
    let x = g.input("images", [5, 5, 3]);
    let labels = g.labels("labels");
    let kernel = g.variable("conv/kernel", [3, 3, 3, 4], Zeros);
    let bias = g.variable("conv/bias", [4], Zeros);
    let x = g.conv2d(x, kernel, Stride { stride: [1, 1], padding: Padding::Valid });
    let x = g.bias_add(x, bias);
    let x = g.relu(x);
    let mut x = g.reshape(x, [36]);
    for layer in 0..4 {
        let kernel = g.variable(&format!("dense{layer}/kernel"), [36, 36], Zeros);
        let bias = g.variable(&format!("dense{layer}/bias"), [36], Zeros);
        x = g.matmul(x, kernel);
        x = g.bias_add(x, bias);
        x = if layer % 2 == 0 { g.relu(x) } else { g.unary(UnaryOp::Gelu, x) };
    }
    let loss = g.softmax_cross_entropy(x, labels);
    g.finish(loss, &[]).unwrap()
}

pub(super) fn layers_trial() -> Trial {
    Trial::new(&layers(), &Bounds::from([("labels".into(), 36)]), 8, 0.3, 1)
}

#[test]
fn a_cut_between_product_and_bias_changes_no_bit() {
    let trial = layers_trial();
    let expected = uncut(&trial);
    for seed in 0..20 {
        let mut pieces = Pieces::new(&trial);
        pieces.train();
        pieces.spread(2 + seed as u32 % 3, seed);
        if seed == 0 {
            let alternating = |(node, part): (usize, &mut Option<u32>)| *part = Some(node as u32 % 2);
            pieces.parts.iter_mut().enumerate().for_each(alternating);
        }
        assert_eq!(bits(&pieces.run()), expected, "seed {seed}");
    }
}

#[test]
fn one_part_has_only_edges_for_the_caller() {
    let trial = layers_trial();
    let mut pieces = Pieces::new(&trial);
    pieces.train();
    let [part] = <[Part; 1]>::try_from(pieces.compile().unwrap()).unwrap();
    let wanted: Vec<u64> = part.wanted.iter().map(|&(_, index)| part.receives[index].key).collect();
    for edge in &part.receives {
        assert!(edge.given.is_some() != wanted.contains(&edge.key));
    }
    assert_eq!(part.gives.len(), 2 + trial.graph.variables.len());
    assert_eq!(part.sends.len(), wanted.len());
    let kernels = |program: &Program| {
        let real = program.instructions.iter().filter(|own| own.kernel != Kernel::Copy);
        real.map(|own| own.kernel.name()).collect::<Vec<_>>()
    };
    assert_eq!(kernels(&part.program.unwrap()), kernels(&trial.training().unwrap()));
}

/// Checks that a part has memory only for its own values. Values that are sent or received are not in the
/// arena.
#[test]
fn the_arena_of_a_part_holds_only_its_values() {
    let mut g = GraphBuilder::new("mlp");
    let mut x = g.input("x", [64]);
    for layer in 0..6 {
        let kernel = g.variable(&format!("kernel{layer}"), [64, 64], Zeros);
        let bias = g.variable(&format!("bias{layer}"), [64], Zeros);
        x = g.matmul(x, kernel);
        x = g.bias_add(x, bias);
        x = g.unary(UnaryOp::Gelu, x);
    }
    let labels = g.labels("labels");
    let loss = g.softmax_cross_entropy(x, labels);
    let trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 128, 0.2, 1);
    let mut pieces = Pieces::new(&trial);
    pieces.train();
    pieces.parts_count = 2;
    let middle = pieces.node_of(VariableId(6)).index();
    let nodes = trial.graph.nodes.len();
    pieces.parts[middle..nodes].fill(Some(1));
    assert_eq!(bits(&pieces.run()), uncut(&trial));
    let whole = trial.training().unwrap().arena_bytes();
    let parts: Vec<usize> =
        pieces.compile().unwrap().iter().map(|part| part.program.as_ref().unwrap().arena_bytes()).collect();
    assert!(parts.iter().all(|&bytes| bytes * 10 < whole * 7), "{parts:?} of {whole}");
    assert!(parts.iter().sum::<usize>() * 10 < whole * 13, "{parts:?} of {whole}");
}

#[test]
fn a_lost_edge_ends_every_part_with_the_reason() {
    let mut pieces = Pieces::new(&layers_trial());
    pieces.train();
    pieces.spread(4, 3);
    let mut runs: Vec<_> = pieces.compile().unwrap().into_iter().map(PartRun::new).collect();
    let errors = pieces.run_once(&mut runs, Some("worker/1 has left")).unwrap_err();
    assert_eq!(errors.len(), 4);
    assert!(errors.iter().all(|error| error.ends_with("worker/1 has left")), "{errors:?}");
    assert!(errors.iter().all(|error| error.starts_with("node ") && error.contains(" '")), "{errors:?}");
    // The memory can be used again.
    let values = pieces.run_once(&mut runs, None).unwrap();
    assert_eq!(bits(&values), uncut(&layers_trial()));
}

#[test]
fn a_fault_in_one_part_reaches_all_others() {
    let mut pieces = Pieces::new(&layers_trial());
    pieces.train();
    pieces.spread(3, 5);
    pieces.trial.batch.columns[1] = Column::I32(vec![36; 8]);
    let mut runs: Vec<_> = pieces.compile().unwrap().into_iter().map(PartRun::new).collect();
    let errors = pieces.run_once(&mut runs, None).unwrap_err();
    assert!(errors.iter().all(|error| error.contains("36")), "{errors:?}");
}

/// Returns the trial of a graph with the variables `a` = [2, 3] and `b` = [5], and the nodes of its three
/// losses: Σ a², Σ a · b, and b.
fn three_losses() -> (Trial, [NodeId; 3], [NodeId; 2]) {
    let mut g = GraphBuilder::new("three");
    let (a, b) = (g.variable("a", [2], Zeros), g.variable("b", [], Zeros));
    let squares = g.unary(UnaryOp::Square, a);
    let first = g.reduce(ReductionOp::Sum, squares, &[0], false);
    let products = g.mul(a, b);
    let second = g.reduce(ReductionOp::Sum, products, &[0], false);
    let third = g.unary(UnaryOp::Neg, b);
    let mut trial = Trial::new(&g.finish(first, &[]).unwrap(), &Bounds::new(), 1, 1.0, 1);
    trial.variables = vec![vec![2.0, 3.0], vec![5.0]];
    (trial, [first, second, third], [a, b])
}

fn floats(values: &BTreeMap<NodeId, Column>, node: NodeId) -> Vec<f32> {
    values[&node].f32().unwrap().to_vec()
}

#[test]
fn a_run_has_gradients_of_several_losses() {
    let (trial, [first, second, third], [a, b]) = three_losses();
    for seed in 0..10 {
        let mut pieces = Pieces::new(&trial);
        let pairs = [(first, a), (first, b), (second, a), (second, b), (third, a), (third, b)];
        let nodes = pairs.map(|(loss, of)| pieces.gradient(loss, of));
        pieces.spread(3, seed);
        let values = pieces.run();
        let expected: [&[f32]; 6] = [&[4.0, 6.0], &[0.0], &[5.0, 5.0], &[5.0], &[0.0, 0.0], &[-1.0]];
        for (node, expected) in nodes.into_iter().zip(expected) {
            assert_eq!(floats(&values, node), expected, "{node}");
        }
    }
}

#[test]
fn a_node_can_read_a_gradient() {
    let (trial, [first, ..], [a, _]) = three_losses();
    let mut pieces = Pieces::new(&trial);
    let gradient = pieces.gradient(first, a);
    let nodes = &mut pieces.trial.graph.nodes;
    let inputs = vec![gradient];
    nodes.push(NodeSpec { name: "clipped".into(), op: Op::Unary(UnaryOp::Neg), inputs, device: None });
    let clipped = NodeId(nodes.len() as u32 - 1);
    pieces.wanted.push((clipped, 0));
    pieces.infer();
    pieces.spread(3, 4);
    assert_eq!(floats(&pieces.run(), clipped), [-4.0, -6.0]);
}

#[test]
fn a_given_node_stops_the_gradient() {
    let (trial, [first, ..], [a, _]) = three_losses();
    let mut pieces = Pieces::new(&trial);
    let gradient = pieces.gradient(first, a);
    let squares = NodeId(a.0 + 2);
    pieces.fed.insert(squares, vec![7.0, 8.0]);
    pieces.wanted.push((first, 0));
    pieces.spread(3, 4);
    let values = pieces.run();
    assert_eq!(floats(&values, gradient), [0.0, 0.0]);
    assert_eq!(floats(&values, first), [15.0]);
}

#[test]
fn the_gradient_of_a_given_node_is_its_own() {
    let (trial, [_, second, _], [a, _]) = three_losses();
    let mut pieces = Pieces::new(&trial);
    let gradient = pieces.gradient(second, a);
    // A variable that is given has the value that the caller gives, and still has a gradient.
    pieces.fed.insert(a, vec![1.0, 1.0]);
    pieces.wanted.push((second, 0));
    let values = pieces.run();
    assert_eq!(floats(&values, gradient), [5.0, 5.0]);
    assert_eq!(floats(&values, second), [10.0]);
}

#[test]
fn constants_views_and_columns_can_be_wanted() {
    let mut g = GraphBuilder::new("wanted");
    let x = g.input("x", [2, 3]);
    let labels = g.labels("labels");
    let flat = g.reshape(x, [6]);
    let half = g.constant(0.5);
    let sum = g.add(flat, half);
    let view = g.reshape(sum, [3, 2]);
    let loss = g.reduce(ReductionOp::Sum, view, &[0, 1, 2], false);
    let nodes = [x, labels, flat, half, sum, view];
    let trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 2, 1.0, 1);
    for seed in 0..10 {
        let mut pieces = Pieces::new(&trial);
        pieces.wanted.extend(nodes.map(|node| (node, 0)));
        pieces.spread(3, seed);
        let mut runs: Vec<_> = pieces.compile().unwrap().into_iter().map(PartRun::new).collect();
        let values = pieces.run_once(&mut runs, None).unwrap();
        let [x, labels, flat, half, sum, view] = nodes.map(|node| &values[&node]);
        assert_eq!((x, labels), (&trial.batch.columns[0], &trial.batch.columns[1]));
        assert_eq!((flat, half, view), (x, &Column::F32(vec![0.5]), sum));
        assert_eq!(sum.f32().unwrap()[0], x.f32().unwrap()[0] + 0.5);
    }
}

#[test]
fn what_is_not_needed_is_not_cut() {
    let (trial, [first, ..], [a, _]) = three_losses();
    let mut pieces = Pieces::new(&trial);
    pieces.wanted.push((first, 0));
    for node in [1, 4, 5, 6] {
        (pieces.tensors[node], pieces.parts[node]) = (None, None);
    }
    let parts = pieces.compile().unwrap();
    assert_eq!(parts[0].gives.iter().map(|edge| edge.given).collect::<Vec<_>>(), [Some(a)]);
    assert_eq!(floats(&pieces.run(), first), [13.0]);
}

/// Checks that a chain of views that is longer than the stack allows a recursion to be is no fault.
#[test]
fn a_long_chain_of_views_can_be_cut() {
    let mut g = GraphBuilder::new("views");
    let x = g.input("x", [6]);
    let mut view = g.unary(UnaryOp::Neg, x);
    for length in 0..20_000 {
        view = g.reshape(view, if length % 2 == 0 { [2, 3] } else { [3, 2] });
    }
    let y = g.unary(UnaryOp::Square, view);
    let loss = g.reduce(ReductionOp::Sum, y, &[0, 1, 2], false);
    let mut trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 1, 1.0, 1);
    trial.batch.columns[0] = Column::F32(vec![1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    let mut pieces = Pieces::new(&trial);
    pieces.wanted.push((loss, 0));
    pieces.parts_count = 2;
    pieces.parts[y.index()] = Some(1);
    assert_eq!(floats(&pieces.run(), loss), [14.0]);
}

#[test]
fn bad_gradients_are_refused() {
    let (trial, [first, second, _], [a, b]) = three_losses();
    let refused = |change: &dyn Fn(&mut Pieces)| {
        let mut pieces = Pieces::new(&trial);
        change(&mut pieces);
        pieces.compile().unwrap_err().to_string()
    };
    let of_a_vector = refused(&|pieces| {
        pieces.gradient(NodeId(a.0 + 2), a);
    });
    assert!(of_a_vector.contains("f32[2]") && of_a_vector.contains("reduce it first"), "{of_a_vector}");
    let of_computed = refused(&|pieces| {
        pieces.gradient(second, NodeId(a.0 + 2));
    });
    assert!(of_computed.contains("external"), "{of_computed}");
    let again = refused(&|pieces| {
        let gradient = pieces.gradient(second, b);
        let nodes = &mut pieces.trial.graph.nodes;
        let op = Op::Binary(BinaryOp::Mul);
        nodes.push(NodeSpec { name: "again".into(), op, inputs: vec![gradient, first], device: None });
        let loss = NodeId(nodes.len() as u32 - 1);
        pieces.infer();
        pieces.gradient(loss, a);
    });
    assert!(again.contains("second derivatives"), "{again}");
}

#[test]
fn a_batch_norm_has_gradients_only_in_training() {
    let mut g = GraphBuilder::new("norm");
    let x = g.input("x", [2]);
    let [gamma, beta] = ["gamma", "beta"].map(|name| g.variable(name, [2], Zeros));
    let [mean, variance] = ["mean", "variance"].map(|name| g.untrained(name, [2], Zeros));
    let y = g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.9);
    let loss = g.l2_loss(y);
    let trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 4, 1.0, 5);
    let mut pieces = Pieces::new(&trial);
    pieces.train();
    pieces.spread(3, 1);
    assert_eq!(bits(&pieces.run()), uncut(&trial));
    pieces.training = false;
    let error = pieces.compile().unwrap_err().to_string();
    assert!(error.contains("except in training"), "{error}");
    (pieces.gradients, pieces.wanted) = (Vec::new(), vec![(trial.graph.loss, 1)]);
    let loss = floats(&pieces.run(), trial.graph.loss);
    assert_eq!(loss, trial.evaluate());
}
