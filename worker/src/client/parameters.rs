//! The push/pull client, through which one worker uses all shards of a job. This module must not depend on
//! graphs or devices.
//!
//! A step usually pushes to every shard, even to one that owns no slice, because the version of each shard
//! counts the job's steps. Credits bound the number of bytes in flight: a push takes credits before it is
//! sent, and returns them when its reply arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{Either, try_join, try_join_all};
use pushpull_messages::compression::SentAs;
use pushpull_messages::graph::Stages;
use pushpull_messages::id::{GlobalStep, LocalStep, Sequence, ShardId, SliceId, TaskId, Version};
use pushpull_messages::message::{
    Pull, PullAt, Pulled, Push, PushId, PushStage, Pushed, StageReply, Verdict,
};
use pushpull_messages::observe;
use pushpull_messages::placement::Placement;
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{Budget, BufferPool, Payload};
use pushpull_transport::{CallAnswered, EarlierCall, Identity, Patience, ReconnectingClient, Transport};

use super::config::ClientConfig;
use super::error::ClientError;
use super::exchange::{Acknowledgement, Exchange};
use super::exchange_counters::ExchangeCounters;
use super::gradients::Gradients;
use super::in_flight::ExchangeInFlight;
use super::layout::{Layout, ShardLayout, shards_of_stages};
use super::residuals::Residuals;
use super::round_trips::{departures, timed};
use super::traced_push::TracedPush;
use super::values::{Values, ValuesError};
use crate::routes::Routes;
use crate::stages::Group;

/// A client of all shards of a job, for one worker.
pub struct Parameters {
    shards: Arc<Shards>,
    residuals: Arc<Residuals>,
    /// The sequence number of the most recent push to each shard.
    sequences: Vec<Sequence>,
    /// The most recent push to each shard that [`begin_push_pull`](Self::begin_push_pull) has begun, for the
    /// one after it.
    earlier: Vec<EarlierCall>,
    /// Whether the job is synchronous. Only then do the versions of different shards count the same updates.
    synchronous: bool,
    streams: bool,
    /// The other stages of this worker's replica, which use the shards of their variables; `None` if the
    /// replica has one stage, or if this task is not its leader.
    group: Option<Arc<Group>>,
}

/// What all requests to the shards share.
struct Shards {
    layout: Arc<Layout>,
    /// The connection to the task of each shard, in the order of the layout.
    callers: Vec<Arc<ReconnectingClient>>,
    pool: BufferPool,
    credits: Budget,
    counters: ExchangeCounters,
    identity: Identity,
    /// The ways on which pushes travel over other workers; `None` if all go to the shards directly.
    routes: Option<Arc<Routes>>,
}

impl Parameters {
    /// Connects to every ps task that the placement names.
    ///
    /// # Errors
    /// If a ps task cannot be reached in time, or if the cluster spec has no address for it.
    pub async fn connect(
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        placement: &Placement,
        variables: &[VariableSpec],
        pool: &BufferPool,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let layout = Layout::new(placement, variables);
        Self::connect_to(transport, identity, layout, pool, config).await
    }

    /// Connects to the ps tasks that have the variables of one stage of a replica. `identity` is that of the
    /// replica's leader.
    ///
    /// # Errors
    /// If a ps task cannot be reached in time, or if the cluster spec has no address for it.
    pub(crate) async fn connect_stage(
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        (placement, stages, stage): (&Placement, &Stages, u32),
        variables: &[VariableSpec],
        pool: &BufferPool,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let shards = shards_of_stages(placement, stages).map_err(ClientError::MixedShard)?;
        let own = &shards[stage as usize];
        let layout = Layout::of_shards(placement, own, variables);
        Self::connect_to(transport, identity, layout, pool, config).await
    }

