//! What a stage has opened for one incarnation of its leader: the shards of its variables, the values that
//! the leader refers to, and the compiled graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_engine::Edge;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, NodeSpec, Op};
use pushpull_messages::id::{TaskId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    ComputeStage, PullStage, PushStage, StageReply, StageValue, StageValueKey, StageValueTaken,
};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, DialError, Peer, Reply};
use tokio::runtime::Handle;
use tracing::Instrument;

use super::arrivals::Arrivals;
use super::compiled::StageSource;
use super::departures::Departures;
use super::error::{StageError, StageErrorKind};
use super::pipeline::{BatchRun, BeforePass, Pipeline};
use super::transfers::Transfers;
use crate::blocking::blocking;
use crate::client::{ClientError, Front, Gradients, Parameters, PushedStep, Values};
use crate::devices::{Compute, ReplicaError};
use crate::error::WorkerError;

/// The maximum number of batch sizes for which a stage keeps the compiled evaluation. A test set needs two.
const EVALUATIONS_MAX: usize = 4;
/// The number of runs after the last one that the leader has requested for which values wait: values may
/// arrive before the request.
const RUNS_AHEAD: u64 = 2;
/// The maximum number of values of one run that wait to be read.
const VALUES_MAX: usize = 1 << 16;

/// What a stage has opened for one incarnation of its leader.
pub(super) struct StageSession {
    task: TaskId,
    pub leader: Peer,
    parameters: tokio::sync::Mutex<Parameters>,
    micro_batches: u32,
    /// The variables that the stage owns.
    owned: Vec<VariableId>,
    /// The sets of values that the leader refers to, by their numbers.
    sets: Mutex<BTreeMap<u64, Arc<Values>>>,
    pipelines: Mutex<Pipelines>,
    /// The gradients of the last batch, until they are pushed.
    gradients: Mutex<Option<Gradients>>,
    runs: Mutex<Runs>,
    departures: Departures,
    /// The connections to the stages after this one and before it, by the number of the stage; without the
    /// leader.
    others: BTreeMap<u32, Arc<Connection>>,
    compute: Compute,
    pool: BufferPool,
    runtime: Handle,
}

/// What a session is made from.
pub(super) struct SessionParts {
    pub task: TaskId,
    pub leader: Peer,
    pub stage: u32,
    pub parameters: Parameters,
    pub others: BTreeMap<u32, Arc<Connection>>,
    pub compute: Compute,
    pub before_pass: Option<BeforePass>,
    pub pool: BufferPool,
    /// The runtime that sends the values of the thread that computes.
    pub runtime: Handle,
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
    let input = |node: &NodeSpec| match &node.op {
        Op::Input { example } => Some(ColumnSpec { name: node.name.clone(), example: example.clone() }),
        _ => None,
    };
    graph.nodes.iter().filter_map(input).collect()
}

