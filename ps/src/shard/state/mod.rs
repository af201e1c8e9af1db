//! The state of a shard: its contents, the waiting workers, and its counts. A push that fails a check changes
//! no value. An answer may be due long after its request, so each request comes with a handle that sends the
//! answer; `R` is the handle's type. The caller reads and writes files when the state machine requests it.
//! Wanted properties: (V1) the version never decreases within a placement epoch; (V2) every push is counted
//! under exactly one verdict; (V3) exactly `last_step` updates are applied.

mod appoint;
mod create;
mod files;
mod pull;
mod push;
mod rate;
mod roll_back;

use std::collections::BTreeMap;

use pushpull_cuda::DriverError;
use pushpull_messages::id::{Incarnation, PlacementEpoch, ShardId, Version};
use pushpull_messages::message::{
    Inspected, Leave, Left, Refusal, ShardCounters, ShardSnapshot, StalenessHistogram, StopAt, StoppingAt,
    WORKERS_MAX,
};
use pushpull_transport::buffer::BufferPool;

use super::answer::{Answer, unavailable};
use super::contents::Contents;
use super::deferred::DeferredQueue;
use super::draft::Plan;
use super::limits::ShardLimits;
use super::newest::Newest;
use super::saves::Saves;
use super::stage::Stage;
use super::threads::UpdateThreads;
use super::timer::{Measure, UpdateTimer};
use super::waiting::Waiting;
use crate::device::MakeDevice;
use create::Creating;
pub use files::FileRequest;
pub(crate) use push::Gradients;

/// A shard as a state machine. Each function that handles a request returns the answers that are then due,
/// both to that request and to earlier ones.
pub struct ShardState<R> {
    id: ShardId,
    pool: BufferPool,
    limits: ShardLimits,
    /// The request to create the shard, while the values are still being read.
    creating: Option<Creating<R>>,
    contents: Option<Contents>,
    /// The number of times that contents were created.
    creations: u64,
    /// The number of the connection on which the last request to create the shard has arrived.
    created_on: u64,
    /// The placement epoch of the last request to create the shard.
    epoch: PlacementEpoch,
    /// Whether the result of the read in progress is not needed any more.
    discards_read: bool,
    /// For each worker that has left, its last incarnation. It is recorded even while the shard is empty.
    over: BTreeMap<u32, Incarnation>,
    saves: Saves<R>,
    waiting: Waiting<R>,
    /// The requests that wait until the shard has its learning rate.
    deferred: DeferredQueue<R>,
    counters: ShardCounters,
    pulls: u64,
    staleness: StalenessHistogram,
    steps_behind: StalenessHistogram,
    not_finite: u64,
    timer: UpdateTimer,
    threads: UpdateThreads,
    /// Opens the device that keeps the optimizers' slots; `None` if the host keeps them.
    device: Option<MakeDevice>,
    /// The error of the device, if it has failed. The shard has then lost its contents.
    device_error: Option<DriverError>,
    /// Whether the draft of a push is being made. Other pushes wait for it.
    drafting: bool,
}

impl<R> ShardState<R> {
    /// Returns an empty shard.
    pub fn new(id: ShardId, pool: BufferPool, limits: ShardLimits) -> Self {
        Self {
            id,
            pool,
            limits,
            creating: None,
            contents: None,
            creations: 0,
            created_on: 0,
            epoch: PlacementEpoch(0),
            discards_read: false,
            over: BTreeMap::new(),
            saves: Saves::default(),
            waiting: Waiting::default(),
            deferred: DeferredQueue::default(),
            counters: ShardCounters::default(),
            pulls: 0,
            staleness: StalenessHistogram::default(),
            steps_behind: StalenessHistogram::default(),
            not_finite: 0,
            timer: UpdateTimer::default(),
            threads: UpdateThreads::NONE,
            device: None,
            device_error: None,
            drafting: false,
        }
    }

    /// Sets the threads that share large updates.
    #[must_use]
    pub(crate) fn shared_by(mut self, threads: UpdateThreads) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the device that keeps the optimizers' slots; `None` for the host.
    #[must_use]
    pub(crate) fn on_device(mut self, device: Option<MakeDevice>) -> Self {
        self.device = device;
        self
    }

