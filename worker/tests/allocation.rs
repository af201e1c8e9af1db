//! Checks that a training step after the first one allocates no memory, whether it fetches tensors
//! or not. The allocations are counted in the allocator, so all kernels and threads are included.

use std::alloc::System;
use std::sync::Arc;

use pushpull_engine::{Executor, Feed, Fetch, GradientSink, Groups, Program};
use pushpull_input::{Batch, Column};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::device::{Device, DeviceKind};
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Op, Padding, Stride, UnaryOp, Window};
use pushpull_messages::id::{NodeId, PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::buffer::BufferPool;
use pushpull_worker::{Compute, Gradients, GraphReplica, Layout, Replica, ReplicaConfig, Values};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const EXAMPLES: usize = 16;
/// The number of steps whose allocations are counted together.
const STEPS: usize = 8;
const SAME: Stride = Stride { stride: [1, 1], padding: Padding::Same };

/// The group to which all fetches of this test belong.
const FETCHED: Groups = Groups::only(3);

/// Returns the groups that a step fetches: even steps fetch all tensors, odd steps none.
const fn groups(step: u64) -> Groups {
    if step.is_multiple_of(2) { FETCHED } else { Groups::NONE }
}

struct Model {
    g: GraphBuilder,
    variables: usize,
}

impl Model {
    fn new(name: &str) -> Self {
        Self { g: GraphBuilder::new(name), variables: 0 }
    }

    fn variable<const N: usize>(&mut self, shape: [usize; N]) -> NodeId {
        self.variables += 1;
        self.g.variable(&format!("v{}", self.variables), shape, InitializerSpec::Zeros)
    }

    fn dense(&mut self, x: NodeId, inputs: usize, width: usize) -> NodeId {
        let (kernel, bias) = (self.variable([inputs, width]), self.variable([width]));
        let product = self.g.matmul(x, kernel);
        self.g.bias_add(product, bias)
    }

    fn conv(&mut self, x: NodeId, channels: [usize; 2]) -> NodeId {
        let kernel = self.variable([3, 3, channels[0], channels[1]]);
        self.g.conv2d(x, kernel, SAME)
    }

    fn conv_relu(&mut self, x: NodeId, channels: [usize; 2]) -> NodeId {
        let (y, bias) = (self.conv(x, channels), self.variable([channels[1]]));
        let y = self.g.bias_add(y, bias);
        self.g.relu(y)
    }

    fn batch_norm(&mut self, x: NodeId, channels: usize) -> NodeId {
        let affine = [self.variable([channels]), self.variable([channels])];
        let moving = ["mean", "variance"].map(|name| {
            let name = format!("{name}{}", self.variables);
            self.g.untrained(&name, [channels], InitializerSpec::Constant { value: 1.0 })
        });
        self.g.batch_norm(x, affine, moving, 1e-3, 0.9)
    }

    fn layer_norm(&mut self, x: NodeId, width: usize) -> NodeId {
        let affine = [self.variable([width]), self.variable([width])];
        self.g.layer_norm(x, affine, 1e-5)
    }

    fn classify(mut self, logits: NodeId) -> GraphSpec {
        let labels = self.g.labels("labels");
        let loss = self.g.softmax_cross_entropy(logits, labels);
        let accuracy = self.g.accuracy(logits, labels);
        self.g.finish(loss, &[("accuracy", accuracy)]).unwrap()
    }
}

fn mlp() -> GraphSpec {
    let mut m = Model::new("mlp");
    let x = m.g.input("features", [784]);
    let x = m.dense(x, 784, 128);
    let x = m.g.relu(x);
    let x = m.dense(x, 128, 64);
    let x = m.g.relu(x);
    let logits = m.dense(x, 64, 10);
    m.classify(logits)
}

/// Returns the convolutional network 32C3-P2-64C3-P2-128-10: two convolutions with pooling, then two fully
/// connected layers.
fn cnn() -> GraphSpec {
    let mut m = Model::new("cnn");
    let x = m.g.input("images", [28, 28, 1]);
    let x = m.conv_relu(x, [1, 32]);
    let x = m.g.max_pool2d(x, Window::tiles(2));
    let x = m.conv_relu(x, [32, 64]);
    let x = m.g.max_pool2d(x, Window::tiles(2));
    let x = m.g.reshape(x, [7 * 7 * 64]);
    let x = m.dense(x, 7 * 7 * 64, 128);
    let x = m.g.relu(x);
    let logits = m.dense(x, 128, 10);
    m.classify(logits)
}

/// Returns a causal transformer: an embedding, followed by one block with two heads.
fn transformer() -> GraphSpec {
    const TIME: usize = 12;
    const WIDTH: usize = 32;
    const HEADS: usize = 2;
    let mut m = Model::new("transformer");
    let words = m.g.ids("words", [TIME]);
    let table = m.variable([50, WIDTH]);
    let places = m.variable([TIME, WIDTH]);
    let x = m.g.embedding(table, words);
    let x = m.g.add(x, places);
    let normed = m.layer_norm(x, WIDTH);
    let [query, key, value] = [(); 3].map(|()| {
        let y = m.dense(normed, WIDTH, WIDTH);
        let heads = m.g.reshape(y, [TIME, HEADS, WIDTH / HEADS]);
        m.g.transpose(heads, &[0, 2, 1, 3])
    });
    let scores = m.g.matmul_transposed(query, key, [false, true]);
    let scores = m.g.scale(scores, 0.25);
    let attention = m.g.causal_softmax(scores);
    let attention = m.g.dropout(attention, 0.1);
    let mixed = m.g.matmul(attention, value);
    let mixed = m.g.transpose(mixed, &[0, 2, 1, 3]);
    let mixed = m.g.reshape(mixed, [TIME, WIDTH]);
    let mixed = m.dense(mixed, WIDTH, WIDTH);
    let x = m.g.add(x, mixed);
    let normed = m.layer_norm(x, WIDTH);
    let y = m.dense(normed, WIDTH, 4 * WIDTH);
    let y = m.g.unary(UnaryOp::Gelu, y);
    let y = m.dense(y, 4 * WIDTH, WIDTH);
    let x = m.g.add(x, y);
    let logits = m.dense(x, WIDTH, 50);
    let labels = m.g.ids("next", [TIME]);
    let loss = m.g.softmax_cross_entropy(logits, labels);
    m.g.finish(loss, &[]).unwrap()
}

fn residual() -> GraphSpec {
    let mut m = Model::new("residual");
    let x = m.g.input("images", [8, 8, 16]);
    let y = m.conv(x, [16, 16]);
    let y = m.batch_norm(y, 16);
    let y = m.g.relu(y);
    let y = m.conv(y, [16, 16]);
    let y = m.batch_norm(y, 16);
    let y = m.g.add(x, y);
    let y = m.g.relu(y);
    let y = m.g.average_pool2d(y, Window::tiles(2));
    let y = m.g.global_average_pool(y);
    let logits = m.dense(y, 16, 10);
    m.classify(logits)
}

/// A model with the data, values and gradient buffers that it needs to take steps.
struct Trial {
    graph: GraphSpec,
    columns: Vec<ColumnSpec>,
    batch: Batch,
    values: Values,
    gradients: Gradients,
}

impl Trial {
    fn new(graph: GraphSpec) -> Self {
        let (mut columns, mut fed) = (Vec::new(), Vec::new());
        for node in &graph.nodes {
            let Op::Input { example } = &node.op else { continue };
            let elements = EXAMPLES * example.shape.elements();
            fed.push(match example.dtype {
                DType::F32 => Column::F32((0..elements).map(|i| (i % 7) as f32 / 7.0).collect()),
                _ => Column::I32((0..elements).map(|i| (i % 10) as i32).collect()),
            });
            columns.push(ColumnSpec { name: node.name.clone(), example: example.clone() });
        }
        let shard = ShardId::new(0, 0);
        let slices = graph.variables.iter().enumerate().map(|(id, variable)| PlacedSlice {
            slice: SliceSpec::whole(VariableId(id as u32), variable),
            shard,
        });
        let slices = slices.collect();
        let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices };
        let (layout, pool) = (Arc::new(Layout::new(&placement, &graph.variables)), BufferPool::default());
        let mut start = Gradients::take(&layout, &pool);
        for id in 0..graph.variables.len() {
            let variable = start.variable_mut(VariableId(id as u32));
            variable
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = ((i * 37 + id) % 19) as f32 / 190.0 - 0.04);
        }
        let values = start.into_values();
        let batch = Batch { columns: fed, examples: EXAMPLES, resume_at: None };
        Self { graph, columns, batch, values, gradients: Gradients::take(&layout, &pool) }
    }

    /// Returns fetches of the logits (the first input of the loss), of the loss, and of every metric.
    fn fetches(&self) -> Vec<Fetch> {
        let graph = &self.graph;
        let logits = graph.nodes[graph.loss.index()].inputs[0];
        let nodes = [logits, graph.loss].into_iter().chain(graph.metrics.iter().map(|metric| metric.node));
        nodes.map(|node| Fetch { node, groups: FETCHED }).collect()
    }

    fn run(&mut self, executor: &mut Executor, random: u64) {
        let Self { batch, values, gradients, .. } = self;
        let feed = Feed { random, groups: groups(random), ..Feed::whole(&batch.columns, batch.examples) };
        let mut counted = Counted { gradients, told: 0 };
        let loss = executor.train(feed, values, &mut counted).unwrap();
        assert!(loss.is_finite() && counted.told == self.graph.variables.len());
        assert_eq!(executor.fetched().is_empty(), groups(random).is_empty());
    }
}