    async fn connect_to(
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        layout: Layout,
        pool: &BufferPool,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let (patience, retry) = (Patience::of(config.start_timeout), config.retry);
        let (variables, layout) = (layout.variables.len(), Arc::new(layout));
        let tasks: BTreeSet<TaskId> = layout.shards.iter().map(|shard| shard.shard.task()).collect();
        let dials = tasks.into_iter().map(|task| async move {
            let address = identity.cluster.reached_at(task).ok_or(ClientError::NotInCluster(task))?;
            let transport = Arc::clone(transport);
            let caller =
                ReconnectingClient::connect(transport, address.as_str(), identity, task, patience, retry)
                    .await?;
            Ok::<_, ClientError>((task, Arc::new(caller)))
        });
        let tasks: BTreeMap<TaskId, Arc<ReconnectingClient>> =
            try_join_all(dials).await?.into_iter().collect();
        let lines = tasks.values().map(Arc::downgrade).collect();
        let credits = Budget::new(config.in_flight_bytes_max);
        let shards = layout.shards.iter().map(|shard| shard.shard);
        let counters = ExchangeCounters::new(credits.clone(), shards, lines);
        let shards = layout.shards.len();
        let callers = layout.shards.iter().map(|shard| Arc::clone(&tasks[&shard.shard.task()])).collect();
        let (pool, identity) = (pool.clone(), identity.clone());
        Ok(Self {
            shards: Arc::new(Shards { layout, callers, pool, credits, counters, identity, routes: None }),
            residuals: Arc::new(Residuals::new(variables)),
            sequences: vec![Sequence(0); shards],
            earlier: (0..shards).map(|_| EarlierCall::NONE).collect(),
            synchronous: false,
            streams: transport.streams(),
            group: None,
        })
    }

    /// Sets how each variable is sent, in the order of the variables: what
    /// [`JobSpec::sent_as`](pushpull_messages::job::JobSpec::sent_as) returns for the job of the shards. Call
    /// this before the first push.
    ///
    /// # Panics
    /// If `sent` does not have an item for each variable, or if a push is in flight.
    pub fn compress(&mut self, sent: &[SentAs]) {
        let shards = Arc::get_mut(&mut self.shards).expect("no push is in flight");
        Arc::make_mut(&mut shards.layout).compress(sent);
        let [gradients, values, exact] = shards.layout.sent_bytes();
        if gradients + values < 2 * exact {
            tracing::info!(gradients, values, exact, "compressing what is pushed and pulled, in bytes");
        }
    }

    /// Returns whether the values that [`push_pull`](Self::push_pull) returns are exact. Other values are
    /// those of an encoding. A pull always returns exact values.
    pub(crate) fn has_exact_values(&self) -> bool {
        !self.shards.layout.has_encoded_values()
    }

    /// Returns the counters of this client's pushes and pulls.
    pub(crate) fn counters(&self) -> &ExchangeCounters {
        &self.shards.counters
    }

    /// Returns buffers for the gradients of one step. They still contain the bytes of earlier steps.
    pub fn gradients(&self) -> Gradients {
        Gradients::with_residuals(&self.shards.layout, &self.shards.pool, &self.residuals)
    }

    /// Returns true if a push may begin before all of its gradients are complete.
    pub const fn streams(&self) -> bool {
        self.streams && self.group.is_none()
    }

    /// Makes this the client of the leader of a replica. From now on its exchanges are those of all stages.
    pub(crate) fn lead(&mut self, group: Arc<Group>) {
        self.group = Some(group);
    }

    /// Returns the layout of the shards.
    pub(crate) fn layout(&self) -> &Layout {
        &self.shards.layout
    }

    /// Sends pushes on these routes from now on. Call this before the first push.
    ///
    /// # Panics
    /// If a push is in flight.
    pub(crate) fn travel(&mut self, routes: Arc<Routes>) {
        Arc::get_mut(&mut self.shards).expect("no push is in flight").routes = Some(routes);
    }

    /// Ends the routes, because this worker pushes no more.
    pub(crate) async fn close_routes(&self) {
        if let Some(routes) = &self.shards.routes {
            routes.close().await;
        }
    }

