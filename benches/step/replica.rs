//! A replica that computes gradients on one device, without a cluster. This module must not depend on what is
//! measured.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use pushpull::{GraphSpec, TensorSpec};
use pushpull_engine::{CudaExecutor, Executor, Feed, NextBatch, OpTime, Program, Target};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::Op;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::DType;
use serde::Serialize;

use crate::device::Device;
use crate::models::Model;

/// A model on a device, with its values, its gradients and a batch.
pub(crate) struct Replica {
    executor: AnyExecutor,
    values: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    columns: Vec<Column>,
    examples: usize,
    /// The number of the step's batch. Each step has the same numbers in a batch of its own.
    number: u64,
    /// The time to compile the graph to a program, in seconds.
    pub program_s: f64,
    /// The time to compile the kernels and to allocate memory, in seconds.
    pub kernels_s: f64,
}

enum AnyExecutor {
    Cpu(Box<Executor>),
    Cuda(Box<CudaExecutor>),
}

/// The time of all operations of one kind in a step.
#[derive(Debug, Serialize)]
pub(crate) struct OperationTime {
    kind: String,
    backward: bool,
    count: usize,
    ms: f64,
}

impl fmt::Display for OperationTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, backward, count, ms } = self;
        let pass = if *backward { "backward" } else { "forward" };
        write!(f, "{count} × {kind} ({pass}) {ms:.3} ms")
    }
}

impl Replica {
    /// Compiles a model for a device, and draws its values and a batch.
    pub(crate) fn new(model: &Model, device: &mut Device) -> anyhow::Result<Self> {
        let (specs, columns) = batch(model);
        let target = match device {
            Device::Cpu(1) => Target::Cpu(Threads::One),
            Device::Cpu(threads) => Target::Cpu(Threads::Pool(*threads)),
            Device::Cuda(device) => device.target(),
        };
        let began = Instant::now();
        let program = Program::training(&model.graph, model.batch, &specs, target)?;
        let program_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let executor = match device {
            Device::Cpu(_) => AnyExecutor::Cpu(Box::new(Executor::new(program))),
            Device::Cuda(device) => AnyExecutor::Cuda(Box::new(CudaExecutor::new(program, device)?)),
        };
        let kernels_s = began.elapsed().as_secs_f64();
        let sizes = model.graph.variables.iter().map(|variable| variable.shape.elements());
        let gradients: Vec<Vec<f32>> = sizes.map(|elements| vec![0.0; elements]).collect();
        // The values are small and not all equal.
        let number = |at: usize| ((at * 2_654_435_761) % 1000) as f32 * 1e-4 - 0.05;
        let values = gradients.iter().map(|gradient| (0..gradient.len()).map(number).collect()).collect();
        Ok(Self {
            executor,
            values,
            gradients,
            columns,
            examples: model.batch,
            number: 0,
            program_s,
            kernels_s,
        })
    }

    /// Returns the feed of the next step, which announces the batch after it.
    fn feed<'a>(columns: &'a [Column], examples: usize, number: &mut u64) -> Feed<'a> {
        *number += 1;
        let next = NextBatch { number: *number + 1, columns, examples };
        Feed { number: *number, next: Some(next), ..Feed::whole(columns, examples) }
    }

    /// Makes one step, and returns the loss. `timed` records the time of each operation.
    pub(crate) fn step(&mut self, device: &mut Device, timed: bool) -> anyhow::Result<f32> {
        let Self { executor, values, gradients, columns, examples, number, .. } = self;
        let feed = Feed { timed, ..Self::feed(columns, *examples, number) };
        let loss = match (executor, device) {
            (AnyExecutor::Cpu(executor), _) => executor.train(feed, values, gradients)?,
            (AnyExecutor::Cuda(executor), Device::Cuda(device)) => {
                executor.train(device, feed, values, gradients)?
            }
            (AnyExecutor::Cuda(_), Device::Cpu(_)) => unreachable!("the device of the replica"),
        };
        black_box(&self.gradients);
        Ok(loss)
    }

    /// Makes one step with the values that are on the device, where it leaves the gradients, and returns the
    /// loss.
    pub(crate) fn repeat(&mut self, device: &mut Device) -> anyhow::Result<f32> {
        let Self { executor, values, columns, examples, number, .. } = self;
        match (executor, device) {
            (AnyExecutor::Cuda(executor), Device::Cuda(device)) => {
                Ok(executor.repeat(device, Self::feed(columns, *examples, number), values)?)
            }
            _ => unreachable!("only CUDA devices keep values"),
        }
    }

    /// Returns the times of the last step, the longest first; none if it was not timed.
    pub(crate) fn operation_times(&self) -> Vec<OperationTime> {
        let times: Vec<OpTime> = match &self.executor {
            AnyExecutor::Cpu(executor) => executor.op_times().collect(),
            AnyExecutor::Cuda(executor) => executor.op_times().collect(),
        };
        let mut kinds: BTreeMap<(String, bool), (usize, f64)> = BTreeMap::new();
        for OpTime { kind, backward, began, ended, .. } in times {
            let (count, ms) = kinds.entry((kind, backward)).or_default();
            *count += 1;
            *ms += (ended - began).as_secs_f64() * 1e3;
        }
        let time = |((kind, backward), (count, ms))| OperationTime { kind, backward, count, ms };
        let mut all: Vec<OperationTime> = kinds.into_iter().map(time).collect();
        all.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        all
    }

    fn program(&self) -> &Program {
        match &self.executor {
            AnyExecutor::Cpu(executor) => executor.program(),
            AnyExecutor::Cuda(executor) => executor.program(),
        }
    }

    /// Returns the floating-point operations of all products and convolutions of a step.
    pub(crate) fn flops(&self) -> u64 {
        self.program().flops()
    }

    /// Returns the size of the working memory.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.program().arena_bytes()
    }

    /// Returns the size of all variables.
    pub(crate) fn variables_bytes(&self) -> usize {
        self.values.iter().map(|value| 4 * value.len()).sum()
    }
}

/// Returns a batch for the inputs of a graph.
fn batch(Model { graph, batch, integers_below, .. }: &Model) -> (Vec<ColumnSpec>, Vec<Column>) {
    let mixed = |at: usize| at * 2_654_435_761 % 1_000_003;
    let column = |TensorSpec { shape, dtype }: &TensorSpec| {
        let places = 0..batch * shape.elements();
        match dtype {
            DType::F32 => Column::F32(places.map(|at| mixed(at) as f32 / 500_000.0 - 1.0).collect()),
            _ => Column::I32(places.map(|at| (mixed(at) % integers_below) as i32).collect()),
        }
    };
    let specs = inputs(graph);
    let columns = specs.iter().map(|spec| column(&spec.example)).collect();
    (specs, columns)
}

/// Returns the columns that a graph reads.
fn inputs(graph: &GraphSpec) -> Vec<ColumnSpec> {
    let column = |node: &pushpull_messages::graph::NodeSpec| match &node.op {
        Op::Input { example } => Some(ColumnSpec::new(&node.name, example.clone())),
        _ => None,
    };
    graph.nodes.iter().filter_map(column).collect()
}
