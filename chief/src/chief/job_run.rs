//! One run of a job: the concurrent parts of the chief, from the first connection to the last. The rules of
//! the job are in the module `job`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture, LocalBoxFuture};
use pushpull_messages::checkpoint::{CheckpointName, MEMORY};
use pushpull_messages::id::{GlobalStep, JobName, PlacementEpoch, ShardId, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, ShardSnapshot, StopReason};
use pushpull_messages::observe::{Clock, Micros, SpanSpec};
use pushpull_storage::{MemoryStore, Store};
use pushpull_transport::wire::Limits;
use pushpull_transport::{CallError, Identity, Listener, Server, ServerConfig, Transport, serve};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::saving::Saving;
use super::stopwatch::Stopwatch;
use super::{BeforeStop, Chief, TrainedJob, end_reason};
use crate::checkpoint::{SaveStatus, Saver, SaverCommand, follow};
use crate::command::CommandQueue;
use crate::config::ChiefConfig;
use crate::coordinator::{Coordinator, CoordinatorChannels, CoordinatorService, JobEvent, Milestone};
use crate::elapsed::elapsed;
use crate::error::ChiefError;
use crate::hooks::EpochTable;
use crate::job::{JobState, LastSave, MembershipOrder, SaveLimit, TrainingEnd, conclude, early_end};
use crate::launch::{FAREWELL, Launcher, PsTasks, tell_shards};
use crate::monitor::{Feed, FeedReader, HookEvent, HookRunner, ShardMonitor};
use crate::report::{JobEnd, JobProgress, JobReport};
use crate::status::{Overview, Publisher, PublisherTask, StatusBoard, publish};

/// The maximum total size, in bytes, of the large headers of all requests that have no reply yet. A single
/// header has at most 64 MiB, and the headers of reports are much smaller.
const REQUEST_BYTES_MAX: u64 = 256 << 20;

/// The state of a running job that all parts of the chief share.
pub(super) struct JobRun {
    config: ChiefConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    job: JobSpec,
    progress: watch::Sender<JobProgress>,
    interrupt: CancellationToken,
    stop: watch::Receiver<Option<String>>,
    clock: Clock,
    board: Rc<StatusBoard>,
    coordinator: Addr<Coordinator>,
    ps: Rc<PsTasks>,
    shard_monitor: Rc<ShardMonitor>,
    overview: Rc<RefCell<Overview>>,
    bell: Arc<Notify>,
    feed: Feed,
    /// The number of a worker's steps between two plots of the graph's summaries; `None` if no hook needs
    /// them.
    summary_every: Option<u64>,
}

/// The hooks of a run, and the sources of its commands and events.
pub(super) struct JobInputs {
    hooks: HookRunner,
    before_stop: Option<BeforeStop>,
    commands: CommandQueue,
    feed: FeedReader,
    milestones: mpsc::UnboundedReceiver<Milestone>,
    orders: mpsc::UnboundedReceiver<(PlacementEpoch, MembershipOrder)>,
}

/// The future that informs the shards about workers that have registered or left.
type Orders = Fuse<LocalBoxFuture<'static, ()>>;

/// The result and the duration of the training.
struct Training {
    ended: Result<Box<TrainingEnd>, ChiefError>,
    took: Duration,
}

impl JobRun {
    /// Starts the coordinator of the chief's job, and reports the start time of the chief's clock to the
    /// hooks.
    pub(super) fn start(chief: Chief, board: &Rc<StatusBoard>) -> (Self, JobInputs) {
        let Chief { config, identity, transport, job, progress, interrupt, stop, .. } = chief;
        let (mut hooks, commands, clock) = (chief.hooks, chief.commands, chief.clock);
        let before_stop = chief.before_stop;
        let cluster = &identity.cluster;
        let ps_tasks = cluster.ps_addresses().len() as u32;
        let workers = job.replicas(cluster.addresses(JobName::Worker).len() as u32);
        let (milestone_sender, milestones) = mpsc::unbounded_channel();
        let (order_sender, orders) = mpsc::unbounded_channel();
        let (feed, reader) = Feed::new();
        let began = config.wall_clock.now() - elapsed(&clock);
        hooks.iter_mut().for_each(|hook| hook.clock(began));
        let summary_every = hooks.iter().filter_map(|hook| hook.summary_steps()).min();
        if let Some(table) = EpochTable::of(&job, workers) {
            hooks.push(Box::new(table));
        }
        let most = config.workers(&job, cluster);
        let hooks = HookRunner::new(job.clone(), most, hooks, commands.for_hooks());
        let state = JobState::new(job.clone(), workers).hosting_ps(!cluster.has_ps());
        let state = state.up_to(config.workers_max);
        progress.send_replace(state.progress());
        let bell = Arc::<Notify>::default();
        let channels = CoordinatorChannels {
            progress: progress.clone(),
            milestones: milestone_sender,
            orders: order_sender,
            feed: feed.clone(),
            bell: Arc::clone(&bell),
            meter: Arc::clone(board.meter()),
            clock,
        };
        let coordinator = Coordinator::new(state, ps_tasks, &config, channels).start();
        let location = config.checkpoint.as_ref().map(|config| config.location.as_str());
        let overview = Rc::new(RefCell::new(Overview::new(&job, &identity, location)));
        let (board, ps, shard_monitor) = (Rc::clone(board), Rc::default(), Rc::default());
        let run = Self {
            config,
            identity,
            transport,
            job,
            progress,
            interrupt,
            stop,
            clock,
            board,
            coordinator,
            ps,
            shard_monitor,
            overview,
            bell,
            feed,
            summary_every,
        };
        (run, JobInputs { hooks, before_stop, commands, feed: reader, milestones, orders })
    }

