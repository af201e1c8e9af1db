//! The way of a batch through a stage: its micro-batches follow one another, a few at a time. This module
//! must not depend on connections.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pushpull_engine::{Executor, Held, Origin, Progress, StepError};
use pushpull_input::SplitMix64;
use pushpull_messages::id::TaskId;
use pushpull_messages::input::Column;
use pushpull_transport::buffer::{Buffer, BufferPool, Segment};

use super::arrivals::Arrivals;
use super::compiled::CompiledStage;
use super::error::{StageError, StageErrorKind};
use super::flight::{Arrived, MicroBatch, Sinks, Sources};
use super::transfers::Transfers;
use crate::client::{Gradients, Values};
use crate::devices::ReplicaError;

/// A stage that runs batches, with an executor for each micro-batch in flight.
///
/// A stage with s stages after it has at most s + 1 micro-batches in flight, and whenever several of them can
/// go on, the oldest does. In a chain of stages this is the order "one forward, one backward" of PipeDream
/// (Narayanan et al., SOSP 2019): a backward pass comes before a younger forward pass, and the last stage has
/// one micro-batch at a time.
///
/// Required properties: (A) the results and gradients are the means over the micro-batches, added in their
/// order, whatever arrives first; (B) with one micro-batch, they are those of the uncut program, bit for bit;
/// (C) stages that run at the same time never wait for each other in a circle.
pub(super) struct Pipeline {
    compiled: CompiledStage,
    task: TaskId,
    micro_batches: u32,
    /// The executors that no micro-batch uses; empty if the stage has no program.
    idle: Vec<Executor>,
    /// The largest number of micro-batches in flight.
    depth: usize,
    before_pass: Option<BeforePass>,
}

/// What a stage is about to execute: a part of one micro-batch, up to the next value that it has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePass {
    /// The number of the stage.
    pub stage: u32,
    /// The number of stages.
    pub stages: u32,
    /// The number of examples in the micro-batch.
    pub examples: usize,
    /// The number of micro-batches in a batch.
    pub micro_batches: u32,
}

/// A function that is called on the thread that computes, before each pass.
pub type BeforePass = Arc<dyn Fn(StagePass) + Send + Sync>;

/// One batch on its way through the stage.
pub(super) struct BatchRun<'a> {
    /// The columns of the batch; empty on all stages but the first.
    pub columns: &'a [Column],
    pub random: u64,
    pub values: &'a Values,
    pub arrivals: &'a Arrivals,
    pub transfers: &'a dyn Transfers,
    pub pool: &'a BufferPool,
}

/// A micro-batch in flight.
struct Flight {
    micro_batch: u32,
    /// The executor; `None` if the stage has no program.
    executor: Option<Executor>,
    state: FlightState,
    arrived: Vec<Option<Arrived>>,
    /// The number of values that have not arrived.
    missing: usize,
    buffers: Vec<Option<Buffer>>,
    results: Vec<f32>,
}

/// What keeps a micro-batch from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightState {
    /// Nothing.
    CanGoOn,
    /// The value of this column of its program, which has not arrived.
    WaitsForColumn(usize),
    /// The gradients, which older micro-batches write first.
    WaitsForTurn,
    /// Its program has ended.
    Ended,
}

impl Pipeline {
    /// Creates the pipeline of `task`, for batches of `micro_batches` micro-batches.
    pub fn new(
        compiled: CompiledStage,
        task: TaskId,
        micro_batches: u32,
        before_pass: Option<BeforePass>,
    ) -> Self {
        let depth = micro_batches.min(compiled.count - compiled.number).max(1) as usize;
        let executors = compiled.stage.program.iter().flat_map(|program| vec![program; depth]);
        let idle = executors.map(|program| Executor::new(Arc::clone(program))).collect();
        Self { compiled, task, micro_batches, idle, depth, before_pass }
    }

