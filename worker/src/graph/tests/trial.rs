//! A graph with everything that it runs on: data, values of its variables, and memory for its gradients. Runs it
//! compiled and interpreted. It knows no operation.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::buffer::BufferPool;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;

use super::interpreter::{Given, Interpretation, interpret};
use crate::gradients::Gradients;
use crate::graph::lower::Mode;
use crate::graph::{CompileError, Executor, Feed, Program};
use crate::input::{Batch, Column};
use crate::layout::Layout;
use crate::values::Values;

/// A repeatable stream of numbers in −1..1.
pub(super) struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (((self.next() + 1.0) / 2.0 * bound as f64) as usize).min(bound - 1)
    }
}

/// What the inputs of a graph may hold: so many integers from 0, or, for floats, from 0 to 1 rather than −1 to 1.
pub(super) type Bounds = BTreeMap<String, usize>;

#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub graph: GraphSpec,
    /// In the order of the graph's inputs.
    pub columns: Vec<ColumnSpec>,
    pub batch: Batch,
    pub variables: Vec<Vec<f64>>,
    pub random: u64,
}

/// What a training step gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trained {
    pub loss: f32,
    /// By variable.
    pub gradients: Vec<Vec<f32>>,
    /// In the order in which they were told to be complete.
    pub order: Vec<VariableId>,
}

impl Trial {
    /// Random data and values, up to `scale`.
    pub fn new(graph: &GraphSpec, bounds: &Bounds, examples: usize, scale: f64, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let (mut columns, mut fed) = (Vec::new(), Vec::new());
        for node in &graph.nodes {
            let Op::Input { example } = &node.op else { continue };
            columns.push(ColumnSpec { name: node.name.clone(), example: example.clone() });
            let elements = examples * example.shape.elements();
            let bound = bounds.get(&node.name).copied();
            fed.push(match example.dtype {
                DType::F32 => Column::F32(
                    (0..elements)
                        .map(|_| match bound {
                            Some(_) => numbers.next().abs() as f32,
                            None => (numbers.next() * scale) as f32,
                        })
                        .collect(),
                ),
                DType::I32 => {
                    Column::I32((0..elements).map(|_| numbers.below(bound.unwrap_or(2)) as i32).collect())
                }
            });
        }
        let variables = graph.variables.iter().map(|variable| {
            let one = |numbers: &mut Numbers| match variable.trainable {
                true => f64::from((numbers.next() * scale) as f32),
                // A moving variance has no sign.
                false => f64::from((numbers.next().abs() + 0.25) as f32),
            };
            (0..variable.shape.elements()).map(|_| one(&mut numbers)).collect()
        });
        let variables = variables.collect();
        let batch = Batch { columns: fed, examples, resume_at: None };
        Self { graph: graph.clone(), columns, batch, variables, random: seed }
    }

    /// Random data and values, of which none is within 10⁻³ of a kink and none is so large that rounding shows; `None`
    /// where 24 tries do not find any.
    pub fn smooth(graph: &GraphSpec, bounds: &Bounds, examples: usize, seed: u64) -> Option<Self> {
        (0..24u64).find_map(|attempt| {
            let scale = [1.0, 0.7, 0.5, 1.4][attempt as usize % 4];
            let trial = Self::new(graph, bounds, examples, scale, seed.wrapping_add(attempt << 32));
            let Interpretation { values, margin, .. } = trial.interpret(Mode::Training);
            let tame = values.iter().flatten().all(|value| value.abs() < 100.0);
            (tame && margin > 1e-3).then_some(trial)
        })
    }

    pub fn interpret(&self, mode: Mode) -> Interpretation {
        self.interpret_at(&self.variables, mode)
    }

    pub fn interpret_at(&self, variables: &[Vec<f64>], mode: Mode) -> Interpretation {
        interpret(&self.graph, Given { batch: &self.batch, variables, random: self.random, mode })
    }

    /// The loss of the interpreter at these variables.
    pub fn loss_at(&self, variables: &[Vec<f64>]) -> f64 {
        self.interpret_at(variables, Mode::Training).values[self.graph.loss.index()][0]
    }

