//! What a shard holds and how it changes: V1 the version never decreases; V2 every push is counted under exactly
//! one outcome; V3 exactly `last_step` updates are applied. Nothing changes unless all of a push fits. `R` is whatever
//! a reply is sent by: an answer may be due later than its question.

use kernels::cpu::all_finite;
use messages::buffer::{BufferPool, Payload, Segment};
use messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, SliceId, Version};
use messages::message::{
    CreateShard, Leave, Left, Pull, PullAt, Push, PushId, Pushed, Refusal, RefusalCode, ShardCounters,
    ShardCreated, ShardSnapshot, StalenessHistogram, Verdict,
};

use super::aggregate::Aggregate;
use super::ledger::{Ledger, Turn};
use super::slice::Slice;
use super::update::Update;
use super::waiting::{Answer, Wait, Waiting, pulled};
use crate::sync::{self, Admission, Candidate, Members, Policy};

/// A shard without its actor.
pub struct ShardState<R> {
    id: ShardId,
    pool: BufferPool,
    limits: ShardLimits,
    held: Option<Held>,
    waiting: Waiting<R>,
    counters: ShardCounters,
    pulls: u64,
    staleness: StalenessHistogram,
    steps_behind: StalenessHistogram,
}

/// What a shard may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// Bytes of values: all of them must fit into one frame.
    pub values_bytes_max: u64,
    /// Bytes of gradients that wait for others: they take from what may be on its way to the whole task.
    pub gradients_bytes_max: u64,
}

/// A worker that asks, as its connection knows it.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The index of the worker task.
    pub worker: u32,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// On which of the task's connections; later ones have greater numbers.
    pub connection: u64,
}

/// Which slices, their values, and the version of all of them.
pub(super) type Values = (Vec<SliceId>, Payload, Version);

/// What it holds once the chief has created it.
struct Held {
    created: CreateShard,
    placement_digest: u32,
    policy: Box<dyn Policy>,
    members: Members,
    aggregate: Aggregate,
    ledger: Ledger,
    slices: Vec<Slice>,
    version: Version,
}

impl<R> ShardState<R> {
    /// An empty shard.
    pub fn new(id: ShardId, pool: BufferPool, limits: ShardLimits) -> Self {
        Self {
            id,
            pool,
            limits,
            held: None,
            waiting: Waiting::default(),
            counters: ShardCounters::default(),
            pulls: 0,
            staleness: StalenessHistogram::default(),
            steps_behind: StalenessHistogram::default(),
        }
    }

    /// Which shard it is.
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Takes its slices and fills them. The same request once more changes nothing.
    ///
    /// # Errors
    /// Where it holds something else already, would hold too much, or is another shard.
    pub fn create(&mut self, create: CreateShard) -> Result<ShardCreated, Refusal> {
        if create.shard != self.id {
            return Err(misfit(format!("this is {}, and not {}", self.id, create.shard)));
        }
        match &self.held {
            Some(held) if held.created != create => {
                let reason = format!("{} already serves another job: start it again for a new one", self.id);
                return Err(Refusal::new(RefusalCode::Unavailable, reason));
            }
            Some(_) => {}
            None => {
                self.check_size(&create)?;
                self.held = Some(Held::new(self.id, create, &self.pool));
            }
        }
        let snapshot = self.observe();
        Ok(ShardCreated { slices: snapshot.slices, bytes: snapshot.bytes })
    }

    fn check_size(&self, create: &CreateShard) -> Result<(), Refusal> {
        let (id, bytes) = (self.id, create.bytes());
        let ShardLimits { values_bytes_max, gradients_bytes_max } = self.limits;
        if bytes > values_bytes_max {
            return Err(misfit(format!(
                "{id} would hold {bytes} bytes, and may hold at most {values_bytes_max}"
            )));
        }
        // A gradient that waits keeps its memory. With all of it kept, the one that is waited for could not come in.
        let kept = if create.deterministic { create.workers } else { 1 };
        let waiting = bytes.saturating_mul(u64::from(kept));
        if create.sync.gradients_per_update(create.workers) > 1 && waiting > gradients_bytes_max {
            return Err(misfit(format!(
                "{id} would keep {kept} gradient(s) of {bytes} bytes until the others come, and may keep at most \
                 {gradients_bytes_max} bytes: use more ps tasks{}",
                if create.deterministic { ", or do without deterministic" } else { "" }
            )));
        }
        Ok(())
    }

