//! Runs a program on batches: executes its instructions in order. All working memory is in one arena that is
//! allocated at the start, so a step allocates nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::observe;

use super::arena::Arena;
use super::columns::ColumnSource;
use super::error::{StepError, StepFault};
use super::execute::{Call, Outputs, Sources, execute};
use super::feed::Feed;
use super::fetch::Groups;
use super::gradients::GradientSink;
use super::memory::{Instruction, Place};
use super::op_time::OpTime;
use super::program::{Program, ResultPlace};
use super::split_arena::{OUTPUTS, carve};
use super::target::Target;
use super::values::ValueSource;

/// A program together with its arena.
pub struct Executor {
    program: Arc<Program>,
    threads: Threads,
    arena: Arena,
    results: Vec<f32>,
    /// For each instruction that the last step ran: its index, and when it began and ended. Empty if that
    /// step was not timed.
    times: Vec<(usize, [Instant; 2])>,
}

impl Executor {
    /// Allocates all the memory that the program needs; steps allocate nothing. Executors may share a
    /// program.
    ///
    /// # Panics
    /// If the program was compiled for another target than the processor.
    pub fn new(program: impl Into<Arc<Program>>) -> Self {
        let program = program.into();
        let Target::Cpu(threads) = program.target else { panic!("the program is for {:?}", program.target) };
        let arena = Arena::zeroed(program.arena);
        let results = Vec::with_capacity(program.result_elements().sum());
        Self { program, threads, arena, results, times: Vec::new() }
    }

    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs a training program forward and backward, and returns the loss.
    ///
    /// The loss is the mean over the program's examples. The gradients are those of this mean, multiplied by
    /// the program's share of the whole batch. The gradients of several devices therefore add up to those of
    /// the whole batch. Each gradient is reported with [`GradientSink::complete`] as soon as it is complete,
    /// in the program's [`gradient_order`](Program::gradient_order). The step also computes the fetches of
    /// the feed's groups, which [`fetched`](Self::fetched) then returns.
    ///
    /// # Errors
    /// If a label is not one of the classes, or an id is not a row of its embedding table. The gradients
    /// must then not be used.
    ///
    /// # Panics
    /// If the batch does not have the columns or examples that the program was compiled for.
    pub fn train(
        &mut self,
        feed: Feed<'_>,
        values: &dyn ValueSource,
        gradients: &mut dyn GradientSink,
    ) -> Result<f32, StepError> {
        for &variable in &self.program.unused {
            gradients.variable_mut(variable).fill(0.0);
            gradients.complete(variable);
        }
        self.run(feed, &feed.columns, values, Some(gradients))?;
        Ok(self.results[0])
    }

    /// Runs the program of a [`Part`](crate::Part). Column i is the value of the part's i-th received edge,
    /// and the sink's variable i is the buffer of its i-th sent edge. A value is complete as soon as its
    /// instruction has run. `random` is the seed of the run's random numbers, equal in all parts of a run.
    ///
    /// # Errors
    /// If a label is not one of the classes, an id is not a row of its embedding table, or the source has
    /// lost a column. Values that are not complete must then not be used.
    pub fn run_part(
        &mut self,
        columns: &dyn ColumnSource,
        sink: &mut dyn GradientSink,
        random: u64,
    ) -> Result<(), StepError> {
        let feed = Feed { random, ..Feed::whole(&[], 1) };
        self.run(feed, columns, &Vec::<Vec<f32>>::new(), Some(sink))
    }

    /// Returns the fetches that the last training step has computed for the groups in its feed, in the order
    /// of the program's fetches. The elements of each fetch are row-major. If the batch does not fit a
    /// fetch, the fetch cannot be computed, and all fetches that share a group with it are NaN.
    pub fn fetched(&self) -> &[f32] {
        self.results.get(1..).unwrap_or_default()
    }

