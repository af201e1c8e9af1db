//! Runs a program on a device that runs CUDA kernels. Values arrive on a stream of their own, in the order in
//! which instructions need them, and gradients leave on another one, while instructions run. This module must
//! not depend on what a kernel computes.

mod labels;
mod memory;
mod need;
mod segments;

use std::time::Instant;

use pushpull_cuda::{
    Driver, DriverError, Event, Graph, Operation, Places, Span, StepNumbers, Stream, Transfer,
};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::Column;
use pushpull_messages::observe;

use self::memory::DeviceMemory;
pub use self::need::{MemoryNeed, TooLittleMemory};
use self::segments::{Segment, segments};
use super::error::StepError;
use super::feed::Feed;
use super::fetch::Groups;
use super::gradients::GradientSink;
use super::memory::{Instruction, Place};
use super::op_time::OpTime;
use super::operation::operation;
use super::program::{Program, ResultPlace};
use super::target::Target;
use super::values::ValueSource;

/// The reason why a step on a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The batch does not fit the model.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// The device has too little memory.
    #[error(transparent)]
    Memory(Box<TooLittleMemory>),
}

/// A program on a device. Each method gets the device on which the executor was made.
///
/// Required properties: (A) the results are those of the program; (B) every request that reads what another
/// stream writes, or overwrites what another stream reads, comes after it, by events or because the host
/// waited; (C) at the end of a step the device has done all of it.
#[derive(Debug)]
pub struct CudaExecutor {
    program: Program,
    /// The operation of each instruction.
    operations: Vec<Operation>,
    segments: Vec<Segment>,
    /// The instructions of each segment as a graph, with an event for each gradient that they complete. Empty
    /// before the second step that can use them.
    graphs: Vec<Captured>,
    /// Whether a step could have used graphs.
    warm: bool,
    memory: DeviceMemory,
    results: Vec<f32>,
    /// For each instruction that the last step ran: its index, and when it began and ended. Empty if that
    /// step was not timed.
    times: Vec<(usize, [Instant; 2])>,
}

/// A segment as a graph.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    completed: Vec<(VariableId, Event)>,
}

/// What a step asks of the device beside its instructions.
#[derive(Clone, Copy)]
struct Asked<'a> {
    feed: Feed<'a>,
    values: &'a dyn ValueSource,
    groups: Groups,
    /// Whether gradients leave.
    trains: bool,
}

impl CudaExecutor {
    /// Loads the program's kernels, and allocates all the memory that the program needs, at most
    /// `bytes_max` bytes.
    ///
    /// # Errors
    /// If the device cannot compile the kernels, or has too little memory.
    ///
    /// # Panics
    /// If the program was compiled for another target than [`Target::Cuda`].
    pub fn new(program: Program, driver: &mut dyn Driver, bytes_max: u64) -> Result<Self, CudaError> {
        let ([free, total], need) = (driver.memory_info()?, MemoryNeed::of(&program));
        if need.bytes() > free.min(bytes_max) {
            let allowed = (bytes_max < free).then_some(bytes_max);
            let device = driver.name().to_owned();
            return Err(CudaError::Memory(Box::new(TooLittleMemory { device, free, total, allowed, need })));
        }
        driver.load(&Operation::source("program", &Self::operations(&program)))?;
        Ok(Self::loaded(program, driver)?)
    }

    /// Returns an executor for a program whose kernels were loaded.
    pub(super) fn loaded(program: Program, driver: &mut dyn Driver) -> Result<Self, DriverError> {
        assert_eq!(program.target, Target::Cuda, "the program is for another target");
        let operations = Self::operations(&program);
        let memory = DeviceMemory::new(&program, driver)?;
        let results = Vec::with_capacity(program.result_elements().sum());
        let segments = segments(&program.instructions);
        let (graphs, times) = (Vec::new(), Vec::new());
        Ok(Self { program, operations, segments, graphs, warm: false, memory, results, times })
    }

    /// Returns the operation of each instruction.
    pub(super) fn operations(program: &Program) -> Vec<Operation> {
        program.instructions.iter().map(|own| operation(&own.kernel, &own.sizes)).collect()
    }

