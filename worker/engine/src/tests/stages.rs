//! Tests of stages: the stages of a job's graph compute what its whole program computes, bit for bit (A),
//! nothing is computed twice (B), and no run gets stuck (C). `cut/split.rs` defines these properties.

use proptest::prelude::*;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Op};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::Column;
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::InitializerSpec::Zeros;

use super::cut::layers_trial;
use super::flights::{Flight, Message, Sink, Source, fly};
use super::gradients::any_choices;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Numbers, Trial};
use crate::{CompileError, Destination, Edge, Executor, Held, Origin, Stage, Stages, Wanted};

/// The stages of the nodes and of the variables of a graph.
struct Layout {
    parts: Vec<u32>,
    owners: Vec<u32>,
    stages: u32,
}

/// What a run of all stages has computed.
struct Ran {
    results: Vec<f32>,
    gradients: Vec<Vec<f32>>,
}

impl Layout {
    /// Puts everything into stage 0.
    fn new(graph: &GraphSpec, stages: u32) -> Self {
        Self { parts: vec![0; graph.nodes.len()], owners: vec![0; graph.variables.len()], stages }
    }

    fn random(graph: &GraphSpec, stages: u32, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let mut layout = Self::new(graph, stages);
        let all = layout.parts.iter_mut().chain(&mut layout.owners);
        all.for_each(|stage| *stage = numbers.below(stages as usize) as u32);
        layout
    }

    /// Puts the nodes into stages of these ranges of nodes. Each variable belongs to the stage of the first
    /// node that reads it.
    fn in_order(graph: &GraphSpec, starts: &[NodeId]) -> Self {
        let mut layout = Self::new(graph, starts.len() as u32);
        for (stage, start) in starts.iter().enumerate() {
            layout.parts[start.index()..].fill(stage as u32);
        }
        for (position, node) in graph.nodes.iter().enumerate().rev() {
            if let Op::Variable { variable } = node.op {
                layout.owners[variable.index()] = layout.parts[position];
            }
        }
        layout
    }

    fn training<'a>(&'a self, trial: &'a Trial) -> Result<Stages<'a>, CompileError> {
        let Trial { graph, batch, columns, .. } = trial;
        Stages::training(graph, &self.parts, &self.owners, self.stages, batch.examples, columns)
    }

    fn evaluation<'a>(&'a self, trial: &'a Trial) -> Result<Stages<'a>, CompileError> {
        let Trial { graph, batch, columns, .. } = trial;
        Stages::evaluation(graph, &self.parts, &self.owners, self.stages, batch.examples, columns)
    }

    /// Compiles all stages, and checks what they have to do with each other.
    fn compile(&self, stages: &Stages<'_>) -> Vec<Stage> {
        let compiled: Vec<Stage> =
            (0..self.stages).map(|stage| stages.compile(stage, Threads::One).unwrap()).collect();
        check_edges(stages, &compiled);
        for (number, stage) in compiled.iter().enumerate() {
            self.check_stage(number as u32, stage);
        }
        compiled
    }

    /// Checks that a stage holds and wants only what belongs to it.
    fn check_stage(&self, number: u32, stage: &Stage) {
        let Stage { program, arrives, columns, sends, gives, delivered, unused } = stage;
        assert_eq!(program.is_some(), !sends.is_empty());
        let origins = columns.iter().chain(delivered.iter().map(|(origin, _)| origin));
        let held = origins.clone().filter_map(|origin| match origin {
            Origin::Held(held) => Some(held),
            Origin::Arrives(_) => None,
        });
        for held in held.chain(gives.iter().map(|(held, _)| held)) {
            match held {
                Held::Column(_) => assert_eq!(number, 0),
                Held::Variable(variable) => assert_eq!(number, self.owners[variable.index()]),
            }
        }
        for index in 0..arrives.len() {
            assert!(origins.clone().any(|origin| *origin == Origin::Arrives(index)), "nothing needs {index}");
        }
        let computed = sends.iter().filter_map(|destination| match destination {
            Destination::Wanted(wanted) => Some(wanted),
            Destination::Sent(_) => None,
        });
        for wanted in computed.chain(delivered.iter().map(|(_, wanted)| wanted)) {
            match wanted {
                Wanted::Gradient(variable) => assert_eq!(number, self.owners[variable.index()]),
                Wanted::Results(_) => assert_eq!(number, 0),
            }
        }
        assert!(unused.iter().all(|variable| self.owners[variable.index()] == number));
    }
}

