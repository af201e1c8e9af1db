//! The push/pull client: what a worker sees of all shards together.
//!
//! Every push goes to every shard, also to one that owns nothing, so that each shard's version counts the job's
//! steps (V3). Bytes in flight are bounded by credits, taken before a push is sent and given back with its reply.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{Either, try_join_all};
use pushpull_messages::id::{GlobalStep, LocalStep, Sequence, ShardId, TaskId, Version};
use pushpull_messages::message::{Pull, PullAt, Pulled, Push, PushId, Pushed, Verdict};
use pushpull_messages::placement::Placement;
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{Budget, BufferPool, Payload};
use pushpull_transport::{Identity, Patience, ReconnectingClient, Transport};

use crate::config::WorkerConfig;
use crate::error::WorkerError;
use crate::exchanges::Exchanges;
use crate::gradients::Gradients;
use crate::layout::Layout;
use crate::trace::TracedPush;
use crate::values::Values;

/// All shards of a job, for one worker.
pub struct Parameters {
    layout: Arc<Layout>,
    /// For every shard of the layout the caller of its task.
    callers: Vec<Arc<ReconnectingClient>>,
    pool: BufferPool,
    credits: Budget,
    exchanges: Exchanges,
    identity: Identity,
    /// Of each shard, the number of the last push.
    sequences: Vec<Sequence>,
    /// The version with which this worker began, where its steps are versions.
    first: GlobalStep,
    streams: bool,
}

/// What a push or pull brought back.
#[derive(Debug)]
pub struct Exchange {
    /// The newest values.
    pub values: Arc<Values>,
    /// Of each shard, the version of its values.
    pub versions: Vec<Version>,
    /// Of each shard, the step at which it stops.
    pub last_steps: Vec<GlobalStep>,
    /// Of each shard that was pushed to, what became of the gradient; empty after a pull.
    pub verdicts: Vec<Verdict>,
    /// Every push, where the step is traced.
    pub(crate) pushes: Vec<TracedPush>,
}

impl Exchange {
    /// The greatest number of updates that any shard has applied.
    pub fn global_step(&self) -> GlobalStep {
        GlobalStep(self.versions.iter().map(|version| version.0).max().unwrap_or(0))
    }

    /// Whether the gradient is in the variables of any shard, or will be.
    pub fn counts(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Applied | Verdict::Held))
    }

    /// Whether every shard has reached its last step, and that is the same of all: where they are being told of
    /// another one, some have not heard it yet.
    pub fn is_complete(&self) -> bool {
        let same = self.last_steps.windows(2).all(|pair| pair[0] == pair[1]);
        same && self.versions.iter().zip(&self.last_steps).all(|(version, last)| version.0 >= last.0)
    }
}

impl Parameters {
    /// Connects to every ps task that the placement names.
    ///
    /// # Errors
    /// Where one of them cannot be reached in time.
    pub async fn connect(
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        placement: &Placement,
        variables: &[VariableSpec],
        pool: &BufferPool,
        config: &WorkerConfig,
    ) -> Result<Self, WorkerError> {
        let (patience, retry) = (Patience::of(config.start_timeout), config.retry);
        let layout = Arc::new(Layout::new(placement, variables));
        let tasks: BTreeSet<TaskId> = layout.shards.iter().map(|shard| shard.shard.task()).collect();
        let dials = tasks.into_iter().map(|task| async move {
            let address = identity.cluster.address(task).ok_or(WorkerError::NotInCluster(task))?;
            let transport = Arc::clone(transport);
            let caller =
                ReconnectingClient::connect(transport, address.as_str(), identity, task, patience, retry)
                    .await?;
            Ok::<_, WorkerError>((task, Arc::new(caller)))
        });
        let tasks: BTreeMap<TaskId, Arc<ReconnectingClient>> =
            try_join_all(dials).await?.into_iter().collect();
        let lines = tasks.values().map(Arc::downgrade).collect();
        let credits = Budget::new(config.in_flight_bytes_max);
        let shards = layout.shards.iter().map(|shard| shard.shard);
        let exchanges = Exchanges::new(credits.clone(), shards, lines);
        let shards = layout.shards.len();
        let callers = layout.shards.iter().map(|shard| Arc::clone(&tasks[&shard.shard.task()])).collect();
        Ok(Self {
            layout,
            callers,
            pool: pool.clone(),
            credits,
            exchanges,
            identity: identity.clone(),
            sequences: vec![Sequence(0); shards],
            first: GlobalStep(0),
            streams: transport.streams(),
        })
    }

    /// What its pushes and pulls came to.
    pub(crate) const fn exchanges(&self) -> &Exchanges {
        &self.exchanges
    }

    /// Memory for the gradients of one step.
    pub fn gradients(&self) -> Gradients {
        Gradients::take(&self.layout, &self.pool)
    }

    /// Whether a push may begin before all of its gradients are complete.
    pub const fn streams(&self) -> bool {
        self.streams
    }

