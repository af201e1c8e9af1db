//! Handles workers that leave, and the end of the job: with an evaluation, or with an error that is reported
//! to all workers.

use pushpull_messages::id::{LocalStep, TaskId};
use pushpull_messages::message::{Evaluated, Evaluation, Finish, Finished, TrainingResult};
use pushpull_messages::sync::LeaveSpec;
use tracing::{info, warn};

use super::member::{Member, MemberState};
use super::{
    Effect, JobState, MembershipOrder, Phase, Settled, TRAINED, TrainingEnd, TrainingOutcome, done,
    out_of_turn, refuse, superseded, too_late,
};
use crate::error::ChiefError;

impl<R> JobState<R> {
    /// Fails the job with this error. The error is reported to the workers, and the job ends when they have
    /// left. If the error says that another chief leads the job, this chief ends the job at once, and workers
    /// that train go on under the other chief.
    pub(crate) fn fail(&mut self, error: ChiefError) -> Vec<Effect<R>> {
        let other_chief = error.is_other_chief();
        let mut effects = self.begin_failing(error);
        if other_chief {
            self.abandoned = true;
            effects.extend(self.end_failing());
        }
        effects.extend(self.proceed());
        effects
    }

    /// Ends a job that has failed, even if workers have not left yet.
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

    /// Returns the reason why workers can no longer take part, or `None` if they still can.
    pub(super) fn over(&self) -> Option<String> {
        match &self.phase {
            Phase::Failing(error) => Some(format!("the job is ending: {error}")),
            Phase::Ended(Some(reason)) => Some(format!("the job has ended: {reason}")),
            Phase::Ended(None) => Some("the job has ended".into()),
            _ => None,
        }
    }