impl StageSession {
    /// Compiles the stage of the job's graph.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub fn new(job: &JobSpec, parts: SessionParts) -> Result<Self, ReplicaError> {
        let SessionParts { task, leader, stage, parameters, others, compute, before_pass, pool, runtime } =
            parts;
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
            micro_batches: job.micro_batches,
            owned: job.graph.stages().owned(stage).collect(),
            sets: Mutex::default(),
            pipelines: Mutex::new(pipelines),
            gradients: Mutex::default(),
            runs: Mutex::default(),
            departures: Departures::default(),
            others,
            compute,
            pool,
            runtime,
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
        // The buffers of these values can then be received into again.
        self.sets.lock().retain(|other, _| *other > request.values || request.keep.contains(other));
        let gradients = self.gradients.lock().take();
        let gradients = gradients.ok_or_else(|| self.misfit("there are no gradients to push".into()))?;
        let PushStage { local_step, drawn, versions, front, .. } = request;
        let mut parameters = self.parameters.lock().await;
        let (expected, got) = (parameters.shard_count(), versions.len());
        if expected != got {
            return Err(self.misfit(format!("the push names {got} shards, expected {expected}")));
        }
        let step = PushedStep { local_step: *local_step, drawn: *drawn, versions, traced: false, pull: true };
        let front = Front { below: *front };
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
    pub async fn digests(&self, number: u64) -> Result<Vec<u32>, StageError> {
        let values = self.sets.lock().get(&number).map(Arc::clone);
        let values = values.ok_or_else(|| self.misfit(format!("there is no set {number} of values")))?;
        let owned = self.owned.clone();
        let digest =
            move || Ok(owned.iter().map(|&variable| crc32c::crc32c(values.bytes(variable))).collect());
        blocking(true, "checksum", digest).await.map_err(|error| self.failed(&error))
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
        let (session, run) = (Arc::clone(&self), request.run);
        let compute = move || Ok(session.compute_here(&request, &values, &arrivals, gradients));
        let computed = blocking(true, "stage", compute).await;
        self.runs.lock().open.remove(&run);
        computed.unwrap_or_else(|error| Err(self.failed(&error)))
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
        let transfers = SessionRun { session: self, run: request.run, arrivals };
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
        // A run that has failed on the leader ends here, too.
        let later = runs.open.split_off(&run);
        let earlier = std::mem::replace(&mut runs.open, later);
        let over = self.lost(format!("run {run} of the leader has begun"));
        earlier.values().for_each(|arrivals| arrivals.fail(over.clone()));
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
        if key.micro_batch >= self.micro_batches {
            let (got, expected) = (key.micro_batch, self.micro_batches);
            return Err(
                self.misfit(format!("got a value of micro-batch {got}, expected less than {expected}"))
            );
        }
        let mut runs = self.runs.lock();
        let is_next = (runs.requested + 1..=runs.requested + RUNS_AHEAD).contains(&key.run);
        if key.leader != self.leader.incarnation || !(is_next || runs.open.contains_key(&key.run)) {
            // The run may have failed here a moment ago.
            return Err(self.lost(format!("run {} is not open", key.run)));
        }
        let arrivals = Arc::clone(runs.open.entry(key.run).or_default());
        drop(runs);
        let stored = payload
            .into_segments()
            .into_iter()
            .all(|value| arrivals.try_put((key.micro_batch, key.edge), value, VALUES_MAX));
        if stored { Ok(()) } else { Err(self.misfit(format!("more than {VALUES_MAX} values wait in a run"))) }
    }

    /// Answers the leader's request for a value, as soon as the value is computed.
    pub fn fetch(&self, key: StageValueKey, reply: Reply) {
        let runs = self.runs.lock();
        // A request may come before the one that begins the run.
        if key.leader == self.leader.incarnation && key.run >= runs.requested && runs.failed.is_none() {
            self.departures.fetch(key, reply);
        } else {
            let over = self.lost(format!("run {} is over", key.run));
            reply.refuse(over.code(), over.reason);
        }
    }

    /// Ends all runs, because the leader has left.
    pub fn abandon(&self, reason: &str) {
        let error = self.lost(reason.to_owned());
        let mut runs = self.runs.lock();
        runs.open.values().for_each(|arrivals| arrivals.fail(error.clone()));
        runs.failed = Some(error);
        drop(runs);
        self.departures.forget_before(u64::MAX);
    }

    fn lost(&self, reason: String) -> StageError {
        StageError { task: self.task, kind: StageErrorKind::Lost, reason }
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
        // The leader dials the ps tasks, too, and knows better how long to wait.
        WorkerError::Client(ClientError::Dial(DialError::Missing { .. })) => StageErrorKind::Lost,
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
struct SessionRun<'a> {
    session: &'a StageSession,
    run: u64,
    arrivals: &'a Arc<Arrivals>,
}

impl Transfers for SessionRun<'_> {
    fn send(&self, edge: &Edge, micro_batch: u32, value: Payload) {
        let Self { session, run, arrivals } = *self;
        let key = StageValueKey { leader: session.leader.incarnation, run, micro_batch, edge: edge.key };
        if edge.to == 0 {
            return session.departures.put(key, value);
        }
        let (connection, arrivals) = (Arc::clone(&session.others[&edge.to]), Arc::clone(arrivals));
        let send = async move {
            if let Err(error) = connection.call::<StageValueTaken>(StageValue { key }, value).await {
                arrivals.fail(StageError::of_call(connection.peer(), &error));
            }
        };
        drop(session.runtime.spawn(send.in_current_span()));
    }

    /// Other stages send their values without a request.
    fn expect(&self, _: &Edge, _: u32) {}
}