    /// Serves the workers' connections.
    pub(super) fn serve(&self, listener: Box<dyn Listener>) -> Server {
        let meter = Arc::clone(self.board.meter());
        let service = CoordinatorService { coordinator: self.coordinator.clone(), meter };
        // Messages to the chief have no tensors, so payloads are refused.
        let server = &self.config.server;
        let limits = Limits { payload_bytes_max: 0, ..server.limits };
        let config = ServerConfig {
            limits,
            in_flight_bytes_max: server.in_flight_bytes_max.min(REQUEST_BYTES_MAX),
            connection_bytes_max: server.connection_bytes_max.min(REQUEST_BYTES_MAX / 2),
            ..server.clone()
        };
        let server = serve(listener, self.identity.clone(), Arc::new(service), config);
        self.board.serves(server.observer());
        let cluster = &self.identity.cluster;
        let workers = self.job.replicas(cluster.addresses(JobName::Worker).len() as u32);
        let ps = cluster.ps_addresses().len();
        info!(
            job = self.job.graph.name,
            steps = %self.job.last_step,
            address = %server.address(),
            "waiting for {ps} ps and {workers} worker task(s)"
        );
        server
    }

    /// Runs the job to its end, and returns how it ended.
    pub(super) async fn lead(
        &self,
        saver: Option<Saver>,
        mut inputs: JobInputs,
        server: Server,
    ) -> Result<JobEnd, ChiefError> {
        let memory = self.memory_saver(saver.as_ref());
        let mut saving = Saving::start(saver, memory, Rc::clone(&self.ps), self.progress.subscribe());
        let mut last_update = self.publisher(&saving);
        let publisher = PublisherTask::start(self.publisher(&saving));
        let (_, none) = mpsc::unbounded_channel();
        let orders = std::mem::replace(&mut inputs.orders, none);
        let mut orders =
            tell_shards(Rc::clone(&self.ps), orders, self.coordinator.clone()).boxed_local().fuse();
        let training = self.supervise(&mut inputs, &mut saving, &mut orders).await;
        inputs.commands.close();
        // This comes before the last save. When a shard knows which workers have left, it stops waiting for
        // them and applies the gradients that it holds. The last save then includes this update.
        if !orders.is_terminated() && tokio::time::timeout(FAREWELL, orders).await.is_err() {
            warn!("the job ended before all shards were informed about the workers that left");
        }
        let result = tokio::select! {
            biased;
            // The redialling is polled first, so that `save_and_conclude` can tell that lost tasks are
            // dialled again.
            never = self.redial(training.ended.is_ok()) => match never {},
            result = self.save_and_conclude(training, &mut saving) => result,
        };
        if let (Ok(JobEnd::Completed(report)), Some(call)) = (&result, inputs.before_stop.take()) {
            self.call_before_stop(call, report.steps).await;
        }
        self.coordinator.do_send(JobEvent::Release);
        self.stop(&result, server).await;
        publisher.stop().await;
        last_update.update(true).await;
        self.publish_end(&result);
        inputs.hooks.end(result.as_ref(), &self.progress.borrow(), &mut inputs.feed);
        result
    }

