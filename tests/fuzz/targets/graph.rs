//! Fuzz target: decodes bytes as a graph, validates and compiles it, and runs one step. No input may cause a
//! panic. The first byte selects the encoding of the other bytes and the size of the batch.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pushpull_engine::{Executor, Feed, GradientSink, Program};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::DType;

/// The maximum number of elements of all variables together, and of each column. It also bounds the working
/// memory of a step. With these bounds a run takes milliseconds.
const ELEMENTS_MAX: usize = 1 << 14;
/// The maximum number of nodes, and of variables.
const NODES_MAX: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let Some(graph) = decode(how, rest) else { return };
    let examples = 1 + usize::from(how / 2) % 4;
    if graph.nodes.len() > NODES_MAX || graph.variables.len() > NODES_MAX || graph.validate(examples).is_err()
    {
        return;
    }
    let again = rmp_serde::from_slice::<GraphSpec>(&rmp_serde::to_vec_named(&graph).expect("a valid graph"));
    assert_eq!(again.expect("what was written can be read"), graph);
    run(&graph, examples, how);
});

fn decode(how: u8, bytes: &[u8]) -> Option<GraphSpec> {
    match how % 2 {
        0 => rmp_serde::from_slice(bytes).ok(),
        _ => serde_json::from_slice(bytes).ok(),
    }
}

fn run(graph: &GraphSpec, examples: usize, how: u8) {
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
        return;
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
    let feed = Feed { random: u64::from(how), ..Feed::whole(&fed, examples) };
    if let Ok(program) = training
        && program.arena_bytes() <= 4 * ELEMENTS_MAX
    {
        let order: Vec<VariableId> = program.gradient_order().collect();
        let mut gradients = Told { gradients: zeros, told: Vec::new() };
        let ran = Executor::new(program).train(feed, &values, &mut gradients).is_ok();
        let told = gradients.told;
        assert!(!ran || told == order, "{told:?} was told, and should be {order:?}");
    }
    for program in [evaluation, prediction].into_iter().flatten() {
        if program.arena_bytes() <= 4 * ELEMENTS_MAX {
            let _ = Executor::new(program).evaluate(feed, &values);
        }
    }
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