    /// All shards, in the order in which versions and verdicts are given.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.layout.shards.iter().map(|shard| shard.shard)
    }

    /// Takes part in the job, which has that policy, from now on, and gives the values for this worker's first step.
    ///
    /// # Errors
    /// Where a shard refuses, or is gone.
    pub async fn join(&mut self, sync: SyncSpec) -> Result<Exchange, WorkerError> {
        let (joined, first) = self.pull_at(PullAt::Join, false).await?;
        if first == GlobalStep(0) {
            return Ok(joined);
        }
        // The job is running: no two shards are at the same point of it, and this worker begins at one.
        tracing::info!("joining the running job at step {first}");
        if matches!(sync, SyncSpec::Sync { .. }) {
            // Only there are a worker's steps a shard's versions.
            self.first = first;
        }
        let (exchange, _) = self.pull_at(PullAt::Step(first), false).await?;
        Ok(exchange)
    }

    /// The newest values of all variables, or their moving averages.
    ///
    /// # Errors
    /// Where a shard refuses, or is gone.
    pub async fn pull(&self, averages: bool) -> Result<Exchange, WorkerError> {
        Ok(self.pull_at(PullAt::Latest, averages).await?.0)
    }

    /// Also gives the greatest of the steps that the shards have named.
    async fn pull_at(&self, at: PullAt, averages: bool) -> Result<(Exchange, GlobalStep), WorkerError> {
        let calls = (0..self.callers.len()).map(|position| self.pull_from(position, at, averages));
        let answers = try_join_all(calls).await?;
        let step = answers.iter().map(|answer| answer.step).max().unwrap_or_default();
        Ok((self.assemble(answers)?, step))
    }

    /// Pushes the gradients of one step, as [`Gradients`] makes payloads of them, which are computed from values of
    /// these versions; they may still be promised. With them so many batches have been `drawn` from the input. Pulls the values for the next step in the same round trip, which
    /// takes until the job's policy lets that begin. Where the step is `traced`, the shards tell when they dealt with it.
    ///
    /// Where a shard has not reached the step with which this worker began, and nobody is left to get it there, only
    /// such shards are pushed to: their verdicts alone come back.
    ///
    /// # Errors
    /// Where a shard refuses, or is gone.
    pub async fn push_pull(
        &mut self,
        gradients: Vec<Payload>,
        local_step: LocalStep,
        drawn: u64,
        versions: &[Version],
        traced: bool,
    ) -> Result<Exchange, WorkerError> {
        let behind = |position: usize| versions[position].0 < self.first.0;
        let some_behind = (0..versions.len()).any(behind);
        let (worker, incarnation) = (self.identity.task.index, self.identity.incarnation);
        let mut calls = Vec::with_capacity(self.callers.len());
        for (position, payload) in gradients.into_iter().enumerate() {
            let shard = &self.layout.shards[position];
            if some_behind && !behind(position) {
                calls.push(Either::Left(self.pull_from(position, PullAt::Step(self.first), false)));
                continue;
            }
            let sequence = self.sequences[position].next();
            let push = Push {
                shard: shard.shard.shard,
                id: PushId { worker, incarnation, sequence },
                local_step,
                epoch: self.layout.epoch,
                placement_digest: self.layout.digest,
                version: versions[position],
                slices: shard.slices.iter().rev().copied().collect(),
                drawn,
                pull: true,
                traced,
            };
            calls.push(Either::Right(self.push_to(position, push, payload)));
        }
        let mut answers = try_join_all(calls).await?;
        self.time(&mut answers);
        for (position, sequence) in self.sequences.iter_mut().enumerate() {
            if answers[position].verdict.is_some() {
                *sequence = sequence.next();
            }
        }
        self.assemble(answers)
    }

    async fn push_to(&self, position: usize, push: Push, payload: Payload) -> Result<Answer, WorkerError> {
        let shard = &self.layout.shards[position];
        let (id, traced) = (push.id, push.traced);
        let _credit = self.credits.take(payload.bytes() as u64).await;
        let sent = Instant::now();
        let gradients = payload.clone();
        let call = self.callers[position].call::<Pushed>(push, payload);
        let (answer, complete) = timed(gradients, call).await;
        let (pushed, payload) = answer?;
        let back = Instant::now();
        self.exchanges.pushed(&pushed);
        let Pushed { verdict, version, last_step, slices, times, .. } = pushed;
        shard.check(&slices)?;
        let push = traced.then_some(TracedPush { shard: shard.shard, id, sent, complete, back, times });
        let trip = Some((complete, back));
        Ok(Answer { version, last_step, verdict: Some(verdict), step: GlobalStep(0), payload, push, trip })
    }

    async fn pull_from(&self, position: usize, at: PullAt, averages: bool) -> Result<Answer, WorkerError> {
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
        shard.check(&slices)?;
        Ok(Answer { version, last_step, verdict: None, step, payload, push: None, trip: None })
    }

    /// Counts how long each push took.
    fn time(&self, answers: &mut [Answer]) {
        let task = |position: usize| self.layout.shards[position].shard.task();
        let trips = answers.iter().enumerate().map(|(position, answer)| (task(position), answer.trip));
        for (position, left) in departures(trips).into_iter().enumerate() {
            let (Some(left), Some((_, back))) = (left, answers[position].trip) else { continue };
            self.exchanges.returned(position, back.saturating_duration_since(left));
            if let Some(push) = &mut answers[position].push {
                push.complete = left;
            }
        }
    }

    fn assemble(&self, answers: Vec<Answer>) -> Result<Exchange, WorkerError> {
        let versions = answers.iter().map(|answer| answer.version).collect();
        let last_steps = answers.iter().map(|answer| answer.last_step).collect();
        let verdicts = answers.iter().filter_map(|answer| answer.verdict).collect();
        let pushes = answers.iter().filter_map(|answer| answer.push).collect();
        let payloads: Vec<Payload> = answers.into_iter().map(|answer| answer.payload).collect();
        let values = Arc::new(Values::assemble(&self.layout, &payloads, &self.pool)?);
        Ok(Exchange { values, versions, last_steps, verdicts, pushes })
    }
}

