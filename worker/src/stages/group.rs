//! The leader's connections to the other stages of its replica. A connection that is lost fails what uses it:
//! nothing is sent twice, and the leader begins again as another incarnation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all, try_join_all};
use pushpull_engine::Edge;
use pushpull_messages::id::{Incarnation, ShardId, TaskId, VariableId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    CloseStage, ComputeStage, DigestStage, FetchStageValue, Message, OpenStage, PullAt, PullStage, PushStage,
    StageClosed, StageComputed, StageDigests, StageOpened, StagePulled, StagePushed, StageReply, StageValue,
    StageValueFetched, StageValueKey, StageValueTaken, VALUE_SETS_MAX,
};
use pushpull_messages::placement::Placement;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, Patience, Transport, dial};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::arrivals::Arrivals;
use super::error::{StageError, StageErrorKind};
use super::sets::ValueSets;
use super::transfers::Transfers;
use crate::client::{ClientError, OtherStages, ValueSet, shards_of_stages};

/// How long a leader that leaves waits for the reply of a stage.
const FAREWELL: Duration = Duration::from_secs(5);

/// The stages of a replica, as its leader sees them.
#[derive(Debug)]
pub(crate) struct Group {
    /// The leader's task.
    task: TaskId,
    leader: Incarnation,
    stages: Vec<OtherStage>,
    sets: ValueSets,
    last_run: AtomicU64,
    /// Cancelled at the end of this incarnation of the leader.
    over: CancellationToken,
    /// The pool of the buffers in which the leader's values are sent.
    pool: BufferPool,
    /// The runtime that sends and receives for the threads of the devices.
    runtime: Handle,
}

/// A stage other than the leader.
#[derive(Debug)]
struct OtherStage {
    task: TaskId,
    connection: Arc<Connection>,
    /// The shards of the stage's variables, in the order of the placement.
    shards: Vec<ShardId>,
    /// The variables that the stage owns, in the order of the graph.
    variables: Vec<VariableId>,
}

/// What a leader needs in order to open the other stages.
pub(crate) struct GroupStart<'a> {
    pub transport: &'a Arc<dyn Transport>,
    pub identity: &'a Identity,
    pub pool: &'a BufferPool,
    /// The job as the chief has sent it.
    pub job: &'a JobSpec,
    pub placement: &'a Placement,
    /// The number of replicas of the job.
    pub replicas: u32,
    /// How long to wait for a stage that is not there yet.
    pub patience: Duration,
}

impl GroupStart<'_> {
    /// Connects to all other stages, and has them prepare the job.
    ///
    /// # Errors
    /// If a stage cannot be reached in time, or cannot compute its part.
    pub(crate) async fn open(&self) -> Result<Group, StageError> {
        let shards = shards_of_stages(self.placement, &self.job.graph.stages());
        let shards = shards.map_err(|shard| StageError {
            task: self.identity.task,
            kind: StageErrorKind::Failed,
            reason: ClientError::MixedShard(shard).to_string(),
        })?;
        let stages = shards
            .into_iter()
            .enumerate()
            .skip(1)
            .map(|(stage, shards)| self.open_stage(stage as u32, shards));
        Ok(Group {
            task: self.identity.task,
            leader: self.identity.incarnation,
            stages: try_join_all(stages).await?,
            sets: ValueSets::default(),
            last_run: AtomicU64::new(0),
            over: CancellationToken::new(),
            pool: self.pool.clone(),
            runtime: Handle::current(),
        })
    }

    async fn open_stage(&self, stage: u32, shards: Vec<ShardId>) -> Result<OtherStage, StageError> {
        let Self { transport, identity, job, placement, replicas, patience, .. } = *self;
        let task = TaskId::worker(stage * replicas + identity.task.index);
        let Some(address) = identity.cluster.address(task) else {
            let reason = "it is not in the cluster spec".to_owned();
            return Err(StageError { task, kind: StageErrorKind::Failed, reason });
        };
        tracing::info!(%task, stage, "opening a stage of this replica");
        let address = address.to_string();
        let connection = dial(&**transport, &address, identity, task, Patience::of(patience)).await;
        let connection = connection.map_err(|error| StageError::of_dial(task, &error))?;
        let request = OpenStage { job: job.clone(), placement: placement.clone(), stage };
        let opened = connection.call::<StageOpened>(request, Payload::EMPTY).await;
        opened.map_err(|error| StageError::of_call(task, &error))?;
        let variables = job.graph.stages().owned(stage).collect();
        Ok(OtherStage { task, connection: Arc::new(connection), shards, variables })
    }
}