    /// Returns the ids of all shards, in the order of the versions of an [`Exchange`].
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        let own = self.shards.layout.shards.iter().map(|shard| shard.shard);
        own.chain(self.group.iter().flat_map(|group| group.shards()))
    }

    /// Returns whether this worker's replica has other stages.
    pub(crate) const fn leads(&self) -> bool {
        self.group.is_some()
    }

    /// Returns the number of this client's own shards.
    pub(crate) fn shard_count(&self) -> usize {
        self.sequences.len()
    }

    /// Joins the job, which has the synchronisation policy `sync`, and returns the values for this worker's
    /// first step.
    ///
    /// # Errors
    /// If a shard refuses the request, or cannot be reached.
    pub async fn join(&mut self, sync: SyncSpec) -> Result<Exchange, ClientError> {
        self.synchronous = matches!(sync, SyncSpec::Sync { .. });
        let (joined, first) = self.pull_at(PullAt::Join, false).await?;
        if let Some(routes) = &self.shards.routes {
            routes.join(Version(first.0)).await;
        }
        if first == GlobalStep(0) {
            self.shards.know(&joined.versions);
            return Ok(joined);
        }
        // The job is running, so its shards are at different steps. This worker must begin at the same step
        // on all shards.
        tracing::info!("joining the running job at step {first}");
        let (exchange, _) = self.pull_at(PullAt::Step(first), false).await?;
        self.shards.know(&exchange.versions);
        Ok(exchange)
    }

    /// Pulls the newest values of all variables, or their moving averages.
    ///
    /// # Errors
    /// If a shard refuses the request, or cannot be reached.
    pub async fn pull(&self, averages: bool) -> Result<Exchange, ClientError> {
        Ok(self.pull_at(PullAt::Latest, averages).await?.0)
    }

    /// Pulls from the shards of all stages. Also returns the greatest step number in the replies.
    async fn pull_at(&self, at: PullAt, averages: bool) -> Result<(Exchange, GlobalStep), ClientError> {
        let own = self.shards.pull_at(at, averages);
        let Some(group) = &self.group else {
            let replies = own.await?;
            let step = greatest_step(&replies);
            return Ok((self.shards.assemble(replies)?, step));
        };
        let set = group.create_set();
        let others = async { Ok(group.pull(at, averages, &set).await?) };
        let (own, others) = try_join(own, others).await?;
        let step = greatest_step(&own).max(others.iter().map(|reply| reply.step).max().unwrap_or_default());
        Ok((self.shards.assemble(own)?.joined(set, &others), step))
    }

    /// Pulls from this client's own shards, for the leader of the replica.
    ///
    /// # Errors
    /// If a shard refuses the request, or cannot be reached.
    pub(crate) async fn pull_own(
        &self,
        at: PullAt,
        averages: bool,
    ) -> Result<(Arc<Values>, Vec<StageReply>), ClientError> {
        self.for_leader(self.shards.pull_at(at, averages).await?)
    }

    fn for_leader(&self, replies: Vec<ShardReply>) -> Result<(Arc<Values>, Vec<StageReply>), ClientError> {
        let told = replies.iter().map(ShardReply::to_stage_reply).collect();
        Ok((self.shards.assemble(replies)?.values, told))
    }

    /// Pushes the gradients of one step, and pulls the values for the next step in the same round trip. The
    /// reply arrives when the job's synchronisation policy lets the next step begin.
    ///
    /// `gradients` holds one payload from [`Gradients`] for each shard; their segments may still be
    /// promises. `versions` are the versions of the values that the gradients are computed from. `drawn` is
    /// the number of batches taken from the input so far. If the step is `traced`, the shards report when
    /// they received and processed the push.
    ///
    /// In a synchronous job, the values may be of different versions. After a worker has died whose last push
    /// had reached only some shards, the others still lack gradients for the same update. And the replies to
    /// a late push may come from shards that have made different numbers of updates by then. The next push
    /// goes only to the shards that are behind, and only their verdicts are returned. Otherwise two workers
    /// could wait for each other, each at a shard that lacks the gradient of the other one.
    ///
    /// # Errors
    /// If a shard refuses the push, or cannot be reached.
    pub async fn push_pull(
        &mut self,
        gradients: Vec<Payload>,
        local_step: LocalStep,
        drawn: u64,
        versions: &[Version],
        traced: bool,
    ) -> Result<Exchange, ClientError> {
        let step = PushedStep { local_step, drawn, versions, traced, pull: true };
        let front = self.front(versions);
        let Some(group) = self.group.clone() else {
            let replies = self.push_step(gradients, step, front).await?;
            return self.shards.assemble(replies);
        };
        let set = group.create_set();
        let push = PushStage {
            local_step,
            drawn,
            versions: versions[self.sequences.len()..].to_vec(),
            front: front.below,
            values: set.number(),
            keep: Vec::new(),
        };
        let others = async { Ok(group.push(&push, &set).await?) };
        let (own, others) = try_join(self.push_step(gradients, step, front), others).await?;
        Ok(self.shards.assemble(own)?.joined(set, &others))
    }

    /// Pushes gradients to this client's own shards, and pulls the next values, for the leader of the
    /// replica.
    ///
    /// # Errors
    /// If a shard refuses the push, or cannot be reached.
    pub(crate) async fn push_own(
        &mut self,
        gradients: Vec<Payload>,
        step: PushedStep<'_>,
        front: Front,
    ) -> Result<(Arc<Values>, Vec<StageReply>), ClientError> {
        let replies = self.push_step(gradients, step, front).await?;
        self.for_leader(replies)
    }

    /// Returns which shards get the push of a step that was computed from these versions.
    fn front(&self, versions: &[Version]) -> Front {
        if self.synchronous { Front::of(versions) } else { Front { below: None } }
    }

    /// Begins what [`push_pull`](Self::push_pull) does, and returns the exchange, which goes on by itself.
    /// More exchanges may be begun while it is in flight, up to the pipeline of the job. Each shard applies
    /// their pushes in the order in which they were begun, and replies in that order; `versions` are those of
    /// the newest values that have arrived.
    ///
    /// This is for asynchronous jobs. If an exchange fails or is dropped, do not begin another one: the
    /// pushes after a push that never arrives are not applied.
    ///
    /// # Panics
    /// If called outside of a tokio runtime, or if `gradients` or `versions` does not have one item for each
    /// shard.
    pub fn begin_push_pull(
        &mut self,
        gradients: Vec<Payload>,
        local_step: LocalStep,
        drawn: u64,
        versions: &[Version],
        traced: bool,
    ) -> ExchangeInFlight {
        let count = self.sequences.len();
        assert_eq!(
            [gradients.len(), versions.len()],
            [count; 2],
            "one payload and one version for each shard"
        );
        let shards = Arc::clone(&self.shards);
        let (sequences, versions) = (self.sequences.clone(), versions.to_vec());
        self.sequences.iter_mut().for_each(|sequence| *sequence = sequence.next());
        let turn = |earlier: &mut EarlierCall| {
            let (answered, call) = EarlierCall::new();
            Turn { earlier: std::mem::replace(earlier, call), answered: Some(answered) }
        };
        let turns: Vec<Turn> = self.earlier.iter_mut().map(turn).collect();
        let mut exchange = Box::pin(async move {
            let step = PushedStep { local_step, drawn, versions: &versions, traced, pull: true };
            let calls = gradients.into_iter().zip(&sequences).zip(turns).enumerate().map(
                |(position, ((payload, sequence), turn))| {
                    let push = shards.push(position, sequence.next(), &step);
                    shards.push_to(position, push, payload, turn)
                },
            );
            let mut replies = try_join_all(calls).await?;
            shards.record_round_trips(&mut replies);
            shards.assemble(replies)
        });
        // Polls the exchange once, so that its pushes wait for credits and connections before those of later
        // exchanges.
        let begun = (&mut exchange).now_or_never();
        ExchangeInFlight::spawn(async move {
            match begun {
                Some(result) => result,
                None => exchange.await,
            }
        })
    }

    /// Pushes the gradients of one step without pulling values. The reply arrives when every shard has
    /// decided about the push. The arguments are those of [`push_pull`](Self::push_pull): one payload and one
    /// version for each shard.
    ///
    /// This is for asynchronous jobs. In a synchronous job with other workers, the shards refuse the next
    /// push, because nothing has told this worker that the step has ended; a job with bounded staleness does
    /// so once this worker is too far ahead.
    ///
    /// # Errors
    /// If a shard refuses the push, or cannot be reached.
    ///
    /// # Panics
    /// If `gradients` or `versions` does not have one item for each shard.
    pub async fn push(
        &mut self,
        gradients: Vec<Payload>,
        local_step: LocalStep,
        drawn: u64,
        versions: &[Version],
    ) -> Result<Acknowledgement, ClientError> {
        let step = PushedStep { local_step, drawn, versions, traced: false, pull: false };
        let front = self.front(versions);
        let replies = self.push_step(gradients, step, front).await?;
        Ok(Acknowledgement {
            versions: replies.iter().map(|reply| reply.version).collect(),
            last_steps: replies.iter().map(|reply| reply.last_step).collect(),
            verdicts: replies.iter().filter_map(|reply| reply.verdict).collect(),
        })
    }

    async fn push_step(
        &mut self,
        gradients: Vec<Payload>,
        step: PushedStep<'_>,
        front: Front,
    ) -> Result<Vec<ShardReply>, ClientError> {
        let gets_push = |position: usize| front.below.is_none_or(|front| step.versions[position] < front);
        let shards = &self.shards;
        let mut calls = Vec::with_capacity(shards.callers.len());
        for (position, payload) in gradients.into_iter().enumerate() {
            if !gets_push(position) {
                calls.push(Either::Left(shards.pull_from(position, PullAt::Latest, false)));
                continue;
            }
            let push = shards.push(position, self.sequences[position].next(), &step);
            // The caller waits for this push, so no later one has to know when it is answered.
            let turn = Turn { earlier: std::mem::take(&mut self.earlier[position]), answered: None };
            calls.push(Either::Right(shards.push_to(position, push, payload, turn)));
        }
        let mut replies = try_join_all(calls).await?;
        shards.record_round_trips(&mut replies);
        shards.know(&replies.iter().map(|reply| reply.version).collect::<Vec<_>>());
        for (position, sequence) in self.sequences.iter_mut().enumerate() {
            if replies[position].verdict.is_some() {
                *sequence = sequence.next();
            }
        }
        Ok(replies)
    }
}

