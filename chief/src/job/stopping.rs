//! Handles the stop of a job before its last step. The shards agree on the step at which to stop. The job
//! then ends for good, or it drains so that another job can continue.

use pushpull_messages::id::GlobalStep;

use super::member::{Member, MemberState};
use super::{EarlyStop, Effect, JobState, Phase, TrainingEnd, done};
use crate::error::ChiefError;

impl<R> JobState<R> {
    /// Begins to stop the training. The caller then lets the shards agree on the step at which to stop. If
    /// `drains` is true, the job is not evaluated. A second call may turn a stop for good into a drain, but
    /// not a drain into a stop for good.
    pub(crate) fn stop(&mut self, reason: String, drains: bool) -> Vec<Effect<R>> {
        match (&self.phase, &mut self.stopping) {
            (Phase::Failing(_) | Phase::Settling(_) | Phase::Concluding | Phase::Ended(_), _) => Vec::new(),
            (Phase::Starting, _) if drains => self.end_drain(),
            (_, Some(stopping)) => {
                stopping.drains |= drains;
                self.proceed()
            }
            (_, none) => {
                *none = Some(EarlyStop { reason, drains, step: None });
                Vec::new()
            }
        }
    }

    /// Records the step at which the shards have agreed to stop.
    pub(crate) fn stopping_at(&mut self, step: GlobalStep) -> Vec<Effect<R>> {
        if let Some(stopping) = &mut self.stopping {
            stopping.step = Some(step);
            self.global_step = self.global_step.min(step);
        }
        self.proceed()
    }

    /// Ends a drain whose time is over: the job no longer waits for workers that have not finished. A job
    /// that was evaluated before this time was over ends as trained.
    pub(crate) fn end_drain(&mut self) -> Vec<Effect<R>> {
        if matches!(self.phase, Phase::Settling(_) | Phase::Concluding) {
            return self.settled(None);
        }
        let mut effects = self.let_finished_go();
        let (step, last_step) = (self.global_step, self.job.last_step);
        effects.extend(self.begin_failing(ChiefError::Interrupted { step, last_step }));
        effects.extend(self.end_failing());
        effects
    }

    /// Returns whether the job drains, so that another job can continue from it.
    pub(super) fn drains(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.drains)
    }

    /// Returns whether the job is stopping and the shards have not agreed on the step yet.
    pub(super) fn is_agreeing(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.step.is_none())
    }

    /// Ends a draining job whose remaining workers have all finished.
    pub(super) fn drained(&mut self) -> Vec<Effect<R>> {
        self.phase = Phase::Concluding;
        vec![Effect::Ended(Ok(TrainingEnd::Drained { step: self.last_step() }))]
    }

    /// Tells the workers that nothing is left to do, after the job has been saved and reported.
    pub(crate) fn release(&mut self) -> Vec<Effect<R>> {
        if !matches!(self.phase, Phase::Concluding) {
            return Vec::new();
        }
        self.phase = Phase::Ended(None);
        self.let_finished_go()
    }

    /// Tells all finished workers that nothing is left to do.
    pub(super) fn let_finished_go(&mut self) -> Vec<Effect<R>> {
        let go = |member: &mut Member<R>| match member.state {
            MemberState::Finished(_) => member.put(MemberState::Left).map(done),
            _ => None,
        };
        self.members.values_mut().filter_map(go).collect()
    }
}
