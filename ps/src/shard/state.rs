//! What a shard holds and how it changes: V1 the version never decreases; V2 every push is counted under exactly
//! one outcome; V3 exactly `last_step` updates are applied. Nothing changes unless all of a push fits. `R` is whatever
//! a reply is sent by: an answer may be due later than its question. What has to do with files it orders from others.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, ShardId, Version};
use pushpull_messages::message::{
    CreateShard, Leave, Left, Pull, PullAt, Push, PushId, Pushed, Refusal, RefusalCode, Save, SaveResult,
    ShardCounters, ShardSnapshot, StalenessHistogram, StopAt, StoppingAt, Verdict, WORKERS_MAX,
};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};

use super::cut::{Cut, Restored};
use super::held::{Held, misfit, unavailable};
use super::ledger::Turn;
use super::saves::Saves;
use super::updates::{Measure, Updates};
use super::waiting::{Answer, Asker, Outcome, Wait, Waiting, pulled};
use crate::sync::{Admission, Candidate, Members};

/// A shard without its actor.
pub struct ShardState<R> {
    id: ShardId,
    pool: BufferPool,
    limits: ShardLimits,
    /// What it will hold, while that is being read.
    creating: Option<Creating<R>>,
    held: Option<Held>,
    /// Lives of workers that are over, also while it holds nothing.
    over: BTreeMap<u32, Incarnation>,
    saves: Saves<R>,
    waiting: Waiting<R>,
    counters: ShardCounters,
    pulls: u64,
    staleness: StalenessHistogram,
    steps_behind: StalenessHistogram,
    not_finite: u64,
    updates: Updates,
}

/// How far a shard is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has not been given its variables.
    #[default]
    Empty,
    /// What it begins with is being read.
    Restoring,
    /// It takes gradients.
    Serving,
    /// It has reached its last step.
    Complete,
}

impl Stage {
    /// The word that stands for it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Restoring => "restoring",
            Self::Serving => "serving",
            Self::Complete => "complete",
        }
    }
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

/// What a shard has others do for it: one of each kind at a time. What comes of it, it is told.
#[derive(Debug)]
pub enum Order {
    /// Read what it shall begin with, and give it to [`ShardState::restored`].
    Read(Arc<CreateShard>),
    /// Write that into a file, and say what became of it to [`ShardState::written`].
    Write(Cut),
}

struct Creating<R> {
    create: Arc<CreateShard>,
    asker: Asker<R>,
    /// Whether the reading has been ordered.
    ordered: bool,
}

impl<R> ShardState<R> {
    /// An empty shard.
    pub fn new(id: ShardId, pool: BufferPool, limits: ShardLimits) -> Self {
        Self {
            id,
            pool,
            limits,
            creating: None,
            held: None,
            over: BTreeMap::new(),
            saves: Saves::default(),
            waiting: Waiting::default(),
            counters: ShardCounters::default(),
            pulls: 0,
            staleness: StalenessHistogram::default(),
            steps_behind: StalenessHistogram::default(),
            not_finite: 0,
            updates: Updates::default(),
        }
    }

    /// The same, and its updates are timed by that.
    #[must_use]
    pub fn measured_by(mut self, measure: Measure) -> Self {
        self.updates.measure = measure;
        self
    }

    /// Which shard it is.
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Takes its slices and fills them, or orders that what they begin with be read. The same request once more changes
    /// nothing; another one does as long as no worker has taken part. Gives the answers that are due now: a refusal where
    /// it serves something else already, would hold too much, or is another shard.
    pub fn create(&mut self, create: CreateShard, connection: u64, reply: R) -> Vec<Answer<R>> {
        if let Some(creating) = self.creating.as_mut().filter(|creating| *creating.create == create) {
            return vec![creating.asker.again(Asker { reply, connection })];
        }
        if let Some(held) = self.held.as_ref().filter(|held| *held.created == create) {
            return vec![created(held, reply)];
        }
        if let Err(refusal) = self.check_create(&create) {
            return vec![Answer { reply, result: Err(refusal) }];
        }
        // Before there is anything else: both would not have to fit.
        self.held = None;
        let mut answers: Vec<_> = self.saves.give_up().into_iter().collect();
        let create = Arc::new(create);
        if create.start == StartSpec::Initialise {
            answers.push(self.begin(create, Restored::default(), reply));
        } else {
            let asker = Asker { reply, connection };
            self.creating = Some(Creating { create, asker, ordered: false });
        }
        answers
    }

    fn check_create(&self, create: &CreateShard) -> Result<(), Refusal> {
        if create.shard != self.id {
            return Err(misfit(format!("this is {}, and not {}", self.id, create.shard)));
        }
        if self.creating.is_some() {
            return Err(unavailable(format!("{} is being given other variables", self.id)));
        }
        if self.held.as_ref().is_some_and(|held| held.touched) {
            let reason = format!("{} already serves another job: start it again for a new one", self.id);
            return Err(misfit(reason));
        }
        self.check_size(create)
    }

