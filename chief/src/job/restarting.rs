//! Handles the loss of a ps task. While the chief finds out whether the task's variables are lost, too, the
//! job is suspended: no worker receives the description of the job. If the variables are lost, the job rolls
//! back to a checkpoint, and all workers register again. Otherwise the job goes on.

use pushpull_messages::id::{GlobalStep, TaskId};
use tracing::{info, warn};

use super::member::MemberState;
use super::order::MembershipOrder;
use super::{Effect, JobState, Phase, restart};
use crate::launch::HeldWorker;

impl<R> JobState<R> {
    /// Suspends the job, because a ps task is lost. Workers that train go on if they can.
    pub(crate) const fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Lets a suspended job go on, because all shards have their variables. The shards of the task that was
    /// lost may have missed orders, so the orders are given again.
    pub(crate) fn resume(&mut self) -> Vec<Effect<R>> {
        self.suspended = false;
        let mut effects = Vec::new();
        for (&index, member) in &mut self.members {
            let waits = matches!(member.state, MemberState::Registered(_) | MemberState::Restarting);
            if member.is_over() || member.has_left {
                // Nobody knows which of the worker's incarnations the shards of the lost task still count.
                let mut lives: Vec<_> = member.replaced.iter().copied().chain([member.last_life()]).collect();
                let ended = std::mem::take(&mut member.ended);
                lives.extend(ended.into_iter().filter(|life| !lives.contains(life)).collect::<Vec<_>>());
                let leave = |life| Effect::Order(MembershipOrder::Leave(index, life));
                effects.extend(lives.into_iter().map(leave));
            } else if let (Some(incarnation), false) = (member.incarnation, member.appointed || waits) {
                effects.push(Effect::Order(MembershipOrder::Appoint(index, incarnation)));
            }
        }
        // A worker that has registered since the training ended waits for a rollback, which does not come.
        effects.extend(match self.phase {
            Phase::Evaluating(_) | Phase::Settling(_) => self.refuse_waiting(),
            _ => self.take_on_waiting(),
        });
        effects.extend(self.proceed());
        if matches!(self.phase, Phase::Evaluating(_) | Phase::Settling(_)) {
            effects.push(Effect::SaveAgain(self.last_step()));
        }
        effects
    }

    /// Records that the ps task that a worker hosts was lost for good. So is the worker, if it is
    /// disconnected.
    pub(crate) fn host_lost(&mut self, index: u32) -> Vec<Effect<R>> {
        if !self.members.get(&index).is_some_and(|member| member.is_here() && member.away) {
            return Vec::new();
        }
        warn!(worker = %TaskId::worker(index), step = %self.global_step, "worker lost; the others go on");
        let mut effects = self.lose(index);
        effects.extend(self.proceed());
        effects
    }

    /// Rolls the job back: all workers have to register again. If an earlier run of the chief has begun the
    /// job, `workers` lists those that the remaining shards know; otherwise it is empty. Afterwards, the
    /// caller restores the variables and calls [`created`](Self::created).
    pub(crate) fn roll_back(&mut self, workers: &[HeldWorker]) -> Vec<Effect<R>> {
        if matches!(self.phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_)) {
            return Vec::new();
        }
        (self.placement, self.rolls_back) = (None, true);
        (self.global_step, self.skipped, self.input_ended) = (GlobalStep(0), 0, None);
        for (index, held) in (0..).zip(workers) {
            self.find(index, *held);
        }
        if matches!(self.phase, Phase::Evaluating(_) | Phase::Settling(_)) || !workers.is_empty() {
            self.phase = Phase::Training;
        }
        let mut effects = Vec::new();
        for member in self.members.values_mut() {
            (member.appointed, member.unknown, member.loss) = (false, false, None);
            (member.expected, member.missed, member.has_left) = (false, false, false);
            member.ended.clear();
            member.metrics.clear();
            // A worker that waits for the description of the job receives it when the variables are restored.
            if member.is_here() && !matches!(member.state, MemberState::Registered(_)) {
                effects.extend(member.put(MemberState::Restarting).map(restart));
            }
        }
        effects
    }

    /// Records what the remaining shards know about a worker.
    fn find(&mut self, index: u32, held: HeldWorker) {
        let Some(member) = self.members.get_mut(&index) else { return };
        match held {
            HeldWorker::Here { incarnation, .. } if member.incarnation.is_none() => {
                member.replace(incarnation);
                (member.state, member.away) = (MemberState::Training, true);
            }
            HeldWorker::Gone(incarnation) if member.incarnation.is_none() => {
                member.replace(incarnation);
                member.state = MemberState::Lost;
            }
            // The worker was never appointed, but the job waits for it as for the other workers.
            HeldWorker::Absent if matches!(member.state, MemberState::Absent) => {
                (member.state, member.away) = (MemberState::Training, true);
            }
            // The worker has registered with this chief already.
            HeldWorker::Here { .. } | HeldWorker::Gone(_) | HeldWorker::Absent => {}
        }
    }

    /// Ends a rollback after the variables have been restored. The restored shards do not know which workers
    /// have left, so the shards are told again.
    pub(super) fn restored(&mut self) -> Vec<Effect<R>> {
        self.suspended = false;
        if !std::mem::take(&mut self.rolls_back) {
            return Vec::new();
        }
        self.rollbacks += 1;
        let mut effects = Vec::new();
        for (&index, member) in &mut self.members {
            member.expected = !member.is_over();
            if member.is_over() {
                effects.push(Effect::Order(MembershipOrder::Leave(index, member.last_life())));
            }
        }
        if matches!(self.phase, Phase::Training) {
            // The training time begins again, because the steps are counted from here.
            effects.push(Effect::Started);
        }
        effects
    }

    /// Handles a worker that gives up or has evaluated while the job is suspended. The worker's process may
    /// register again. A worker that gives up has probably lost the same ps task as the chief.
    pub(super) fn end_incarnation(&mut self, index: u32, reply: R) -> Vec<Effect<R>> {
        info!(worker = %TaskId::worker(index), "worker registers again, because a ps task is lost");
        self.stop_evaluating(index);
        let member = self.member(index);
        member.loss = None;
        let older = member.put(MemberState::Restarting);
        older.into_iter().chain([reply]).map(restart).collect()
    }

    /// Ends the incarnation of a worker whose process registers again, because a ps task is lost or the job
    /// has rolled back. The shards learn of the end when the next incarnation is appointed.
    pub(super) fn end_before(&mut self, index: u32) -> Vec<Effect<R>> {
        self.stop_evaluating(index);
        let member = self.member(index);
        if member.is_counted() {
            member.ended.extend(member.incarnation);
        }
        member.loss = None;
        member.metrics.clear();
        member.put(MemberState::Lost).map(restart).into_iter().collect()
    }
}