    /// Runs a batch. Writes the gradients to `gradients`, which must be given in training, and returns the
    /// results, which only stage 0 has.
    ///
    /// # Errors
    /// If the batch does not fit the model; if another stage has failed. The gradients must then not be used.
    pub fn run(
        &mut self,
        run: &BatchRun<'_>,
        mut gradients: Option<&mut Gradients>,
    ) -> Result<Vec<f32>, ReplicaError> {
        let count = self.micro_batches;
        let mut later = gradients.as_deref().filter(|_| count > 1).map(Gradients::another);
        let (mut flights, mut next) = (VecDeque::<Flight>::with_capacity(self.depth), 0);
        let (mut results, mut constants) = (vec![0.0; self.compiled.results], BTreeMap::new());
        let ended = loop {
            while flights.len() < self.depth && next < count {
                flights.push_back(self.begin(run, next));
                next += 1;
            }
            let Some(oldest) = flights.front().map(|flight| flight.micro_batch) else { break Ok(()) };
            // The first micro-batch writes its gradients in place, and every later one into buffers of its
            // own, which are then added.
            let own = if oldest == 0 { gradients.as_deref_mut() } else { later.as_mut() };
            if let Err(error) = self.advance(run, &mut flights, &mut constants, own) {
                break Err(error);
            }
            let done = flights.pop_front().expect("the oldest has ended");
            results.iter_mut().zip(&done.results).for_each(|(sum, own)| *sum += own);
            if let (Some(sum), Some(own), true) = (gradients.as_deref_mut(), &later, oldest > 0) {
                sum.add(own);
            }
            self.idle.extend(done.executor);
        };
        self.idle.extend(flights.into_iter().filter_map(|flight| flight.executor));
        ended?;
        if count > 1 {
            let share = 1.0 / count as f32;
            results.iter_mut().for_each(|sum| *sum *= share);
            if let Some(gradients) = gradients {
                gradients.scale(share);
            }
        }
        Ok(results)
    }

    /// Begins a micro-batch: sends the values that this stage holds, and prepares the arrival of the others.
    fn begin(&mut self, run: &BatchRun<'_>, micro_batch: u32) -> Flight {
        let stage = &self.compiled.stage;
        let mut executor = self.idle.pop();
        if let Some(executor) = &mut executor {
            // A batch that is not divided has the random numbers of an uncut replica.
            executor.begin(match self.micro_batches {
                1 => run.random,
                _ => SplitMix64::stream(&[run.random, u64::from(micro_batch)]).bits(),
            });
        }
        let flight = Flight {
            micro_batch,
            state: if executor.is_some() { FlightState::CanGoOn } else { FlightState::Ended },
            executor,
            arrived: stage.arrives.iter().map(|_| None).collect(),
            missing: stage.arrives.len(),
            buffers: stage.sends.iter().map(|_| None).collect(),
            results: vec![0.0; self.compiled.results],
        };
        let is_first = micro_batch == 0;
        for (edge, &constant) in stage.arrives.iter().zip(&self.compiled.constant) {
            if is_first || !constant {
                run.transfers.expect(edge, micro_batch);
            }
        }
        let sources = self.sources(run, &flight);
        for (held, edge) in &stage.gives {
            if is_first || matches!(held, Held::Column(_)) {
                run.transfers.send(edge, micro_batch, sources.payload(*held, run.pool));
            }
        }
        flight
    }

