//! Runs a program on a device that runs CUDA kernels. Values arrive on a stream of their own, in the order in
//! which instructions need them, and gradients leave on another one, while instructions run. This module must
//! not depend on what a kernel computes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use pushpull_cuda::{
    DriverError, Event, Graph, Operation, Places, Span, StepNumbers, Stream, Transfer, Worked,
};
use pushpull_messages::id::VariableId;
use pushpull_messages::observe;

use super::ahead::Ahead;
use super::batch;
use super::device::CudaDevice;
use super::error::CudaError;
use super::labels;
use super::memory::{Key, WORD, buffers};
use super::segments::{Segment, segments};
use crate::error::StepError;
use crate::feed::Feed;
use crate::fetch::Groups;
use crate::gradients::GradientSink;
use crate::memory::{Instruction, Place};
use crate::op_time::OpTime;
use crate::operation::operation;
use crate::program::{Program, ResultPlace};
use crate::target::Target;
use crate::values::ValueSource;

/// A program on a device. Each method gets the device for which the executor was made.
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
    /// The size of each buffer that the program needs, in bytes.
    sizes: BTreeMap<Key, u64>,
    /// The graphs of the groups that a step may ask for, those of the latest step last.
    graphs: VecDeque<(Groups, Graphs)>,
    results: Vec<f32>,
    /// For each instruction that the last step ran: its index, and when it began and ended. Empty if that
    /// step was not timed.
    times: Vec<(usize, [Instant; 2])>,
    /// When the streams worked in the last step; empty if that step was not traced.
    worked: Vec<Worked>,
}

/// The largest number of different groups whose graphs are kept. A step with other fetches captures again.
const GROUPS_MAX: usize = 4;

/// The segments as graphs, for steps that ask for the same groups.
#[derive(Debug)]
enum Graphs {
    /// No such step has run.
    Cold,
    /// The next such step captures them.
    Warm,
    /// Each segment, captured when the memory had this generation.
    Captured(Vec<Captured>, u64),
    /// The device cannot capture them, so each instruction is launched by itself.
    Refused,
}

/// A segment as a graph, with an event for each gradient that it completes.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    completed: Vec<(VariableId, Event)>,
}

/// The copies of gradients from the device, in the order in which the gradients become complete.
type Leaving = Vec<(VariableId, Transfer)>;

/// What a step asks of the device beside its instructions.
#[derive(Clone, Copy)]
struct Asked<'a> {
    feed: Feed<'a>,
    values: &'a dyn ValueSource,
    groups: Groups,
    /// Whether the values are copied to the device.
    arrives: bool,
    /// Whether gradients leave.
    trains: bool,
}

/// What a step computes with.
struct Given<'a> {
    feed: Feed<'a>,
    values: &'a dyn ValueSource,
    /// Whether the values are copied to the device.
    arrives: bool,
}

impl CudaExecutor {
    /// Loads the program's kernels, and makes room for its values.
    ///
    /// # Errors
    /// If the device cannot compile the kernels, or has too little memory.
    ///
    /// # Panics
    /// If the program was compiled for another target than [`CudaDevice::target`].
    pub fn new(program: Program, device: &mut CudaDevice) -> Result<Self, CudaError> {
        assert_eq!(program.target, device.target(), "the program is for another target");
        device.fit(&program)?;
        device.driver.load(&Operation::source("program", &Self::operations(&program)))?;
        Self::loaded(program, device)
    }

    /// Returns an executor for a program whose kernels were loaded.
    pub(crate) fn loaded(program: Program, device: &mut CudaDevice) -> Result<Self, CudaError> {
        assert_eq!(program.target, device.target(), "the program is for another target");
        device.fit(&program)?;
        let operations = Self::operations(&program);
        let results = Vec::with_capacity(program.result_elements().sum());
        let sizes = buffers(&program);
        let bytes = |variable: VariableId| sizes[&Key::Variable(variable.index())];
        let segments = segments(&program.instructions, bytes, device.segment_bytes);
        let (graphs, times, worked) = (VecDeque::new(), Vec::new(), Vec::new());
        Ok(Self { program, operations, segments, sizes, graphs, results, times, worked })
    }