/// A receiver of gradients that counts the gradients reported as complete.
struct Counted<'a> {
    gradients: &'a mut Gradients,
    told: usize,
}

impl GradientSink for Counted<'_> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.gradients.variable_mut(variable)
    }

    fn complete(&mut self, _: VariableId) {
        self.told += 1;
    }
}

/// Calls the function `steps` three times. Returns the number of allocations of the call that allocated
/// least often. Other code of the process may allocate during one call, but hardly during all three.
fn allocations(mut steps: impl FnMut()) -> usize {
    let count = |_| {
        let region = Region::new(ALLOCATOR);
        steps();
        let change = region.change();
        change.allocations + change.reallocations
    };
    (0..3).map(count).min().unwrap()
}

fn executor(trial: &mut Trial, threads: Threads) -> usize {
    let fetches = trial.fetches();
    let program = Program::training_with(&trial.graph, EXAMPLES, &trial.columns, threads, &fetches).unwrap();
    let mut executor = Executor::new(program);
    trial.run(&mut executor, 0);
    allocations(|| (1..=STEPS as u64).for_each(|step| trial.run(&mut executor, step)))
}

fn replica(trial: &mut Trial) -> usize {
    let fetches = &trial.fetches()[..];
    let Trial { graph, columns, batch, values, gradients } = trial;
    let device = Device { task: TaskId::worker(0), kind: DeviceKind::Cpu, index: 0 };
    let compute = Compute::new(1, 1).unwrap();
    let config = ReplicaConfig { graph, examples: EXAMPLES, columns, fetches, device, compute };
    let mut replica = GraphReplica::new(config).unwrap();
    let mut step = |random| {
        let feed = Feed { random, groups: groups(random), ..Feed::whole(&batch.columns, batch.examples) };
        replica.step(feed, values, gradients, &mut |_, _| ()).unwrap();
    };
    step(0);
    allocations(|| (1..=STEPS as u64).for_each(&mut step))
}

/// This file contains a single test, because a second test would allocate concurrently.
#[test]
fn a_step_allocates_nothing() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut found = Vec::new();
    for graph in [mlp(), cnn(), transformer(), residual()] {
        let mut trial = Trial::new(graph);
        let alone = executor(&mut trial, Threads::One);
        let shared = pool.install(|| executor(&mut trial, Threads::Pool(2)));
        found.push((trial.graph.name.clone(), [alone, shared, replica(&mut trial)]));
    }
    let nothing = found.iter().all(|(_, counts)| *counts == [0; 3]);
    assert!(nothing, "allocations in {STEPS} steps on one thread, on two, and of a replica: {found:?}");
}