/// The callers go with it, and what they have counted is not lost.
impl Drop for Parameters {
    fn drop(&mut self) {
        self.exchanges.ask();
    }
}

/// The answer to what bears these gradients, and when all of it could be sent: a push may begin while they are computed.
async fn timed<T>(gradients: Payload, call: impl Future<Output = T>) -> (T, Instant) {
    let (complete, mut call) = (pin!(gradients.ready()), pin!(call));
    tokio::select! {
        biased;
        _ = complete => {}
        answer = &mut call => return (answer, Instant::now()),
    }
    let complete = Instant::now();
    (call.await, complete)
}

/// From when each push could have left, by the task that it goes to, when its gradients were complete, and when its answer was here.
/// Those to one ps task go one after the other over its connection: none leaves before the gradients of those before it are complete.
fn departures(trips: impl Iterator<Item = (TaskId, Option<(Instant, Instant)>)>) -> Vec<Option<Instant>> {
    let mut complete: BTreeMap<TaskId, Instant> = BTreeMap::new();
    let left = |(task, trip): (TaskId, Option<(Instant, Instant)>)| {
        let (own, back) = trip?;
        let all = complete.entry(task).or_insert(own);
        *all = own.max(*all);
        // Where there was no room for all of them at once, they may have gone in another order.
        Some(if *all <= back { *all } else { own })
    };
    trips.map(left).collect()
}

/// What one shard has answered.
struct Answer {
    version: Version,
    /// The step at which the shard stops.
    last_step: GlobalStep,
    /// Of a push.
    verdict: Option<Verdict>,
    /// The next step, as a pull is told.
    step: GlobalStep,
    payload: Payload,
    /// Of a push that is traced.
    push: Option<TracedPush>,
    /// Of a push: when its gradients were complete, and when its answer was here.
    trip: Option<(Instant, Instant)>,
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use pushpull_transport::buffer::{Buffer, Promise};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_round_trip_begins_when_the_gradients_are_complete() {
        let promise = Promise::new(4);
        let (answer, answered) = oneshot::channel();
        let mut push = pin!(timed(Payload::new(vec![promise.segment(0, 4)]), answered));
        assert!(push.as_mut().now_or_never().is_none());
        let before = Instant::now();
        promise.keep(Buffer::zeroed(4));
        assert!(push.as_mut().now_or_never().is_none());
        let after = Instant::now();
        answer.send(7).unwrap();
        let (answer, complete) = push.await;
        assert_eq!(answer, Ok(7));
        assert!((before..=after).contains(&complete));
    }

    #[test]
    fn a_push_leaves_when_those_before_it_have_left() {
        let begun = Instant::now();
        let at = |ms: u64| begun + std::time::Duration::from_millis(ms);
        let trip = |ps, complete, back| (TaskId::ps(ps), Some((at(complete), at(back))));
        let trips = [
            // The first layer is computed last, and holds up the next shard of the same task, but not another task's.
            trip(0, 40, 45),
            trip(0, 5, 46),
            trip(1, 7, 12),
            (TaskId::ps(1), None),
            trip(1, 9, 13),
            // It cannot have waited for them: it was answered before.
            trip(0, 6, 11),
        ];
        let expected = [40, 40, 7, 0, 9, 6].map(|ms| (ms > 0).then(|| at(ms)));
        assert_eq!(departures(trips.into_iter()), expected);
    }

    #[tokio::test]
    async fn a_push_that_fails_does_not_wait_for_its_gradients() {
        let promise = Promise::new(4);
        let push = timed(Payload::new(vec![promise.segment(0, 4)]), std::future::ready(7));
        assert_eq!(push.await.0, 7);
    }
}