    /// Returns the saver of checkpoints in the memory of the ps tasks; `None` if the job keeps none there.
    fn memory_saver(&self, directory: Option<&Saver>) -> Option<Saver> {
        let every = self.config.memory_checkpoint?;
        let files = MemoryStore::new(self.ps.files().clone(), self.identity.nonce);
        let store = Store::with(Arc::new(files), MEMORY);
        let life = directory.map_or(self.identity.incarnation, Saver::life);
        let saver = Saver::in_memory(every, store, self.job.clone(), &self.identity, life);
        Some(saver.dated_by(self.config.wall_clock.clone()))
    }

    /// Makes the last checkpoint if the job needs one, and returns the result of the job.
    async fn save_and_conclude(&self, training: Training, saving: &mut Saving) -> Result<JobEnd, ChiefError> {
        let last = self.save_last(&training.ended, saving).await;
        let saves = *saving.status.borrow();
        self.coordinator.do_send(JobEvent::Saved(saves));
        self.conclude(training, last.as_ref(), saving).await
    }

    /// Dials lost ps tasks again while a job that has ended well is saved and reported. If a ps task was
    /// started again, it has lost its variables, and the job ends with an error, unless the chief already has
    /// the final snapshots of the shards.
    async fn redial(&self, ended_well: bool) -> Infallible {
        let ChiefConfig { ps_lost_after, retry, .. } = self.config;
        if !ended_well || ps_lost_after.is_zero() || self.ps.is_refused() {
            return std::future::pending().await;
        }
        self.ps.redial(&self.transport, &self.identity, ps_lost_after, retry).await
    }

    /// Runs all parts of the chief until the training has ended.
    async fn supervise(&self, inputs: &mut JobInputs, saving: &mut Saving, orders: &mut Orders) -> Training {
        let launcher = self.launcher(saving);
        let mut launching = std::pin::pin!(launcher.run(&mut inputs.commands));
        let mut evaluating = std::pin::pin!(self.follow_evaluations(saving));
        let progress = self.progress.subscribe();
        let mut watching = std::pin::pin!(inputs.hooks.run(&self.shard_monitor, progress, &mut inputs.feed));
        let (mut stopwatch, mut trained_us) = (Stopwatch::default(), None);
        loop {
            tokio::select! {
                biased;
                milestone = inputs.milestones.recv() => {
                    match milestone.expect("the coordinator holds the sender") {
                        Milestone::Started => stopwatch.start(),
                        Milestone::Evaluated(found) => self.evaluated(found.step, found.evaluation),
                        Milestone::Trained(step) => {
                            stopwatch.stop();
                            trained_us = Some(self.clock.now());
                            saving.commands.send(SaverCommand::Trained(step));
                        }
                        Milestone::SaveAgain(step) => saving.commands.send(SaverCommand::Trained(step)),
                        Milestone::TrainedEvaluated(step, evaluation) => {
                            self.note_evaluation(step, &evaluation, trained_us);
                        }
                        Milestone::Ended(ended) => return Training { ended, took: stopwatch.elapsed() },
                    }
                }
                never = &mut launching => match never {},
                never = &mut watching => match never {},
                never = &mut evaluating => match never {},
                () = &mut *orders => {}
                _ = &mut saving.work => unreachable!("the saver was not told to end"),
                Ok(()) = saving.status.changed() => {
                    let (status, is_new) = saving.update();
                    self.coordinator.do_send(JobEvent::Saved(status));
                    self.announce(status, is_new);
                }
            }
        }
    }

