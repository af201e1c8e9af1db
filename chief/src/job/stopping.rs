//! How a job stops before its last step: at a step that the shards agree on, for good or for another job to go on.

use pushpull_messages::id::GlobalStep;

use super::worker::{State, Worker};
use super::{Effect, End, JobState, Phase, Stopping, done};
use crate::error::ChiefError;

impl<R> JobState<R> {
    /// The training is to stop, for this reason: the shards are about to be told where. It is not evaluated if it
    /// `drains`. Asked again, it may drain instead of ending for good, and not the other way round.
    pub(crate) fn stop(&mut self, reason: String, drains: bool) -> Vec<Effect<R>> {
        match (&self.phase, &mut self.stopping) {
            (Phase::Failing(_) | Phase::Ended(_), _) => Vec::new(),
            (Phase::Starting, _) if drains => self.end_drain(),
            (_, Some(stopping)) => {
                stopping.drains |= drains;
                self.proceed()
            }
            (_, none) => {
                *none = Some(Stopping { reason, drains, step: None });
                Vec::new()
            }
        }
    }

    /// The shards have agreed on the step at which the training stops.
    pub(crate) fn stopping_at(&mut self, step: GlobalStep) -> Vec<Effect<R>> {
        if let Some(stopping) = &mut self.stopping {
            stopping.step = Some(step);
            self.global_step = self.global_step.min(step);
        }
        self.proceed()
    }

    /// The time that a job may take to drain is over: whoever has not finished by now is not waited for.
    pub(crate) fn end_drain(&mut self) -> Vec<Effect<R>> {
        let mut effects = self.let_finished_go();
        let (step, last_step) = (self.global_step, self.job.last_step);
        effects.extend(self.begin_failing(ChiefError::Interrupted { step, last_step }));
        effects.extend(self.end_failing());
        effects
    }

    /// Whether it ends for another job to go on.
    pub(super) fn drains(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.drains)
    }

    /// Whether it is to stop, and not known where.
    pub(super) fn is_agreeing(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.step.is_none())
    }

    /// All who are left have finished: they may go.
    pub(super) fn drained(&mut self) -> Vec<Effect<R>> {
        let step = self.last_step();
        let mut effects = self.let_finished_go();
        self.phase = Phase::Ended(None);
        effects.push(Effect::Ended(Ok(End::Drained { step })));
        effects
    }

    /// Nothing is left to do for those who have finished.
    pub(super) fn let_finished_go(&mut self) -> Vec<Effect<R>> {
        let go = |worker: &mut Worker<R>| match worker.state {
            State::Finished(_) => worker.put(State::Left).map(done),
            _ => None,
        };
        self.workers.values_mut().filter_map(go).collect()
    }
}