    /// Returns the operation of each instruction.
    pub(crate) fn operations(program: &Program) -> Vec<Operation> {
        let Target::Cuda { multiplier, .. } = program.target else {
            unreachable!("the program is for a device")
        };
        program.instructions.iter().map(|own| operation(&own.kernel, &own.sizes, multiplier)).collect()
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
        device: &mut CudaDevice,
        feed: Feed<'_>,
        values: &dyn ValueSource,
        gradients: &mut dyn GradientSink,
    ) -> Result<f32, CudaError> {
        for &variable in &self.program.unused {
            gradients.variable_mut(variable).fill(0.0);
            gradients.complete(variable);
        }
        self.run(device, Given { feed, values, arrives: true }, Some(gradients))?;
        Ok(self.results[0])
    }

    /// Runs a training program forward and backward on the values of the last step, which are on the device,
    /// and leaves the gradients there. Returns the loss. `values` are those of the last step. So a benchmark
    /// tells the time of a step from that of its copies.
    ///
    /// # Errors
    /// See [`train`](Self::train).
    ///
    /// # Panics
    /// See [`train`](Self::train).
    pub fn repeat(
        &mut self,
        device: &mut CudaDevice,
        feed: Feed<'_>,
        values: &dyn ValueSource,
    ) -> Result<f32, CudaError> {
        self.run(device, Given { feed, values, arrives: false }, None)?;
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

    /// Returns when the device's streams worked in the last step; empty if the step was not traced.
    pub fn worked(&self) -> &[Worked] {
        &self.worked
    }

    /// Runs an evaluation or prediction program: see [`Executor::evaluate`](crate::Executor::evaluate).
    ///
    /// # Errors
    /// If a label is not one of the classes, an id is not a row of its embedding table, or the device fails.
    ///
    /// # Panics
    /// If the batch does not have the columns or examples that the program was compiled for.
    pub fn evaluate(
        &mut self,
        device: &mut CudaDevice,
        feed: Feed<'_>,
        values: &dyn ValueSource,
    ) -> Result<&[f32], CudaError> {
        self.run(device, Given { feed, values, arrives: true }, None)?;
        Ok(&self.results)
    }

    fn run(
        &mut self,
        device: &mut CudaDevice,
        Given { feed, values, arrives }: Given<'_>,
        gradients: Option<&mut dyn GradientSink>,
    ) -> Result<(), CudaError> {
        assert!(
            feed.first + self.program.batch <= feed.examples,
            "the program was compiled for a larger batch"
        );
        let groups = feed.groups.with(Groups::ALWAYS);
        let faulty = self.check(feed, groups)?;
        self.times.clear();
        self.worked.clear();
        if feed.traced {
            device.driver.watch()?;
        }
        let asked = Asked { feed, values, groups, arrives, trains: gradients.is_some() };
        let mut leaving = Leaving::new();
        let begun = self.begin(device, asked, &mut leaving);
        // The device computes meanwhile.
        let begun = begun.and_then(|()| batch::upload_next(&self.program, device, feed));
        device.driver.select(Stream::Compute);
        let ended = begun.and_then(|ahead| {
            self.end(device, asked, faulty, &mut leaving, gradients)?;
            Ok::<Option<Ahead>, DriverError>(ahead)
        });
        // After an error, the device must still do all of it before its memory is used again.
        for (_, transfer) in leaving {
            let _ = device.driver.abandon(transfer);
        }
        let done = device.driver.synchronise();
        let worked = if feed.traced { device.driver.watched() } else { Ok(Vec::new()) };
        let ahead = ended?;
        done?;
        device.ahead = ahead.or(device.ahead);
        self.worked = worked?;
        Ok(())
    }

    /// Waits for the gradients, and then for the results.
    fn end(
        &mut self,
        device: &mut CudaDevice,
        asked: Asked<'_>,
        faulty: Groups,
        leaving: &mut Leaving,
        gradients: Option<&mut dyn GradientSink>,
    ) -> Result<(), DriverError> {
        if let Some(gradients) = gradients {
            for (variable, transfer) in leaving.drain(..) {
                device.driver.finish(transfer, bytemuck::cast_slice_mut(gradients.variable_mut(variable)))?;
                gradients.complete(variable);
            }
        }
        self.collect(device, asked, faulty)
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

    /// Asks the device for the whole step. `leaving` gets the transfer of each gradient.
    fn begin(
        &mut self,
        device: &mut CudaDevice,
        asked: Asked<'_>,
        leaving: &mut Leaving,
    ) -> Result<(), DriverError> {
        device.driver.select(Stream::Upload);
        self.upload_numbers(device, asked.feed)?;
        batch::upload(&self.program, device, asked.feed)?;
        // The time of an operation is that of its launch, so a step that is timed has no graphs.
        let usual = !asked.feed.timed;
        if usual {
            self.prepare_graphs(device, asked.groups);
        }
        for position in 0..self.segments.len() {
            device.driver.select(Stream::Upload);
            for &variable in self.segments[position].needs.iter().filter(|_| asked.arrives) {
                let place = device.memory.address(&Place::Variable(variable));
                device.driver.upload(place, bytemuck::cast_slice(asked.values.variable(variable)))?;
            }
            let arrived = device.driver.record()?;
            device.driver.select(Stream::Compute);
            device.driver.wait(arrived)?;
            let completed = match self.graphs.back() {
                Some((_, Graphs::Captured(graphs, _))) if usual => {
                    device.driver.replay(&graphs[position].graph)?;
                    graphs[position].completed.clone()
                }
                _ => self.launch_all(device, position, asked)?,
            };
            for (variable, complete) in completed.into_iter().filter(|_| asked.trains) {
                device.driver.select(Stream::Download);
                device.driver.wait(complete)?;
                let (place, bytes) = self.span(device, &Place::Gradient(variable));
                leaving.push((variable, device.driver.begin_download(place, bytes)?));
            }
        }
        Ok(())
    }

    /// Captures the segments as graphs in the second step that asks for these groups, and again when the
    /// memory was replaced. If that fails, instructions are launched one by one. Puts the graphs last.
    fn prepare_graphs(&mut self, device: &mut CudaDevice, groups: Groups) {
        let known = self.graphs.iter().position(|(own, _)| *own == groups);
        let (_, own) = known.and_then(|at| self.graphs.remove(at)).unwrap_or((groups, Graphs::Cold));
        let generation = device.memory.generation();
        let own = match own {
            Graphs::Cold => Graphs::Warm,
            Graphs::Captured(graphs, made) if made == generation => Graphs::Captured(graphs, made),
            Graphs::Refused => Graphs::Refused,
            Graphs::Captured(old, _) => {
                discard(device, old);
                self.captured(device, groups)
            }
            Graphs::Warm => self.captured(device, groups),
        };
        self.graphs.push_back((groups, own));
        if self.graphs.len() > GROUPS_MAX
            && let Some((_, Graphs::Captured(oldest, _))) = self.graphs.pop_front()
        {
            discard(device, oldest);
        }
    }

    /// Captures the segments of steps that ask for these groups.
    fn captured(&self, device: &mut CudaDevice, groups: Groups) -> Graphs {
        device.driver.select(Stream::Compute);
        let mut graphs = Vec::new();
        match self.capture(device, groups, &mut graphs) {
            Ok(()) => Graphs::Captured(graphs, device.memory.generation()),
            Err(_) => {
                discard(device, graphs);
                Graphs::Refused
            }
        }
    }

    /// Copies the numbers of the step to the device.
    fn upload_numbers(&self, device: &mut CudaDevice, feed: Feed<'_>) -> Result<(), DriverError> {
        let share = self.program.batch as f32 / feed.examples as f32;
        let numbers = StepNumbers { random: feed.random, first: feed.first as u64, share };
        device.driver.upload(device.memory.step(), &numbers.bytes())
    }

    /// Captures each segment as a graph.
    fn capture(
        &self,
        device: &mut CudaDevice,
        groups: Groups,
        graphs: &mut Vec<Captured>,
    ) -> Result<(), DriverError> {
        for segment in &self.segments {
            device.driver.begin_capture()?;
            let completed = self.launch_asked(device, segment, groups);
            let graph = device.driver.end_capture();
            let graph = graph.map(|graph| Captured { graph, completed: Vec::new() });
            match (graph, completed) {
                (Ok(captured), Ok(completed)) => graphs.push(Captured { completed, ..captured }),
                (Ok(captured), Err(error)) => {
                    graphs.push(captured);
                    return Err(error);
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    /// Runs the instructions of a segment that these groups need, and returns an event for each gradient that
    /// they complete.
    fn launch_asked(
        &self,
        device: &mut CudaDevice,
        segment: &Segment,
        groups: Groups,
    ) -> Result<Vec<(VariableId, Event)>, DriverError> {
        let asked = |&index: &usize| self.program.instructions[index].groups.meets(groups);
        let instructions = segment.instructions.clone().filter(asked);
        instructions.filter_map(|index| self.launch(device, index).transpose()).collect()
    }

    /// Runs the instructions of a segment one by one, and returns an event for each gradient that they
    /// complete.
    fn launch_all(
        &mut self,
        device: &mut CudaDevice,
        position: usize,
        asked: Asked<'_>,
    ) -> Result<Vec<(VariableId, Event)>, DriverError> {
        let mut completed = Vec::new();
        for index in self.segments[position].instructions.clone() {
            if !self.program.instructions[index].groups.meets(asked.groups) {
                continue;
            }
            if asked.feed.timed {
                device.driver.synchronise()?;
            }
            let began = asked.feed.timed.then(observe::now);
            completed.extend(self.launch(device, index)?);
            if let Some(began) = began {
                device.driver.synchronise()?;
                self.times.push((index, [began, observe::now()]));
            }
        }
        Ok(completed)
    }

    /// Runs one instruction. If it completes a gradient, returns the variable and an event.
    fn launch(
        &self,
        device: &mut CudaDevice,
        index: usize,
    ) -> Result<Option<(VariableId, Event)>, DriverError> {
        let Instruction { inputs, outputs, in_place, scratch, completes, .. } =
            &self.program.instructions[index];
        let outputs: Vec<Span> = outputs.iter().map(|place| self.span(device, place)).collect();
        let over = in_place.then(|| outputs[0]);
        let read = inputs.iter().map(|place| self.span(device, place));
        let inputs: Vec<Span> = over.into_iter().chain(read).collect();
        let scratch = (!scratch.is_empty()).then(|| device.memory.address(&Place::Arena(scratch.clone())));
        let step = device.memory.step();
        self.operations[index]
            .run(&mut *device.driver, Places { outputs: &outputs, inputs: &inputs, scratch, step })?;
        completes.map(|variable| Ok((variable, device.driver.record()?))).transpose()
    }

    /// Returns the memory of a value.
    fn span(&self, device: &CudaDevice, place: &Place) -> Span {
        let bytes = match place {
            Place::Arena(range) => WORD * range.len() as u64,
            other => self.sizes[&Key::of(other)],
        };
        (device.memory.address(place), bytes)
    }

    /// Stores the requested results.
    fn collect(
        &mut self,
        device: &mut CudaDevice,
        asked: Asked<'_>,
        faulty: Groups,
    ) -> Result<(), DriverError> {
        let Self { program, results, .. } = self;
        results.clear();
        for ResultPlace { place, elements, groups: own } in &program.results {
            if !own.meets(asked.groups) {
                continue;
            }
            let first = results.len();
            match place {
                _ if own.meets(faulty) => results.resize(first + elements, f32::NAN),
                Place::Arena(_) => {
                    results.resize(first + elements, 0.0);
                    let bytes = bytemuck::cast_slice_mut(&mut results[first..]);
                    device.driver.download(device.memory.address(place), bytes)?;
                }
                other => results.extend_from_slice(program.given(other, *elements, asked.feed, asked.values)),
            }
        }
        Ok(())
    }
}

/// Gives up graphs. An error shows at the next request.
fn discard(device: &mut CudaDevice, graphs: Vec<Captured>) {
    for captured in graphs {
        let _ = device.driver.discard(captured.graph);
    }
}
