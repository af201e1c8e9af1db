//! How a shard applies a push and answers it. All checks are made before the first value changes. A push may
//! be the sum of several workers' gradients, which counts as one push of each of them. Wanted property: (A)
//! each gradient counts exactly once, whether it arrives alone or in sums, and a sum counts as a whole or
//! not.

use pushpull_cuda::DriverError;
use pushpull_messages::message::{Contribution, Push, PushId, Pushed, Refusal, RefusalCode, Verdict};
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{BufferPool, Payload};

use super::ShardState;
use crate::shard::answer::{Answer, Reader, again, alone, early, misfit, unavailable, variables_lost};
use crate::shard::contents::Contents;
use crate::shard::draft::Draft;
use crate::shard::ledger::Delivery;
use crate::shard::threads::UpdateThreads;
use crate::shard::timer::UpdateTimer;
use crate::shard::waiting::{PushOutcome, Wait};
use crate::sync::{Admission, Candidate};

impl<R> ShardState<R> {
    /// Accepts a push that arrived on the connection with the number `connection`. Returns the answers that
    /// are then due: the answer to this push, unless its worker has to wait, and the answers to workers that
    /// waited for this push. A push that fails a check changes no value.
    pub(crate) fn push(
        &mut self,
        push: &Push,
        gradients: impl Into<Gradients>,
        connection: u64,
        reply: R,
    ) -> Vec<Answer<R>> {
        let (gradients, reply) = match self.defer(push, gradients.into(), connection, reply) {
            Err(now) => now,
            Ok(other) => return other.into_iter().collect(),
        };
        self.counters.received += push.count();
        let mut answers = match self.accept(push, gradients) {
            Err(refusal) => {
                self.counters.refused += push.count();
                self.not_finite += u64::from(refusal.code == RefusalCode::NotFinite);
                return vec![Answer::refused(reply, refusal)];
            }
            Ok(_) if self.contents.is_none() => return vec![Answer::refused(reply, variables_lost(self.id))],
            Ok(outcome) => self.answer_push(push, outcome, connection, reply),
        };
        answers.extend(self.release());
        self.cut_if_due();
        debug_assert!(self.counters.add_up(), "V2: {:?}", self.counters);
        answers
    }

    /// Refuses a push whose draft was revoked, and asks for it again.
    pub(crate) fn ask_again(&mut self, reply: R) -> Answer<R> {
        self.counters.received += 1;
        self.counters.refused += 1;
        Answer::refused(reply, again())
    }

    fn answer_push(
        &mut self,
        push: &Push,
        outcome: PushOutcome,
        connection: u64,
        reply: R,
    ) -> Vec<Answer<R>> {
        let contents = self.contents.as_ref().expect("a push was accepted");
        if !push.pull {
            let (version, last_step) = (contents.version, contents.end);
            let PushOutcome { verdict, staleness, .. } = outcome;
            let pushed = Pushed { verdict, version, last_step, staleness, times: None, slices: Vec::new() };
            return vec![Answer::message(reply, pushed)];
        }
        let step = contents.members.next(push.id.worker);
        let PushId { worker, incarnation, .. } = push.id;
        let reader = Reader { worker, incarnation, connection };
        let wait = Wait { reply, reader, push: Some(outcome), step, averages: false };
        self.waiting.add(wait).into_iter().collect()
    }