    /// Returns the time of each operation of the last step, in the order in which they ran; empty if the step
    /// was not timed.
    pub fn op_times(&self) -> impl Iterator<Item = OpTime> {
        self.program.op_times(&self.times)
    }

    /// Runs an evaluation or prediction program. An evaluation returns the loss, followed by the elements of
    /// each metric. A prediction returns the elements of each output, row-major.
    ///
    /// # Errors
    /// If a label is not one of the classes, or an id is not a row of its embedding table.
    ///
    /// # Panics
    /// If the batch does not have the columns or examples that the program was compiled for, or if the
    /// program computes gradients.
    pub fn evaluate(&mut self, feed: Feed<'_>, values: &dyn ValueSource) -> Result<&[f32], StepError> {
        self.run(feed, &feed.columns, values, None)?;
        Ok(&self.results)
    }

    /// Runs the instructions that every step needs and those that a group of the feed needs, and stores the
    /// requested results in `results`.
    fn run(
        &mut self,
        feed: Feed<'_>,
        source: &dyn ColumnSource,
        values: &dyn ValueSource,
        mut gradients: Option<&mut dyn GradientSink>,
    ) -> Result<(), StepError> {
        let Self { program, threads, arena, results, times } = self;
        times.clear();
        assert!(feed.first + program.batch <= feed.examples, "the program was compiled for a larger batch");
        let arena = arena.floats_mut();
        let groups = feed.groups.with(Groups::ALWAYS);
        let mut faulty = Groups::NONE;
        for (position, instruction) in program.instructions.iter().enumerate() {
            if !instruction.groups.meets(groups) {
                continue;
            }
            if let Err(lost) = source.check() {
                let (node, fault) = (program.label(instruction.origin), StepFault::Lost(lost));
                return Err(StepError { node, fault });
            }
            let began = feed.timed.then(observe::now);
            let ([mut output, second, third, scratch], rest) = carve(arena, &written(instruction));
            if let [Place::Gradient(variable)] = instruction.outputs[..] {
                let gradients = gradients.as_deref_mut().expect("this program computes gradients");
                output = gradients.variable_mut(variable);
            }
            let Program { columns, batch, .. } = &**program;
            let sources = Sources { rest, values, feed, source, columns, batch: *batch, threads: *threads };
            let outputs = Outputs { output, more: [second, third], scratch };
            match execute(&Call { instruction, sources }, outputs) {
                Ok(()) => {}
                // Only fetches need the instruction, and an error in a fetch does not end the training.
                Err(_) if !instruction.groups.meets(Groups::ALWAYS) => {
                    faulty = faulty.with(instruction.groups);
                }
                Err(fault) => return Err(StepError { node: program.label(instruction.origin), fault }),
            }
            times.extend(began.map(|began| (position, [began, observe::now()])));
            if let (Some(variable), Some(gradients)) = (instruction.completes, gradients.as_deref_mut()) {
                gradients.complete(variable);
            }
        }
        results.clear();
        for ResultPlace { place, elements, groups: own } in &program.results {
            if !own.meets(groups) {
                continue;
            }
            match place {
                _ if own.meets(faulty) => results.resize(results.len() + elements, f32::NAN),
                Place::Arena(range) => results.extend_from_slice(&arena[range.clone()]),
                other => results.extend_from_slice(program.given(other, *elements, feed, values)),
            }
        }
        Ok(())
    }
}

/// Returns the ranges of the arena that an instruction writes: first the ranges of its outputs, then the
/// range of its scratch memory. The range of an output is empty if the instruction does not have that output
/// or writes it outside the arena.
fn written(instruction: &Instruction) -> [Range<usize>; OUTPUTS + 1] {
    let mut ranges = [const { 0..0 }; OUTPUTS + 1];
    ranges[OUTPUTS] = instruction.scratch.clone();
    for (range, output) in ranges.iter_mut().zip(&instruction.outputs) {
        if let Place::Arena(place) = output {
            *range = place.clone();
        }
    }
    ranges
}