    pub fn training(&self) -> Result<Program, CompileError> {
        self.training_of(self.batch.examples)
    }

    pub fn training_of(&self, examples: usize) -> Result<Program, CompileError> {
        Program::training(&self.graph, examples, &self.columns, Threads::One)
    }

    pub fn evaluation(&self) -> Result<Program, CompileError> {
        Program::evaluation(&self.graph, self.batch.examples, &self.columns, Threads::One)
    }

    /// Two steps of the compiled program; both must give the same, whatever the first one has left in memory.
    pub fn train(&self) -> Trained {
        let mut executor = Executor::new(self.training().unwrap());
        let first = self.step(&mut executor, 0);
        assert_eq!(bits(&first), bits(&self.step(&mut executor, 0)), "the second step gave something else");
        first
    }

    /// One step on a part of the batch, as a device does it.
    pub fn train_part(&self, part: Range<usize>) -> Trained {
        self.step(&mut Executor::new(self.training_of(part.len()).unwrap()), part.start)
    }

    fn step(&self, executor: &mut Executor, first: usize) -> Trained {
        let (values, mut gradients) = (self.values(), self.gradients());
        let feed = Feed { batch: &self.batch, first, random: self.random };
        let mut order = Vec::new();
        let loss = executor.run(feed, &values, Some(&mut gradients), |_, variable| order.push(variable));
        let loss = loss.unwrap()[0];
        Trained { loss, gradients: self.every(&gradients), order }
    }

    pub fn evaluate(&self) -> Vec<f32> {
        let mut executor = Executor::new(self.evaluation().unwrap());
        let mut run =
            || executor.run(Feed::whole(&self.batch), &self.values(), None, |_, _| ()).unwrap().to_vec();
        let first = run();
        let same = first.iter().zip(run()).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "the second evaluation gave something else");
        first
    }

    pub fn values(&self) -> Values {
        let (layout, pool) = (layout(&self.graph), BufferPool::default());
        let mut buffers = Gradients::take(&layout, &pool);
        for (id, variable) in self.variables.iter().enumerate() {
            let floats = buffers.variable_mut(VariableId(id as u32));
            floats.iter_mut().zip(variable).for_each(|(to, from)| *to = *from as f32);
        }
        buffers.into_values()
    }

    /// Memory for gradients, full of what must not shine through.
    pub fn gradients(&self) -> Gradients {
        let mut gradients = Gradients::take(&layout(&self.graph), &BufferPool::default());
        for id in 0..self.variables.len() {
            gradients.variable_mut(VariableId(id as u32)).fill(f32::NAN);
        }
        gradients
    }

    pub fn every(&self, gradients: &Gradients) -> Vec<Vec<f32>> {
        (0..self.variables.len()).map(|id| gradients.variable(VariableId(id as u32)).to_vec()).collect()
    }
}

fn bits(trained: &Trained) -> (u32, Vec<Vec<u32>>) {
    let gradients = trained.gradients.iter().map(|gradient| gradient.iter().map(|x| x.to_bits()).collect());
    (trained.loss.to_bits(), gradients.collect())
}

/// Two shards that own whole variables, in turns, but for those of several rows, which are cut in two.
pub(super) fn layout(graph: &GraphSpec) -> Arc<Layout> {
    let shards = vec![ShardId::new(0, 0), ShardId::new(1, 0)];
    let mut slices = Vec::new();
    for (id, variable) in graph.variables.iter().enumerate() {
        let slice = SliceSpec::whole(VariableId(id as u32), variable);
        if variable.rows() > 1 && id % 3 == 2 {
            let (first, second) =
                (SliceSpec { rows: 1, ..slice }, SliceSpec { row: 1, rows: slice.rows - 1, ..slice });
            slices.push(PlacedSlice { slice: first, shard: shards[1] });
            slices.push(PlacedSlice { slice: second, shard: shards[0] });
        } else {
            slices.push(PlacedSlice { slice, shard: shards[id % 2] });
        }
    }
    let placement = Placement { epoch: PlacementEpoch(1), shards, slices };
    placement.validate(&graph.variables).unwrap();
    Arc::new(Layout::new(&placement, &graph.variables))
}
