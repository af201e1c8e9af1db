//! Bytes as a graph: decoded, checked, compiled and run for one step. Whatever the bytes are, nothing panics.
//! The first byte says how the others are to be read, and how large a batch is.

#![no_main]

use std::sync::Arc;

use pushpull_kernels::cpu::Threads;
use libfuzzer_sys::fuzz_target;
use pushpull_messages::buffer::BufferPool;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_worker::graph::{Executor, Feed, Program};
use pushpull_worker::input::{Batch, Column};
use pushpull_worker::{Gradients, Layout, Values};

/// Most elements of all variables, of a column, and of a step's working memory: so that a run takes milliseconds.
const ELEMENTS_MAX: usize = 1 << 14;
/// Most nodes.
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
    let elements = |column: &ColumnSpec| column.example.shape.elements() * examples;
    let variables: usize = graph.variables.iter().map(|variable| variable.shape.elements()).sum();
    if variables > ELEMENTS_MAX || columns.iter().any(|column| elements(column) > ELEMENTS_MAX) {
        return;
    }
    let fed = columns.iter().map(|column| {
        let numbers = 0..elements(column);
        match column.example.dtype {
            DType::F32 => Column::F32(numbers.map(|i| (i % 13) as f32 / 6.0 - 1.0).collect()),
            DType::I32 => Column::I32(numbers.map(|i| (i % (1 + usize::from(how / 8) % 4)) as i32).collect()),
        }
    });
    let batch = Batch { columns: fed.collect(), examples, resume_at: None };
    let shard = ShardId::new(0, 0);
    let slices = graph.variables.iter().enumerate().map(|(id, variable)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id as u32), variable),
        shard,
    });
    let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: slices.collect() };
    let (layout, pool) = (Arc::new(Layout::new(&placement, &graph.variables)), BufferPool::default());
    let mut gradients = Gradients::take(&layout, &pool);
    for id in 0..graph.variables.len() {
        let variable = gradients.variable_mut(VariableId(id as u32));
        variable.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 11) as f32 / 5.0 - 1.0);
    }
    let values = Values::assemble(&layout, &gradients.into_payloads(), &pool).expect("what was laid out");
    let feed = Feed { random: u64::from(how), ..Feed::whole(&batch) };
    if let Ok(program) = training
        && program.arena_bytes() <= 4 * ELEMENTS_MAX
    {
        let order: Vec<VariableId> = program.gradient_order().collect();
        let (mut told, mut gradients) = (Vec::new(), Gradients::take(&layout, &pool));
        let ran = Executor::new(program).run(feed, &values, Some(&mut gradients), |id| told.push(id)).is_ok();
        assert!(!ran || told == order, "{told:?} was told, and should be {order:?}");
    }
    if let Ok(program) = evaluation
        && program.arena_bytes() <= 4 * ELEMENTS_MAX
    {
        let _ = Executor::new(program).run(feed, &values, None, |_, _| ());
    }
}