    /// Takes a gradient that has come on that connection. Gives the answers that are due now: to this push, unless the
    /// policy lets its worker wait, and to others that have waited for it. Where it does not fit, no value has changed.
    pub fn push(&mut self, push: &Push, gradients: Payload, connection: u64, reply: R) -> Vec<Answer<R>> {
        self.counters.received += 1;
        let mut answers = match self.take(push, gradients) {
            Err(refusal) => {
                self.counters.refused += 1;
                return vec![Answer { reply, result: Err(refusal) }];
            }
            Ok(verdict) => self.answer_push(push, verdict, connection, reply),
        };
        answers.extend(self.release());
        debug_assert!(self.counters.add_up(), "V2: {:?}", self.counters);
        answers
    }

    fn answer_push(&mut self, push: &Push, verdict: Verdict, connection: u64, reply: R) -> Vec<Answer<R>> {
        let held = self.held.as_ref().expect("a push was taken");
        if !push.pull {
            let pushed = Pushed { verdict, version: held.version, slices: Vec::new() };
            return vec![Answer { reply, result: Ok((pushed.into(), Payload::EMPTY)) }];
        }
        let step = held.members.next(push.id.worker);
        let PushId { worker, incarnation, .. } = push.id;
        let reader = Reader { worker, incarnation, connection };
        let wait = Wait { reply, reader, verdict: Some(verdict), step, averages: false };
        self.waiting.wait(wait).into_iter().collect()
    }

    fn take(&mut self, push: &Push, gradients: Payload) -> Result<Verdict, Refusal> {
        let held = held(&mut self.held, self.id)?;
        let PushId { worker, incarnation, .. } = push.id;
        held.check_placement(push.epoch, push.placement_digest)?;
        held.members.check(worker, incarnation).map_err(gone)?;
        match held.ledger.turn(&push.id) {
            Turn::New => {}
            Turn::Duplicate(verdict) => {
                self.counters.duplicate += 1;
                return Ok(verdict);
            }
            Turn::NotDue(reason) => return Err(misfit(reason)),
        }
        held.check_gradients(push, &gradients)?;
        let behind = held.members.furthest().0.saturating_sub(held.members.next(worker).0);
        let stale = held.version.0 - push.version.0;
        let candidate = Candidate { worker, read: push.version };
        let verdict = if held.is_complete() {
            self.counters.stopped += 1;
            Verdict::Stopped
        } else {
            held.check_turn(candidate)?;
            if !held.policy.is_late(candidate, held.version) {
                held.check_finite(push, &gradients)?;
            }
            match held.policy.admit(candidate, held.version, &mut held.members) {
                Admission::Apply { rate } => {
                    held.apply(gradients.segments().iter().map(Segment::as_f32), rate, 1, &self.pool);
                    self.counters.applied += 1;
                    Verdict::Applied
                }
                Admission::Hold => {
                    held.aggregate.add(worker, gradients, &self.pool);
                    held.update_if_due(&self.pool);
                    self.counters.held += 1;
                    Verdict::Held
                }
                Admission::Stale { by } => {
                    self.counters.stale += 1;
                    Verdict::Stale { by }
                }
            }
        };
        if matches!(verdict, Verdict::Applied | Verdict::Held) {
            self.staleness.record(stale);
            self.steps_behind.record(behind);
        }
        held.ledger.record(&push.id, verdict);
        Ok(verdict)
    }