    fn sources<'a>(&'a self, run: &BatchRun<'a>, flight: &'a Flight) -> Sources<'a> {
        Sources {
            compiled: &self.compiled,
            batch: self.micro_batch(run, flight.micro_batch),
            values: run.values,
            arrived: &flight.arrived,
            before: Cell::new(None),
        }
    }

    fn micro_batch<'a>(&self, run: &BatchRun<'a>, micro_batch: u32) -> MicroBatch<'a> {
        let examples = self.compiled.examples;
        let batch = examples * self.micro_batches as usize;
        MicroBatch { columns: run.columns, batch, first: micro_batch as usize * examples, examples }
    }

    /// Lets the micro-batches in flight go on, the oldest first, until the oldest has ended.
    fn advance(
        &self,
        run: &BatchRun<'_>,
        flights: &mut VecDeque<Flight>,
        constants: &mut BTreeMap<usize, Segment>,
        mut gradients: Option<&mut Gradients>,
    ) -> Result<(), ReplicaError> {
        loop {
            let seen = run.arrivals.seen()?;
            let mut went_on = false;
            self.receive(run, flights, constants)?;
            for (position, flight) in flights.iter_mut().enumerate() {
                let is_oldest = position == 0;
                let own = if is_oldest { gradients.as_deref_mut() } else { None };
                went_on = self.go_on(run, flight, own, is_oldest)?;
                if is_oldest && flight.state == FlightState::Ended && flight.missing == 0 {
                    self.deliver(run, flight, gradients);
                    return Ok(());
                }
                // What has been sent meanwhile may let an older micro-batch go on.
                if went_on {
                    break;
                }
            }
            if !went_on {
                run.arrivals.wait(seen)?;
            }
        }
    }

    /// Takes the values that have arrived for the micro-batches in flight.
    fn receive(
        &self,
        run: &BatchRun<'_>,
        flights: &mut VecDeque<Flight>,
        constants: &mut BTreeMap<usize, Segment>,
    ) -> Result<(), StageError> {
        let Some(first) = flights.front().map(|flight| flight.micro_batch) else { return Ok(()) };
        for ((micro_batch, key), value) in run.arrivals.take_before(first + flights.len() as u32) {
            let edges = &self.compiled.stage.arrives;
            // The edges are sorted by their keys. A copy of a value of an earlier micro-batch is dropped.
            let Ok(position) = edges.binary_search_by_key(&key, |edge| edge.key) else {
                return Err(self.misfit(format!("got a value of edge {key}, which no operation reads")));
            };
            if self.compiled.constant[position] {
                constants.insert(position, value);
            } else if let Some(flight) = flights.get_mut(micro_batch.wrapping_sub(first) as usize) {
                self.arrive(flight, position, value)?;
            }
        }
        for (&position, value) in &*constants {
            for flight in flights.iter_mut().filter(|flight| flight.arrived[position].is_none()) {
                self.arrive(flight, position, value.clone())?;
            }
        }
        Ok(())
    }

    /// Gives a micro-batch the value of an edge.
    fn arrive(&self, flight: &mut Flight, position: usize, value: Segment) -> Result<(), StageError> {
        let edge = &self.compiled.stage.arrives[position];
        let bytes = value.len();
        let Some(value) = Arrived::new(&edge.spec, value) else {
            let (from, spec) = (edge.from, &edge.spec);
            let reason = format!("a value of {bytes} bytes arrived from stage {from}, expected {spec}");
            return Err(self.misfit(reason));
        };
        if flight.arrived[position].replace(value).is_none() {
            flight.missing -= 1;
        }
        if let FlightState::WaitsForColumn(column) = flight.state
            && self.compiled.stage.columns[column] == Origin::Arrives(position)
        {
            flight.state = FlightState::CanGoOn;
        }
        Ok(())
    }

    const fn misfit(&self, reason: String) -> StageError {
        StageError { task: self.task, kind: StageErrorKind::Failed, reason }
    }

    /// Executes what a micro-batch can execute. Returns whether it had anything to execute.
    fn go_on(
        &self,
        run: &BatchRun<'_>,
        flight: &mut Flight,
        gradients: Option<&mut Gradients>,
        is_oldest: bool,
    ) -> Result<bool, StepError> {
        match flight.state {
            FlightState::CanGoOn => {}
            FlightState::WaitsForTurn if is_oldest => {}
            _ => return Ok(false),
        }
        let Self { compiled, micro_batches, before_pass, .. } = self;
        let (stage, stages, examples) = (compiled.number, compiled.count, compiled.examples);
        let pass = StagePass { stage, stages, examples, micro_batches: *micro_batches };
        let before = || before_pass.iter().for_each(|before_pass| before_pass(pass));
        let Flight { micro_batch, executor, arrived, buffers, results, .. } = flight;
        let executor = executor.as_mut().expect("a stage without a program has ended");
        let batch = self.micro_batch(run, *micro_batch);
        let before = Cell::new(Some(&before as &dyn Fn()));
        let sources = Sources { compiled, batch, values: run.values, arrived, before };
        let mut sinks = Sinks {
            compiled,
            micro_batch: *micro_batch,
            buffers,
            pool: run.pool,
            transfers: run.transfers,
            gradients,
            results,
        };
        flight.state = match executor.advance(&sources, &mut sinks)? {
            Progress::Ended => FlightState::Ended,
            Progress::Waits(column) => FlightState::WaitsForColumn(column),
            Progress::WaitsForSink(_) => FlightState::WaitsForTurn,
        };
        Ok(true)
    }

    /// Writes the wanted values of a micro-batch that its program does not compute.
    fn deliver(&self, run: &BatchRun<'_>, flight: &mut Flight, mut gradients: Option<&mut Gradients>) {
        let Self { compiled, .. } = self;
        if let Some(gradients) = gradients.as_deref_mut() {
            compiled.stage.unused.iter().for_each(|&unused| gradients.variable_mut(unused).fill(0.0));
        }
        let Flight { micro_batch, arrived, buffers, results, .. } = flight;
        let batch = self.micro_batch(run, *micro_batch);
        let before = Cell::new(None);
        let sources = Sources { compiled, batch, values: run.values, arrived, before };
        let micro_batch = *micro_batch;
        let (pool, transfers) = (run.pool, run.transfers);
        let mut sinks = Sinks { compiled, micro_batch, buffers, pool, transfers, gradients, results };
        for (origin, wanted) in &compiled.stage.delivered {
            sinks.want(wanted, sources.value(*origin).expect("every value has arrived"));
        }
    }
}