    fn accept(&mut self, push: &Push, gradients: Gradients) -> Result<PushOutcome, Refusal> {
        self.check_epoch(push.epoch)?;
        let contents = self.contents.as_mut().ok_or_else(|| variables_lost(self.id))?;
        let PushId { worker, incarnation, .. } = push.id;
        contents.check_placement(push.epoch, push.placement_digest)?;
        contents.members.admit(worker, incarnation).map_err(unavailable)?;
        admit_others(contents, push)?;
        contents.touched = true;
        if let Some(verdict) = repeated(contents, push)? {
            self.counters.duplicate += push.count();
            return Ok(PushOutcome { verdict, staleness: 0, drafted: None });
        }
        if let Gradients::Arrived(gradients) = &gradients {
            contents.check_gradients(push, gradients)?;
        }
        let behind = contents.members.furthest().0.saturating_sub(contents.members.next(worker).0);
        let staleness = contents.version.0.saturating_sub(push.version.0);
        let with = (&mut self.timer, &self.pool, &self.threads);
        let (decision, gradients) = decide(contents, push, gradients, with)?;
        let (is_drafted, mut drafted) = (matches!(gradients, Gradients::Drafted(_)), None);
        let verdict = match decision {
            Decision::Stopped => {
                self.counters.stopped += 1;
                Verdict::Stopped
            }
            Decision::Admitted(Admission::Stale { by }) => {
                self.counters.stale += 1;
                Verdict::Stale { by }
            }
            Decision::Admitted(Admission::Apply { learning_rate_factor }) => {
                let with = (&mut self.timer, &self.pool, &self.threads);
                if let Err(error) = apply(contents, gradients, learning_rate_factor, with) {
                    self.lose(error);
                    return Err(variables_lost(self.id));
                }
                drafted = is_drafted.then_some(contents.version);
                self.counters.applied += 1;
                Verdict::Applied
            }
            Decision::Admitted(Admission::Hold) => {
                let gradients = gradients.arrived().ok_or_else(again)?;
                let sum = (worker, push.count() as u32);
                self.timer.aggregate(|| contents.aggregate.add(sum, gradients, &self.pool, &self.threads));
                self.counters.held += 1;
                Verdict::Held
            }
        };
        if matches!(verdict, Verdict::Applied | Verdict::Held) {
            self.staleness.record(staleness);
            self.steps_behind.record(behind);
        }
        contents.ledger.record(&push.id, verdict, push.drawn);
        for other in &push.with {
            self.count_other(other, push, verdict);
        }
        if verdict == Verdict::Held {
            self.update_if_due();
        }
        Ok(PushOutcome { verdict, staleness, drafted })
    }

    /// Counts the gradients of another worker in a push whose sender has got this verdict.
    fn count_other(&mut self, other: &Contribution, push: &Push, verdict: Verdict) {
        let contents = self.contents.as_mut().expect("a push was accepted");
        let worker = other.id.worker;
        match verdict {
            Verdict::Stopped => self.counters.stopped += 1,
            Verdict::Stale { .. } => self.counters.stale += 1,
            Verdict::Applied => unreachable!("under the policy sync, no push is an update of its own"),
            Verdict::Held => {
                self.counters.held += 1;
                let next = contents.members.next(worker);
                self.staleness.record(contents.version.0.saturating_sub(push.version.0));
                self.steps_behind.record(contents.members.furthest().0.saturating_sub(next.0));
            }
        }
        // As for the sender, the policy does not learn of a push that it did not decide about.
        if verdict != Verdict::Stopped && contents.may_push(worker) {
            let candidate = Candidate { worker, read: push.version };
            contents.policy.admit(candidate, contents.version, &mut contents.members);
        }
        contents.ledger.record(&other.id, verdict, other.drawn);
    }
}

/// Accepts the workers whose gradients the sender of a push has added to its own.
///
/// # Errors
/// If the shard holds no sums, or if one of these incarnations is not a member.
fn admit_others(contents: &mut Contents, push: &Push) -> Result<(), Refusal> {
    if push.with.is_empty() {
        return Ok(());
    }
    if !contents.takes_sums() {
        let policy = contents.policy_spec();
        return Err(misfit(format!(
            "got the sum of {} workers' gradients, which needs the policy {} without compression, but the policy is {policy}",
            push.count(),
            SyncSpec::SYNC
        )));
    }
    for PushId { worker, incarnation, .. } in push.with.iter().map(|other| other.id) {
        contents.members.admit(worker, incarnation).map_err(|_| alone(worker))?;
    }
    Ok(())
}