    /// Values of all its slices, of one version; gives the answers that are due now. `reader` is the worker that asks,
    /// where it is one.
    pub fn pull(&mut self, pull: &Pull, reader: Option<Reader>, reply: R) -> Vec<Answer<R>> {
        match self.begin_pull(pull, reader) {
            Err(refusal) => vec![Answer { reply, result: Err(refusal) }],
            Ok((Some((reader, step)), PullAt::Step(_))) => {
                let wait = Wait { reply, reader, verdict: None, step, averages: pull.averages };
                let mut answers: Vec<_> = self.waiting.wait(wait).into_iter().collect();
                answers.extend(self.release());
                answers
            }
            Ok((member, _)) => {
                let held = self.held.as_ref().expect("a pull has begun");
                let step = member.map_or(GlobalStep(held.version.0), |(_, step)| step);
                self.pulls += 1;
                let mut answers = vec![pulled(reply, step, held.values(pull.averages))];
                // A new life of a worker may have let others go on, and made an end of an earlier one.
                answers.extend(member.and_then(|(reader, _)| self.waiting.outlive(reader)));
                answers.extend(self.release());
                answers
            }
        }
    }

    fn begin_pull(
        &mut self,
        pull: &Pull,
        reader: Option<Reader>,
    ) -> Result<(Option<(Reader, GlobalStep)>, PullAt), Refusal> {
        let held = held(&mut self.held, self.id)?;
        held.check_placement(pull.epoch, pull.placement_digest)?;
        let Some(reader @ Reader { worker, incarnation, .. }) = reader else {
            return match pull.at {
                PullAt::Latest => Ok((None, pull.at)),
                PullAt::Join | PullAt::Step(_) => Err(misfit("only workers take part in a job".into())),
            };
        };
        let step = match pull.at {
            PullAt::Latest => return Ok((None, pull.at)),
            PullAt::Join => {
                let (policy, version) = (&held.policy, held.version);
                let first = |members: &Members| policy.first_step(worker, version, members);
                let step = held.members.join(worker, incarnation, first).map_err(gone)?;
                held.update_if_due(&self.pool);
                step
            }
            PullAt::Step(step) if step > held.created.last_step => {
                let last_step = held.created.last_step;
                return Err(misfit(format!("step {step} is beyond the job's last, {last_step}")));
            }
            PullAt::Step(step) => {
                held.members.check(worker, incarnation).map_err(gone)?;
                held.members.raise(worker, step);
                held.update_if_due(&self.pool);
                held.members.next(worker)
            }
        };
        Ok((Some((reader, step)), pull.at))
    }

    /// Nobody waits any more for a life of a worker that is over. Gives the answers that are due now.
    pub fn leave(&mut self, leave: &Leave, reply: R) -> Vec<Answer<R>> {
        let mut answers = vec![Answer { reply, result: Ok((Left {}.into(), Payload::EMPTY)) }];
        if let Some(held) = &mut self.held
            && held.members.leave(leave.worker, leave.incarnation)
        {
            held.update_if_due(&self.pool);
            answers.extend(self.waiting.leave(leave.worker));
            answers.extend(self.release());
        }
        answers
    }

    /// Answers everybody whose step may begin.
    fn release(&mut self) -> Vec<Answer<R>> {
        let Some(held) = &self.held else { return Vec::new() };
        let may_begin = |step| held.is_complete() || held.policy.may_begin(step, held.version, &held.members);
        let released = self.waiting.release(may_begin);
        self.pulls += released.len() as u64;
        released
            .into_iter()
            .map(|wait| {
                let values = held.values(wait.averages);
                wait.answer(values)
            })
            .collect()
    }

    /// Its state, for whoever wants to see it.
    pub fn observe(&self) -> ShardSnapshot {
        let held = self.held.as_ref();
        let slices = held.map_or(&[][..], |held| &held.slices);
        ShardSnapshot {
            version: held.map_or(Version(0), |held| held.version),
            slices: slices.len() as u64,
            bytes: slices.iter().map(|slice| slice.bytes() as u64).sum(),
            pushes: self.counters,
            pulls: self.pulls,
            staleness: self.staleness,
            steps_behind: self.steps_behind,
            members: held.map_or(0, |held| held.members.count() as u32),
            waiting: self.waiting.count() as u32,
        }
    }
}

fn misfit(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Misfit, reason)
}

fn gone(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Unavailable, reason)
}

fn held(held: &mut Option<Held>, id: ShardId) -> Result<&mut Held, Refusal> {
    held.as_mut().ok_or_else(|| {
        Refusal::new(RefusalCode::Unavailable, format!("{id} has not been given its variables yet"))
    })
}

