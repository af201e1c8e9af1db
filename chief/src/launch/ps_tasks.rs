//! Manages the ps tasks for the chief: connects to them, claims them, distributes the variables, observes the
//! shards, and stops the tasks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use pushpull_messages::checkpoint::{CheckpointName, StartSpec};
use pushpull_messages::cluster::on_one_host;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, TaskId, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Appoint, Appointed, CreateShard, HoldAt, Holding, Inspect, Inspected, LearningRateSet, Leave, Left,
    Message, Observe, RefusalCode, Save, SaveResult, Saved, SetLearningRate, ShardCreated, ShardSnapshot,
    Stop, StopAt, StopReason, Stopped, StoppingAt,
};
use pushpull_messages::optimizer::{RateChange, RateSpec};
use pushpull_messages::placement::Placement;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{
    CallError, DialError, Identity, Patience, ReconnectingClient, RetryConfig, Transport,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error::ChiefError;
use crate::placement::{HostedShards, place_in_workers, place_stages};

use super::claiming::{claim_all, is_refused};
use super::ps_files::PsFiles;
use super::rate_history::RateHistory;
use super::takeover::{Found, find};

/// The time limit for a ps task to confirm that it stops.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);

/// The time to wait before a request is sent again to a shard whose queue was full.
const OVERLOADED_RETRY: Duration = Duration::from_millis(100);

/// The size of the largest shard, in bytes, unless one row, or one variable that cannot be split, is larger.
/// It is below the largest frame of a ps task, so that several frames fit into the limits on bytes in flight.
const SHARD_BYTES_MAX: u64 = 1 << 30;

/// The reason why the shards could not be created.
pub(crate) enum CreateError {
    /// A shard cannot read its initial values.
    Unavailable { shard: ShardId, reason: String },
    /// Another error prevented the creation.
    Other(ChiefError),
}

impl From<CreateError> for ChiefError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Unavailable { shard, reason } => Self::NotCreated { shard, reason },
            CreateError::Other(error) => error,
        }
    }
}

/// The ps tasks that the chief has reached so far.
pub(crate) struct PsTasks {
    callers: RefCell<BTreeMap<TaskId, Arc<ReconnectingClient>>>,
    /// The tasks that were lost for good, without which the job goes on.
    left_out: RefCell<BTreeSet<TaskId>>,
    /// The files in the memory of the tasks.
    files: PsFiles,
    /// The epoch of the placement.
    epoch: Cell<PlacementEpoch>,
    /// The number of shards of each ps task in the last placement, by the index of the task.
    needed: RefCell<BTreeMap<u32, u32>>,
    /// The shards that own slices in the last placement.
    with_slices: RefCell<BTreeSet<ShardId>>,
    /// Whether workers host the tasks.
    hosted: Cell<bool>,
    /// Whether all tasks are on one host, as far as their addresses tell.
    on_one_host: Cell<bool>,
    /// The number of attempts to claim the tasks.
    attempts: Cell<u64>,
    /// The greatest number that this chief or an earlier one has given to the appointment of a worker.
    appointed: Cell<u64>,
    /// Whether all tasks have granted the claim of this chief.
    claimed: Cell<bool>,
    /// Notified when a task has been reached, and when a lost task is no longer dialled.
    reached: watch::Sender<()>,
    /// Whether tasks that are lost are dialled again.
    redialled: Cell<bool>,
    /// A task that was started again while it was lost, and so has lost its variables.
    restarted: Cell<Option<TaskId>>,
    refused: Refused,
    /// The history of the shards' learning rate.
    rates: RefCell<RateHistory>,
    /// Cancelled before the ps tasks are told to stop.
    stops: CancellationToken,
}

impl Default for PsTasks {
    fn default() -> Self {
        Self {
            callers: RefCell::default(),
            left_out: RefCell::default(),
            files: PsFiles::default(),
            epoch: Cell::new(PlacementEpoch(1)),
            needed: RefCell::default(),
            with_slices: RefCell::default(),
            hosted: Cell::default(),
            on_one_host: Cell::default(),
            attempts: Cell::default(),
            appointed: Cell::default(),
            claimed: Cell::default(),
            reached: watch::Sender::default(),
            redialled: Cell::default(),
            restarted: Cell::default(),
            refused: Refused::default(),
            rates: RefCell::default(),
            stops: CancellationToken::new(),
        }
    }
}

