//! Tests of the pipeline: stages that run on threads and hand each other their values in memory. Checks (A),
//! (B) and (C).

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_engine::{Edge, Executor, Feed, Program};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphBuilder, GraphSpec};
use pushpull_messages::id::{NodeId, PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::{DType, Shape, TensorSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::arrivals::Arrivals;
use super::compiled::StageSource;
use super::error::{StageError, StageErrorKind};
use super::pipeline::{BatchRun, Pipeline};
use super::transfers::Transfers;
use crate::client::{Gradients, Layout, Values};

const BATCH: usize = 8;
const FEATURES: usize = 5;

/// Returns an MLP whose layers are on these stages. The first layer is also added to the last one, so that
/// values cross in both directions.
fn graph(stages: [u32; 4]) -> GraphSpec {
    let mut g = GraphBuilder::new("mlp");
    let x = g.input("x", [FEATURES]);
    let labels = g.labels("labels");
    let on = |stage: u32| format!("/job:worker/task:{stage}");
    let layer = |g: &mut GraphBuilder, name: &str, x: NodeId, [from, to]: [usize; 2]| {
        let kernel = g.variable(&format!("{name}/kernel"), [from, to], InitializerSpec::GlorotUniform);
        let bias = g.variable(&format!("{name}/bias"), [to], InitializerSpec::Zeros);
        let x = g.matmul(x, kernel);
        g.bias_add(x, bias)
    };
    let first = g.device(&on(stages[0]), |g| {
        let x = layer(g, "first", x, [FEATURES, 6]);
        g.relu(x)
    });
    let second = g.device(&on(stages[1]), |g| {
        let x = layer(g, "second", first, [6, 6]);
        g.relu(x)
    });
    let sum = g.device(&on(stages[2]), |g| g.add(first, second));
    let loss = g.device(&on(stages[3]), |g| {
        let logits = layer(g, "logits", sum, [6, 3]);
        g.softmax_cross_entropy(logits, labels)
    });
    g.finish(loss, &[]).unwrap()
}

fn columns() -> [ColumnSpec; 2] {
    let labels = TensorSpec { shape: Shape::scalar(), dtype: DType::I32 };
    let column = |name: &str, example| ColumnSpec { name: name.into(), example };
    [column("x", TensorSpec::f32([FEATURES])), column("labels", labels)]
}

/// Returns numbers that look random, from -1 to 1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let number = |index| pushpull_input::SplitMix64::stream(&[seed, index]).bits() as f32 / u64::MAX as f32;
    (0..count as u64).map(|index| 2.0 * number(index) - 1.0).collect()
}

fn batch(seed: u64) -> Vec<Column> {
    let labels = (0..BATCH).map(|example| ((seed as usize + example * 7) % 3) as i32).collect();
    vec![Column::F32(numbers(seed, BATCH * FEATURES)), Column::I32(labels)]
}

/// The layout of a job with one shard, and its variables' values.
fn values(graph: &GraphSpec) -> (Arc<Layout>, Vec<Vec<f32>>, Values) {
    let shard = ShardId::new(0, 0);
    let slice = |(index, variable)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(index as u32), variable),
        shard,
    };
    let slices = graph.variables.iter().enumerate().map(slice).collect();
    let placement = Placement { epoch: PlacementEpoch(0), shards: vec![shard], slices };
    let layout = Arc::new(Layout::new(&placement, &graph.variables));
    let all: Vec<Vec<f32>> = (0..graph.variables.len())
        .map(|index| numbers(100 + index as u64, graph.variables[index].shape.elements()))
        .collect();
    let segment = |values: &Vec<f32>| Segment::whole(Arc::new(Buffer::from_f32(values)));
    let given = Values::new(all.iter().map(segment).collect());
    (layout, all, given)
}

/// Hands the values of a run to the other stages.
struct InMemory<'a>(&'a [Arrivals]);

impl Transfers for InMemory<'_> {
    fn send(&self, edge: &Edge, micro_batch: u32, value: Payload) {
        let segment = value.into_segments().pop().unwrap();
        self.0[edge.to as usize].put((micro_batch, edge.key), segment);
    }

    fn expect(&self, _: &Edge, _: u32) {}
}

/// The loss and the gradients of a batch, as bits.
type Bits = (u32, Vec<Vec<u32>>);

fn bits(loss: f32, gradients: &[Vec<f32>]) -> Bits {
    let each = |gradient: &Vec<f32>| gradient.iter().map(|number| number.to_bits()).collect();
    (loss.to_bits(), gradients.iter().map(each).collect())
}