    /// What was ordered to be read has been, or cannot be. Gives the answers that are due now.
    pub fn restored(&mut self, result: Result<Restored, Refusal>) -> Vec<Answer<R>> {
        let Creating { create, asker, .. } = self.creating.take().expect("something was to be read");
        let answer = match result {
            Ok(restored) => self.begin(create, restored, asker.reply),
            Err(refusal) => Answer { reply: asker.reply, result: Err(refusal) },
        };
        vec![answer]
    }

    fn begin(&mut self, create: Arc<CreateShard>, restored: Restored, reply: R) -> Answer<R> {
        let mut held = Held::new(create, restored, &self.pool);
        for (&worker, &incarnation) in &self.over {
            held.members.leave(worker, incarnation);
        }
        created(self.held.insert(held), reply)
    }

    /// What others shall do now, until there is nothing more; to be asked after every request.
    pub fn take_order(&mut self) -> Option<Order> {
        if let Some(creating) = self.creating.as_mut().filter(|creating| !creating.ordered) {
            creating.ordered = true;
            return Some(Order::Read(Arc::clone(&creating.create)));
        }
        self.saves.begin().map(Order::Write)
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
                self.not_finite += u64::from(refusal.code == RefusalCode::NotFinite);
                return vec![Answer { reply, result: Err(refusal) }];
            }
            Ok(outcome) => self.answer_push(push, outcome, connection, reply),
        };
        answers.extend(self.release());
        self.cut_if_due();
        debug_assert!(self.counters.add_up(), "V2: {:?}", self.counters);
        answers
    }

    fn answer_push(&mut self, push: &Push, outcome: Outcome, connection: u64, reply: R) -> Vec<Answer<R>> {
        let held = self.held.as_ref().expect("a push was taken");
        if !push.pull {
            let (version, last_step) = (held.version, held.end);
            let Outcome { verdict, staleness } = outcome;
            let pushed = Pushed { verdict, version, last_step, staleness, times: None, slices: Vec::new() };
            return vec![Answer { reply, result: Ok((pushed.into(), Payload::EMPTY)) }];
        }
        let step = held.members.next(push.id.worker);
        let PushId { worker, incarnation, .. } = push.id;
        let reader = Reader { worker, incarnation, connection };
        let wait = Wait { reply, reader, push: Some(outcome), step, averages: false };
        self.waiting.wait(wait).into_iter().collect()
    }

    fn take(&mut self, push: &Push, gradients: Payload) -> Result<Outcome, Refusal> {
        let held = held(&mut self.held, self.id)?;
        let PushId { worker, incarnation, .. } = push.id;
        held.check_placement(push.epoch, push.placement_digest)?;
        held.members.check(worker, incarnation).map_err(unavailable)?;
        held.touched = true;
        match held.ledger.turn(&push.id) {
            Turn::New => {}
            Turn::Duplicate(verdict) => {
                self.counters.duplicate += 1;
                return Ok(Outcome { verdict, staleness: 0 });
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
        } else if held.reopened && !held.may_push(worker) {
            // It was let through by an end that has been moved since; now it waits for its turn, as the others do.
            self.counters.stale += 1;
            Verdict::Stale { by: stale }
        } else {
            held.check_turn(candidate)?;
            if !held.policy.is_late(candidate, held.version) {
                held.check_finite(push, &gradients)?;
            }
            match held.policy.admit(candidate, held.version, &mut held.members) {
                Admission::Apply { rate } => {
                    self.updates.make(|| {
                        held.apply(gradients.segments().iter().map(Segment::as_f32), rate, 1, &self.pool);
                        true
                    });
                    self.counters.applied += 1;
                    Verdict::Applied
                }
                Admission::Hold => {
                    self.updates.add(|| held.aggregate.add(worker, gradients, &self.pool));
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
        held.ledger.record(&push.id, verdict, push.drawn);
        if verdict == Verdict::Held {
            held.update_if_due(&mut self.updates, &self.pool);
        }
        Ok(Outcome { verdict, staleness: stale })
    }

    /// Values of all its slices, of one version; gives the answers that are due now. `reader` is the worker that asks,
    /// where it is one.
    pub fn pull(&mut self, pull: &Pull, reader: Option<Reader>, reply: R) -> Vec<Answer<R>> {
        let answers = self.answer_pull(pull, reader, reply);
        self.cut_if_due();
        answers
    }

    fn answer_pull(&mut self, pull: &Pull, reader: Option<Reader>, reply: R) -> Vec<Answer<R>> {
        match self.begin_pull(pull, reader) {
            Err(refusal) => vec![Answer { reply, result: Err(refusal) }],
            Ok((Some((reader, step)), PullAt::Step(_))) => {
                let wait = Wait { reply, reader, push: None, step, averages: pull.averages };
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
                let step = held.members.join(worker, incarnation, first).map_err(unavailable)?;
                held.touched = true;
                held.update_if_due(&mut self.updates, &self.pool);
                step
            }
            // Not the shard's own end: that may still move on, and another shard may be beyond it.
            PullAt::Step(step) if step > held.created.last_step => {
                let last_step = held.created.last_step;
                return Err(misfit(format!("step {step} is beyond the job's last, {last_step}")));
            }
            PullAt::Step(step) => {
                held.members.check(worker, incarnation).map_err(unavailable)?;
                held.touched = true;
                held.members.raise(worker, step);
                held.update_if_due(&mut self.updates, &self.pool);
                held.members.next(worker)
            }
        };
        Ok((Some((reader, step)), pull.at))
    }

    /// Nobody waits any more for a life of a worker that is over. Gives the answers that are due now.
    pub fn leave(&mut self, leave: &Leave, reply: R) -> Vec<Answer<R>> {
        let &Leave { worker, incarnation, .. } = leave;
        if worker < WORKERS_MAX {
            let over = self.over.entry(worker).or_insert(incarnation);
            *over = incarnation.max(*over);
        }
        let mut answers = vec![Answer { reply, result: Ok((Left {}.into(), Payload::EMPTY)) }];
        if let Some(held) = &mut self.held
            && held.members.leave(worker, incarnation)
        {
            held.update_if_due(&mut self.updates, &self.pool);
            answers.extend(self.waiting.leave(worker));
            answers.extend(self.release());
            self.cut_if_due();
        }
        answers
    }

    /// From now on the last step is that one, or the job's own where that comes first, unless the shard is beyond it.
    /// Gives the answers that are due now.
    pub fn stop_at(&mut self, stop: &StopAt, reply: R) -> Vec<Answer<R>> {
        let held = match held(&mut self.held, self.id) {
            Ok(held) => held,
            Err(refusal) => return vec![Answer { reply, result: Err(refusal) }],
        };
        held.stop_at(stop.step);
        held.update_if_due(&mut self.updates, &self.pool);
        let stopping = StoppingAt { version: held.version };
        let mut answers = vec![Answer { reply, result: Ok((stopping.into(), Payload::EMPTY)) }];
        answers.extend(self.release());
        self.cut_if_due();
        answers
    }

    /// Wants itself written when it is at a version. Gives the answers that are due now.
    pub fn save(&mut self, save: Save, connection: u64, reply: R) -> Vec<Answer<R>> {
        let held = match held(&mut self.held, self.id) {
            Ok(held) => held,
            Err(refusal) => return vec![Answer { reply, result: Err(refusal) }],
        };
        let answer = self.saves.ask(save, Asker { reply, connection }, held.version);
        self.cut_if_due();
        answer.into_iter().collect()
    }

    /// What became of the cut that was ordered to be written. Gives the answers that are due now.
    pub fn written(&mut self, result: SaveResult) -> Vec<Answer<R>> {
        vec![self.saves.finish(result)]
    }

    /// At the end of whatever may have made a version: a save of that one takes what there is.
    fn cut_if_due(&mut self) {
        let Some(held) = &self.held else { return };
        if let Some(save) = self.saves.due(held.version) {
            let cut = held.cut(save.clone());
            self.saves.cut(cut);
        }
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

    /// How far it is in its life.
    pub(crate) fn stage(&self) -> Stage {
        match &self.held {
            _ if self.creating.is_some() => Stage::Restoring,
            None => Stage::Empty,
            Some(held) if held.is_complete() => Stage::Complete,
            Some(_) => Stage::Serving,
        }
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
            began: held.map_or(Version(0), |held| held.began),
            leaving: false,
            members: held.map_or(0, |held| held.members.count() as u32),
            waiting: self.waiting.count() as u32,
            held_bytes: held.map_or(0, |held| held.aggregate.bytes() as u64),
            slot_bytes: slices.iter().map(|slice| slice.slot_bytes() as u64).sum(),
            not_finite: self.not_finite,
            applying: self.updates.times(),
            ..ShardSnapshot::default()
        }
    }
}

fn created<R>(held: &Held, reply: R) -> Answer<R> {
    Answer { reply, result: Ok((held.created().into(), Payload::EMPTY)) }
}

fn held(held: &mut Option<Held>, id: ShardId) -> Result<&mut Held, Refusal> {
    held.as_mut().ok_or_else(|| unavailable(format!("{id} has not been given its variables yet")))
}