impl Shards {
    /// Records the versions of the values from which this worker takes its next step.
    fn know(&self, versions: &[Version]) {
        if let Some(routes) = &self.routes {
            versions.iter().enumerate().for_each(|(position, &version)| routes.read(position, version));
        }
    }

    /// Pulls from all shards.
    async fn pull_at(&self, at: PullAt, averages: bool) -> Result<Vec<ShardReply>, ClientError> {
        let calls = (0..self.callers.len()).map(|position| self.pull_from(position, at, averages));
        try_join_all(calls).await
    }

    /// Returns the push of a step to one shard.
    fn push(&self, position: usize, sequence: Sequence, step: &PushedStep<'_>) -> Push {
        let PushedStep { local_step, drawn, versions, traced, pull } = *step;
        let shard = &self.layout.shards[position];
        let (worker, incarnation) = (self.identity.task.index, self.identity.incarnation);
        Push {
            shard: shard.shard.shard,
            id: PushId { worker, incarnation, sequence },
            local_step,
            epoch: self.layout.epoch,
            placement_digest: self.layout.digest,
            version: versions[position],
            slices: shard.slices.iter().rev().copied().collect(),
            drawn,
            pull,
            traced,
            with: Vec::new(),
        }
    }

    async fn push_to(
        &self,
        position: usize,
        push: Push,
        payload: Payload,
        turn: Turn,
    ) -> Result<ShardReply, ClientError> {
        let shard = &self.layout.shards[position];
        let (id, traced, pull) = (push.id, push.traced, push.pull);
        // A push that pulls no values is not for synchronous jobs, so it does not travel.
        let routes = self.routes.as_ref().filter(|_| pull);
        let copies = routes.map_or(1, |routes| routes.copies(position));
        let _credit = self.credits.take(copies * payload.bytes() as u64).await;
        let sent = observe::now();
        let (gradients, caller) = (payload.clone(), &self.callers[position]);
        let call = match routes {
            Some(routes) => Either::Left(routes.push(position, push, payload, caller)),
            None => Either::Right(caller.call_after::<Pushed>(push, payload, turn.earlier)),
        };
        let (reply, complete) = timed(gradients, call).await;
        let (pushed, mut payload) = reply?;
        let back = observe::now();
        turn.answered.into_iter().for_each(CallAnswered::tell);
        self.counters.pushed(&pushed);
        let Pushed { verdict, version, last_step, slices, times, .. } = pushed;
        if pull && shard.slices.iter().rev().eq(&slices) {
            // The values were sent as they were made, in the order of the gradients.
            payload = Payload::new(payload.into_segments().into_iter().rev().collect());
        } else if pull {
            check_slices(shard, &slices)?;
        }
        let push = traced.then_some(TracedPush { shard: shard.shard, id, sent, complete, back, times });
        let trip = Some((complete, back));
        Ok(ShardReply {
            version,
            last_step,
            verdict: Some(verdict),
            step: GlobalStep(0),
            payload,
            push,
            trip,
        })
    }