    /// Releases the program's memory.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn release(self, driver: &mut dyn Driver) -> Result<(), DriverError> {
        self.graphs.into_iter().try_for_each(|Captured { graph, .. }| driver.discard(graph))?;
        self.memory.release(driver)
    }

    /// Returns the number of bytes that the program takes on the device.
    pub fn device_bytes(&self) -> u64 {
        MemoryNeed::of(&self.program).bytes()
    }

    /// Returns the program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Runs a training program forward and backward, and returns the loss: see
    /// [`Executor::train`](crate::Executor::train).
    ///
    /// # Errors
    /// If a label is not one of the classes, an id is not a row of its embedding table, or the device fails.
    /// The gradients must then not be used.
    ///
    /// # Panics
    /// If the batch does not have the columns or examples that the program was compiled for.
    pub fn train(
        &mut self,
        driver: &mut dyn Driver,
        feed: Feed<'_>,
        values: &dyn ValueSource,
        gradients: &mut dyn GradientSink,
    ) -> Result<f32, CudaError> {
        for &variable in &self.program.unused {
            gradients.variable_mut(variable).fill(0.0);
            gradients.complete(variable);
        }
        self.run(driver, feed, values, Some(gradients))?;
        Ok(self.results[0])
    }

    /// Returns the fetches of the last training step: see [`Executor::fetched`](crate::Executor::fetched).
    pub fn fetched(&self) -> &[f32] {
        self.results.get(1..).unwrap_or_default()
    }

    /// Returns the time of each operation of the last step, in the order in which they ran; empty if the step
    /// was not timed. A timed step waits for the end of each operation, so it takes longer than others.
    pub fn op_times(&self) -> impl Iterator<Item = OpTime> {
        self.program.op_times(&self.times)
    }

    /// Runs an evaluation or prediction program: see [`Executor::evaluate`](crate::Executor::evaluate).
    ///
    /// # Errors
    /// If a label is not one of the classes, an id is not a row of its embedding table, or the device fails.
    ///
    /// # Panics
    /// If the batch does not have the columns or examples that the program was compiled for, or if the
    /// program computes gradients.
    pub fn evaluate(
        &mut self,
        driver: &mut dyn Driver,
        feed: Feed<'_>,
        values: &dyn ValueSource,
    ) -> Result<&[f32], CudaError> {
        self.run(driver, feed, values, None)?;
        Ok(&self.results)
    }

    fn run(
        &mut self,
        driver: &mut dyn Driver,
        feed: Feed<'_>,
        values: &dyn ValueSource,
        gradients: Option<&mut dyn GradientSink>,
    ) -> Result<(), CudaError> {
        assert!(
            feed.first + self.program.batch <= feed.examples,
            "the program was compiled for a larger batch"
        );
        let groups = feed.groups.with(Groups::ALWAYS);
        let faulty = self.check(feed, groups)?;
        self.times.clear();
        let asked = Asked { feed, values, groups, trains: gradients.is_some() };
        let leaving = match self.begin(driver, asked) {
            Ok(leaving) => leaving,
            Err(error) => {
                driver.select(Stream::Compute);
                return Err(error.into());
            }
        };
        if let Some(gradients) = gradients {
            for (variable, transfer) in leaving {
                driver.finish(transfer, bytemuck::cast_slice_mut(gradients.variable_mut(variable)))?;
                gradients.complete(variable);
            }
        }
        self.collect(driver, asked, faulty)?;
        driver.synchronise()?;
        Ok(())
    }

    /// Checks the integers of the batch, and returns the groups of fetches for which they are wrong.
    fn check(&self, feed: Feed<'_>, groups: Groups) -> Result<Groups, StepError> {
        let mut faulty = Groups::NONE;
        for instruction in &self.program.instructions {
            if !instruction.groups.meets(groups) {
                continue;
            }
            match labels::check(instruction, feed, self.program.batch) {
                Ok(()) => {}
                // Only fetches need the instruction, and an error in a fetch does not end the training.
                Err(_) if !instruction.groups.meets(Groups::ALWAYS) => {
                    faulty = faulty.with(instruction.groups);
                }
                Err(fault) => return Err(StepError { node: self.program.label(instruction.origin), fault }),
            }
        }
        Ok(faulty)
    }

    /// Asks the device for the whole step, and returns the transfer of each gradient, in the order in which
    /// they become complete.
    fn begin(
        &mut self,
        driver: &mut dyn Driver,
        asked: Asked<'_>,
    ) -> Result<Vec<(VariableId, Transfer)>, DriverError> {
        driver.select(Stream::Upload);
        self.upload_batch(driver, asked.feed)?;
        // A graph has the instructions of every step.
        let usual = asked.groups == Groups::ALWAYS && !asked.feed.timed;
        if usual && self.warm && self.graphs.is_empty() {
            self.capture(driver)?;
        }
        self.warm |= usual;
        let mut leaving = Vec::new();
        for position in 0..self.segments.len() {
            driver.select(Stream::Upload);
            for &variable in &self.segments[position].needs {
                let (place, _) = self.memory.span(&Place::Variable(variable));
                driver.upload(place, bytemuck::cast_slice(asked.values.variable(variable)))?;
            }
            let arrived = driver.record()?;
            driver.select(Stream::Compute);
            driver.wait(arrived)?;
            let completed = match self.graphs.get(position).filter(|_| usual) {
                Some(Captured { graph, completed }) => {
                    driver.replay(graph)?;
                    completed.clone()
                }
                None => self.launch_all(driver, position, asked)?,
            };
            for (variable, complete) in completed.into_iter().filter(|_| asked.trains) {
                driver.select(Stream::Download);
                driver.wait(complete)?;
                let (place, bytes) = self.memory.span(&Place::Gradient(variable));
                leaving.push((variable, driver.begin_download(place, bytes)?));
            }
        }
        driver.select(Stream::Compute);
        Ok(leaving)
    }

    /// Copies the numbers of the step and the columns to the device.
    fn upload_batch(&self, driver: &mut dyn Driver, feed: Feed<'_>) -> Result<(), DriverError> {
        let batch = self.program.batch;
        let share = batch as f32 / feed.examples as f32;
        let numbers = StepNumbers { random: feed.random, first: feed.first as u64, share };
        driver.upload(self.memory.step(), &numbers.bytes())?;
        for (column, place) in self.memory.columns() {
            let (elements, _) = self.program.columns[column].expect("a column that is read");
            let part = feed.first * elements..(feed.first + batch) * elements;
            match &feed.columns[column] {
                Column::F32(numbers) => driver.upload(place, bytemuck::cast_slice(&numbers[part]))?,
                Column::I32(numbers) => driver.upload(place, bytemuck::cast_slice(&numbers[part]))?,
            }
        }
        Ok(())
    }

    /// Captures each segment as a graph.
    fn capture(&mut self, driver: &mut dyn Driver) -> Result<(), DriverError> {
        driver.select(Stream::Compute);
        for position in 0..self.segments.len() {
            driver.begin_capture()?;
            let mut completed = Vec::new();
            for index in self.segments[position].instructions.clone() {
                if self.program.instructions[index].groups.meets(Groups::ALWAYS) {
                    completed.extend(self.launch(driver, index)?);
                }
            }
            self.graphs.push(Captured { graph: driver.end_capture()?, completed });
        }
        Ok(())
    }

    /// Runs the instructions of a segment one by one, and returns an event for each gradient that they
    /// complete.
    fn launch_all(
        &mut self,
        driver: &mut dyn Driver,
        position: usize,
        asked: Asked<'_>,
    ) -> Result<Vec<(VariableId, Event)>, DriverError> {
        let mut completed = Vec::new();
        for index in self.segments[position].instructions.clone() {
            if !self.program.instructions[index].groups.meets(asked.groups) {
                continue;
            }
            if asked.feed.timed {
                driver.synchronise()?;
            }
            let began = asked.feed.timed.then(observe::now);
            completed.extend(self.launch(driver, index)?);
            if let Some(began) = began {
                driver.synchronise()?;
                self.times.push((index, [began, observe::now()]));
            }
        }
        Ok(completed)
    }

    /// Runs one instruction. If it completes a gradient, returns the variable and an event.
    fn launch(
        &self,
        driver: &mut dyn Driver,
        index: usize,
    ) -> Result<Option<(VariableId, Event)>, DriverError> {
        let Instruction { inputs, outputs, in_place, scratch, completes, .. } =
            &self.program.instructions[index];
        let outputs: Vec<Span> = outputs.iter().map(|place| self.memory.span(place)).collect();
        let over = in_place.then(|| outputs[0]);
        let read = inputs.iter().map(|place| self.memory.span(place));
        let inputs: Vec<Span> = over.into_iter().chain(read).collect();
        let scratch = (!scratch.is_empty()).then(|| self.memory.in_arena(scratch).0);
        let step = self.memory.step();
        self.operations[index].run(driver, Places { outputs: &outputs, inputs: &inputs, scratch, step })?;
        completes.map(|variable| Ok((variable, driver.record()?))).transpose()
    }

    /// Stores the requested results.
    fn collect(
        &mut self,
        driver: &mut dyn Driver,
        asked: Asked<'_>,
        faulty: Groups,
    ) -> Result<(), DriverError> {
        let Self { program, memory, results, .. } = self;
        results.clear();
        for ResultPlace { place, elements, groups: own } in &program.results {
            if !own.meets(asked.groups) {
                continue;
            }
            let first = results.len();
            match place {
                _ if own.meets(faulty) => results.resize(first + elements, f32::NAN),
                Place::Arena(range) => {
                    results.resize(first + elements, 0.0);
                    let bytes = bytemuck::cast_slice_mut(&mut results[first..]);
                    driver.download(memory.in_arena(range).0, bytes)?;
                }
                other => results.extend_from_slice(program.given(other, *elements, asked.feed, asked.values)),
            }
        }
        Ok(())
    }
}
