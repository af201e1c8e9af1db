//! What a stage has opened for one incarnation of its leader: the shards of its variables, the values that the leader
//! refers to, and the compiled graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_engine::Edge;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::{TaskId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    ComputeStage, PullStage, PushStage, StageReply, StageValue, StageValueKey, StageValueTaken,
};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};
use pushpull_transport::{Connection, Peer};
use tokio::runtime::Handle;
use tracing::Instrument;

use super::arrivals::Arrivals;
use super::compiled::StageSource;
use super::departures::Departures;
use super::error::{StageError, StageErrorKind};
use super::pipeline::{BatchRun, BeforePass, Pipeline};
use super::transfers::Transfers;
use crate::client::{Front, Gradients, Parameters, PushedStep, Values};
use crate::devices::{Compute, ReplicaError};
use crate::error::WorkerError;

/// The maximum number of batch sizes for which a stage keeps the compiled evaluation. A test set needs two.
const EVALUATIONS_MAX: usize = 4;
/// The maximum number of runs for which values wait. Values of the next run may arrive before its request.
const RUNS_MAX: usize = 2;
/// The maximum number of values of one run that wait to be read.
const VALUES_MAX: usize = 1 << 16;

/// What a stage has opened for one incarnation of its leader.
pub(super) struct Seat {
    task: TaskId,
    pub leader: Peer,
    parameters: tokio::sync::Mutex<Parameters>,
    /// The variables that the stage owns.
    owned: Vec<VariableId>,
    /// The sets of values that the leader refers to, by their numbers.
    sets: Mutex<BTreeMap<u64, Arc<Values>>>,
    pipelines: Mutex<Pipelines>,
    /// The gradients of the last batch, until they are pushed.
    gradients: Mutex<Option<Gradients>>,
    runs: Mutex<Runs>,
    departures: Departures,
    /// The connections to the stages after this one and before it, by the number of the stage; without the leader.
    others: BTreeMap<u32, Arc<Connection>>,
    compute: Compute,
    pool: BufferPool,
    runtime: Handle,
}

/// What a seat is made from.
pub(super) struct SeatParts {
    pub task: TaskId,
    pub leader: Peer,
    pub stage: u32,
    pub parameters: Parameters,
    pub others: BTreeMap<u32, Arc<Connection>>,
    pub compute: Compute,
    pub before_pass: Option<BeforePass>,
    pub pool: BufferPool,
}

/// The compiled graph.
struct Pipelines {
    graph: GraphSpec,
    columns: Vec<ColumnSpec>,
    stage: u32,
    training: Pipeline,
    evaluation: BTreeMap<usize, Pipeline>,
}

/// The runs for which values have arrived or are awaited.
#[derive(Default)]
struct Runs {
    /// The number of the last run that the leader has requested.
    requested: u64,
    open: BTreeMap<u64, Arc<Arrivals>>,
    failed: Option<StageError>,
}

/// Returns the columns that the inputs of a graph need. Only the leader has the columns of the data.
fn columns_of(graph: &GraphSpec) -> Vec<ColumnSpec> {
    let input = |node: &pushpull_messages::graph::NodeSpec| match &node.op {
        Op::Input { example } => Some(ColumnSpec { name: node.name.clone(), example: example.clone() }),
        _ => None,
    };
    graph.nodes.iter().filter_map(input).collect()
}