    async fn pull_from(
        &self,
        position: usize,
        at: PullAt,
        averages: bool,
    ) -> Result<ShardReply, ClientError> {
        let shard = &self.layout.shards[position];
        let pull = Pull {
            shard: shard.shard.shard,
            epoch: self.layout.epoch,
            placement_digest: self.layout.digest,
            at,
            averages,
        };
        let (pulled, payload) = self.callers[position].call::<Pulled>(pull, Payload::EMPTY).await?;
        let Pulled { version, step, last_step, slices } = pulled;
        check_slices(shard, &slices)?;
        Ok(ShardReply { version, last_step, verdict: None, step, payload, push: None, trip: None })
    }

    /// Records the round-trip time of each push, counted from the time at which the whole push could be
    /// sent.
    fn record_round_trips(&self, replies: &mut [ShardReply]) {
        let task = |position: usize| self.layout.shards[position].shard.task();
        let trips = replies.iter().enumerate().map(|(position, reply)| (task(position), reply.trip));
        for (position, left) in departures(trips).into_iter().enumerate() {
            let (Some(left), Some((_, back))) = (left, replies[position].trip) else { continue };
            self.counters.returned(position, back.saturating_duration_since(left));
            if let Some(push) = &mut replies[position].push {
                push.complete = left;
            }
        }
    }

