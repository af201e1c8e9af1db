//! The job as a state machine: who is here, what they wait for, and when it ends. Knows no socket and no clock; `R` is
//! whatever a reply is sent by. Wanted properties: (A) every request is answered once, asked again or not; (B) nobody
//! begins before all are ready; (C) a job ends exactly once, and well only if it was evaluated; (D) a worker that is away for
//! too long, is lost, or whose input has ended, never holds up the others; (E) a worker that has begun and leaves before
//! it has finished is told to the shards, once for each of its lives; (F) where the training is to stop before its end, nobody
//! evaluates another step than the one that the shards have agreed on, and a job that drains is not evaluated.

mod ending;
mod seen;
mod stopping;
mod worker;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use pushpull_messages::id::{GlobalStep, Incarnation, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Evaluation, Finished, Go, Message, Refusal, RefusalCode, Registered, Report, Reported, Resume,
    TrainingResult,
};
use pushpull_messages::observe::TraceSpec;
use pushpull_messages::placement::Placement;
use pushpull_transport::Peer;

use crate::checkpoint::SaveStatus;
use crate::error::ChiefError;
use crate::report::JobProgress;
pub(crate) use seen::{JobSeen, WorkerSeen};
use worker::{State, Worker};

/// Something that the actor has to carry out.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    Reply(R, Message),
    /// All workers are ready: the clock starts.
    Started,
    /// All workers have finished, at that step, and the job is about to be evaluated: the clock stops.
    Trained(GlobalStep),
    /// That life of a worker takes part no more: the shards must not wait for it.
    Leave(u32, Incarnation),
    /// The job is over.
    Ended(Result<End, ChiefError>),
}

/// How a job ended well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Evaluated(Outcome),
    /// All workers have finished where they were told to, for another job to go on.
    Drained {
        step: GlobalStep,
    },
}

/// What a job has come to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub train_loss: f32,
    pub evaluation: Evaluation,
    pub workers: usize,
    pub skipped: u64,
    /// At which the training ended.
    pub step: GlobalStep,
    /// Why it ended before the job's last step, if it did.
    pub stopped: Option<String>,
}

/// What the job begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// The updates that are in the variables.
    pub step: GlobalStep,
    /// Where each worker goes on in its input.
    pub resumes: Vec<Resume>,
    /// Whether checkpoints are made.
    pub saves: bool,
    /// Which steps the workers trace, if any.
    pub trace: Option<TraceSpec>,
}

/// The training is to end before the job's last step.
#[derive(Clone, Debug)]
struct Stopping {
    reason: String,
    /// Without an evaluation, for another job to go on.
    drains: bool,
    /// At which step, once the shards have agreed.
    step: Option<GlobalStep>,
}

pub(crate) struct JobState<R> {
    job: JobSpec,
    placement: Option<Placement>,
    workers: BTreeMap<u32, Worker<R>>,
    phase: Phase,
    stopping: Option<Stopping>,
    /// Whether checkpoints are made.
    saves: bool,
    saved: SaveStatus,
    trace: Option<TraceSpec>,
    /// The updates that it began with.
    began: GlobalStep,
    global_step: GlobalStep,
    /// Steps that workers dropped because their gradients were not finite.
    skipped: u64,
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
    /// With the reason, if it failed.
    Ended(Option<String>),
}

fn refuse<R>(reply: R, reason: impl std::fmt::Display) -> Effect<R> {
    Effect::Reply(reply, Refusal::new(RefusalCode::Unavailable, reason).into())
}

/// The same was asked once more.
fn superseded<R>(reply: R) -> Effect<R> {
    Effect::Reply(reply, Refusal::superseded().into())
}

/// Nothing is left to do for the worker that asks.
fn done<R>(reply: R) -> Effect<R> {
    Effect::Reply(reply, Finished { evaluate: false, step: GlobalStep(0) }.into())
}