/// Returns the verdict on a push that the shard has counted before; `None` if it is new.
///
/// # Errors
/// If the push does not have the number that comes next. If it is a sum of which only a part is new, or whose
/// parts have got different verdicts.
fn repeated(contents: &Contents, push: &Push) -> Result<Option<Verdict>, Refusal> {
    let delivery = contents.ledger.classify(&push.id);
    let differs = |other: &&Contribution| contents.ledger.classify(&other.id) != delivery;
    if let Some(other) = push.with.iter().find(differs) {
        return Err(alone(other.id.worker));
    }
    match delivery {
        Delivery::New => Ok(None),
        Delivery::Duplicate(verdict) => Ok(Some(verdict)),
        Delivery::Early => Err(early()),
        Delivery::OutOfOrder(reason) => Err(misfit(reason)),
    }
}

/// The gradients of a push.
pub(crate) enum Gradients {
    /// The gradients as they arrived.
    Arrived(Payload),
    /// The values that the gradients give.
    Drafted(Draft),
}

impl From<Payload> for Gradients {
    fn from(payload: Payload) -> Self {
        Self::Arrived(payload)
    }
}

impl Gradients {
    /// Returns the number of bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Arrived(payload) => payload.bytes(),
            Self::Drafted(draft) => draft.bytes(),
        }
    }

    fn arrived(self) -> Option<Payload> {
        match self {
            Self::Arrived(payload) => Some(payload),
            Self::Drafted(_) => None,
        }
    }
}

/// The decision about a push that is new and has passed all earlier checks.
enum Decision {
    /// The push comes after the last step and is not applied.
    Stopped,
    /// The push was passed to the policy, which made this decision.
    Admitted(Admission),
}

/// Applies the gradients of a push as one update.
///
/// # Errors
/// If the device fails. The contents must not be used again.
fn apply(
    contents: &mut Contents,
    gradients: Gradients,
    learning_rate_factor: f32,
    (timer, pool, threads): (&mut UpdateTimer, &BufferPool, &UpdateThreads),
) -> Result<(), DriverError> {
    if let Gradients::Drafted(draft) = &gradients {
        timer.add(draft.took());
    }
    let mut applied = Ok(());
    timer.update(|| {
        applied = match gradients {
            Gradients::Arrived(payload) => contents.apply(&[payload], learning_rate_factor, 1, pool, threads),
            Gradients::Drafted(draft) => contents.apply_draft(draft, learning_rate_factor, pool, threads),
        };
        applied.is_ok()
    });
    applied
}

/// Decides about a push that is new and has passed all earlier checks: it is applied, held or dropped.
/// Changes only the policy and the members. Returns the gradients decoded, unless the push is dropped.
///
/// # Errors
/// If the worker has sent the push before it could have had the values for this step, if the gradients
/// cannot be decoded or are not finite, or if they were drafted and the draft does not lead from the current
/// version.
fn decide(
    contents: &mut Contents,
    push: &Push,
    mut gradients: Gradients,
    (timer, pool, threads): (&mut UpdateTimer, &BufferPool, &UpdateThreads),
) -> Result<(Decision, Gradients), Refusal> {
    let candidate = Candidate { worker: push.id.worker, read: push.version };
    if contents.is_complete() {
        return Ok((Decision::Stopped, gradients));
    }
    let may_push = contents.may_push(candidate.worker);
    if let Some(other) = push.with.iter().find(|other| contents.may_push(other.id.worker) != may_push) {
        return Err(alone(other.id.worker));
    }
    if contents.reopened && !may_push {
        // The worker was released when the shard reached its earlier end, so it pushes for a step that has
        // not begun. The push is dropped as stale, and the worker then waits for its step like the others.
        let by = contents.version.0 - push.version.0;
        return Ok((Decision::Admitted(Admission::Stale { by }), gradients));
    }
    contents.check_turn(candidate)?;
    if !contents.policy.is_late(candidate, contents.version) {
        match &mut gradients {
            Gradients::Arrived(gradients) => {
                contents.decode(gradients, timer, pool, threads)?;
                contents.check_finite(push, gradients, threads)?;
            }
            Gradients::Drafted(draft) => contents.check_draft(push, draft)?,
        }
    }
    let admission = contents.policy.admit(candidate, contents.version, &mut contents.members);
    Ok((Decision::Admitted(admission), gradients))
}