impl Seat {
    /// Compiles the stage of the job's graph.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub fn new(job: &JobSpec, parts: SeatParts) -> Result<Self, ReplicaError> {
        let SeatParts { task, leader, stage, parameters, others, compute, before_pass, pool } = parts;
        let (graph, columns) = (job.graph.clone(), columns_of(&job.graph));
        let source =
            StageSource { graph: &graph, columns: &columns, number: stage, threads: compute.threads() };
        let training = source.training((job.batch_size / job.micro_batches) as usize)?;
        let training = Pipeline::new(training, task, job.micro_batches, before_pass);
        let pipelines = Pipelines { graph, columns, stage, training, evaluation: BTreeMap::new() };
        Ok(Self {
            task,
            leader,
            parameters: tokio::sync::Mutex::new(parameters),
            owned: job.graph.stages().owned(stage).collect(),
            sets: Mutex::default(),
            pipelines: Mutex::new(pipelines),
            gradients: Mutex::default(),
            runs: Mutex::default(),
            departures: Departures::default(),
            others,
            compute,
            pool,
            runtime: Handle::current(),
        })
    }

    /// Pulls the values of the stage's variables, and keeps them for the leader.
    ///
    /// # Errors
    /// If a shard refuses the request, or cannot be reached.
    pub async fn pull(&self, request: &PullStage) -> Result<Vec<StageReply>, StageError> {
        let (values, replies) = self
            .parameters
            .lock()
            .await
            .pull_own(request.at, request.averages)
            .await
            .map_err(|error| self.failed(&error.into()))?;
        self.keep(request.values, values, &request.keep);
        Ok(replies)
    }

    /// Pushes the gradients of the last batch, pulls the next values, and keeps them for the leader.
    ///
    /// # Errors
    /// If there are no gradients; if a shard refuses the push, or cannot be reached.
    pub async fn push(&self, request: &PushStage) -> Result<Vec<StageReply>, StageError> {
        let gradients = self.gradients.lock().take();
        let gradients = gradients.ok_or_else(|| self.misfit("there are no gradients to push".into()))?;
        let PushStage { local_step, drawn, versions, front, at, .. } = request;
        let mut parameters = self.parameters.lock().await;
        let (expected, got) = (parameters.shard_count(), versions.len());
        if expected != got {
            return Err(self.misfit(format!("the push names {got} shards, expected {expected}")));
        }
        let step = PushedStep { local_step: *local_step, drawn: *drawn, versions, traced: false, pull: true };
        let front = Front { below: *front, at: *at };
        let pushed = parameters.push_own(gradients.into_payloads(), step, front).await;
        let (values, replies) = pushed.map_err(|error| self.failed(&error.into()))?;
        drop(parameters);
        self.keep(request.values, values, &request.keep);
        Ok(replies)
    }

    /// Returns the checksums of the stage's variables in a set of values.
    ///
    /// # Errors
    /// If there is no such set.
    pub fn digests(&self, number: u64) -> Result<Vec<u32>, StageError> {
        let values = self.sets.lock().get(&number).map(Arc::clone);
        let values = values.ok_or_else(|| self.misfit(format!("there is no set {number} of values")))?;
        Ok(self.owned.iter().map(|&variable| crc32c::crc32c(values.bytes(variable))).collect())
    }

    /// Keeps a set of values, and drops those before it that the leader no longer needs.
    fn keep(&self, number: u64, values: Arc<Values>, keep: &[u64]) {
        let mut sets = self.sets.lock();
        sets.retain(|other, _| *other > number || keep.contains(other));
        sets.insert(number, values);
    }

    /// Computes the stage's part of a batch on a thread of its own.
    ///
    /// # Errors
    /// If the batch does not fit the model; if a value cannot be sent; if another stage has failed.
    pub async fn compute(self: Arc<Self>, request: ComputeStage) -> Result<(), StageError> {
        let values = {
            let mut sets = self.sets.lock();
            sets.retain(|other, _| *other >= request.values || request.keep.contains(other));
            sets.get(&request.values).map(Arc::clone)
        };
        let values =
            values.ok_or_else(|| self.misfit(format!("there is no set {} of values", request.values)))?;
        let gradients = match request.evaluates {
            None => Some(self.parameters.lock().await.gradients()),
            Some(_) => None,
        };
        let arrivals = self.begin_run(request.run)?;
        let (seat, run) = (Arc::clone(&self), request.run);
        let computed =
            tokio::task::spawn_blocking(move || seat.compute_here(&request, &values, &arrivals, gradients));
        let computed = computed.await;
        self.runs.lock().open.remove(&run);
        computed.unwrap_or_else(|_| Err(self.misfit("the thread that computes has panicked".into())))
    }

    fn compute_here(
        &self,
        request: &ComputeStage,
        values: &Values,
        arrivals: &Arc<Arrivals>,
        mut gradients: Option<Gradients>,
    ) -> Result<(), StageError> {
        let mut pipelines = self.pipelines.lock();
        let pipeline = match request.evaluates {
            None => &mut pipelines.training,
            Some(examples) => {
                let evaluation = pipelines.evaluation(examples as usize, self.compute.threads(), self.task);
                evaluation.map_err(|error| self.failed(&error.into()))?
            }
        };
        let transfers = SeatRun { seat: self, run: request.run, arrivals };
        let (random, pool) = (request.random, &self.pool);
        let batch = BatchRun { columns: &[], random, values, arrivals, transfers: &transfers, pool };
        let run = self.compute.run(|| pipeline.run(&batch, gradients.as_mut()));
        run.map_err(|error| self.failed(&error.into()))?;
        if let Some(mut gradients) = gradients {
            gradients.complete_all();
            *self.gradients.lock() = Some(gradients);
        }
        Ok(())
    }

    /// Begins a run that the leader has requested.
    fn begin_run(&self, run: u64) -> Result<Arc<Arrivals>, StageError> {
        let mut runs = self.runs.lock();
        if let Some(error) = &runs.failed {
            return Err(error.clone());
        }
        if run <= runs.requested {
            let requested = runs.requested;
            return Err(self.misfit(format!("run {run} comes after run {requested}")));
        }
        runs.requested = run;
        runs.open.retain(|&other, _| other >= run);
        let arrivals = Arc::clone(runs.open.entry(run).or_default());
        drop(runs);
        self.departures.forget_before(run);
        Ok(arrivals)
    }

    /// Receives a value of another stage.
    ///
    /// # Errors
    /// If the value belongs to no run that is open or comes next.
    pub fn receive(&self, key: StageValueKey, payload: Payload) -> Result<(), StageError> {
        let mut runs = self.runs.lock();
        let is_next = key.run > runs.requested && runs.open.len() < RUNS_MAX;
        if key.leader != self.leader.incarnation || !(is_next || runs.open.contains_key(&key.run)) {
            return Err(self.misfit(format!("got a value of run {}, which is not open", key.run)));
        }
        let arrivals = Arc::clone(runs.open.entry(key.run).or_default());
        drop(runs);
        if arrivals.len() >= VALUES_MAX {
            return Err(self.misfit(format!("more than {VALUES_MAX} values wait in run {}", key.run)));
        }
        let value: Option<Segment> = payload.into_segments().pop();
        value.into_iter().for_each(|value| arrivals.put((key.micro_batch, key.edge), value));
        Ok(())
    }

    /// Answers the leader's request for a value, as soon as the value is computed.
    pub fn fetch(&self, key: StageValueKey, reply: pushpull_transport::Reply) {
        let runs = self.runs.lock();
        // A request may come before the one that begins the run.
        if key.leader == self.leader.incarnation && key.run >= runs.requested && runs.failed.is_none() {
            self.departures.fetch(key, reply);
        }
    }

    /// Ends all runs, because the leader has left.
    pub fn abandon(&self, reason: &str) {
        let (task, kind) = (self.task, StageErrorKind::Lost);
        let error = StageError { task, kind, reason: reason.to_owned() };
        let mut runs = self.runs.lock();
        runs.open.values().for_each(|arrivals| arrivals.fail(error.clone()));
        runs.failed = Some(error);
        drop(runs);
        self.departures.forget_before(u64::MAX);
    }

    fn misfit(&self, reason: String) -> StageError {
        StageError { task: self.task, kind: StageErrorKind::Failed, reason }
    }

    fn failed(&self, error: &WorkerError) -> StageError {
        stage_error(self.task, error)
    }
}