/// Checks that the stages send and receive each edge once.
fn check_edges(stages: &Stages<'_>, compiled: &[Stage]) {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for (number, stage) in compiled.iter().enumerate() {
        let computed = stage.sends.iter().filter_map(|destination| match destination {
            Destination::Sent(edge) => Some(edge),
            Destination::Wanted(_) => None,
        });
        let given = stage.gives.iter().map(|(_, edge)| edge);
        let own: Vec<Edge> = computed.chain(given).cloned().collect();
        assert!(own.iter().all(|edge| edge.from == number as u32 && edge.to != edge.from));
        assert!(stage.arrives.iter().all(|edge| edge.to == number as u32));
        assert!(stage.arrives.is_sorted_by_key(|edge| edge.key));
        sent.extend(own);
        received.extend(stage.arrives.clone());
    }
    let expected: Vec<Edge> = stages.edges().cloned().collect();
    for mut edges in [sent, received] {
        edges.sort_by_key(|edge| edge.key);
        assert_eq!(edges, expected);
    }
}

/// Runs the stages once on each trial, all runs at the same time on one thread.
fn run(stages: &[Stage], result_elements: usize, trials: &[Trial], seed: u64) -> Vec<Ran> {
    let (mut flights, mut transit) = (Vec::new(), Vec::new());
    for (run, trial) in trials.iter().enumerate() {
        let begin = |stage: &Stage| {
            let source = |origin: &Origin| match *origin {
                Origin::Held(held) => Source::Held(value_of(held, trial)),
                Origin::Arrives(index) => Source::Edge(stage.arrives[index].key),
            };
            let sink = |destination: &Destination| match destination {
                Destination::Sent(edge) => Sink::new(edge.spec.shape.elements(), Some(edge.clone())),
                Destination::Wanted(wanted) => Sink::new(elements_of(wanted, trial), None),
            };
            let executor = stage.program.clone().map(Executor::new);
            let sources = stage.columns.iter().map(source).collect();
            Flight::begin(run, executor, trial.random, sources, stage.sends.iter().map(sink).collect())
        };
        flights.push(stages.iter().map(begin).collect::<Vec<_>>());
        let gives = stages.iter().flat_map(|stage| &stage.gives);
        transit.extend(gives.map(|(held, edge)| Message {
            run,
            edge: edge.clone(),
            value: value_of(*held, trial),
        }));
    }
    fly(&mut flights, transit, seed);
    let ran = |(flights, trial): (&Vec<Flight>, &Trial)| collect(stages, flights, result_elements, trial);
    flights.iter().zip(trials).map(ran).collect()
}

fn value_of(held: Held, trial: &Trial) -> Column {
    match held {
        Held::Column(column) => trial.batch.columns[column].clone(),
        Held::Variable(variable) => Column::F32(trial.values()[variable.index()].clone()),
    }
}

fn elements_of(wanted: &Wanted, trial: &Trial) -> usize {
    match wanted {
        Wanted::Gradient(variable) => trial.variables[variable.index()].len(),
        Wanted::Results(elements) => elements.len(),
    }
}

