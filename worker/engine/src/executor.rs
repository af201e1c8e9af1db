//! Runs a program on batches: executes its instructions in order. All working memory is in one arena that is
//! allocated at the start, so a step allocates nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::VariableId;
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
use super::program::{Program, ResultPlace, columns_of};
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
    /// The run that goes on with the next call of [`advance`](Self::advance).
    paused: Option<Paused>,
}

/// How far a run of a part has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The program has ended.
    Ended,
    /// The next instruction reads this column, which is not ready.
    Waits(usize),
    /// The next instruction writes this variable of the sink, which is not ready.
    WaitsForSink(VariableId),
}

/// A run of a part between two instructions.
#[derive(Clone, Copy)]
struct Paused {
    /// The seed of the run's random numbers.
    random: u64,
    /// The index of the next instruction.
    next: usize,
}

/// The memory outside the arena that the instructions of a run read and write.
struct Run<'a> {
    feed: Feed<'a>,
    source: &'a dyn ColumnSource,
    values: &'a dyn ValueSource,
    gradients: Option<&'a mut dyn GradientSink>,
    /// The groups of results that the run computes.
    groups: Groups,
    /// The groups of results that an error of this run has made unusable.
    faulty: Groups,
}

impl<'a> Run<'a> {
    fn new(
        feed: Feed<'a>,
        source: &'a dyn ColumnSource,
        values: &'a dyn ValueSource,
        gradients: Option<&'a mut dyn GradientSink>,
    ) -> Self {
        let groups = feed.groups.with(Groups::ALWAYS);
        Self { feed, source, values, gradients, groups, faulty: Groups::NONE }
    }
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
        Self { program, threads, arena, results, times: Vec::new(), paused: None }
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
        self.run(Run::new(feed, &feed.columns, values, Some(gradients)))?;
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
        self.run(Run::new(feed_of_part(random), columns, &NO_VALUES, Some(sink)))
    }

    /// Begins a run of the program of a [`Part`](crate::Part) or a [`Stage`](crate::Stage), which goes on
    /// with [`advance`](Self::advance). `random` is the seed of the run's random numbers, equal in all parts
    /// of a run. A run that has begun before is dropped.
    pub fn begin(&mut self, random: u64) {
        self.times.clear();
        self.paused = Some(Paused { random, next: 0 });
    }

    /// Executes instructions of the run that has begun, until one reads a column that is not
    /// [ready](ColumnSource::is_ready) or writes a variable of the sink that is not
    /// [ready](GradientSink::is_ready), or the program has ended. A run that waits goes on with the next
    /// call, which must get the same columns and the same sink. They are those of
    /// [`run_part`](Self::run_part) or, for a stage, those of its `columns` and `sends`.
    ///
    /// # Errors
    /// The same as those of [`run_part`](Self::run_part). An error ends the run.
    ///
    /// # Panics
    /// If no run has begun, or the run has ended.
    pub fn advance(
        &mut self,
        columns: &dyn ColumnSource,
        sink: &mut dyn GradientSink,
    ) -> Result<Progress, StepError> {
        let Paused { random, next } = self.paused.take().expect("a run has begun");
        let program = Arc::clone(&self.program);
        let mut run = Run::new(feed_of_part(random), columns, &NO_VALUES, Some(sink));
        for (position, instruction) in program.instructions.iter().enumerate().skip(next) {
            if let Some(column) = columns_of(instruction).find(|&column| !columns.is_ready(column)) {
                self.paused = Some(Paused { random, next: position });
                return Ok(Progress::Waits(column));
            }
            if let [Place::Gradient(variable)] = instruction.outputs[..]
                && !run.gradients.as_deref().is_some_and(|sink| sink.is_ready(variable))
            {
                self.paused = Some(Paused { random, next: position });
                return Ok(Progress::WaitsForSink(variable));
            }
            self.execute(position, &mut run)?;
        }
        Ok(Progress::Ended)
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
        self.run(Run::new(feed, &feed.columns, values, None))?;
        Ok(&self.results)
    }

    /// Runs the instructions that every step needs and those that a group of the feed needs, and stores the
    /// requested results in `results`.
    fn run(&mut self, mut run: Run<'_>) -> Result<(), StepError> {
        let Feed { first, examples, .. } = run.feed;
        assert!(first + self.program.batch <= examples, "the program was compiled for a larger batch");
        self.times.clear();
        self.paused = None;
        for position in 0..self.program.instructions.len() {
            if self.program.instructions[position].groups.meets(run.groups) {
                self.execute(position, &mut run)?;
            }
        }
        self.store_results(&run);
        Ok(())
    }

    /// Executes one instruction.
    fn execute(&mut self, position: usize, run: &mut Run<'_>) -> Result<(), StepError> {
        let Self { program, threads, arena, times, .. } = self;
        let Run { feed, source, values, gradients, faulty, .. } = run;
        let instruction = &program.instructions[position];
        if let Err(lost) = source.check() {
            let (node, fault) = (program.label(instruction.origin), StepFault::Lost(lost));
            return Err(StepError { node, fault });
        }
        let began = feed.timed.then(observe::now);
        let ([mut output, second, third, scratch], rest) = carve(arena.floats_mut(), &written(instruction));
        if let [Place::Gradient(variable)] = instruction.outputs[..] {
            let gradients = gradients.as_deref_mut().expect("this program computes gradients");
            output = gradients.variable_mut(variable);
        }
        let Program { columns, batch, .. } = &**program;
        let (feed, source, values) = (*feed, *source, *values);
        let sources = Sources { rest, values, feed, source, columns, batch: *batch, threads: *threads };
        let outputs = Outputs { output, more: [second, third], scratch };
        match execute(&Call { instruction, sources }, outputs) {
            Ok(()) => {}
            // Only fetches need the instruction, and an error in a fetch does not end the training.
            Err(_) if !instruction.groups.meets(Groups::ALWAYS) => *faulty = faulty.with(instruction.groups),
            Err(fault) => return Err(StepError { node: program.label(instruction.origin), fault }),
        }
        times.extend(began.map(|began| (position, [began, observe::now()])));
        if let (Some(variable), Some(gradients)) = (instruction.completes, gradients.as_deref_mut()) {
            gradients.complete(variable);
        }
        Ok(())
    }

    /// Stores the results of a run that has executed its instructions.
    fn store_results(&mut self, run: &Run<'_>) {
        let Self { program, arena, results, .. } = self;
        results.clear();
        for ResultPlace { place, elements, groups } in &program.results {
            if !groups.meets(run.groups) {
                continue;
            }
            match place {
                _ if groups.meets(run.faulty) => results.resize(results.len() + elements, f32::NAN),
                Place::Arena(range) => results.extend_from_slice(&arena.floats_mut()[range.clone()]),
                other => results.extend_from_slice(program.given(other, *elements, run.feed, run.values)),
            }
        }
    }
}

/// The values of the variables that the program of a part reads: none, because variables are columns.
static NO_VALUES: Vec<Vec<f32>> = Vec::new();

/// Returns the feed of a part, whose batch counts as one example.
const fn feed_of_part(random: u64) -> Feed<'static> {
    Feed { random, ..Feed::whole(&[], 1) }
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