impl Group {
    pub(super) const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Returns the shards of the other stages, in the order of their versions.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.stages.iter().flat_map(|stage| stage.shards.iter().copied())
    }

    /// Returns a new set of values.
    pub(crate) fn create_set(self: &Arc<Self>) -> Arc<ValueSet> {
        self.sets.create(Arc::<Self>::clone(self))
    }

    /// Has all other stages pull the values of their variables into `set`. Returns the replies of their
    /// shards.
    ///
    /// # Errors
    /// If a stage fails, or cannot be reached.
    pub(crate) async fn pull(
        &self,
        at: PullAt,
        averages: bool,
        set: &ValueSet,
    ) -> Result<Vec<StageReply>, StageError> {
        let (values, keep) = (set.number(), self.kept_before(set.number())?);
        let request = PullStage { at, averages, values, keep };
        let pulls = self.stages.iter().map(|stage| stage.call::<StagePulled>(request.clone()));
        self.replies(try_join_all(pulls).await?.into_iter().map(|pulled| pulled.shards))
    }

    /// Has all other stages push the gradients that they have computed, and pull the next values into `set`.
    /// `push` describes the step; its versions are those of the shards of all other stages. Returns the
    /// replies of these shards.
    ///
    /// # Errors
    /// If a stage fails, or cannot be reached; if a shard refuses a push.
    pub(crate) async fn push(&self, push: &PushStage, set: &ValueSet) -> Result<Vec<StageReply>, StageError> {
        let keep = self.kept_before(set.number())?;
        let mut versions = &push.versions[..];
        let pushes = self.stages.iter().map(|stage| {
            let (own, others) = versions.split_at(stage.shards.len());
            versions = others;
            let request = PushStage {
                versions: own.to_vec(),
                values: set.number(),
                keep: keep.clone(),
                ..push.clone()
            };
            stage.call::<StagePushed>(request)
        });
        let pushes: Vec<_> = pushes.collect();
        self.replies(try_join_all(pushes).await?.into_iter().map(|pushed| pushed.shards))
    }

    /// Returns the numbers of the sets of values before `number` that the other stages have to keep.
    fn kept_before(&self, number: u64) -> Result<Vec<u64>, StageError> {
        let kept = self.sets.kept_before(number);
        if kept.len() > VALUE_SETS_MAX {
            let count = kept.len();
            let reason = format!("hooks keep {count} sets of values, expected at most {VALUE_SETS_MAX}");
            return Err(StageError { task: self.task, kind: StageErrorKind::Failed, reason });
        }
        Ok(kept)
    }

    /// Checks that each stage has replied for each of its shards.
    fn replies(&self, replies: impl Iterator<Item = Vec<StageReply>>) -> Result<Vec<StageReply>, StageError> {
        let mut all = Vec::new();
        for (stage, replies) in self.stages.iter().zip(replies) {
            let (expected, got) = (stage.shards.len(), replies.len());
            if expected != got {
                return Err(stage.failed(format!("it replied for {got} shards, expected {expected}")));
            }
            all.extend(replies);
        }
        Ok(all)
    }

    /// Has all other stages compute their parts of a batch, without waiting for them. `compute` describes the
    /// batch; its run and the sets that are kept are filled in here.
    ///
    /// # Errors
    /// If hooks keep too many sets of values.
    pub(super) fn begin(self: &Arc<Self>, compute: ComputeStage) -> Result<GroupRun, StageError> {
        let run = self.last_run.fetch_add(1, Ordering::Relaxed) + 1;
        let compute = ComputeStage { run, keep: self.kept_before(compute.values)?, ..compute };
        let arrivals = Arc::new(Arrivals::of_leader(self.stages.len()));
        for position in 0..self.stages.len() {
            let (group, arrivals, compute) = (Arc::clone(self), Arc::clone(&arrivals), compute.clone());
            self.spawn(async move {
                match group.stages[position].call::<StageComputed>(compute).await {
                    Ok(StageComputed {}) => arrivals.stage_computed(),
                    Err(error) => arrivals.fail(error),
                }
            });
        }
        Ok(GroupRun { group: Arc::clone(self), run, arrivals })
    }

    /// Runs a future that ends with the leader's incarnation.
    fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        let limited = async move { over.run_until_cancelled(future).await.unwrap_or_default() };
        drop(self.runtime.spawn(limited.in_current_span()));
    }

    /// Ends everything that goes on for this incarnation of the leader, so that its connections are closed.
    pub(crate) fn abandon(&self) {
        self.over.cancel();
    }

    /// Tells all other stages that this replica has left the job in good order. Waits only a short time for
    /// each.
    pub(crate) async fn close(&self) {
        let closed =
            self.stages.iter().map(|stage| timeout(FAREWELL, stage.call::<StageClosed>(CloseStage {})));
        for (stage, closed) in self.stages.iter().zip(join_all(closed).await) {
            if !matches!(closed, Ok(Ok(_))) {
                tracing::debug!(task = %stage.task, "a stage did not confirm its end");
            }
        }
    }
}