    fn assemble(&self, replies: Vec<ShardReply>) -> Result<Exchange, ClientError> {
        let versions = replies.iter().map(|reply| reply.version).collect();
        let last_steps = replies.iter().map(|reply| reply.last_step).collect();
        let verdicts = replies.iter().filter_map(|reply| reply.verdict).collect();
        let pushes = replies.iter().filter_map(|reply| reply.push).collect();
        // Only the replies to pushes have encoded values.
        let encoded: Vec<bool> = replies.iter().map(|reply| reply.verdict.is_some()).collect();
        let payloads: Vec<Payload> = replies.into_iter().map(|reply| reply.payload).collect();
        let values = Arc::new(Values::assemble_sent(&self.layout, &payloads, &encoded, &self.pool)?);
        Ok(Exchange { values, versions, last_steps, verdicts, pushes })
    }
}

/// Refreshes the counters a last time before the connections are dropped.
impl Drop for Parameters {
    fn drop(&mut self) {
        self.shards.counters.refresh();
    }
}

fn check_slices(shard: &ShardLayout, slices: &[SliceId]) -> Result<(), ValuesError> {
    if shard.slices == slices { Ok(()) } else { Err(ValuesError::Slices { shard: shard.shard }) }
}

/// What a push says about its step.
#[derive(Clone, Copy)]
pub(crate) struct PushedStep<'a> {
    pub local_step: LocalStep,
    pub drawn: u64,
    pub versions: &'a [Version],
    pub traced: bool,
    /// Whether the replies carry the values for the next step.
    pub pull: bool,
}

/// Which shards get the push of a step. The others only reply with their latest values.
#[derive(Clone, Copy)]
pub(crate) struct Front {
    /// Only the shards below this version get the push; `None` if all shards do.
    pub below: Option<Version>,
}

impl Front {
    /// Returns which shards get the push of a synchronous step that was computed from these versions: those
    /// that are behind, or all shards if none is.
    pub(super) fn of(versions: &[Version]) -> Self {
        let [oldest, newest] = [versions.iter().min(), versions.iter().max()];
        Self { below: if oldest < newest { newest.copied() } else { None } }
    }
}

fn greatest_step(replies: &[ShardReply]) -> GlobalStep {
    replies.iter().map(|reply| reply.step).max().unwrap_or_default()
}

/// The place of a push in the order of the pushes to its shard.
struct Turn {
    /// The push before it, if that may still be in flight.
    earlier: EarlierCall,
    /// Tells the push after it that this one is answered.
    answered: Option<CallAnswered>,
}

impl ShardReply {
    /// Returns what a stage tells its leader of the reply.
    const fn to_stage_reply(&self) -> StageReply {
        let Self { version, last_step, step, verdict, .. } = *self;
        StageReply { version, last_step, step, verdict }
    }
}

/// The reply of one shard to a push or a pull.
struct ShardReply {
    version: Version,
    /// The job's last step according to this shard.
    last_step: GlobalStep,
    /// The verdict on the push; `None` after a pull.
    verdict: Option<Verdict>,
    /// The number of the worker's next step, from the reply to a pull; 0 after a push.
    step: GlobalStep,
    payload: Payload,
    /// The times of the push, if the step is traced.
    push: Option<TracedPush>,
    /// When the gradients of the push were complete, and when its reply arrived; `None` after a pull.
    trip: Option<(Instant, Instant)>,
}
