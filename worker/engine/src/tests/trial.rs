//! A trial: a graph with everything that it needs to run, which is data, values of its variables, and memory
//! for its gradients. A trial runs the graph both compiled and interpreted. This module must not depend on
//! operations.

use std::collections::BTreeMap;
use std::ops::Range;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::DType;

use super::interpreter::{Given, Interpretation, Pass, interpret};
use crate::{CompileError, Executor, Feed, GradientSink, Program};

/// A reproducible stream of pseudorandom numbers in −1..1.
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

/// The bounds of a graph's inputs, by the input's name. The data for an integer input are from 0 to n − 1 if
/// the input has the bound n, and 0 or 1 if it has no bound. The data for a float input are from 0 to 1 if
/// the input has a bound, which may be any number; otherwise, they are from −`scale` to `scale` (see
/// [`Trial::new`]).
pub(super) type Bounds = BTreeMap<String, usize>;

#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub graph: GraphSpec,
    /// The column specs, in the order of the graph's inputs.
    pub columns: Vec<ColumnSpec>,
    pub batch: TrialBatch,
    pub variables: Vec<Vec<f64>>,
    pub random: u64,
}

/// The batch of examples on which a trial runs.
#[derive(Clone, Debug)]
pub(super) struct TrialBatch {
    pub columns: Vec<Column>,
    pub examples: usize,
}

/// A receiver of gradients, with one vector for each variable. `order` lists the variables in the order in
/// which their gradients were reported as complete.
pub(super) struct TrialGradients {
    pub gradients: Vec<Vec<f32>>,
    pub order: Vec<VariableId>,
}

impl GradientSink for TrialGradients {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        &mut self.gradients[variable.index()]
    }

    fn complete(&mut self, variable: VariableId) {
        self.order.push(variable);
    }
}

/// The result of a training step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trained {
    pub loss: f32,
    /// The gradient of each variable.
    pub gradients: Vec<Vec<f32>>,
    /// The variables, in the order in which their gradients were reported as complete.
    pub order: Vec<VariableId>,
}

impl Trial {
    /// Draws random data (see [`Bounds`]) and random values of the variables. The values of trainable
    /// variables are from −`scale` to `scale`.
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
                _ => Column::I32((0..elements).map(|_| numbers.below(bound.unwrap_or(2)) as i32).collect()),
            });
        }
        let variables = graph.variables.iter().map(|variable| {
            let one = |numbers: &mut Numbers| match variable.trainable {
                true => f64::from((numbers.next() * scale) as f32),
                // A moving variance is not negative.
                false => f64::from((numbers.next().abs() + 0.25) as f32),
            };
            (0..variable.shape.elements()).map(|_| one(&mut numbers)).collect()
        });
        let variables = variables.collect();
        let batch = TrialBatch { columns: fed, examples };
        Self { graph: graph.clone(), columns, batch, variables, random: seed }
    }

    /// Draws a trial whose results can be compared with those of the interpreter: no operation is within
    /// 10⁻³ of a kink, where its slope jumps, and all values are below 100 in magnitude, so that rounding
    /// does not matter. Returns `None` after 24 failed attempts.
    pub fn smooth(graph: &GraphSpec, bounds: &Bounds, examples: usize, seed: u64) -> Option<Self> {
        (0..24u64).find_map(|attempt| {
            let scale = [1.0, 0.7, 0.5, 1.4][attempt as usize % 4];
            let trial = Self::new(graph, bounds, examples, scale, seed.wrapping_add(attempt << 32));
            let Interpretation { values, margin, .. } = trial.interpret(Pass::Training);
            let tame = values.iter().flatten().all(|value| value.abs() < 100.0);
            (tame && margin > 1e-3).then_some(trial)
        })
    }

    pub fn interpret(&self, pass: Pass) -> Interpretation {
        self.interpret_at(&self.variables, pass)
    }

    pub fn interpret_at(&self, variables: &[Vec<f64>], pass: Pass) -> Interpretation {
        let TrialBatch { columns, examples } = &self.batch;
        let given = Given { columns, examples: *examples, variables, random: self.random, pass };
        interpret(&self.graph, given)
    }

    /// Returns the interpreter's loss for these values of the variables.
    pub fn loss_at(&self, variables: &[Vec<f64>]) -> f64 {
        self.interpret_at(variables, Pass::Training).values[self.graph.loss.index()][0]
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

    /// Runs two steps of the compiled program, and returns the result of the first. The second must give the
    /// same bits, although the first leaves its values in memory.
    pub fn train(&self) -> Trained {
        let mut executor = Executor::new(self.training().unwrap());
        let first = self.step(&mut executor, 0);
        assert_eq!(bits(&first), bits(&self.step(&mut executor, 0)), "the second step gave another result");
        first
    }

    /// Runs one step on a part of the batch, as a device does.
    pub fn train_part(&self, part: Range<usize>) -> Trained {
        self.step(&mut Executor::new(self.training_of(part.len()).unwrap()), part.start)
    }

    fn step(&self, executor: &mut Executor, first: usize) -> Trained {
        let mut gradients = self.gradients();
        let feed = Feed { first, random: self.random, ..self.feed() };
        let loss = executor.train(feed, &self.values(), &mut gradients).unwrap();
        let TrialGradients { gradients, order } = gradients;
        Trained { loss, gradients, order }
    }

    pub fn evaluate(&self) -> Vec<f32> {
        let mut executor = Executor::new(self.evaluation().unwrap());
        let mut run = || executor.evaluate(self.feed(), &self.values()).unwrap().to_vec();
        let first = run();
        let same = first.iter().zip(run()).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "the second evaluation gave another result");
        first
    }

    /// Returns the feed of the whole batch, with the random seed 0.
    pub fn feed(&self) -> Feed<'_> {
        Feed::whole(&self.batch.columns, self.batch.examples)
    }

    pub fn values(&self) -> Vec<Vec<f32>> {
        self.variables.iter().map(|variable| variable.iter().map(|&x| x as f32).collect()).collect()
    }

    /// Returns memory for gradients. It is filled with NaN, so that a test notices elements that are not
    /// overwritten.
    pub fn gradients(&self) -> TrialGradients {
        let gradients = self.variables.iter().map(|variable| vec![f32::NAN; variable.len()]);
        TrialGradients { gradients: gradients.collect(), order: Vec::new() }
    }
}

fn bits(trained: &Trained) -> (u32, Vec<Vec<u32>>) {
    let gradients = trained.gradients.iter().map(|gradient| gradient.iter().map(|x| x.to_bits()).collect());
    (trained.loss.to_bits(), gradients.collect())
}