    /// Sets the function that measures how long updates take.
    #[must_use]
    pub fn measured_by(mut self, measure: Measure) -> Self {
        self.timer.measure = measure;
        self
    }

    /// Returns the shard's id.
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Ends an incarnation of a worker, so that no other worker waits for it any more. If pushes of this
    /// incarnation wait for the shard's learning rate, the incarnation ends after these pushes. Has no effect
    /// if the chief decided this before the job rolled back: the worker may be expected again.
    pub fn leave(&mut self, leave: &Leave, reply: R) -> Vec<Answer<R>> {
        let &Leave { worker, incarnation, epoch, .. } = leave;
        if epoch < self.epoch {
            return vec![Answer::message(reply, Left {})];
        }
        if worker < WORKERS_MAX {
            self.over.insert(worker, incarnation);
        }
        let mut answers = vec![Answer::message(reply, Left {})];
        answers.extend(self.end(leave));
        answers
    }

    fn end(&mut self, leave: &Leave) -> Vec<Answer<R>> {
        let &Leave { worker, incarnation, .. } = leave;
        let mut answers = Vec::new();
        if !self.deferred.leave(leave)
            && let Some(contents) = &mut self.contents
            && contents.members.leave(worker, incarnation)
        {
            self.update_if_due();
            answers.extend(self.waiting.leave(worker));
            answers.extend(self.release());
            self.cut_if_due();
        }
        answers
    }

    /// Makes the shard stop at the step that `stop` names, or at the job's last step if that is smaller. The
    /// shard's last step stays the same if the shard's version is already greater than the named step.
    pub fn stop_at(&mut self, stop: &StopAt, reply: R) -> Vec<Answer<R>> {
        let contents = match created(&mut self.contents, self.id) {
            Ok(contents) => contents,
            Err(refusal) => return vec![Answer::refused(reply, refusal)],
        };
        let promised = contents.stop_at(stop);
        self.update_if_due();
        let version = self.contents.as_ref().map_or(promised, |contents| promised.max(contents.version));
        let mut answers = vec![Answer::message(reply, StoppingAt { version })];
        answers.extend(self.release());
        self.cut_if_due();
        // A complete shard does not wait for its learning rate, so the pushes that wait get their verdicts.
        answers.extend(self.resume());
        answers
    }

    /// Applies the held gradients as one update if they are due.
    fn update_if_due(&mut self) {
        let Some(contents) = &mut self.contents else { return };
        if let Err(error) = contents.update_if_due(&mut self.timer, &self.pool, &self.threads) {
            self.lose(error);
        }
    }

    /// Drops the contents, because the device has failed: its slots are lost, and some slices may have the
    /// values of the next version.
    fn lose(&mut self, error: DriverError) {
        self.contents = None;
        self.device_error = Some(error);
    }

    /// Returns the error of the shard's device, if the device has failed. The shard cannot go on, and the
    /// answers of the request during which the device has failed must not be sent.
    pub(crate) const fn device_error(&self) -> Option<&DriverError> {
        self.device_error.as_ref()
    }

    /// Returns the answers to all waiting pulls whose step may begin now.
    fn release(&mut self) -> Vec<Answer<R>> {
        let Some(contents) = &self.contents else { return Vec::new() };
        let may_begin = |worker, step| {
            contents.is_complete()
                || contents.policy.may_begin(worker, step, contents.version, &contents.members)
        };
        let released = self.waiting.release(may_begin);
        self.pulls += released.len() as u64;
        released
            .into_iter()
            .map(|wait| {
                let values = contents.values(wait.kind(), &self.pool, &self.threads);
                wait.answer(values)
            })
            .collect()
    }

    /// Returns the number of times that the shard was created.
    pub(crate) const fn creations(&self) -> u64 {
        self.creations
    }

