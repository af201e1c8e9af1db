//! How workers leave the job, and how the job ends: evaluated, or with an error that everybody is told.

use pushpull_messages::id::{LocalStep, TaskId};
use pushpull_messages::message::{Evaluated, Finish, Finished, TrainingResult};
use pushpull_messages::sync::LeaveSpec;

use super::worker::{State, Worker};
use super::{Effect, End, JobState, Outcome, Phase, done, out_of_turn, refuse, superseded, too_late};
use crate::error::ChiefError;

impl<R> JobState<R> {
    /// The job cannot go on: the workers are told, and it ends when they have left.
    pub(crate) fn fail(&mut self, error: ChiefError) -> Vec<Effect<R>> {
        let mut effects = self.begin_failing(error);
        effects.extend(self.proceed());
        effects
    }

    /// The workers had time enough to leave.
    pub(crate) fn end_failing(&mut self) -> Vec<Effect<R>> {
        match std::mem::replace(&mut self.phase, Phase::Ended(None)) {
            Phase::Failing(error) => {
                self.phase = Phase::Ended(Some(error.to_string()));
                vec![Effect::Ended(Err(error))]
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// Why nobody can take part any more, where that is so.
    pub(super) fn over(&self) -> Option<String> {
        match &self.phase {
            Phase::Failing(error) => Some(format!("the job is ending: {error}")),
            Phase::Ended(Some(reason)) => Some(format!("the job has ended: {reason}")),
            Phase::Ended(None) => Some("the job has ended".into()),
            _ => None,
        }
    }

    pub(super) fn begin_failing(&mut self, error: ChiefError) -> Vec<Effect<R>> {
        if matches!(self.phase, Phase::Failing(_) | Phase::Ended(_)) {
            return Vec::new();
        }
        // Who has not come yet is waited for, to be told the reason; but not who had its time, nor by one who wants the
        // job to end now.
        let tell_absent = !matches!(error, ChiefError::Missing { .. } | ChiefError::Interrupted { .. });
        let reason = error.to_string();
        let mut effects = Vec::new();
        for worker in self.workers.values_mut() {
            match worker.state {
                State::Registered(_) | State::Ready(_) | State::Finished(_) => {
                    let told = |reply| refuse(reply, format!("the job is ending: {reason}"));
                    effects.extend(worker.put(State::Left).map(told));
                }
                State::Absent if !tell_absent => worker.state = State::Left,
                // Their next word is answered with the reason.
                _ => {}
            }
        }
        self.phase = Phase::Failing(error);
        effects
    }

    /// This life of a worker ends without a word.
    pub(super) fn lose(&mut self, index: u32) -> Vec<Effect<R>> {
        let worker = self.worker(index);
        let training = matches!(worker.state, State::Training);
        (worker.away, worker.loss) = (false, None);
        let reply = worker.put(State::Lost);
        let mut effects: Vec<_> = reply.map(|reply| refuse(reply, too_late(index))).into_iter().collect();
        self.evaluates_no_more(index);
        if training {
            effects.extend(self.leave(index, "it is lost"));
        }
        effects
    }

    /// A worker that has begun takes part no more, before all is done.
    fn leave(&mut self, index: u32, reason: &str) -> Vec<Effect<R>> {
        let incarnation = self.worker(index).incarnation.expect("who has begun has registered");
        if self.job.deterministic {
            tracing::warn!(
                "worker/{index} leaves a deterministic job: it does not leave the bits of one in which all stay"
            );
        }
        let mut effects = vec![Effect::Leave(index, incarnation)];
        // When all are told to stop, some hear it first.
        if self.job.when_worker_leaves == LeaveSpec::Fail && !self.drains() {
            effects.extend(self.begin_failing(ChiefError::WorkerLeft {
                worker: TaskId::worker(index),
                step: self.global_step,
                last_step: self.job.last_step,
                reason: reason.to_owned(),
            }));
        }
        effects
    }

    /// Another one has to, if it was this one's turn.
    fn evaluates_no_more(&mut self, index: u32) {
        if matches!(self.phase, Phase::Evaluating(evaluator) if evaluator == index) {
            self.phase = Phase::Training;
        }
    }

    /// A worker that has not left yet says how its training ended.
    pub(super) fn finished(&mut self, index: u32, finish: Finish, reply: R) -> Vec<Effect<R>> {
        let over = self.over();
        let Finish { result, local_step, loss, skipped } = finish;
        let training = matches!(self.worker(index).state, State::Training);
        let waits = matches!(result, TrainingResult::Completed | TrainingResult::InputEnded(_));
        match (&self.worker(index).state, &over) {
            (State::Finished(_), None) if waits => return self.keep(index, State::Finished(reply)),
            (State::Evaluating, None) if waits => {
                return vec![Effect::Reply(
                    reply,
                    Finished { evaluate: true, step: self.last_step() }.into(),
                )];
            }
            (State::Registered(_) | State::Preparing | State::Ready(_), None) if waits => {
                return vec![refuse(reply, out_of_turn(index, "Finish"))];
            }
            _ => {}
        }
        self.skipped = self.skipped.saturating_add(if training { skipped } else { 0 });
        let older = self.worker(index).put(State::Left);
        let mut effects: Vec<_> = older.map(|older| superseded(older)).into_iter().collect();
        self.evaluates_no_more(index);
        if over.is_none() && waits {
            let worker = self.worker(index);
            worker.state = State::Finished(reply);
            worker.loss = loss.is_finite().then_some(loss);
        } else {
            effects.push(match over {
                Some(reason) if waits => refuse(reply, reason),
                _ => done(reply),
            });
        }
        if training {
            effects.extend(self.trains_no_more(index, result, local_step));
        } else if let TrainingResult::Failed(reason) = result {
            effects.extend(self.begin_failing(failed(index, reason)));
        }
        effects
    }

    /// What follows for the others from how a worker's training ended.
    fn trains_no_more(&mut self, index: u32, result: TrainingResult, after: LocalStep) -> Vec<Effect<R>> {
        match result {
            TrainingResult::Completed => {
                self.global_step = self.last_step();
                tracing::info!("worker/{index} has finished after {after} steps");
                Vec::new()
            }
            // Whether all inputs together were enough, the evaluation shows: it wants the last step's variables.
            TrainingResult::InputEnded(how) => {
                tracing::warn!("worker/{index} waits for the others: {how}");
                let effects = self.leave(index, &how);
                self.input_ended.get_or_insert((TaskId::worker(index), how));
                effects
            }
            TrainingResult::Interrupted => {
                tracing::warn!("worker/{index} leaves after {after} steps");
                self.worker(index).told_to_stop = true;
                self.leave(index, "it was told to stop")
            }
            TrainingResult::Failed(reason) => {
                let mut effects = self.begin_failing(failed(index, reason));
                effects.extend(self.leave(index, "it failed"));
                effects
            }
        }
    }

    pub(super) fn evaluated(&mut self, index: u32, evaluated: Evaluated, reply: R) -> Vec<Effect<R>> {
        self.worker(index).state = State::Left;
        if let Some(reason) = self.over() {
            return vec![refuse(reply, reason)];
        }
        let mut effects = vec![done(reply)];
        match evaluated.result {
            Err(mut reason) => {
                if let Some((worker, how)) = self.input_ended.take() {
                    reason.push_str(&format!("; before, {worker} had said: {how}"));
                }
                effects.extend(self.begin_failing(failed(index, reason)));
            }
            Ok(evaluation) => {
                effects.extend(self.let_finished_go());
                let losses: Vec<f32> = self.workers.values().filter_map(|worker| worker.loss).collect();
                let train_loss = losses.iter().sum::<f32>() / losses.len() as f32;
                self.phase = Phase::Ended(None);
                let (workers, skipped, step) = (losses.len(), self.skipped, self.last_step());
                let early = self.stopping.take().filter(|_| step < self.job.last_step);
                let stopped = early.map(|stopping| stopping.reason);
                let outcome = Outcome { train_loss, evaluation, workers, skipped, step, stopped };
                effects.push(Effect::Ended(Ok(End::Evaluated(outcome))));
            }
        }
        effects
    }

    /// When all who are left have finished, one of them evaluates: one that can be reached, as soon as there is one.
    pub(super) fn evaluate_if_trained(&mut self) -> Vec<Effect<R>> {
        if !self.workers.values().any(Worker::is_here) {
            let (step, last_step) = (self.global_step, self.job.last_step);
            // Where all were told to stop, so was the job.
            let told = self.saves && self.workers.values().all(|worker| worker.told_to_stop);
            return self.fail(match self.drains() || told {
                true => ChiefError::Interrupted { step, last_step },
                false => ChiefError::NoWorkers { step, last_step },
            });
        }
        if self.workers.values().any(Worker::is_busy) || self.is_agreeing() {
            return Vec::new();
        }
        if self.drains() {
            return self.drained();
        }
        let step = self.last_step();
        let mut effects = vec![Effect::Trained(step)];
        let present = self.workers.iter().find(|(_, worker)| worker.is_present());
        if let Some(index) = present.map(|(&index, _)| index) {
            self.phase = Phase::Evaluating(index);
            let reply =
                self.worker(index).put(State::Evaluating).expect("a finished worker waits for a reply");
            effects.push(Effect::Reply(reply, Finished { evaluate: true, step }.into()));
        }
        effects
    }
}

fn failed(index: u32, reason: String) -> ChiefError {
    ChiefError::WorkerFailed { worker: TaskId::worker(index), reason }
}