    pub(super) fn begin_failing(&mut self, error: ChiefError) -> Vec<Effect<R>> {
        if matches!(self.phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_)) {
            return Vec::new();
        }
        // A failing job waits for workers that have not registered yet, in order to report the error to
        // them. The job does not wait if the start timeout is over or an operator has interrupted it.
        let tell_absent = !matches!(error, ChiefError::Missing { .. } | ChiefError::Interrupted { .. });
        let reason = error.to_string();
        let mut effects = Vec::new();
        for member in self.members.values_mut() {
            match member.state {
                MemberState::Registered(_) | MemberState::Ready(_) | MemberState::Finished(_) => {
                    let refused = |reply| refuse(reply, format!("the job is ending: {reason}"));
                    effects.extend(member.put(MemberState::Left).map(refused));
                }
                MemberState::Absent if !tell_absent => member.state = MemberState::Left,
                // Workers in other states receive the reason as the reply to their next request.
                _ => {}
            }
        }
        self.phase = Phase::Failing(error);
        effects
    }

    /// Removes a worker whose current incarnation has ended without reporting that it leaves.
    pub(super) fn lose(&mut self, index: u32) -> Vec<Effect<R>> {
        let member = self.member(index);
        let counted = member.is_counted();
        (member.away, member.loss) = (false, None);
        member.metrics.clear();
        let reply = member.put(MemberState::Lost);
        let mut effects: Vec<_> = reply.map(|reply| refuse(reply, too_late(index))).into_iter().collect();
        self.stop_evaluating(index);
        effects.extend(self.leave_if(counted, index, "it is lost"));
        effects
    }

    /// Removes a worker if the shards count it as a member. Before the training begins, no worker of the
    /// cluster leaves: the others wait for it, and the shards must, too.
    fn leave_if(&mut self, counted: bool, index: u32, reason: &str) -> Vec<Effect<R>> {
        if counted && matches!(self.phase, Phase::Starting) && self.member(index).is_listed {
            self.member(index).expected = true;
            return Vec::new();
        }
        if counted { self.leave(index, reason) } else { Vec::new() }
    }

    /// Removes a worker that the shards count as a member, and that leaves before it has finished.
    pub(super) fn leave(&mut self, index: u32, reason: &str) -> Vec<Effect<R>> {
        if self.job.deterministic {
            let worker = TaskId::worker(index);
            warn!(%worker, "worker left a deterministic job; the result will differ from a run with all workers");
        }
        let suspended = self.suspended;
        let member = self.member(index);
        member.missed |= suspended && member.expected;
        let departures = member.departures();
        if suspended {
            // The shards of the lost task do not learn of the departure. They are told when the job resumes,
            // or when a later incarnation of the worker is appointed or leaves.
            member.ended.clone_from(&departures);
        }
        let leave = |incarnation| Effect::Order(MembershipOrder::Leave(index, incarnation));
        let mut effects: Vec<_> = departures.into_iter().map(leave).collect();
        // In a drain, the workers may be told to stop, too, so a worker that leaves does not fail the job.
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

    /// Puts the job back into its training phase if this worker was evaluating, so that another worker
    /// evaluates.
    pub(super) fn stop_evaluating(&mut self, index: u32) {
        if matches!(self.phase, Phase::Evaluating(evaluator) if evaluator == index) {
            self.phase = Phase::Training;
        }
    }

    /// Handles the message `Finish` of a worker that has not left. The message says how the training of the
    /// worker ended.
    pub(super) fn finished(&mut self, index: u32, finish: Finish, reply: R) -> Vec<Effect<R>> {
        let over = self.over();
        let Finish { result, local_step, loss, skipped } = finish;
        let member = self.member(index);
        let (training, counted) = (matches!(member.state, MemberState::Training), member.is_counted());
        if self.suspended && over.is_none() && matches!(result, TrainingResult::GaveUp(_)) {
            return self.end_incarnation(index, reply);
        }
        let waits = matches!(result, TrainingResult::Completed | TrainingResult::InputEnded(_));
        match (&self.member(index).state, &over) {
            (MemberState::Finished(_), None) if waits => {
                return self.keep(index, MemberState::Finished(reply));
            }
            (MemberState::Evaluating, None) if waits => {
                return vec![Effect::Reply(
                    reply,
                    Finished { evaluate: true, step: self.last_step() }.into(),
                )];
            }
            (MemberState::Registered(_) | MemberState::Preparing | MemberState::Ready(_), None) if waits => {
                return vec![refuse(reply, out_of_turn(index, "Finish"))];
            }
            _ => {}
        }
        self.skipped = self.skipped.saturating_add(if training { skipped } else { 0 });
        let member = self.member(index);
        member.loss = None;
        let older = member.put(MemberState::Left);
        let mut effects: Vec<_> = older.map(|older| superseded(older)).into_iter().collect();
        self.stop_evaluating(index);
        if over.is_none() && waits {
            let member = self.member(index);
            member.state = MemberState::Finished(reply);
            member.loss = loss.is_finite().then_some(loss);
        } else {
            self.member(index).metrics.clear();
            effects.push(match over {
                Some(reason) if waits => refuse(reply, reason),
                _ => done(reply),
            });
        }
        if training {
            effects.extend(self.stop_training(index, result, local_step));
            return effects;
        }
        self.member(index).interrupted = result == TrainingResult::Interrupted;
        if let TrainingResult::Failed(reason) | TrainingResult::GaveUp(reason) = result {
            effects.extend(self.fail_or_go_on(index, reason));
        }
        effects.extend(self.leave_if(counted, index, "it left before it began"));
        effects
    }

    /// Handles the failure of a worker that still prepares its training, or that evaluates.
    fn fail_or_go_on(&mut self, index: u32, reason: String) -> Vec<Effect<R>> {
        match self.phase {
            Phase::Starting => return self.begin_failing(failed(index, reason)),
            // The other workers go on without this worker.
            Phase::Training | Phase::Evaluating(_) => {
                let worker = TaskId::worker(index);
                warn!(%worker, reason, "worker left; the job goes on without it");
                self.gave_up = Some((worker, reason));
            }
            Phase::Failing(_) | Phase::Settling(_) | Phase::Concluding | Phase::Ended(_) => {}
        }
        Vec::new()
    }

    /// Handles the end of a worker's training: it made `steps` local steps and ended with `result`.
    fn stop_training(&mut self, index: u32, result: TrainingResult, steps: LocalStep) -> Vec<Effect<R>> {
        let worker = TaskId::worker(index);
        match result {
            TrainingResult::Completed => {
                self.global_step = self.last_step();
                info!(%worker, %steps, "worker finished");
                Vec::new()
            }
            // The evaluation needs the variables of the last step. It therefore fails if the inputs of all
            // workers together were too short.
            TrainingResult::InputEnded(how) => {
                warn!(%worker, reason = how, "worker has no more input; waiting for the other workers");
                let effects = self.leave(index, &how);
                self.input_ended.get_or_insert((worker, how));
                effects
            }
            TrainingResult::Interrupted => {
                warn!(%worker, %steps, "worker was told to stop and left");
                self.member(index).interrupted = true;
                self.leave(index, "it was told to stop")
            }
            // The worker may have given up because it cannot reach a ps task. If the chief cannot reach that
            // ps task either, the chief detects this itself.
            TrainingResult::GaveUp(reason) => {
                warn!(%worker, %steps, reason, "worker gave up and left");
                let effects = self.leave(index, &reason);
                self.gave_up = Some((worker, reason));
                effects
            }
            TrainingResult::Failed(reason) => {
                let mut effects = self.begin_failing(failed(index, reason));
                effects.extend(self.leave(index, "it failed"));
                effects
            }
        }
    }

    /// Handles the message `Evaluated` of the worker that was told to evaluate: the message has the
    /// evaluation, or the reason why the evaluation failed.
    pub(super) fn evaluated(&mut self, index: u32, evaluated: Evaluated, reply: R) -> Vec<Effect<R>> {
        if self.suspended && self.over().is_none() {
            // The job could not be saved and reported while a ps task is lost, so the evaluation is repeated
            // later.
            return self.end_incarnation(index, reply);
        }
        self.member(index).state = MemberState::Left;
        if let Some(reason) = self.over() {
            return vec![refuse(reply, reason)];
        }
        let mut effects = Vec::new();
        match evaluated.result {
            Err(mut reason) => {
                effects.push(done(reply));
                if let Some((worker, how)) = self.input_ended.take() {
                    reason.push_str(&format!("; earlier, {worker} had no more input: {how}"));
                }
                effects.extend(self.begin_failing(failed(index, reason)));
            }
            Ok(evaluation) => {
                self.member(index).state = MemberState::Finished(reply);
                effects.push(Effect::Evaluated(self.last_step(), evaluation.clone()));
                self.phase = Phase::Settling(Box::new(self.outcome(evaluation)));
                if !self.settles {
                    effects.extend(self.settled(None));
                }
            }
        }
        effects
    }

    /// Returns the outcome of the training, with this evaluation.
    fn outcome(&self, evaluation: Evaluation) -> TrainingOutcome {
        let (train_loss, workers) = self.mean_loss().unwrap_or((f32::NAN, 0));
        let step = self.last_step();
        let early = self.stopping.as_ref().filter(|_| step < self.job.last_step);
        TrainingOutcome {
            train_loss,
            evaluation,
            workers,
            skipped: self.skipped,
            rollbacks: self.rollbacks,
            began: self.began,
            step,
            stopped: early.map(|stopping| stopping.reason.clone()),
            settled: None,
        }
    }

    /// Ends the training of a job that was evaluated. From now on, the job cannot roll back.
    pub(crate) fn settled(&mut self, settled: Option<Settled>) -> Vec<Effect<R>> {
        match std::mem::replace(&mut self.phase, Phase::Concluding) {
            Phase::Settling(outcome) => {
                self.stopping = None;
                let outcome = TrainingOutcome { settled, ..*outcome };
                let mut effects = self.refuse_waiting();
                effects.push(Effect::Ended(Ok(TrainingEnd::Evaluated(outcome))));
                effects
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// Refuses the workers that have registered since the job was evaluated: it does not roll back any more.
    pub(super) fn refuse_waiting(&mut self) -> Vec<Effect<R>> {
        let waiting = self.in_state(|state| matches!(state, MemberState::Registered(_)));
        let replies = waiting.into_iter().filter_map(|index| self.member(index).put(MemberState::Left));
        replies.map(|reply| refuse(reply, TRAINED)).collect()
    }

    /// If all remaining workers have finished, tells one of them to evaluate; if none of them is connected,
    /// the first that reconnects will be told. If the job is being drained, it ends without an evaluation.
    /// If no worker is left, the job fails.
    pub(super) fn evaluate_if_trained(&mut self) -> Vec<Effect<R>> {
        if !self.members.values().any(Member::is_here) {
            let (step, last_step) = (self.global_step, self.job.last_step);
            // If all workers were told to stop, the whole job counts as told to stop.
            let mut known = self.members.values().filter(|member| member.is_known());
            let interrupted = self.saves && known.all(|member| member.interrupted);
            let gave_up = self.gave_up.take();
            return self.fail(match self.drains() || interrupted {
                true => ChiefError::Interrupted { step, last_step },
                false => ChiefError::NoWorkers { step, last_step, gave_up },
            });
        }
        if self.members.values().any(Member::is_busy) || self.is_agreeing() {
            return Vec::new();
        }
        if self.drains() {
            return self.drained();
        }
        let step = self.last_step();
        let mut effects = vec![Effect::Trained(step)];
        let present = self.members.iter().find(|(_, member)| member.is_present());
        if let Some(index) = present.map(|(&index, _)| index) {
            self.phase = Phase::Evaluating(index);
            let reply =
                self.member(index).put(MemberState::Evaluating).expect("a finished worker waits for a reply");
            effects.push(Effect::Reply(reply, Finished { evaluate: true, step }.into()));
        }
        effects
    }
}

fn failed(index: u32, reason: String) -> ChiefError {
    ChiefError::WorkerFailed { worker: TaskId::worker(index), reason }
}