/// Returns the error with which a stage tells the leader of an error.
pub(super) fn stage_error(task: TaskId, error: &WorkerError) -> StageError {
    let kind = match error {
        WorkerError::Replica(ReplicaError::Stage(own)) => return own.clone(),
        error if error.is_rolled_back() => StageErrorKind::RolledBack,
        error if error.is_lost_ps() => StageErrorKind::Lost,
        error if error.is_not_finite() => StageErrorKind::NotFinite,
        _ => StageErrorKind::Failed,
    };
    StageError { task, kind, reason: error.to_string() }
}

impl Pipelines {
    /// Returns the evaluation of batches of `examples` examples.
    fn evaluation(
        &mut self,
        examples: usize,
        threads: Threads,
        task: TaskId,
    ) -> Result<&mut Pipeline, ReplicaError> {
        let Self { graph, columns, stage, evaluation, .. } = self;
        if !evaluation.contains_key(&examples) {
            let source = StageSource { graph, columns, number: *stage, threads };
            let pipeline = Pipeline::new(source.evaluation(examples)?, task, 1, None);
            if evaluation.len() >= EVALUATIONS_MAX {
                evaluation.pop_first();
            }
            evaluation.insert(examples, pipeline);
        }
        Ok(evaluation.get_mut(&examples).expect("just compiled"))
    }
}

/// A run of a batch on a stage. The stage's values leave and arrive through it.
struct SeatRun<'a> {
    seat: &'a Seat,
    run: u64,
    arrivals: &'a Arc<Arrivals>,
}

impl Transfers for SeatRun<'_> {
    fn send(&self, edge: &Edge, micro_batch: u32, value: Payload) {
        let Self { seat, run, arrivals } = *self;
        let key = StageValueKey { leader: seat.leader.incarnation, run, micro_batch, edge: edge.key };
        if edge.to == 0 {
            return seat.departures.put(key, value);
        }
        let (connection, arrivals) = (Arc::clone(&seat.others[&edge.to]), Arc::clone(arrivals));
        let send = async move {
            if let Err(error) = connection.call::<StageValueTaken>(StageValue { key }, value).await {
                arrivals.fail(StageError::of_call(connection.peer(), &error));
            }
        };
        drop(seat.runtime.spawn(send.in_current_span()));
    }

    /// Other stages send their values without a request.
    fn expect(&self, _: &Edge, _: u32) {}
}