impl OtherStages for Group {
    fn digests(&self, values: u64) -> BoxFuture<'_, Result<BTreeMap<VariableId, u32>, StageError>> {
        Box::pin(async move {
            let digests = self.stages.iter().map(|stage| stage.call::<StageDigests>(DigestStage { values }));
            let digests = try_join_all(digests).await?;
            let mut all = BTreeMap::new();
            for (stage, StageDigests { crc32c }) in self.stages.iter().zip(digests) {
                let (expected, got) = (stage.variables.len(), crc32c.len());
                if expected != got {
                    return Err(stage.failed(format!("it sent {got} checksums, expected {expected}")));
                }
                all.extend(stage.variables.iter().copied().zip(crc32c));
            }
            Ok(all)
        })
    }
}

impl OtherStage {
    const fn failed(&self, reason: String) -> StageError {
        StageError { task: self.task, kind: StageErrorKind::Failed, reason }
    }

    async fn call<R>(&self, message: impl Into<Message>) -> Result<R, StageError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let called = self.connection.call::<R>(message, Payload::EMPTY).await;
        called.map(|(reply, _)| reply).map_err(|error| StageError::of_call(self.task, &error))
    }
}

/// A run of a batch on all stages. The leader's values leave and arrive through it.
pub(super) struct GroupRun {
    group: Arc<Group>,
    run: u64,
    arrivals: Arc<Arrivals>,
}

impl GroupRun {
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    fn key(&self, edge: &Edge, micro_batch: u32) -> StageValueKey {
        StageValueKey { leader: self.group.leader, run: self.run, micro_batch, edge: edge.key }
    }

    fn stage(&self, stage: u32) -> usize {
        stage as usize - 1
    }
}

impl Transfers for GroupRun {
    fn send(&self, edge: &Edge, micro_batch: u32, value: Payload) {
        let (group, arrivals, position) =
            (Arc::clone(&self.group), Arc::clone(&self.arrivals), self.stage(edge.to));
        let message = StageValue { key: self.key(edge, micro_batch) };
        self.group.spawn(async move {
            let stage = &group.stages[position];
            if let Err(error) = stage.connection.call::<StageValueTaken>(message, value).await {
                arrivals.fail(StageError::of_call(stage.task, &error));
            }
        });
    }

    fn expect(&self, edge: &Edge, micro_batch: u32) {
        let (group, arrivals, position) =
            (Arc::clone(&self.group), Arc::clone(&self.arrivals), self.stage(edge.from));
        let (message, place) =
            (FetchStageValue { key: self.key(edge, micro_batch) }, (micro_batch, edge.key));
        self.group.spawn(async move {
            let stage = &group.stages[position];
            match stage.connection.call::<StageValueFetched>(message, Payload::EMPTY).await {
                // The message is only valid with one segment.
                Ok((_, value)) => {
                    value.into_segments().into_iter().for_each(|value| arrivals.put(place, value))
                }
                Err(error) => arrivals.fail(StageError::of_call(stage.task, &error)),
            }
        });
    }
}