impl Held {
    fn new(id: ShardId, create: CreateShard, pool: &BufferPool) -> Self {
        let slices = create
            .placement
            .on_shard(id)
            .map(|(slice_id, slice)| {
                let variable = &create.variables[slice.variable.index()];
                Slice::new(slice_id, &slice, variable, &create.update, create.seed, pool)
            })
            .collect();
        Self {
            placement_digest: create.placement.digest(),
            policy: sync::policy(create.sync),
            members: Members::new(create.workers),
            aggregate: Aggregate::new(create.deterministic),
            ledger: Ledger::default(),
            slices,
            version: Version(0),
            created: create,
        }
    }

    /// Whether the job has reached its last step.
    fn is_complete(&self) -> bool {
        self.version.0 >= self.created.last_step.0
    }

    fn values(&self, averages: bool) -> Values {
        let snapshot = if averages { Slice::averaged } else { Slice::snapshot };
        let ids = self.slices.iter().map(Slice::id).collect();
        (ids, Payload::new(self.slices.iter().map(snapshot).collect()), self.version)
    }

    fn check_placement(&self, epoch: PlacementEpoch, digest: u32) -> Result<(), Refusal> {
        let (expected_epoch, expected) = (self.created.placement.epoch, self.placement_digest);
        if (epoch, digest) == (expected_epoch, expected) {
            return Ok(());
        }
        Err(misfit(format!(
            "expected placement epoch {expected_epoch} ({expected:08x}), and got {epoch} ({digest:08x})"
        )))
    }

    fn check_gradients(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        if push.version > self.version {
            return Err(misfit(format!(
                "a gradient computed at version {} came at version {}",
                push.version, self.version
            )));
        }
        if !push.slices.iter().copied().eq(self.slices.iter().rev().map(Slice::id)) {
            return Err(misfit(format!(
                "expected gradients of all {} slices, the last of the placement first, and got {}",
                self.slices.len(),
                push.slices.len()
            )));
        }
        let (expected, got) = (self.slices.len(), gradients.segments().len());
        if expected != got {
            return Err(misfit(format!("expected {expected} gradients, and got {got}")));
        }
        for (slice, gradient) in self.slices.iter().rev().zip(gradients.segments()) {
            let (expected, got) = (slice.bytes(), gradient.len());
            if expected != got {
                return Err(misfit(format!(
                    "the gradient of slice {} of variable '{}' should have {expected} bytes, and has {got}",
                    slice.id(),
                    slice.variable()
                )));
            }
        }
        Ok(())
    }

    /// Whether the worker's next step has begun: none that waits as it should ever pushes before.
    fn check_turn(&self, push: Candidate) -> Result<(), Refusal> {
        if self.policy.may_push(push.worker, self.version, &self.members) {
            return Ok(());
        }
        let (worker, step) = (push.worker, self.members.next(push.worker));
        Err(misfit(format!("worker/{worker} pushes before it was given the values for its step {step}")))
    }

    fn check_finite(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        for (slice, gradient) in self.slices.iter().rev().zip(gradients.segments()) {
            if !all_finite(gradient.as_f32()) {
                let reason = format!(
                    "the gradient of variable '{}' from worker/{} at its step {} is not finite",
                    slice.variable(),
                    push.id.worker,
                    push.local_step
                );
                return Err(Refusal::new(RefusalCode::NotFinite, reason));
            }
        }
        Ok(())
    }

    /// Makes the sum of so many gradients, those of the last slice first, the next version.
    fn apply<'a>(
        &mut self,
        gradients: impl Iterator<Item = &'a [f32]>,
        rate: f32,
        count: u32,
        pool: &BufferPool,
    ) {
        let update = Update::new(&self.created.update, self.version, self.created.last_step, rate, count);
        for (slice, gradient) in self.slices.iter_mut().rev().zip(gradients) {
            slice.apply(gradient, &update, pool);
        }
        self.version = self.version.next();
    }

    /// Makes the held gradients the next version, where the policy has enough of them.
    fn update_if_due(&mut self, pool: &BufferPool) {
        if self.is_complete() || !self.policy.is_due(self.version, &self.members) {
            return;
        }
        if let Some((total, count)) = self.aggregate.take(pool) {
            self.apply(total.slices(), 1.0, count, pool);
            self.policy.updated();
        }
    }
}