/// Collects what the stages of one run have computed. Each wanted value must be there once.
fn collect(stages: &[Stage], flights: &[Flight], result_elements: usize, trial: &Trial) -> Ran {
    let mut ran = Ran { results: vec![f32::NAN; result_elements], gradients: Vec::new() };
    ran.gradients.resize(trial.variables.len(), Vec::new());
    for (stage, flight) in stages.iter().zip(flights) {
        assert!(flight.arrived.keys().eq(stage.arrives.iter().map(|edge| &edge.key)));
        let computed = stage.sends.iter().zip(&flight.sinks).filter_map(|(to, sink)| match to {
            Destination::Wanted(wanted) => Some((wanted, sink.buffer.clone())),
            Destination::Sent(_) => None,
        });
        let delivered = stage.delivered.iter().map(|(origin, wanted)| {
            let value = match *origin {
                Origin::Held(held) => value_of(held, trial),
                Origin::Arrives(index) => flight.arrived[&stage.arrives[index].key].clone(),
            };
            (wanted, value.f32().unwrap().to_vec())
        });
        let zeros = |variable: &VariableId| (*variable, vec![0.0; trial.variables[variable.index()].len()]);
        let mut gradients: Vec<_> = stage.unused.iter().map(zeros).collect();
        for (wanted, value) in computed.chain(delivered) {
            match wanted {
                Wanted::Gradient(variable) => gradients.push((*variable, value)),
                Wanted::Results(elements) => ran.results[elements.clone()].copy_from_slice(&value),
            }
        }
        for (variable, value) in gradients {
            let before = std::mem::replace(&mut ran.gradients[variable.index()], value);
            assert!(before.is_empty(), "the gradient of variable {variable} is there twice");
        }
    }
    ran
}

