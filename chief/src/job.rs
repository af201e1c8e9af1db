//! The job as a state machine: who is here, what they wait for, and when it ends. Knows no socket and no clock;
//! `R` is whatever a reply is sent by.
//!
//! Wanted properties: (A) every request is answered once; (B) nobody begins before all are ready; (C) a job ends
//! exactly once, and well only if it was evaluated; (D) a worker that is lost, or whose input has ended, never holds up the
//! others.

use std::collections::BTreeMap;

use messages::id::{GlobalStep, TaskId};
use messages::job::JobSpec;
use messages::message::{
    Evaluated, Evaluation, Finish, Finished, Go, Message, Refusal, RefusalCode, Registered, Report, Reported,
    TrainingResult,
};
use messages::placement::Placement;

use crate::error::ChiefError;
use crate::report::JobProgress;

/// Something that the actor has to carry out.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    Reply(R, Message),
    /// All workers are ready: the clock starts.
    Started,
    /// All workers have finished: the clock stops.
    Trained,
    /// The job is over.
    Ended(Result<Outcome, ChiefError>),
}

/// How a job ended well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub train_loss: f32,
    pub evaluation: Evaluation,
    pub workers: usize,
}

pub(crate) struct JobState<R> {
    job: JobSpec,
    placement: Option<Placement>,
    workers: BTreeMap<u32, Worker<R>>,
    phase: Phase,
    global_step: GlobalStep,
    /// The first worker whose input has ended before the last step, and its words.
    input_ended: Option<(TaskId, String)>,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for variables and workers.
    Starting,
    Training,
    /// One worker evaluates.
    Evaluating(u32),
    /// It cannot go on, and waits for the workers to leave.
    Failing(ChiefError),
    Ended,
}

struct Worker<R> {
    /// The connection on which it has registered: only that one speaks for it, and only its end is the worker's.
    connection: Option<u64>,
    state: State<R>,
    /// What it told last.
    loss: Option<f32>,
}

enum State<R> {
    /// Not here yet.
    Absent,
    /// Waits to be told the job.
    Registered(R),
    /// Prepares.
    Preparing,
    /// Waits for the word to begin.
    Ready(R),
    Training,
    /// Waits to be told what is left to do.
    Finished(R),
    Evaluating,
    /// Gone before the end.
    Left,
}

impl<R> Worker<R> {
    fn is_here(&self) -> bool {
        !matches!(self.state, State::Absent | State::Left)
    }
}

impl<R> JobState<R> {
    pub(crate) fn new(job: JobSpec, workers: u32) -> Self {
        let worker = |_| Worker { connection: None, state: State::Absent, loss: None };
        Self {
            job,
            placement: None,
            workers: (0..workers).map(|index| (index, worker(index))).collect(),
            phase: Phase::Starting,
            global_step: GlobalStep(0),
            input_ended: None,
        }
    }

    pub(crate) const fn job(&self) -> &JobSpec {
        &self.job
    }

    pub(crate) const fn global_step(&self) -> GlobalStep {
        self.global_step
    }

    /// Workers that have not come, while the job has not begun.
    fn missing(&self) -> Vec<TaskId> {
        if !matches!(self.phase, Phase::Starting) {
            return Vec::new();
        }
        self.workers
            .iter()
            .filter(|(_, worker)| !worker.is_here())
            .map(|(&index, _)| TaskId::worker(index))
            .collect()
    }