/// The refusals of ps tasks that obey another chief.
#[derive(Clone, Default)]
struct Refused {
    /// The first refusal.
    first: watch::Sender<Option<CallError>>,
    /// The tasks that were started again and have not been claimed since. They refuse every order, although
    /// they may obey no other chief.
    started: Rc<RefCell<BTreeSet<TaskId>>>,
}

/// Sends an order to a ps task. If the task refuses the order because it obeys another chief, records the
/// refusal.
async fn order<A>(
    refused: &Refused,
    caller: &ReconnectingClient,
    order: impl Into<Message>,
) -> Result<A, CallError>
where
    A: TryFrom<Message, Error = Message>,
{
    let reply = caller.call::<A>(order, Payload::EMPTY).await;
    if let Err(error) = &reply {
        note(refused, error);
    }
    reply.map(|(reply, _)| reply)
}

/// Records an error if it says that a task obeys another chief, and if no such error has been recorded
/// before.
fn note(refused: &Refused, error: &CallError) {
    let is_new = |peer: &TaskId| refused.started.borrow().contains(peer);
    let expected = matches!(error, CallError::Refused { peer, .. } if is_new(peer));
    if is_refused(error) && !expected {
        refused.first.send_if_modified(|first| first.is_none() && first.replace(error.clone()).is_none());
    }
}

/// Returns the request that creates a shard of a job.
pub(super) fn creation(
    job: &JobSpec,
    workers: u32,
    placement: &Placement,
    shard: ShardId,
    start: &StartSpec,
) -> CreateShard {
    CreateShard {
        shard,
        placement: placement.clone(),
        variables: job.graph.variables.clone(),
        update: job.update(),
        compression: job.compression.clone(),
        sync: job.sync,
        pipeline: job.pipeline,
        deterministic: job.deterministic,
        workers,
        last_step: job.last_step,
        seed: job.seed,
        job: job.digest(),
        start: start.clone(),
    }
}

/// The status of a ps task that has been reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PsStatus {
    pub task: TaskId,
    /// The address of the task's HTTP endpoint, if it has one.
    pub http: Option<String>,
    /// Whether the task can be reached now.
    pub up: bool,
}

impl PsTasks {
    /// Connects to every ps task that was not reached before, or that is lost, except those that were left
    /// out.
    pub(crate) async fn connect(
        &self,
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        patience: Patience,
        retry: RetryConfig,
    ) -> Result<(), ChiefError> {
        retry.validate()?;
        self.hosted.set(!identity.cluster.has_ps());
        let addresses = identity.cluster.ps_addresses();
        self.on_one_host.set(on_one_host(addresses));
        let dials = addresses.iter().enumerate().map(|(index, address)| async move {
            let task = TaskId::ps(index as u32);
            if !self.is_lost(task) || self.left_out.borrow().contains(&task) {
                return Ok(());
            }
            let transport = Arc::clone(transport);
            let caller =
                ReconnectingClient::connect(transport, address.as_str(), identity, task, patience, retry)
                    .await?;
            let earlier = self.life_of(task);
            let caller = Arc::new(caller);
            self.files.reach(task, &caller);
            self.callers.borrow_mut().insert(task, caller);
            if earlier.is_some() && earlier != self.life_of(task) {
                self.refused.started.borrow_mut().insert(task);
                self.restarted.set(Some(task));
            }
            self.reached.send_replace(());
            Ok::<_, DialError>(())
        });
        futures_util::future::try_join_all(dials).await?;
        Ok(())
    }

    /// Claims, for this run of the chief, all tasks that have been reached.
    ///
    /// # Errors
    /// Returns [`ChiefError::OtherChief`] if a task belongs to another chief. In this case, no task is
    /// claimed.
    pub(crate) async fn claim(&self) -> Result<(), ChiefError> {
        let attempt = self.attempts.get() + 1;
        self.attempts.set(attempt);
        claim_all(&self.callers(), attempt).await?;
        self.claimed.set(true);
        self.refused.started.borrow_mut().clear();
        Ok(())
    }