    /// Returns the number of bytes of all values together.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.contents.iter().flat_map(|contents| &contents.slices).map(|slice| slice.bytes() as u64).sum()
    }

    /// Returns what a draft must know of the shard; `None` if the shard makes no drafts now.
    pub(crate) fn plan(&self) -> Option<Plan> {
        self.contents.as_ref()?.plan(self.timer.measure, &self.threads)
    }

    /// Sets whether the draft of a push is being made. Pushes that have arrived wait until it is over, so
    /// that the draft is not made in vain.
    pub(crate) const fn set_drafting(&mut self, drafting: bool) {
        self.drafting = drafting;
    }

    /// Returns whether a push waits.
    pub(crate) fn defers(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns what tells whether [`plan`](Self::plan) has changed; `None` if there is no plan.
    pub(crate) fn plan_key(&self) -> Option<PlanKey> {
        let contents = self.contents.as_ref()?;
        let rate_bits = contents.planned_rate()?.to_bits();
        let (version, members) = (contents.version, contents.members.changes());
        Some(PlanKey { creations: self.creations, version, rate_bits, members })
    }

    /// Encodes the current values, if replies to pushes carry them encoded. Otherwise
    /// [`refill`](Self::refill) does it, while its caller may hold a lock.
    pub(crate) fn encode_values(&self) {
        if let Some(contents) = &self.contents {
            contents.encode_values(&self.pool, &self.threads);
        }
    }

    /// Fills `newest` with the current values, unless it has them already or the shard is empty.
    pub(crate) fn refill(&self, newest: &mut Newest) {
        if let Some(contents) = &self.contents {
            contents.refill(newest, &self.pool, &self.threads);
        }
    }

    /// Returns the stage that the shard has reached.
    pub(crate) fn stage(&self) -> Stage {
        match &self.contents {
            _ if self.creating.is_some() => Stage::Restoring,
            None => Stage::Empty,
            Some(contents) if contents.is_complete() => Stage::Complete,
            Some(_) => Stage::Serving,
        }
    }

    /// Returns what a later run of the chief must know about this shard to continue the job.
    pub fn inspect(&self) -> Inspected {
        Inspected { held: self.contents.as_ref().map(|contents| Box::new(contents.held())) }
    }

    /// Returns a snapshot of the shard. Fields that only the actor knows, such as those of its mailbox, have
    /// their default values.
    pub fn observe(&self) -> ShardSnapshot {
        let contents = self.contents.as_ref();
        let slices = contents.map_or(&[][..], |contents| &contents.slices);
        let aggregated = contents.map_or(0, |contents| contents.aggregate.bytes());
        ShardSnapshot {
            version: contents.map_or(Version(0), |contents| contents.version),
            slices: slices.len() as u64,
            bytes: self.value_bytes(),
            pushes: self.counters,
            pulls: self.pulls,
            staleness: self.staleness,
            steps_behind: self.steps_behind,
            began: contents.map_or(Version(0), |contents| contents.began),
            leaving: false,
            members: contents.map_or(0, |contents| contents.members.count() as u32),
            waiting: self.waiting.count(self.deferred.workers()) as u32,
            held_bytes: (aggregated + self.deferred.bytes()) as u64,
            slot_bytes: slices.iter().map(|slice| slice.slot_bytes() as u64).sum(),
            not_finite: self.not_finite,
            applying: self.timer.times(),
            learning_rate_factor: contents.and_then(Contents::rate_factor),
            ..ShardSnapshot::default()
        }
    }
}

/// Distinguishes the plans of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanKey {
    /// How often the shard was created.
    creations: u64,
    version: Version,
    /// The bits of the factor of the learning rate.
    rate_bits: u32,
    /// How often a worker became a member or left.
    members: u64,
}

/// Returns the contents, or a refusal if the shard is still empty.
fn created(contents: &mut Option<Contents>, id: ShardId) -> Result<&mut Contents, Refusal> {
    contents.as_mut().ok_or_else(|| not_created(id))
}

/// Returns the refusal of a request to an empty shard.
fn not_created(id: ShardId) -> Refusal {
    unavailable(format!("the variables of {id} have not been created yet"))
}