impl<R> JobState<R> {
    pub(crate) fn new(job: JobSpec, workers: u32) -> Self {
        Self {
            job,
            placement: None,
            workers: (0..workers).map(|index| (index, Worker::absent())).collect(),
            phase: Phase::Starting,
            stopping: None,
            saves: false,
            saved: SaveStatus::default(),
            trace: None,
            began: GlobalStep(0),
            global_step: GlobalStep(0),
            skipped: 0,
            input_ended: None,
        }
    }

    pub(crate) const fn job(&self) -> &JobSpec {
        &self.job
    }

    pub(crate) const fn global_step(&self) -> GlobalStep {
        self.global_step
    }

    /// The step at which the training ends, as far as is known.
    fn last_step(&self) -> GlobalStep {
        self.stopping.as_ref().and_then(|stopping| stopping.step).unwrap_or(self.job.last_step)
    }

    /// Workers that cannot be reached, while the job has not begun.
    fn missing(&self) -> Vec<TaskId> {
        if !matches!(self.phase, Phase::Starting) {
            return Vec::new();
        }
        self.workers
            .iter()
            .filter(|(_, worker)| !worker.is_present())
            .map(|(&index, _)| TaskId::worker(index))
            .collect()
    }

    /// Whether it has failed, and waits for the workers to leave.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self.phase, Phase::Failing(_))
    }

    /// Workers that are waited for after their connection broke, each with that connection: when one has been away for
    /// too long, it is to be [`lost`](Self::lost). Before the job begins they may take as long as all others.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let limited = !matches!(self.phase, Phase::Starting | Phase::Ended(_));
        let away = self.workers.iter().filter(move |(_, worker)| limited && worker.is_here() && worker.away);
        away.map(|(&index, worker)| (index, worker.connection))
    }

    pub(crate) fn progress(&self) -> JobProgress {
        let trains = |worker: &&Worker<R>| worker.is_present() && matches!(worker.state, State::Training);
        let losses: Vec<f32> = self.workers.values().filter_map(|worker| worker.loss).collect();
        let mean = losses.iter().sum::<f32>() / losses.len() as f32;
        JobProgress {
            running: matches!(self.phase, Phase::Training),
            global_step: self.global_step,
            last_step: self.last_step(),
            gradients_per_update: self.job.sync.gradients_per_update(self.workers.len() as u32),
            loss: (!losses.is_empty()).then_some(mean),
            workers: self.workers.values().filter(trains).count(),
            missing: self.missing(),
            saves: self.saved.saves,
            saves_failed: self.saved.failed,
            last_checkpoint: self.saved.last,
        }
    }

    /// What has become of the checkpoints.
    pub(crate) const fn saved(&mut self, saved: SaveStatus) {
        self.saved = saved;
    }

    /// Every variable has the value that it begins with.
    pub(crate) fn created(&mut self, placement: Placement, start: Start) -> Vec<Effect<R>> {
        self.placement = Some(placement);
        (self.global_step, self.began) = (start.step, start.step);
        (self.saves, self.trace) = (start.saves, start.trace);
        for (worker, resume) in self.workers.values_mut().zip(start.resumes) {
            worker.resume = resume;
        }
        let waiting = self.in_state(|state| matches!(state, State::Registered(_)));
        waiting.into_iter().flat_map(|index| self.tell_job(index)).collect()
    }

    /// A worker has opened a connection. It may have nothing to ask now; but it is there.
    pub(crate) fn connected(&mut self, peer: &Peer) -> Vec<Effect<R>> {
        let Some(worker) = self.workers.get(&peer.task.index) else { return Vec::new() };
        if worker.incarnation != Some(peer.incarnation) || peer.connection < worker.connection {
            return Vec::new();
        }
        self.is_back(peer);
        self.proceed()
    }

    /// A request of a worker.
    pub(crate) fn request(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        let worker = self.worker(index);
        let mut effects = match worker.incarnation.map(|known| peer.incarnation.cmp(&known)) {
            Some(Ordering::Equal) if peer.connection < worker.connection => {
                vec![superseded(reply)]
            }
            Some(Ordering::Equal) => {
                self.is_back(peer);
                self.answer(index, message, reply)
            }
            Some(Ordering::Less) => vec![refuse(
                reply,
                format!(
                    "worker/{index} has been started again since this one was, or the clock there was set back"
                ),
            )],
            Some(Ordering::Greater) | None => self.arrive(peer, message, reply),
        };
        effects.extend(self.proceed());
        effects
    }

    /// A worker's connection is broken.
    pub(crate) fn disconnected(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let Some(worker) = self.workers.get_mut(&index) else { return };
        let known = worker.incarnation == Some(peer.incarnation) && worker.connection == peer.connection;
        if !known || !worker.is_here() {
            return;
        }
        worker.away = true;
        match &self.phase {
            Phase::Starting => {
                tracing::warn!("worker/{index} is gone before the job began; it may come again");
            }
            Phase::Ended(_) => {}
            _ => tracing::warn!("the connection to worker/{index} is broken; waiting for it to come back"),
        }
    }

    /// A worker has been away for too long since that connection broke.
    pub(crate) fn lost(&mut self, index: u32, connection: u64) -> Vec<Effect<R>> {
        if !self.awaited().any(|awaited| awaited == (index, connection)) {
            return Vec::new();
        }
        tracing::warn!("worker/{index} is lost at step {}; the others go on", self.global_step);
        let mut effects = self.lose(index);
        effects.extend(self.proceed());
        effects
    }

    fn in_state(&self, wanted: impl Fn(&State<R>) -> bool) -> Vec<u32> {
        self.workers.iter().filter(|(_, worker)| wanted(&worker.state)).map(|(&index, _)| index).collect()
    }

    fn worker(&mut self, index: u32) -> &mut Worker<R> {
        self.workers.get_mut(&index).expect("only workers of the job are admitted")
    }

    /// The life that is known speaks over its latest connection.
    fn is_back(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let worker = self.worker(index);
        worker.connection = peer.connection;
        worker.http.clone_from(&peer.http);
        if std::mem::take(&mut worker.away) && worker.is_here() {
            tracing::info!("worker/{index} is back");
        }
    }

    /// A life that is not known yet: it can only register.
    fn arrive(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        if !matches!(message, Message::Register(_)) {
            let reason = self.over().unwrap_or_else(|| out_of_turn(index, message.name()));
            return vec![refuse(reply, reason)];
        }
        let worker = self.worker(index);
        if worker.is_present() {
            let reason = format!("worker/{index} is here already: is the same task started twice?");
            return vec![refuse(reply, reason)];
        }
        let mut effects = Vec::new();
        if worker.is_here() {
            tracing::warn!("worker/{index} has been started again");
            effects = self.lose(index);
        }
        let refusal = match &self.phase {
            Phase::Evaluating(_) => Some("the job has been trained, and is being evaluated".to_owned()),
            _ => self.over(),
        };
        let worker = self.worker(index);
        (worker.incarnation, worker.connection, worker.away) =
            (Some(peer.incarnation), peer.connection, false);
        worker.told_to_stop = false;
        worker.lives += 1;
        worker.http.clone_from(&peer.http);
        if let Some(reason) = refusal {
            worker.state = State::Left;
            effects.push(refuse(reply, reason));
            return effects;
        }
        worker.state = State::Registered(reply);
        tracing::info!("worker/{index} is here");
        if self.placement.is_some() {
            effects.extend(self.tell_job(index));
        }
        effects
    }

    /// A request of the life that is known, perhaps not for the first time.
    fn answer(&mut self, index: u32, message: Message, reply: R) -> Vec<Effect<R>> {
        let over = self.over();
        match (message, &self.worker(index).state) {
            (Message::Report(report), _) => vec![self.reported(index, &report, reply)],
            (Message::Finish(finish), State::Left | State::Lost) => match (over, finish.result) {
                // The first time it was told the same.
                (Some(reason), TrainingResult::Completed | TrainingResult::InputEnded(_))
                    if !matches!(self.phase, Phase::Ended(None)) =>
                {
                    vec![refuse(reply, reason)]
                }
                _ => vec![done(reply)],
            },
            (Message::Finish(finish), _) => self.finished(index, *finish, reply),
            (Message::Evaluated(_), State::Left) => vec![done(reply)],
            (Message::Evaluated(evaluated), State::Evaluating) => self.evaluated(index, *evaluated, reply),
            (_, State::Lost) => vec![refuse(reply, too_late(index))],
            (Message::Register(_) | Message::Ready(_), _) if over.is_some() => {
                over.map(|reason| refuse(reply, reason)).into_iter().collect()
            }
            (Message::Register(_), State::Registered(_)) => self.keep(index, State::Registered(reply)),
            (Message::Register(_), State::Preparing) => {
                self.worker(index).state = State::Registered(reply);
                self.tell_job(index)
            }
            (Message::Ready(_), State::Preparing | State::Ready(_)) => self.keep(index, State::Ready(reply)),
            (Message::Ready(_), State::Training) => vec![Effect::Reply(reply, Go {}.into())],
            (message, _) => vec![refuse(reply, out_of_turn(index, message.name()))],
        }
    }

    /// The newer reply of a request that was perhaps made before.
    fn keep(&mut self, index: u32, state: State<R>) -> Vec<Effect<R>> {
        let older = self.worker(index).put(state);
        older.map(|older| superseded(older)).into_iter().collect()
    }

    fn tell_job(&mut self, index: u32) -> Vec<Effect<R>> {
        let placement = self.placement.clone().expect("variables are placed");
        let workers = self.workers.len() as u32;
        let (resume, saves, trace) = (self.worker(index).resume, self.saves, self.trace);
        let registered = Registered { job: self.job.clone(), placement, workers, resume, saves, trace };
        let reply = self.worker(index).put(State::Preparing);
        reply.map(|reply| Effect::Reply(reply, registered.into())).into_iter().collect()
    }

    fn reported(&mut self, index: u32, report: &Report, reply: R) -> Effect<R> {
        let mut stop = self.over();
        match self.worker(index).state {
            State::Training => {
                // A worker may be wrong, but never beyond the end.
                self.global_step = self.global_step.max(report.global_step).min(self.last_step());
                let batch_size = self.job.batch_size;
                self.worker(index).has_drawn(report.drawn, batch_size);
                if report.loss.is_finite() {
                    self.worker(index).loss = Some(report.loss);
                }
            }
            State::Lost => stop = stop.or_else(|| Some(too_late(index))),
            _ => {}
        }
        Effect::Reply(reply, Reported { stop, clock_us: 0 }.into())
    }

    /// Whatever can happen now that something has changed.
    fn proceed(&mut self) -> Vec<Effect<R>> {
        match &self.phase {
            Phase::Starting => self.begin_if_ready(),
            Phase::Training => {
                let mut effects = self.go();
                effects.extend(self.evaluate_if_trained());
                effects
            }
            Phase::Failing(_) if self.workers.values().all(Worker::is_over) => self.end_failing(),
            _ => Vec::new(),
        }
    }

    fn begin_if_ready(&mut self) -> Vec<Effect<R>> {
        let ready = |worker: &Worker<R>| worker.is_present() && matches!(worker.state, State::Ready(_));
        if !self.workers.values().all(ready) {
            return Vec::new();
        }
        self.phase = Phase::Training;
        let mut effects = vec![Effect::Started];
        effects.extend(self.go());
        effects
    }

    /// The word to begin, to all that wait for it.
    fn go(&mut self) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        for index in self.in_state(|state| matches!(state, State::Ready(_))) {
            let reply = self.worker(index).put(State::Training);
            effects.extend(reply.map(|reply| Effect::Reply(reply, Go {}.into())));
        }
        effects
    }
}

fn out_of_turn(index: u32, name: &str) -> String {
    format!("worker/{index} says {name} out of turn")
}

fn too_late(index: u32) -> String {
    format!(
        "worker/{index} was away for too long, and the others go on without it: start it again to join them"
    )
}

#[cfg(test)]
pub(crate) mod tests;