    /// Whether it has failed, and waits for the workers to leave.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self.phase, Phase::Failing(_))
    }

    pub(crate) fn progress(&self) -> JobProgress {
        let training = || self.workers.values().filter(|worker| matches!(worker.state, State::Training));
        let losses: Vec<f32> = self.workers.values().filter_map(|worker| worker.loss).collect();
        let mean = losses.iter().sum::<f32>() / losses.len() as f32;
        JobProgress {
            running: matches!(self.phase, Phase::Training),
            global_step: self.global_step,
            last_step: self.job.last_step,
            loss: (!losses.is_empty()).then_some(mean),
            workers: training().count(),
            missing: self.missing(),
        }
    }

    /// Every variable has its initial value.
    pub(crate) fn created(&mut self, placement: Placement) -> Vec<Effect<R>> {
        self.placement = Some(placement);
        let waiting: Vec<u32> = self.in_state(|state| matches!(state, State::Registered(_)));
        waiting.into_iter().flat_map(|index| self.tell_job(index)).collect()
    }

    /// A request of worker `index`, on one of the chief's connections.
    pub(crate) fn request(
        &mut self,
        index: u32,
        connection: u64,
        message: Message,
        reply: R,
    ) -> Vec<Effect<R>> {
        let refuse = |reply: R, reason: String| {
            vec![Effect::Reply(reply, Refusal::new(RefusalCode::Unavailable, reason).into())]
        };
        match &self.phase {
            Phase::Failing(error) if !matches!(message, Message::Report(_) | Message::Finish(_)) => {
                return refuse(reply, format!("the job is ending: {error}"));
            }
            Phase::Evaluating(_) if matches!(message, Message::Register(_)) => {
                return refuse(reply, "the job has been trained, and is being evaluated".into());
            }
            Phase::Ended => return refuse(reply, "the job has ended".into()),
            _ => {}
        }
        let worker = self.workers.get_mut(&index).expect("only workers of the job are admitted");
        let its_own = worker.connection == Some(connection);
        match (message, &worker.state) {
            (Message::Register(_), State::Absent | State::Left) => {
                worker.connection = Some(connection);
                worker.state = State::Registered(reply);
                tracing::info!("worker/{index} is here");
                if self.placement.is_some() { self.tell_job(index) } else { Vec::new() }
            }
            (Message::Register(_), _) if !its_own => {
                refuse(reply, format!("worker/{index} is here already: is the same task started twice?"))
            }
            (Message::Ready(_), State::Preparing) if its_own => {
                worker.state = State::Ready(reply);
                self.begin_if_ready()
            }
            (Message::Report(report), State::Training) if its_own => self.reported(index, &report, reply),
            (Message::Finish(finish), state)
                if its_own && matches!(state, State::Preparing | State::Ready(_) | State::Training) =>
            {
                self.finished(index, *finish, reply)
            }
            (Message::Evaluated(evaluated), State::Evaluating) if its_own => {
                self.evaluated(index, *evaluated, reply)
            }
            (message, _) => refuse(reply, format!("worker/{index} says {} out of turn", message.name())),
        }
    }

    /// A worker's connection is gone.
    pub(crate) fn disconnected(&mut self, index: u32, connection: u64) -> Vec<Effect<R>> {
        let starting = matches!(self.phase, Phase::Starting);
        let Some(worker) = self.workers.get_mut(&index) else { return Vec::new() };
        if !worker.is_here() || worker.connection != Some(connection) {
            return Vec::new();
        }
        worker.state = if starting { State::Absent } else { State::Left };
        worker.loss = None;
        match &self.phase {
            Phase::Starting => {
                tracing::warn!("worker/{index} is gone before the job began; it may come again")
            }
            Phase::Ended => return Vec::new(),
            _ => tracing::warn!("worker/{index} is lost at step {}; the others go on", self.global_step),
        }
        if matches!(self.phase, Phase::Evaluating(evaluator) if evaluator == index) {
            self.phase = Phase::Training;
        }
        self.after_leaving()
    }

    /// The job cannot go on: the workers are told, and it ends when they have left.
    pub(crate) fn fail(&mut self, error: ChiefError) -> Vec<Effect<R>> {
        if matches!(self.phase, Phase::Failing(_) | Phase::Ended) {
            return Vec::new();
        }
        let reason = error.to_string();
        let mut effects = Vec::new();
        for worker in self.workers.values_mut() {
            match std::mem::replace(&mut worker.state, State::Left) {
                State::Registered(reply) | State::Ready(reply) | State::Finished(reply) => {
                    let refusal =
                        Refusal::new(RefusalCode::Unavailable, format!("the job is ending: {reason}"));
                    effects.push(Effect::Reply(reply, refusal.into()));
                }
                // Their next word is answered with the reason.
                state => worker.state = state,
            }
        }
        self.phase = Phase::Failing(error);
        effects.extend(self.after_leaving());
        effects
    }

    /// The workers had time enough to leave.
    pub(crate) fn end_failing(&mut self) -> Vec<Effect<R>> {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Failing(error) => vec![Effect::Ended(Err(error))],
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn in_state(&self, wanted: impl Fn(&State<R>) -> bool) -> Vec<u32> {
        self.workers.iter().filter(|(_, worker)| wanted(&worker.state)).map(|(&index, _)| index).collect()
    }

    fn worker(&mut self, index: u32) -> &mut Worker<R> {
        self.workers.get_mut(&index).expect("a worker of the job")
    }

    /// Replaces a worker's state, and gives the reply that it was waiting for.
    fn release(&mut self, index: u32, state: State<R>) -> Option<R> {
        match std::mem::replace(&mut self.worker(index).state, state) {
            State::Registered(reply) | State::Ready(reply) | State::Finished(reply) => Some(reply),
            _ => None,
        }
    }

    fn tell_job(&mut self, index: u32) -> Vec<Effect<R>> {
        let placement = self.placement.clone().expect("variables are placed");
        let workers = self.workers.len() as u32;
        let registered = Registered { job: self.job.clone(), placement, workers };
        let reply = self.release(index, State::Preparing);
        reply.map(|reply| Effect::Reply(reply, registered.into())).into_iter().collect()
    }

    fn begin_if_ready(&mut self) -> Vec<Effect<R>> {
        let begun = matches!(self.phase, Phase::Training);
        if !begun && !self.workers.values().all(|worker| matches!(worker.state, State::Ready(_))) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if !begun {
            self.phase = Phase::Training;
            effects.push(Effect::Started);
        }
        for index in self.in_state(|state| matches!(state, State::Ready(_))) {
            let reply = self.release(index, State::Training);
            effects.extend(reply.map(|reply| Effect::Reply(reply, Go {}.into())));
        }
        effects
    }

    fn reported(&mut self, index: u32, report: &Report, reply: R) -> Vec<Effect<R>> {
        // A worker may be wrong, but never beyond the end.
        self.global_step = self.global_step.max(report.global_step).min(self.job.last_step);
        if report.loss.is_finite() {
            self.worker(index).loss = Some(report.loss);
        }
        let stop = match &self.phase {
            Phase::Failing(error) => Some(error.to_string()),
            _ => None,
        };
        vec![Effect::Reply(reply, Reported { stop }.into())]
    }

    fn finished(&mut self, index: u32, finish: Finish, reply: R) -> Vec<Effect<R>> {
        let done = |reply| Effect::Reply(reply, Finished { evaluate: false }.into());
        if matches!(self.phase, Phase::Failing(_)) {
            self.worker(index).state = State::Left;
            let mut effects = vec![done(reply)];
            effects.extend(self.after_leaving());
            return effects;
        }
        match finish.result {
            TrainingResult::Completed if matches!(self.phase, Phase::Training) => {
                let worker = self.worker(index);
                worker.state = State::Finished(reply);
                worker.loss = finish.loss.is_finite().then_some(finish.loss);
                self.global_step = self.job.last_step;
                tracing::info!("worker/{index} has finished after {} steps", finish.local_step);
                self.after_leaving()
            }
            // Whether all inputs together were enough, the evaluation shows: it wants the last step's variables.
            TrainingResult::InputEnded(how) if matches!(self.phase, Phase::Training) => {
                let worker = self.worker(index);
                worker.state = State::Finished(reply);
                worker.loss = finish.loss.is_finite().then_some(finish.loss);
                tracing::warn!("worker/{index} waits for the others: {how}");
                self.input_ended.get_or_insert((TaskId::worker(index), how));
                self.after_leaving()
            }
            TrainingResult::Completed | TrainingResult::InputEnded(_) | TrainingResult::Interrupted => {
                self.worker(index).state = State::Left;
                tracing::warn!("worker/{index} leaves after {} steps", finish.local_step);
                let mut effects = vec![done(reply)];
                effects.extend(self.after_leaving());
                effects
            }
            TrainingResult::Failed(reason) => {
                self.worker(index).state = State::Left;
                let mut effects = vec![done(reply)];
                effects.extend(self.fail(ChiefError::WorkerFailed { worker: TaskId::worker(index), reason }));
                effects
            }
        }
    }

    fn evaluated(&mut self, index: u32, evaluated: Evaluated, reply: R) -> Vec<Effect<R>> {
        self.worker(index).state = State::Left;
        let mut effects = vec![Effect::Reply(reply, Finished { evaluate: false }.into())];
        match evaluated.result {
            Err(mut reason) => {
                if let Some((worker, how)) = self.input_ended.take() {
                    reason.push_str(&format!("; before, {worker} had said: {how}"));
                }
                effects.extend(self.fail(ChiefError::WorkerFailed { worker: TaskId::worker(index), reason }));
            }
            Ok(evaluation) => {
                for other in self.in_state(|state| matches!(state, State::Finished(_))) {
                    let reply = self.release(other, State::Left);
                    effects
                        .extend(reply.map(|reply| Effect::Reply(reply, Finished { evaluate: false }.into())));
                }
                let losses: Vec<f32> = self.workers.values().filter_map(|worker| worker.loss).collect();
                let train_loss = losses.iter().sum::<f32>() / losses.len() as f32;
                self.phase = Phase::Ended;
                effects.push(Effect::Ended(Ok(Outcome { train_loss, evaluation, workers: losses.len() })));
            }
        }
        effects
    }

    /// Somebody has finished, left or got lost: is there anybody left, and what is next?
    fn after_leaving(&mut self) -> Vec<Effect<R>> {
        let nobody = self.workers.values().all(|worker| !worker.is_here());
        match &self.phase {
            Phase::Failing(_) if nobody => return self.end_failing(),
            Phase::Training => {}
            _ => return Vec::new(),
        }
        if nobody {
            let (step, last_step) = (self.global_step, self.job.last_step);
            return self.fail(ChiefError::NoWorkers { step, last_step });
        }
        let busy = |worker: &Worker<R>| worker.is_here() && !matches!(worker.state, State::Finished(_));
        if self.workers.values().any(busy) {
            return Vec::new();
        }
        let index = self.in_state(|state| matches!(state, State::Finished(_)))[0];
        self.phase = Phase::Evaluating(index);
        let reply = self.release(index, State::Evaluating).expect("a finished worker waits for a reply");
        vec![Effect::Trained, Effect::Reply(reply, Finished { evaluate: true }.into())]
    }
}

#[cfg(test)]
mod tests;