    /// Records the error of a request that was not sent by this struct, if the error says that a task obeys
    /// another chief.
    pub(crate) fn note(&self, error: &CallError) {
        note(&self.refused, error);
    }

    /// Returns whether a task has refused a request because it obeys another chief.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.first.borrow().is_some()
    }

    /// Waits until a task has refused an order because it obeys another chief, and returns the refusal.
    pub(crate) async fn wait_refused(&self) -> CallError {
        let refused =
            self.refused.first.subscribe().wait_for(Option::is_some).await.ok().and_then(|it| it.clone());
        refused.expect("this struct holds the sender")
    }

    /// Returns whether all tasks have granted the claim of this chief.
    pub(crate) const fn is_claimed(&self) -> bool {
        self.claimed.get()
    }

    /// Dials every lost task again, for at most `patience`. Never returns.
    pub(crate) async fn redial(
        &self,
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        patience: Duration,
        retry: RetryConfig,
    ) -> Infallible {
        self.redialled.set(true);
        loop {
            let (task, reason) = self.wait_lost().await;
            let life = self.life_of(task);
            warn!(%task, reason, seconds = patience.as_secs(), "lost a ps task; waiting for it to come back");
            let connected = self.connect(transport, identity, Patience::of(patience), retry).await;
            let claimed = match connected {
                Ok(()) if self.life_of(task) == life => self.claim().await,
                Ok(()) => Err(ChiefError::VariablesLost { shard: ShardId::new(task.index, 0) }),
                Err(error) => Err(error),
            };
            if matches!(claimed, Err(ChiefError::Call(CallError::Lost { .. }))) {
                // Another task is lost, too.
                continue;
            }
            if let Err(error) = claimed {
                warn!(%task, %error, "the ps task did not come back");
                self.redialled.set(false);
                self.reached.send_replace(());
                return std::future::pending().await;
            }
        }
    }

    /// Returns the incarnation and the nonce of a task that was reached.
    fn life_of(&self, task: TaskId) -> Option<(Incarnation, u64)> {
        self.callers.borrow().get(&task).map(|caller| (caller.welcome().incarnation, caller.welcome().nonce))
    }

    /// Returns a task that was started again while it was lost, and so has lost its variables.
    pub(crate) fn restarted(&self) -> Option<TaskId> {
        let owners = self.with_slices.borrow();
        self.restarted.get().filter(|&task| owners.iter().any(|shard| shard.task() == task))
    }

    /// Waits until no task is lost. Returns false if a task is lost for good.
    pub(crate) async fn wait_reached(&self) -> bool {
        let mut reached = self.reached.subscribe();
        while self.is_any_lost() {
            if !self.redialled.get() || reached.changed().await.is_err() {
                return false;
            }
        }
        true
    }

    /// Returns whether there is no connection to a task, and none will come back by itself.
    pub(crate) fn is_lost(&self, task: TaskId) -> bool {
        self.callers.borrow().get(&task).is_none_or(|caller| caller.is_lost())
    }

    /// Returns whether any task that was reached is lost now.
    pub(crate) fn is_any_lost(&self) -> bool {
        !self.lost().is_empty()
    }

    /// Returns the tasks that were reached and are lost now.
    pub(crate) fn lost(&self) -> Vec<TaskId> {
        self.tasks().into_iter().filter(|&task| self.is_lost(task)).collect()
    }

    /// Leaves out a task that is lost: it is not dialled again, and later placements do not use it.
    pub(crate) fn leave_out(&self, task: TaskId) {
        self.callers.borrow_mut().remove(&task);
        self.files.forget(task);
        self.left_out.borrow_mut().insert(task);
    }

    /// Returns the tasks that have been reached.
    pub(crate) fn tasks(&self) -> Vec<TaskId> {
        self.callers.borrow().keys().copied().collect()
    }

    fn callers(&self) -> Vec<Arc<ReconnectingClient>> {
        self.callers.borrow().values().cloned().collect()
    }

    /// Returns the files in the memory of the tasks.
    pub(crate) const fn files(&self) -> &PsFiles {
        &self.files
    }

    /// Returns the status of every task that has been reached.
    pub(crate) fn statuses(&self) -> Vec<PsStatus> {
        let status = |caller: &Arc<ReconnectingClient>| PsStatus {
            task: caller.peer(),
            http: caller.welcome().http.clone(),
            up: caller.is_up(),
        };
        self.callers.borrow().values().map(status).collect()
    }

    /// Waits for the moment just before the ps tasks are told to stop. After that, other code must not keep
    /// a client of a task, because the client would keep the connection open.
    pub(crate) async fn stopping(&self) {
        self.stops.cancelled().await;
    }

    /// Returns the id of every shard, with a client for its task: of the shards that the tasks have
    /// announced, and of those that the placement needs in addition.
    pub(crate) fn shards(&self) -> Vec<(ShardId, Arc<ReconnectingClient>)> {
        let needed = self.needed.borrow();
        let of_task = |caller: Arc<ReconnectingClient>| {
            let needed = needed.get(&caller.peer().index).copied().unwrap_or_default();
            let shards = 0..caller.welcome().shards.max(needed);
            shards.map(move |shard| (ShardId::new(caller.peer().index, shard), Arc::clone(&caller)))
        };
        self.callers().into_iter().flat_map(of_task).collect()
    }

    /// Returns the shards that own slices. Only these count the job's steps and have values to save.
    fn shards_with_slices(&self) -> Vec<(ShardId, Arc<ReconnectingClient>)> {
        self.shards().into_iter().filter(|(shard, _)| self.has_slices(*shard)).collect()
    }

    /// Returns the shards in the order in which they are told about workers: those without slices, then the
    /// others. A worker that is lost may have taken its ps task with it. If this task has no slices, those
    /// that have some would go on without the worker before anyone knows that a task is lost, and a
    /// deterministic job would then save other values.
    fn in_order(&self) -> [Vec<(ShardId, Arc<ReconnectingClient>)>; 2] {
        let (others, first) = self.shards().into_iter().partition(|(shard, _)| self.has_slices(*shard));
        [first, others]
    }

    /// Returns whether a shard owns slices in the last placement.
    pub(crate) fn has_slices(&self, shard: ShardId) -> bool {
        self.with_slices.borrow().contains(&shard)
    }

    /// Decides the placement of every variable of a job that may have `workers_max` workers, with the current
    /// epoch.
    pub(crate) fn place(&self, job: &JobSpec, workers_max: u32) -> Result<Placement, ChiefError> {
        let callers = self.callers();
        let announced = |caller: &Arc<ReconnectingClient>| {
            let (ps, shards) = (caller.peer().index, caller.welcome().shards);
            (0..shards).map(move |shard| ShardId::new(ps, shard))
        };
        let shards: Vec<ShardId> = callers.iter().flat_map(announced).collect();
        let frames = callers.iter().map(|caller| caller.welcome().payload_bytes_max);
        let bytes_max = frames.min().unwrap_or(u64::MAX).min(SHARD_BYTES_MAX);
        let (update, variables) = (job.update(), &job.graph.variables);
        let (stages, epoch) = (job.graph.stages(), self.epoch.get());
        let placement = if self.hosted.get() {
            // Measured with `cargo bench --bench strategies`. Sums travel to several owners at the same time.
            let gathers = job.sync == SyncSpec::SYNC && !job.communication.has_routes();
            let prefers_one_owner = gathers && self.on_one_host.get();
            let hosted = HostedShards { shards: &shards, workers_max, prefers_one_owner };
            place_in_workers(&job.placement, &update, variables, &stages, hosted, bytes_max, epoch)?
        } else {
            place_stages(&job.placement, &update, variables, &stages, &shards, bytes_max, epoch)?
        };
        let mut needed = BTreeMap::new();
        for shard in &placement.shards {
            let count = needed.entry(shard.ps).or_insert(0);
            *count = (shard.shard + 1).max(*count);
        }
        self.needed.replace(needed);
        self.with_slices.replace(placement.shards_with_slices());
        Ok(placement)
    }

    /// Sets the epoch of the placement to `epoch`, the epoch of the job that this chief continues.
    pub(crate) fn continue_epoch(&self, epoch: PlacementEpoch) {
        self.epoch.set(epoch);
    }

    /// Begins the epoch that follows `epoch` and all epochs of this chief.
    pub(crate) fn begin_epoch_after(&self, epoch: PlacementEpoch) {
        self.epoch.set(self.epoch.get().max(epoch).next());
    }

    /// Lets this chief's next appointments have numbers above `number`, which is the greatest number that an
    /// earlier chief used.
    pub(crate) fn appoint_after(&self, number: u64) {
        self.appointed.set(self.appointed.get().max(number));
    }

    /// Returns what the shards hold of the job. `placement` may have any epoch.
    ///
    /// # Errors
    /// Returns an error if the shards serve another job, or if a ps task cannot be reached.
    pub(crate) async fn find(
        &self,
        job: &JobSpec,
        workers: u32,
        placement: &Placement,
    ) -> Result<Found, ChiefError> {
        let shards = self.shards();
        let ids: Vec<ShardId> = shards.iter().map(|&(shard, _)| shard).collect();
        let inspected = self.ask::<_, Inspected>(shards, |shard| Inspect { shard: shard.shard }).await?;
        let held = |(shard, inspected): (ShardId, Inspected)| (shard, inspected.held.map(|held| *held));
        let shards: Vec<_> = ids.into_iter().zip(inspected).map(held).collect();
        find(&shards, |shard, epoch, start| {
            creation(job, workers, &Placement { epoch, ..placement.clone() }, shard, start)
        })
    }

    /// Creates the variables on every shard. May be called again with a different `start` until a worker has
    /// been told to begin, and at any time with a later epoch of the placement. Returns the version with
    /// which all shards begin.
    pub(crate) async fn create(
        &self,
        job: &JobSpec,
        workers: u32,
        placement: &Placement,
        start: &StartSpec,
    ) -> Result<Version, CreateError> {
        self.restarted.set(None);
        let tasks = self.shards();
        let mut creations = Vec::new();
        for &(shard, ref caller) in &tasks {
            let create = creation(job, workers, placement, shard, start);
            let (bytes, max) = (create.bytes(), caller.welcome().payload_bytes_max);
            if bytes > max {
                return Err(CreateError::Other(ChiefError::ShardTooLarge { shard, bytes, max }));
            }
            let creation = order::<ShardCreated>(&self.refused, caller, create);
            creations.push(async move { (shard, creation.await) });
        }
        let mut versions = Vec::new();
        // Waits for the replies of all shards, so that no shard is still busy with this request when the
        // next request arrives.
        let created = futures_util::future::join_all(creations).await;
        // The refusal is returned first, because another shard may have failed only because it serves the job
        // of the other chief.
        if let Some(refused) = self.refused.first.borrow().clone() {
            return Err(CreateError::Other(refused.into()));
        }
        for (shard, created) in created {
            match created {
                Ok(created) => {
                    self.appointed.set(self.appointed.get().max(created.appointed));
                    versions.push((shard, created.version));
                }
                Err(CallError::Refused { refusal, .. }) if refusal.code == RefusalCode::Unavailable => {
                    return Err(CreateError::Unavailable { shard, reason: refusal.reason });
                }
                Err(error) => return Err(CreateError::Other(error.into())),
            }
        }
        let first = versions.first().map(|&(_, version)| version).unwrap_or_default();
        match versions.into_iter().find(|&(_, version)| version != first) {
            Some((shard, version)) => {
                Err(CreateError::Other(ChiefError::BeganApart { shard, version, first }))
            }
            None => Ok(first),
        }
    }

    /// Waits until any ps task is lost, and returns this task and the reason.
    pub(crate) async fn wait_lost(&self) -> (TaskId, String) {
        let lost = self
            .callers()
            .into_iter()
            .map(|caller| Box::pin(async move { (caller.peer(), caller.wait_lost().await) }));
        futures_util::future::select_all(lost).await.0
    }

    /// Returns a snapshot of every shard that owns slices.
    pub(crate) async fn observe(&self) -> Result<Vec<(ShardId, ShardSnapshot)>, ChiefError> {
        let shards = self.shards_with_slices();
        let ids: Vec<ShardId> = shards.iter().map(|&(shard, _)| shard).collect();
        let snapshots = self.ask::<_, ShardSnapshot>(shards, |shard| Observe { shard: shard.shard }).await?;
        Ok(ids.into_iter().zip(snapshots).collect())
    }

    /// Tells every shard that owns slices to write its part of a checkpoint when it has reached version `at`.
    /// Returns a stream of the replies in the order of their arrival.
    pub(crate) fn save(
        &self,
        checkpoint: CheckpointName,
        store: &str,
        at: Version,
    ) -> FuturesUnordered<impl Future<Output = (ShardId, Result<SaveResult, CallError>)> + use<>> {
        let saves = self.shards_with_slices().into_iter().map(|(shard, caller)| {
            let save = Save { shard: shard.shard, store: store.to_owned(), checkpoint, at };
            let refused = self.refused.clone();
            async move {
                let saved = order::<Saved>(&refused, &caller, save).await;
                (shard, saved.map(|saved| saved.result))
            }
        });
        saves.collect()
    }

    /// Asks every shard that owns slices to stop at `step`. If `drains` is true, another job will continue
    /// from there. Returns the versions of the shards. A shard that has already passed `step` ignores the
    /// request.
    pub(crate) async fn stop_at(&self, step: GlobalStep, drains: bool) -> Result<Vec<Version>, ChiefError> {
        let stop = |shard: ShardId| StopAt { shard: shard.shard, step, drains };
        let stopping = self.ask::<_, StoppingAt>(self.shards_with_slices(), stop).await?;
        Ok(stopping.into_iter().map(|reply| reply.version).collect())
    }

    /// Asks every shard that owns slices to wait at `version` until the learning rate is set. Returns the
    /// versions of the shards. A shard that has already passed `version` does not wait.
    pub(crate) async fn hold_at(&self, version: Version) -> Result<Vec<Version>, ChiefError> {
        let hold = |shard: ShardId| HoldAt { shard: shard.shard, version };
        let holding = self.ask::<_, Holding>(self.shards_with_slices(), hold).await?;
        Ok(holding.into_iter().map(|reply| reply.version).collect())
    }

    /// Sets the learning rate of every shard that owns slices. They must all be waiting for it, see
    /// [`hold_at`](Self::hold_at).
    pub(crate) async fn set_learning_rate(&self, change: RateChange) -> Result<(), ChiefError> {
        // The change is recorded first, because a checkpoint of a later version may be written as soon as a
        // shard has the change.
        self.rates.borrow_mut().push(change);
        let set = |shard: ShardId| SetLearningRate { shard: shard.shard, change };
        self.ask::<_, LearningRateSet>(self.shards_with_slices(), set).await?;
        Ok(())
    }

    /// Records the learning rate with which the shards begin.
    pub(crate) fn begin_with_rate(&self, rate: RateSpec) {
        *self.rates.borrow_mut() = rate.into();
    }

    /// Returns the learning rate of the shards at a version.
    pub(crate) fn rate_at(&self, version: Version) -> RateSpec {
        self.rates.borrow().at(version)
    }

    /// Sends a request to each of these shards, and returns the replies. If the queue of a shard is full,
    /// tries again.
    async fn ask<Q, A>(
        &self,
        shards: Vec<(ShardId, Arc<ReconnectingClient>)>,
        request: impl Fn(ShardId) -> Q,
    ) -> Result<Vec<A>, ChiefError>
    where
        Q: Into<Message> + Copy,
        A: TryFrom<Message, Error = Message>,
    {
        let requests = shards.into_iter().map(|(shard, caller)| {
            let request = request(shard);
            async move {
                loop {
                    match order::<A>(&self.refused, &caller, request).await {
                        Ok(reply) => return Ok(reply),
                        Err(CallError::Refused { refusal, .. })
                            if refusal.code == RefusalCode::Overloaded =>
                        {
                            tokio::time::sleep(OVERLOADED_RETRY).await;
                        }
                        Err(error) => return Err(ChiefError::from(error)),
                    }
                }
            }
        });
        futures_util::future::try_join_all(requests).await
    }

    /// Tells every ps task that the job has ended, and closes the connections. Tasks that are lost are
    /// skipped. If the job has failed before this chief claimed the tasks, the chief first claims the tasks
    /// that it has reached; if one of them belongs to another chief, no task is stopped.
    pub(crate) async fn stop(&self, reason: StopReason) {
        self.stops.cancel();
        if !self.claimed.get()
            && let Ok(Err(ChiefError::OtherChief { reason, .. })) =
                tokio::time::timeout(FAREWELL, self.claim()).await
        {
            info!(reason, "stopped no ps task, because the ps tasks belong to another chief");
            return self.leave_alone();
        }
        let stops = self.callers.take().into_values().map(|caller| {
            let stop = Stop { reason: reason.clone() };
            // Each client is dropped as soon as its task has replied, because the task then closes the
            // connection.
            async move {
                let stopped = caller.call::<Stopped>(stop, Payload::EMPTY);
                if !matches!(tokio::time::timeout(FAREWELL, stopped).await, Ok(Ok(_))) {
                    warn!(task = %caller.peer(), "ps task did not confirm that it stops");
                }
            }
        });
        futures_util::future::join_all(stops).await;
    }

    /// Closes the connections to all tasks without stopping the tasks, because they belong to another chief.
    pub(crate) fn leave_alone(&self) {
        self.stops.cancel();
        self.callers.take();
    }

    /// Returns the number of the next appointment of a worker. It is greater than all numbers that the shards
    /// knew when they were created.
    pub(crate) fn next_appointment(&self) -> u64 {
        self.appointed.set(self.appointed.get() + 1);
        self.appointed.get()
    }

    /// Tells every shard that this incarnation of a worker may join, and that the worker's earlier
    /// incarnations have ended. Returns whether all shards have confirmed this. They all do, unless a ps task
    /// is lost or obeys another chief.
    pub(crate) async fn appoint(&self, worker: u32, incarnation: Incarnation, number: u64) -> bool {
        let appoint = |shard: ShardId| Appoint { shard: shard.shard, worker, incarnation, number };
        for shards in self.in_order() {
            if let Err(error) = self.ask::<_, Appointed>(shards, appoint).await {
                error!(worker = %TaskId::worker(worker), %error, "could not inform the shards that a worker begins");
                return false;
            }
        }
        true
    }

    /// Informs every shard that this incarnation of a worker has left, as was decided at this placement
    /// epoch. A shard without this message keeps waiting for the worker. If a shard without slices is lost,
    /// the others are not informed: the job then rolls back, or the coordinator gives the order again.
    pub(crate) async fn leave(&self, worker: u32, incarnation: Incarnation, epoch: PlacementEpoch) {
        for shards in self.in_order() {
            let calls = shards.into_iter().map(|(shard, client)| async move {
                let leave = Leave { shard: shard.shard, worker, incarnation, epoch };
                self.tell_left(shard, &client, leave).await
            });
            if !futures_util::future::join_all(calls).await.into_iter().all(|confirmed| confirmed) {
                return;
            }
        }
    }

    /// Informs one shard that a worker has left. Returns whether it has confirmed this.
    async fn tell_left(&self, shard: ShardId, client: &ReconnectingClient, leave: Leave) -> bool {
        loop {
            match order::<Left>(&self.refused, client, leave).await {
                Ok(Left {}) => return true,
                Err(CallError::Refused { refusal, .. }) if refusal.code == RefusalCode::Overloaded => {
                    tokio::time::sleep(OVERLOADED_RETRY).await;
                }
                // The message is not repeated: if the job survives the loss of the ps task, the coordinator
                // gives the order again.
                Err(error) => {
                    let worker = TaskId::worker(leave.worker);
                    error!(%shard, %worker, %error, "could not inform the shard that a worker left");
                    return false;
                }
            }
        }
    }
}