    fn launcher(&self, saving: &Saving) -> Launcher<'_> {
        Launcher {
            config: &self.config,
            identity: &self.identity,
            transport: &self.transport,
            job: &self.job,
            progress: self.progress.subscribe(),
            interrupt: &self.interrupt,
            stop: &self.stop,
            coordinator: &self.coordinator,
            ps: &self.ps,
            shard_monitor: &self.shard_monitor,
            saver: saving.commands.clone(),
            saves: saving.status.clone(),
            checkpoints: saving.checkpoints.clone(),
            memory: saving.memory.clone(),
            drain: Rc::clone(&saving.drain),
            summary_every: self.summary_every,
            life: saving.life,
            continues: Default::default(),
            rolls_back: Default::default(),
            moves: Default::default(),
            save_by: Default::default(),
            rollbacks: Default::default(),
            accepted: Default::default(),
        }
    }

    fn publisher(&self, saving: &Saving) -> Publisher {
        Publisher {
            overview: Rc::clone(&self.overview),
            board: Rc::clone(&self.board),
            clock: self.clock,
            wall_clock: self.config.wall_clock.clone(),
            coordinator: self.coordinator.clone(),
            bell: Arc::clone(&self.bell),
            ps: Rc::clone(&self.ps),
            shard_monitor: Rc::clone(&self.shard_monitor),
            saves: saving.status.clone(),
            feed: self.feed.clone(),
        }
    }

    /// Waits for the results that evaluators store for the job's checkpoints, and reports each result to the
    /// overview and the hooks. Never returns.
    fn follow_evaluations(&self, saving: &Saving) -> impl Future<Output = Infallible> + use<'_> {
        let own = saving.checkpoints.as_ref().map(|(catalog, _)| (catalog.clone(), saving.life));
        async move {
            let Some((catalog, life)) = own else { return std::future::pending().await };
            follow(&catalog, life, |step, evaluation| self.evaluated(step, evaluation)).await
        }
    }

    /// Reports an evaluation, made while the job trains, to the overview and the hooks.
    fn evaluated(&self, step: GlobalStep, evaluation: Evaluation) {
        self.overview.borrow_mut().evaluated(elapsed(&self.clock), step, &evaluation);
        self.feed.send(HookEvent::Evaluated(step, Box::new(evaluation)));
    }

    /// Announces the last checkpoint to the hooks and records a trace span, if the checkpoint is new.
    fn announce(&self, status: SaveStatus, is_new: bool) {
        let Some(last) = status.last.filter(|_| is_new) else { return };
        let took_us = status.last_took.as_micros() as Micros;
        self.trace("checkpoints", last.to_string(), self.clock.now() - took_us);
        self.feed.send(HookEvent::Checkpoint(last.step, last.to_string()));
    }

    /// Records a span for work that the chief itself has done since `start_us`, if the job is traced.
    fn trace(&self, lane: &str, name: String, start_us: Micros) {
        if self.config.trace.is_some() {
            let (task, lane, took_us) = (TaskId::CHIEF, lane.to_owned(), self.clock.now() - start_us);
            let (push, local_step) = (None, None);
            self.feed.spans(vec![SpanSpec { task, lane, name, push, local_step, start_us, took_us }]);
        }
    }

    /// Publishes the evaluation of the trained job, and records a trace span for it. `trained_us` is the time
    /// at which all workers had finished, in microseconds on the chief's clock.
    fn note_evaluation(&self, step: GlobalStep, evaluation: &Evaluation, trained_us: Option<Micros>) {
        self.overview.borrow_mut().evaluated(elapsed(&self.clock), step, evaluation);
        self.bell.notify_one();
        if let Some(trained_us) = trained_us {
            self.trace("evaluation", format!("step {step}"), trained_us);
        }
    }

    /// Makes the last checkpoint if the job needs one, and returns its name.
    async fn save_last(
        &self,
        ended: &Result<Box<TrainingEnd>, ChiefError>,
        saving: &mut Saving,
    ) -> Option<Result<CheckpointName, String>> {
        let config = self.config.checkpoint.as_ref()?;
        let step = match LastSave::after(ended.as_deref()) {
            LastSave::Nothing => return None,
            LastSave::At(step) => Some(step),
            LastSave::Current => None,
        };
        let drain = saving.drain.get();
        let limit = SaveLimit::new(drain.is_some(), ended.is_ok());
        let deadline = match (limit, drain) {
            (SaveLimit::Drain, Some(drain)) => drain.deadline,
            (SaveLimit::Drain, None) | (SaveLimit::DrainTimeout, _) => Instant::now() + config.drain_timeout,
            (SaveLimit::LastSaveTimeout, _) => {
                let settled = ended.as_deref().ok().and_then(TrainingEnd::settled);
                settled.map_or_else(|| Instant::now() + config.last_save_timeout, |settled| settled.save_by)
            }
        };
        saving.commands.send(SaverCommand::End { step, deadline });
        let last = (&mut saving.work).await;
        let last = last.map_err(|reason| match Instant::now() < deadline {
            true => reason,
            false => format!("{reason}; give it more time with {}", limit.flag()),
        });
        if let (status, true) = saving.update() {
            self.announce(status, true);
        }
        Some(last)
    }

    /// Returns the result of the job.
    async fn conclude(
        &self,
        training: Training,
        last: Option<&Result<CheckpointName, String>>,
        saving: &Saving,
    ) -> Result<JobEnd, ChiefError> {
        let saves = *saving.status.borrow();
        if let Some(Err(reason)) = last {
            let what = if training.ended.is_ok() { "the job was trained, but its" } else { "the job's" };
            error!(reason, "{what} last step was not saved; {}", saves.newest());
        }
        let error = match training.ended.map(|end| *end) {
            Ok(TrainingEnd::Evaluated(mut outcome)) => {
                let seconds = self.config.conclude_timeout.as_secs();
                let silent = |_| ChiefError::Silent { step: outcome.step, seconds, lost: self.ps.lost() };
                let settled = outcome.settled.take();
                // If the shards were asked before, half of the time has passed.
                let asked = settled.as_ref().is_some_and(|settled| settled.observed);
                let limit = self.config.conclude_timeout / if asked { 2 } else { 1 };
                // A job that was told to end must not wait long beyond its deadline.
                let limit = saving.drain.get().map_or(limit, |drain| {
                    limit.min(drain.deadline.saturating_duration_since(Instant::now()).max(FAREWELL))
                });
                let shards = match settled.and_then(|settled| settled.shards) {
                    Some(shards) => shards,
                    None => {
                        let observed = tokio::time::timeout(limit, self.observe_last());
                        observed.await.map_err(silent)??
                    }
                };
                let report = conclude(&self.job, shards, outcome, training.took, saves)?;
                let unsaved = last.and_then(|saved| saved.as_ref().err().cloned());
                return Ok(JobEnd::Completed(JobReport { unsaved, ..report }));
            }
            Ok(TrainingEnd::Drained { step }) => {
                ChiefError::Interrupted { step, last_step: self.job.last_step }
            }
            Err(error) => error,
        };
        let drain = saving.drain.get().map(|drain| drain.reason.clone());
        let result = early_end(error, drain, last);
        if let (Err(_), Some(Ok(checkpoint))) = (&result, last) {
            warn!(%checkpoint, "the job failed, but its training was saved");
        }
        result
    }

    /// Returns the final snapshots of the shards. If a ps task is lost, waits for it to come back.
    async fn observe_last(&self) -> Result<Vec<(ShardId, ShardSnapshot)>, ChiefError> {
        loop {
            match self.ps.observe().await {
                Err(ChiefError::Call(CallError::Lost { .. })) if self.ps.wait_reached().await => {}
                observed => {
                    let restarted = self.ps.restarted().map(|task| ShardId::new(task.index, 0));
                    return restarted.map_or(observed, |shard| Err(ChiefError::VariablesLost { shard }));
                }
            }
        }
    }

    /// Calls the function that reads the variables of the trained job. The function has a time limit, and a
    /// signal ends it.
    async fn call_before_stop(&self, call: BeforeStop, step: GlobalStep) {
        // This is the same placement as when the shards were created.
        let workers_max = self.config.workers(&self.job, &self.identity.cluster);
        let placement = match self.ps.place(&self.job, workers_max) {
            Ok(placement) => placement,
            Err(error) => return warn!("the variables cannot be read: {error}"),
        };
        let limit = self.config.before_stop_timeout;
        tokio::select! {
            biased;
            read = tokio::time::timeout(limit, call(TrainedJob { placement, step })) => {
                if read.is_err() {
                    warn!("the variables were not read within {} s", limit.as_secs());
                }
            }
            () = self.interrupt.cancelled() => warn!("reading the variables was interrupted"),
        }
    }

    /// Tells all tasks that the job has ended, and waits until the workers have left. If the ps tasks obey
    /// another chief, they are left alone.
    async fn stop(&self, result: &Result<JobEnd, ChiefError>, server: Server) {
        if self.ps.is_refused() || result.as_ref().is_err_and(ChiefError::is_other_chief) {
            self.ps.leave_alone();
            return server.stop().await;
        }
        self.ps
            .stop(match result {
                Ok(JobEnd::Completed(_)) => StopReason::Completed,
                Ok(JobEnd::Saved { .. }) => StopReason::Saved,
                Err(error) => StopReason::failed(error),
            })
            .await;
        // The server stays open for a while. A worker that has received its last reply closes its connection,
        // and any other worker reconnects and repeats its request.
        if tokio::time::timeout(self.config.reconnect_timeout, server.alone()).await.is_err() {
            debug!("some workers are still connected");
        }
        server.stop().await;
    }

    /// Publishes the final overview of the job.
    fn publish_end(&self, result: &Result<JobEnd, ChiefError>) {
        let (mut overview, at) = (self.overview.borrow_mut(), elapsed(&self.clock));
        if let Ok(JobEnd::Completed(report)) = result {
            for (shard, snapshot) in &report.shards {
                overview.shard(at, *shard, Some(snapshot.clone()));
            }
        }
        overview.end(end_reason(result), result.is_err());
        publish(&overview, &self.board, overview.rows(at), &self.config.wall_clock);
    }
}