/// Computes a batch with stages, each on a thread of its own.
fn staged(graph: &GraphSpec, columns_of_batch: &[Column], micro_batches: u32) -> Bits {
    let (layout, _, values) = values(graph);
    let (columns, pool, stages) = (columns(), BufferPool::default(), graph.stages());
    let arrivals: Vec<Arrivals> = (0..stages.count()).map(|_| Arrivals::default()).collect();
    let transfers = InMemory(&arrivals);
    let run = |number: u32| {
        let source = StageSource { graph, columns: &columns, number, threads: Threads::One };
        let compiled = source.training(BATCH / micro_batches as usize).unwrap();
        let mut pipeline = Pipeline::new(compiled, TaskId::worker(number), micro_batches, None);
        let mut gradients = Gradients::take(&layout, &pool);
        let own: &[Column] = if number == 0 { columns_of_batch } else { &[] };
        let (arrivals, transfers) = (&arrivals[number as usize], &transfers);
        let run = BatchRun { columns: own, random: 3, values: &values, arrivals, transfers, pool: &pool };
        let results = pipeline.run(&run, Some(&mut gradients)).unwrap();
        let owned = stages.owned(number).map(|id| (id, gradients.variable(id).to_vec()));
        (results, owned.collect::<Vec<_>>())
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..stages.count()).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut gradients = vec![Vec::new(); graph.variables.len()];
    for (id, gradient) in ended.iter().flat_map(|(_, owned)| owned) {
        gradients[id.index()].clone_from(gradient);
    }
    bits(ended[0].0[0], &gradients)
}

/// Computes the same batch with the uncut program: the mean over its micro-batches.
fn uncut(graph: &GraphSpec, columns_of_batch: &[Column], micro_batches: usize) -> Bits {
    let (_, values, _) = values(graph);
    let examples = BATCH / micro_batches;
    let program = Program::training(graph, examples, &columns(), Threads::One).unwrap();
    let mut executor = Executor::new(program);
    let (mut loss, mut sums) = (0.0, Vec::<Vec<f32>>::new());
    for micro_batch in 0..micro_batches {
        let part: Vec<Column> = columns_of_batch
            .iter()
            .map(|column| match column {
                Column::F32(all) => {
                    let each = all.len() / micro_batches;
                    Column::F32(all[micro_batch * each..(micro_batch + 1) * each].to_vec())
                }
                Column::I32(all) => {
                    Column::I32(all[micro_batch * examples..(micro_batch + 1) * examples].to_vec())
                }
            })
            .collect();
        let mut gradients: Vec<Vec<f32>> = values.iter().map(|value| vec![0.0; value.len()]).collect();
        let feed = Feed { random: 3, ..Feed::whole(&part, examples) };
        loss += executor.train(feed, &values, &mut gradients).unwrap();
        match sums.is_empty() {
            true => sums = gradients,
            false => {
                sums.iter_mut().flatten().zip(gradients.iter().flatten()).for_each(|(sum, own)| *sum += own)
            }
        }
    }
    if micro_batches > 1 {
        let share = 1.0 / micro_batches as f32;
        loss *= share;
        sums.iter_mut().flatten().for_each(|sum| *sum *= share);
    }
    bits(loss, &sums)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn stages_compute_the_bits_of_the_uncut_program(
        stages in [0u32..4, 0u32..4, 0u32..4, 0u32..4],
        micro_batches in prop::sample::select(&[1u32, 2, 4, 8][..]),
        seed in any::<u32>(),
    ) {
        let (graph, batch) = (graph(stages), batch(seed.into()));
        let expected = uncut(&graph, &batch, micro_batches as usize);
        prop_assert_eq!(staged(&graph, &batch, micro_batches), expected);
    }
}

#[test]
fn a_failure_ends_a_run_that_waits() {
    let graph = graph([0, 1, 1, 1]);
    let (layout, _, values) = values(&graph);
    let (columns, pool, arrivals) = (columns(), BufferPool::default(), Arrivals::default());
    let source = StageSource { graph: &graph, columns: &columns, number: 1, threads: Threads::One };
    let mut pipeline = Pipeline::new(source.training(BATCH).unwrap(), TaskId::worker(1), 1, None);
    let transfers = InMemory(&[]);
    let run = BatchRun {
        columns: &[],
        random: 3,
        values: &values,
        arrivals: &arrivals,
        transfers: &transfers,
        pool: &pool,
    };
    let error = std::thread::scope(|scope| {
        let thread = scope.spawn(|| pipeline.run(&run, Some(&mut Gradients::take(&layout, &pool))));
        let lost = |reason: &str| StageError {
            task: TaskId::worker(0),
            kind: StageErrorKind::Lost,
            reason: reason.into(),
        };
        arrivals.fail(lost("the leader has left"));
        arrivals.fail(lost("a later reason"));
        thread.join().unwrap().unwrap_err().to_string()
    });
    assert_eq!(error, "worker/0, a stage of this replica: the leader has left");
}

#[test]
fn a_value_of_another_size_is_refused() {
    let graph = graph([0, 1, 1, 1]);
    let (layout, _, values) = values(&graph);
    let (columns, pool, arrivals) = (columns(), BufferPool::default(), Arrivals::default());
    let source = StageSource { graph: &graph, columns: &columns, number: 1, threads: Threads::One };
    let compiled = source.training(BATCH).unwrap();
    let edge = compiled.stage.arrives[0].clone();
    let mut pipeline = Pipeline::new(compiled, TaskId::worker(1), 1, None);
    arrivals.put((0, edge.key), Segment::whole(Arc::new(Buffer::from_f32(&[1.0]))));
    let transfers = InMemory(&[]);
    let run = BatchRun {
        columns: &[],
        random: 3,
        values: &values,
        arrivals: &arrivals,
        transfers: &transfers,
        pool: &pool,
    };
    let error = pipeline.run(&run, Some(&mut Gradients::take(&layout, &pool))).unwrap_err().to_string();
    assert!(error.contains("a value of 4 bytes arrived from stage 0, expected"), "{error}");
}