fn bits<'a>(values: impl IntoIterator<Item = &'a Vec<f32>>) -> Vec<Vec<u32>> {
    values.into_iter().map(|values| values.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Checks that the stages train as the whole program does, and compute nothing twice.
fn check_training(layout: &Layout, trials: &[Trial], seed: u64) {
    let stages = layout.training(&trials[0]).unwrap();
    assert!(stages.result_elements().eq([1]));
    // Another task that cuts the same graph finds the same edges.
    assert!(layout.training(&trials[0]).unwrap().edges().eq(stages.edges()));
    let compiled = layout.compile(&stages);
    for (ran, trial) in run(&compiled, 1, trials, seed).iter().zip(trials) {
        let whole = trial.train();
        assert_eq!(bits([&ran.results]), bits([&vec![whole.loss]]));
        assert_eq!(bits(&ran.gradients), bits(&whole.gradients));
    }
    let flops: u64 = compiled.iter().flat_map(|stage| &stage.program).map(|program| program.flops()).sum();
    assert_eq!(flops, trials[0].training().unwrap().flops());
}

/// Checks that the stages evaluate as the whole program does.
fn check_evaluation(layout: &Layout, trials: &[Trial], seed: u64) {
    let stages = layout.evaluation(&trials[0]).unwrap();
    assert!(stages.result_elements().eq(trials[0].evaluation().unwrap().result_elements()));
    let compiled = layout.compile(&stages);
    assert!(compiled.iter().all(|stage| stage.unused.is_empty()));
    for (ran, trial) in run(&compiled, stages.result_elements().sum(), trials, seed).iter().zip(trials) {
        assert_eq!(bits([&ran.results]), bits([&trial.evaluate()]));
    }
}

/// Checks that the stages train and evaluate on one trial as the whole program does.
fn check(layout: &Layout, trial: &Trial, seed: u64) {
    check_training(layout, std::slice::from_ref(trial), seed);
    check_evaluation(layout, std::slice::from_ref(trial), seed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks (A), (B) for products and convolutions, and (C) on random graphs whose nodes and variables are
    /// in random stages, with up to three runs in flight.
    #[test]
    fn stages_compute_what_the_whole_program_computes(
        choices in any_choices(1..12),
        end: [u8; 6],
        seed: u64,
        stages in 1u32..5,
    ) {
        let drawn = RandomGraph::new(2, false).draw(&choices, end);
        let (graph, bounds) = RandomGraph::measure(drawn, 2);
        let trial = |run| Trial::smooth(&graph, &bounds, 2, seed.wrapping_add(run));
        let trials: Vec<Trial> = (0..3).filter_map(trial).collect();
        if trials.is_empty() {
            return Ok(());
        }
        let layout = Layout::random(&graph, stages, seed);
        check_training(&layout, &trials, seed);
        check_evaluation(&layout, &trials, seed);
    }
}

/// Checks stages of a graph whose sums have many terms, so that a product that rounds differently shows.
#[test]
fn stages_round_as_the_whole_program_does() {
    let trial = layers_trial();
    for seed in 0..20 {
        let layout = Layout::random(&trial.graph, 2 + seed as u32 % 3, seed);
        check(&layout, &trial, seed);
    }
}

#[test]
fn the_memory_of_a_stage_is_its_share() {
    let (mut g, layers) = (GraphBuilder::new("mlp"), 8);
    let (mut x, mut starts) = (g.input("x", [64]), Vec::new());
    for layer in 0..layers {
        let kernel = g.variable(&format!("kernel{layer}"), [64, 64], Zeros);
        starts.push(kernel);
        let bias = g.variable(&format!("bias{layer}"), [64], Zeros);
        x = g.matmul(x, kernel);
        x = g.bias_add(x, bias);
        x = g.relu(x);
    }
    let labels = g.labels("labels");
    let loss = g.softmax_cross_entropy(x, labels);
    let graph = g.finish(loss, &[]).unwrap();
    let trial = Trial::new(&graph, &Bounds::new(), 128, 0.2, 1);
    let layout = Layout::in_order(&graph, &[NodeId(0), starts[layers / 2]]);
    check(&layout, &trial, 1);
    let variables = |owner: Option<u32>| {
        let owned = graph
            .variables
            .iter()
            .zip(&layout.owners)
            .filter(|&(_, own)| owner.is_none_or(|owner| owner == *own));
        owned.map(|(variable, _)| 4 * variable.shape.elements()).sum::<usize>()
    };
    let whole = trial.training().unwrap().arena_bytes() + variables(None);
    let stages = layout.training(&trial).unwrap();
    for number in 0..2 {
        let stage = stages.compile(number, Threads::One).unwrap();
        let bytes = stage.program.unwrap().arena_bytes() + variables(Some(number));
        assert!(bytes * 10 <= whole * 6, "stage {number} needs {bytes} of {whole} bytes");
    }
}

/// Returns a graph that embeds words, drops some of the elements, and scores words with the same table, and
/// the nodes with which the stages begin. The last stage has no operation.
fn tied_words() -> (Trial, Layout) {
    let mut g = GraphBuilder::new("words");
    let ids = g.labels("ids");
    let table = g.variable("table", [7, 6], Zeros);
    let x = g.embedding(table, ids);
    let kernel = g.variable("kernel", [6, 6], Zeros);
    let hidden = g.matmul(x, kernel);
    let hidden = g.dropout(hidden, 0.3);
    let logits = g.matmul_transposed(hidden, table, [false, true]);
    let labels = g.labels("labels");
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let graph = g.finish(loss, &[("accuracy", accuracy)]).unwrap();
    let bounds = Bounds::from(["ids", "labels"].map(|name| (name.to_owned(), 7)));
    let layout = Layout { stages: 4, ..Layout::in_order(&graph, &[NodeId(0), kernel, logits]) };
    (Trial::new(&graph, &bounds, 5, 1.0, 3), layout)
}

#[test]
fn a_variable_can_be_read_in_several_stages() {
    let (trial, mut layout) = tied_words();
    for owner in 0..4 {
        layout.owners[0] = owner;
        let other = Trial { random: 9, ..trial.clone() };
        check_training(&layout, &[trial.clone(), other], 5);
        check(&layout, &trial, 5);
        let stages = layout.training(&trial).unwrap();
        let readers = [0, 2].into_iter().filter(|&stage| stage != owner).collect::<Vec<u32>>();
        let gives = stages.compile(owner, Threads::One).unwrap().gives;
        let table = gives.iter().filter(|(held, _)| *held == Held::Variable(VariableId(0)));
        assert_eq!(table.map(|(_, edge)| edge.to).collect::<Vec<_>>(), readers);
    }
}

#[test]
fn a_stage_gets_only_the_columns_that_it_reads() {
    let (trial, layout) = tied_words();
    let stages = layout.training(&trial).unwrap();
    let gives = stages.compile(0, Threads::One).unwrap().gives;
    let columns: Vec<_> = gives.iter().filter(|(held, _)| matches!(held, Held::Column(_))).collect();
    let [(Held::Column(1), Edge { to: 2, spec, .. })] = columns[..] else { panic!("{columns:?}") };
    assert_eq!(*spec, TensorSpec::i32([5]));
}

#[test]
fn a_stage_without_operations_has_no_program() {
    let (trial, layout) = tied_words();
    let stage = layout.training(&trial).unwrap().compile(3, Threads::One).unwrap();
    assert!(stage.program.is_none() && stage.arrives.is_empty() && stage.gives.is_empty());
    assert!(stage.delivered.is_empty() && stage.unused.is_empty());
}

/// Checks results that no program computes, and variables whose gradients are equal or zero.
#[test]
fn variables_can_be_results() {
    let mut g = GraphBuilder::new("sum");
    let [a, b, c] = ["a", "b", "c"].map(|name| g.variable(name, [], Zeros));
    let loss = g.add(a, b);
    let half = g.constant(0.5);
    let graph = g.finish(loss, &[("a", a), ("c", c), ("half", half)]).unwrap();
    let trial = Trial::new(&graph, &Bounds::new(), 2, 1.0, 1);
    for seed in 0..20 {
        let mut layout = Layout::random(&graph, 3, seed);
        check(&layout, &trial, seed);
        layout.owners = vec![0, 1, 2];
        let stage = layout.evaluation(&trial).unwrap().compile(0, Threads::One).unwrap();
        let held = (Origin::Held(Held::Variable(VariableId(0))), Wanted::Results(1..2));
        assert!(stage.delivered.contains(&held), "{:?}", stage.delivered);
        assert!(stage.arrives.iter().any(|edge| edge.from == 2 && edge.given == Some(c)));
        let unused = layout.training(&trial).unwrap().compile(2, Threads::One).unwrap().unused;
        assert_eq!(unused, [VariableId(2)]);
    }
    let mut of_variable = trial;
    of_variable.graph.loss = b;
    for seed in 0..20 {
        let layout = Layout::random(&graph, 3, seed);
        check(&layout, &of_variable, seed);
    }
}

#[test]
fn a_metric_can_have_many_elements() {
    let mut g = GraphBuilder::new("norm");
    let x = g.input("x", [3]);
    let [gamma, beta] = ["gamma", "beta"].map(|name| g.variable(name, [3], Zeros));
    let [mean, variance] = ["mean", "variance"].map(|name| g.untrained(name, [3], Zeros));
    let x = g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.9);
    let kernel = g.variable("kernel", [3, 1], Zeros);
    let logits = g.matmul(x, kernel);
    let logits = g.reshape(logits, []);
    let labels = g.labels("labels");
    let clicks = g.to_float(labels);
    let loss = g.sigmoid_cross_entropy(logits, clicks);
    let auc = g.auc(logits, labels);
    let graph = g.finish(loss, &[("auc", auc), ("loss", loss)]).unwrap();
    let trial = Trial::new(&graph, &Bounds::new(), 4, 1.0, 5);
    for seed in 0..20 {
        let layout = Layout::random(&graph, 3, seed);
        check(&layout, &trial, seed);
        let elements: Vec<usize> = layout.evaluation(&trial).unwrap().result_elements().collect();
        assert!(elements.len() == 3 && elements[1] > 1, "{elements:?}");
    }
}

/// Cuts a graph that an attacker might write. It can be cut if its whole program can be compiled.
pub(super) fn cut_wild(trial: &Trial, seed: u64) {
    let layout = Layout::random(&trial.graph, 3, seed);
    let compile = |stages: Result<Stages<'_>, CompileError>| {
        stages.and_then(|stages| {
            (0..3).map(|stage| stages.compile(stage, Threads::One)).collect::<Result<Vec<_>, _>>()
        })
    };
    let (training, evaluation) = (compile(layout.training(trial)), compile(layout.evaluation(trial)));
    assert!(training.is_ok() || trial.training().is_err(), "{training:?}");
    assert!(evaluation.is_ok() || trial.evaluation().is_err(), "{evaluation:?}");
}

#[test]
fn what_cannot_be_compiled_is_not_cut() {
    let (mut trial, layout) = tied_words();
    trial.columns.remove(1);
    let error = layout.training(&trial).err().unwrap().to_string();
    assert_eq!(error, trial.training().unwrap_err().to_string());
    let error = layout.evaluation(&trial).err().unwrap().to_string();
    assert_eq!(error, trial.evaluation().unwrap_err().to_string());
}
