//! The target `graph`: decodes bytes as a graph, validates and compiles it, and runs one step. No input may
//! cause a panic. The first byte selects the encoding of the other bytes and the size of the batch.

use pushpull_engine::{Executor, Feed, GradientSink, Program};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::DType;

use crate::corpus::Form;
use crate::seeds::training_graphs;
use crate::target::{Class, Target};

/// The maximum number of elements of all variables together, and of each column. It also bounds the working
/// memory of a step. With these bounds a run takes milliseconds.
const ELEMENTS_MAX: usize = 1 << 14;
/// The maximum number of nodes, and of variables.
const NODES_MAX: usize = 256;

pub(crate) const TARGET: Target = Target {
    name: "graph",
    class: Class::State,
    about: &[
        "messages/src/graph/arity.rs",
        "messages/src/graph/element.rs",
        "messages/src/graph/geometry.rs",
        "messages/src/graph/infer",
        "messages/src/graph/op.rs",
        "messages/src/graph/spec.rs",
        "messages/src/graph/stages.rs",
        "worker/engine/src/arena.rs",
        "worker/engine/src/autodiff.rs",
        "worker/engine/src/columns.rs",
        "worker/engine/src/execute",
        "worker/engine/src/executor.rs",
        "worker/engine/src/feed.rs",
        "worker/engine/src/fuse.rs",
        "worker/engine/src/gradients.rs",
        "worker/engine/src/ir.rs",
        "worker/engine/src/lower.rs",
        "worker/engine/src/memory.rs",
        "worker/engine/src/plan.rs",
        "worker/engine/src/program.rs",
        "worker/engine/src/split_arena.rs",
        "worker/engine/src/training.rs",
    ],
    check,
    stages: &["no graph", "not valid", "valid", "ran"],
    seeds,
    form: Form::Graph,
    ..Target::USUAL
};

fn seeds() -> Vec<(String, Vec<u8>)> {
    let encodings = |graph: &GraphSpec| {
        let packed = rmp_serde::to_vec_named(graph).expect("plain data encodes");
        let bare = rmp_serde::to_vec(graph).expect("plain data encodes");
        let text = serde_json::to_vec(graph).expect("plain data encodes");
        [(2, "named", packed), (4, "bare", bare), (3, "json", text)]
            .map(|(how, kind, bytes)| (format!("{}-{kind}", graph.name), [&[how], &bytes[..]].concat()))
    };
    training_graphs().iter().flat_map(encodings).collect()
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, rest)) = bytes.split_first() else { return 0 };
    let Some(graph) = decode(how, rest) else { return 0 };
    let examples = 1 + usize::from(how / 2) % 4;
    if graph.nodes.len() > NODES_MAX || graph.variables.len() > NODES_MAX || graph.validate(examples).is_err()
    {
        return 1;
    }
    let packed = rmp_serde::to_vec_named(&graph).expect("a valid graph");
    let again = rmp_serde::from_slice::<GraphSpec>(&packed).expect("what was written can be read");
    // Floats that are no numbers differ from themselves, so the bytes are compared.
    assert!(rmp_serde::to_vec_named(&again).is_ok_and(|again| again == packed), "another graph was read");
    2 + usize::from(run(&graph, examples, how))
}

fn decode(how: u8, bytes: &[u8]) -> Option<GraphSpec> {
    match how % 2 {
        0 => rmp_serde::from_slice(bytes).ok(),
        _ => serde_json::from_slice(bytes).ok(),
    }
}

/// Runs a step, if the graph is small. Returns whether it has run.
fn run(graph: &GraphSpec, examples: usize, how: u8) -> bool {
    let columns: Vec<ColumnSpec> = graph
        .nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::Input { example } => Some(ColumnSpec { name: node.name.clone(), example: example.clone() }),
            _ => None,
        })
        .collect();
    let training = Program::training(graph, examples, &columns, Threads::One);
    let evaluation = Program::evaluation(graph, examples, &columns, Threads::One);
    let prediction = Program::prediction(graph, examples, &columns, Threads::One);
    let elements = |column: &ColumnSpec| column.example.shape.elements() * examples;
    let variables: usize = graph.variables.iter().map(|variable| variable.shape.elements()).sum();
    if variables > ELEMENTS_MAX || columns.iter().any(|column| elements(column) > ELEMENTS_MAX) {
        return false;
    }
    let fed = columns.iter().map(|column| {
        let numbers = 0..elements(column);
        match column.example.dtype {
            DType::F32 => Column::F32(numbers.map(|i| (i % 13) as f32 / 6.0 - 1.0).collect()),
            _ => Column::I32(numbers.map(|i| (i % (1 + usize::from(how / 8) % 4)) as i32).collect()),
        }
    });
    let fed: Vec<Column> = fed.collect();
    let zeros: Vec<Vec<f32>> =
        graph.variables.iter().map(|variable| vec![0.0; variable.shape.elements()]).collect();
    let mut values = zeros.clone();
    for variable in &mut values {
        variable.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 11) as f32 / 5.0 - 1.0);
    }
    let mut runs = false;
    let feed = Feed { random: u64::from(how), ..Feed::whole(&fed, examples) };
    if let Ok(program) = training
        && program.arena_bytes() <= 4 * ELEMENTS_MAX
    {
        let order: Vec<VariableId> = program.gradient_order().collect();
        let mut gradients = Told { gradients: zeros, told: Vec::new() };
        let ran = Executor::new(program).train(feed, &values, &mut gradients).is_ok();
        runs |= ran;
        let told = gradients.told;
        assert!(!ran || told == order, "{told:?} was told, and should be {order:?}");
    }
    for program in [evaluation, prediction].into_iter().flatten() {
        if program.arena_bytes() <= 4 * ELEMENTS_MAX {
            runs |= Executor::new(program).evaluate(feed, &values).is_ok();
        }
    }
    runs
}

/// Stores the gradients, and the order in which they were completed.
struct Told {
    gradients: Vec<Vec<f32>>,
    told: Vec<VariableId>,
}

impl GradientSink for Told {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        &mut self.gradients[variable.index()]
    }

    fn complete(&mut self, variable: VariableId) {
        self.told.push(variable);
    }
}
