//! The job as a state machine: which workers are members, what they wait for, and when the job ends. Knows no
//! socket and no clock; `R` is the handle that a reply is sent with.

mod conclusion;
mod early_end;
mod ending;
mod member;
mod status;
mod stopping;

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
use tracing::{info, warn};

use crate::checkpoint::SaveStatus;
use crate::error::ChiefError;
use crate::report::JobProgress;
pub(crate) use conclusion::conclude;
pub(crate) use early_end::{LastSave, SaveLimit, early_end};
use member::{Member, MemberState};
pub(crate) use status::{Headline, JobStatus, MemberStatus};

/// An effect that the actor has to carry out.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Sends a reply.
    Reply(R, Message),
    /// All workers are ready, and the training time starts.
    Started,
    /// All workers have finished at this step, and the training time stops. The job is about to be evaluated.
    Trained(GlobalStep),
    /// This life of a worker has left, and the shards must not wait for it.
    Leave(u32, Incarnation),
    /// The job has ended.
    Ended(Result<TrainingEnd, ChiefError>),
}

/// A good end of the training.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TrainingEnd {
    /// The variables were evaluated.
    Evaluated(TrainingOutcome),
    /// All workers have finished at this step, so that another job can go on from there.
    Drained { step: GlobalStep },
}

/// The outcome of a job that was evaluated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainingOutcome {
    /// The mean of the last losses of the workers that stayed to the end.
    pub train_loss: f32,
    pub evaluation: Evaluation,
    /// The number of losses in `train_loss`.
    pub workers: usize,
    pub skipped: u64,
    /// The step at which the training ended.
    pub step: GlobalStep,
    /// The reason for which the training ended before the job's last step, if it did.
    pub stopped: Option<String>,
}

/// The state that a job begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobStart {
    /// The updates that are in the variables.
    pub step: GlobalStep,
    /// The position at which each worker goes on in its input.
    pub resumes: Vec<Resume>,
    /// Whether checkpoints are made.
    pub saves: bool,
    /// The steps that the workers trace, if any.
    pub trace: Option<TraceSpec>,
}

/// An end of the training before the job's last step.
#[derive(Clone, Debug)]
struct EarlyStop {
    reason: String,
    /// Whether the job ends without an evaluation, so that another one can go on.
    drains: bool,
    /// The step at which the shards have agreed to stop, once they have.
    step: Option<GlobalStep>,
}

/// The state of a job.
///
/// Wanted properties: (A) every request is answered exactly once, however often it is repeated; (B) no worker
/// begins before all are ready; (C) a job ends exactly once, and well only if it was evaluated; (D) a worker
/// that is away for too long, is lost, or has no more input never holds up the others; (E) the shards are
/// told of a worker that has begun and leaves before it has finished, once for each of its lives; (F) where
/// the training stops early, no worker evaluates another step than the one that the shards have agreed on,
/// and a job that drains is not evaluated.
pub(crate) struct JobState<R> {
    job: JobSpec,
    placement: Option<Placement>,
    members: BTreeMap<u32, Member<R>>,
    phase: Phase,
    stopping: Option<EarlyStop>,
    /// Whether checkpoints are made.
    saves: bool,
    saved: SaveStatus,
    trace: Option<TraceSpec>,
    /// The updates that the job began with.
    began: GlobalStep,
    global_step: GlobalStep,
    /// Steps that workers dropped because their gradients were not finite.
    skipped: u64,
    /// The first worker whose input has ended before the last step, and what it said.
    input_ended: Option<(TaskId, String)>,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for variables and workers.
    Starting,
    Training,
    /// One worker evaluates.
    Evaluating(u32),
    /// The job cannot go on, and waits for the workers to leave.
    Failing(ChiefError),
    /// The job has ended, with the reason if it failed.
    Ended(Option<String>),
}

fn refuse<R>(reply: R, reason: impl std::fmt::Display) -> Effect<R> {
    Effect::Reply(reply, Refusal::new(RefusalCode::Unavailable, reason).into())
}

/// Answers a request that was repeated since.
fn superseded<R>(reply: R) -> Effect<R> {
    Effect::Reply(reply, Refusal::superseded().into())
}

/// Tells a worker that nothing is left to do.
fn done<R>(reply: R) -> Effect<R> {
    Effect::Reply(reply, Finished { evaluate: false, step: GlobalStep(0) }.into())
}

impl<R> JobState<R> {
    pub(crate) fn new(job: JobSpec, workers: u32) -> Self {
        Self {
            job,
            placement: None,
            members: (0..workers).map(|index| (index, Member::absent())).collect(),
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

    /// Returns the step at which the training ends, as far as it is known.
    fn last_step(&self) -> GlobalStep {
        self.stopping.as_ref().and_then(|stopping| stopping.step).unwrap_or(self.job.last_step)
    }

    /// Returns the workers that cannot be reached, while the job has not begun.
    fn missing(&self) -> Vec<TaskId> {
        if !matches!(self.phase, Phase::Starting) {
            return Vec::new();
        }
        self.members
            .iter()
            .filter(|(_, member)| !member.is_present())
            .map(|(&index, _)| TaskId::worker(index))
            .collect()
    }

    /// Returns whether the job has failed and waits for the workers to leave.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self.phase, Phase::Failing(_))
    }

    /// Returns the workers that are waited for after their connection broke, each with that connection. A
    /// worker that is away for too long has to be reported as [`lost`](Self::lost). Before the job begins,
    /// the start timeout is the limit.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let limited = !matches!(self.phase, Phase::Starting | Phase::Ended(_));
        let away = self.members.iter().filter(move |(_, member)| limited && member.is_here() && member.away);
        away.map(|(&index, member)| (index, member.connection))
    }

    /// Returns the progress of the job. Its loss is the mean of the last losses of the present workers.
    pub(crate) fn progress(&self) -> JobProgress {
        let trains =
            |member: &&Member<R>| member.is_present() && matches!(member.state, MemberState::Training);
        JobProgress {
            running: matches!(self.phase, Phase::Training),
            global_step: self.global_step,
            last_step: self.last_step(),
            gradients_per_update: self.job.sync.gradients_per_update(self.members.len() as u32),
            loss: self.mean_loss().map(|(mean, _)| mean),
            workers: self.members.values().filter(trains).count(),
            missing: self.missing(),
            saves: self.saved.saves,
            saves_failed: self.saved.failed,
            last_checkpoint: self.saved.last,
        }
    }

    /// Returns the mean of the last losses of the present workers, and their number; `None` where there are
    /// none. A worker that leaves or is lost takes its loss with it.
    fn mean_loss(&self) -> Option<(f32, usize)> {
        let losses: Vec<f32> = self.members.values().filter_map(|member| member.loss).collect();
        (!losses.is_empty()).then(|| (losses.iter().sum::<f32>() / losses.len() as f32, losses.len()))
    }

    /// Records what has become of the checkpoints.
    pub(crate) const fn saved(&mut self, saved: SaveStatus) {
        self.saved = saved;
    }

    /// Records that every variable has its initial value, and tells the job to the workers that wait.
    pub(crate) fn created(&mut self, placement: Placement, start: JobStart) -> Vec<Effect<R>> {
        self.placement = Some(placement);
        (self.global_step, self.began) = (start.step, start.step);
        (self.saves, self.trace) = (start.saves, start.trace);
        for (member, resume) in self.members.values_mut().zip(start.resumes) {
            member.resume = resume;
        }
        let waiting = self.in_state(|state| matches!(state, MemberState::Registered(_)));
        waiting.into_iter().flat_map(|index| self.tell_job(index)).collect()
    }

    /// Records that a worker has opened a connection. It may have nothing to request now, but it is present.
    pub(crate) fn connected(&mut self, peer: &Peer) -> Vec<Effect<R>> {
        let Some(member) = self.members.get(&peer.task.index) else { return Vec::new() };
        if member.incarnation != Some(peer.incarnation) || peer.connection < member.connection {
            return Vec::new();
        }
        self.reconnected(peer);
        self.proceed()
    }

    /// Decides about the request of a worker.
    pub(crate) fn request(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        let member = self.member(index);
        let mut effects = match member.incarnation.map(|known| peer.incarnation.cmp(&known)) {
            Some(Ordering::Equal) if peer.connection < member.connection => {
                vec![superseded(reply)]
            }
            Some(Ordering::Equal) => {
                self.reconnected(peer);
                self.answer(index, message, reply)
            }
            Some(Ordering::Less) => vec![refuse(
                reply,
                format!(
                    "worker/{index} has been started again since this one was, or the clock there was set back"
                ),
            )],
            Some(Ordering::Greater) | None => self.register(peer, message, reply),
        };
        effects.extend(self.proceed());
        effects
    }

    /// Records that a worker's connection has broken.
    pub(crate) fn disconnected(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let Some(member) = self.members.get_mut(&index) else { return };
        let known = member.incarnation == Some(peer.incarnation) && member.connection == peer.connection;
        if !known || !member.is_here() {
            return;
        }
        member.away = true;
        match &self.phase {
            Phase::Starting => {
                warn!(worker = %TaskId::worker(index), "worker disconnected before the job began; it may come back");
            }
            Phase::Ended(_) => {}
            _ => warn!(worker = %TaskId::worker(index), "worker disconnected; waiting for it to come back"),
        }
    }

    /// Records that a worker has been away for too long since `connection` broke.
    pub(crate) fn lost(&mut self, index: u32, connection: u64) -> Vec<Effect<R>> {
        if !self.awaited().any(|awaited| awaited == (index, connection)) {
            return Vec::new();
        }
        warn!(worker = %TaskId::worker(index), step = %self.global_step, "worker lost; the others go on");
        let mut effects = self.lose(index);
        effects.extend(self.proceed());
        effects
    }

    /// Returns the workers whose state is wanted.
    fn in_state(&self, wanted: impl Fn(&MemberState<R>) -> bool) -> Vec<u32> {
        self.members.iter().filter(|(_, member)| wanted(&member.state)).map(|(&index, _)| index).collect()
    }

    fn member(&mut self, index: u32) -> &mut Member<R> {
        self.members.get_mut(&index).expect("only workers of the job are admitted")
    }

    /// Records that the known life of a worker uses its latest connection.
    fn reconnected(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let member = self.member(index);
        member.connection = peer.connection;
        member.http.clone_from(&peer.http);
        if std::mem::take(&mut member.away) && member.is_here() {
            info!(worker = %TaskId::worker(index), "worker reconnected");
        }
    }

    /// Decides about the first request of a new life, which can only register.
    fn register(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        if !matches!(message, Message::Register(_)) {
            let reason = self.over().unwrap_or_else(|| out_of_turn(index, message.name()));
            return vec![refuse(reply, reason)];
        }
        let member = self.member(index);
        if member.is_present() {
            let reason = format!("worker/{index} is here already: is the same task started twice?");
            return vec![refuse(reply, reason)];
        }
        let mut effects = Vec::new();
        if member.is_here() {
            warn!(worker = %TaskId::worker(index), "worker was started again");
            effects = self.lose(index);
        }
        let refusal = match &self.phase {
            Phase::Evaluating(_) => Some("the job has been trained, and is being evaluated".to_owned()),
            _ => self.over(),
        };
        let member = self.member(index);
        (member.incarnation, member.connection, member.away) =
            (Some(peer.incarnation), peer.connection, false);
        member.interrupted = false;
        member.lives += 1;
        member.http.clone_from(&peer.http);
        if let Some(reason) = refusal {
            member.state = MemberState::Left;
            effects.push(refuse(reply, reason));
            return effects;
        }
        member.state = MemberState::Registered(reply);
        info!(worker = %TaskId::worker(index), "worker registered");
        if self.placement.is_some() {
            effects.extend(self.tell_job(index));
        }
        effects
    }

    /// Decides about a request of the known life, which may be a repetition.
    fn answer(&mut self, index: u32, message: Message, reply: R) -> Vec<Effect<R>> {
        let over = self.over();
        match (message, &self.member(index).state) {
            (Message::Report(report), _) => vec![self.reported(index, &report, reply)],
            (Message::Finish(finish), MemberState::Left | MemberState::Lost) => match (over, finish.result) {
                // It got the same reply the first time.
                (Some(reason), TrainingResult::Completed | TrainingResult::InputEnded(_))
                    if !matches!(self.phase, Phase::Ended(None)) =>
                {
                    vec![refuse(reply, reason)]
                }
                _ => vec![done(reply)],
            },
            (Message::Finish(finish), _) => self.finished(index, *finish, reply),
            (Message::Evaluated(_), MemberState::Left) => vec![done(reply)],
            (Message::Evaluated(evaluated), MemberState::Evaluating) => {
                self.evaluated(index, *evaluated, reply)
            }
            (_, MemberState::Lost) => vec![refuse(reply, too_late(index))],
            (Message::Register(_) | Message::Ready(_), _) if over.is_some() => {
                over.map(|reason| refuse(reply, reason)).into_iter().collect()
            }
            (Message::Register(_), MemberState::Registered(_)) => {
                self.keep(index, MemberState::Registered(reply))
            }
            (Message::Register(_), MemberState::Preparing) => {
                self.member(index).state = MemberState::Registered(reply);
                self.tell_job(index)
            }
            (Message::Ready(_), MemberState::Preparing | MemberState::Ready(_)) => {
                self.keep(index, MemberState::Ready(reply))
            }
            (Message::Ready(_), MemberState::Training) => vec![Effect::Reply(reply, Go {}.into())],
            (message, _) => vec![refuse(reply, out_of_turn(index, message.name()))],
        }
    }

    /// Keeps the reply handle of a repeated request, and answers the older one.
    fn keep(&mut self, index: u32, state: MemberState<R>) -> Vec<Effect<R>> {
        let older = self.member(index).put(state);
        older.map(|older| superseded(older)).into_iter().collect()
    }

    fn tell_job(&mut self, index: u32) -> Vec<Effect<R>> {
        let placement = self.placement.clone().expect("variables are placed");
        let workers = self.members.len() as u32;
        let (resume, saves, trace) = (self.member(index).resume, self.saves, self.trace);
        let registered = Registered { job: self.job.clone(), placement, workers, resume, saves, trace };
        let reply = self.member(index).put(MemberState::Preparing);
        reply.map(|reply| Effect::Reply(reply, registered.into())).into_iter().collect()
    }

    fn reported(&mut self, index: u32, report: &Report, reply: R) -> Effect<R> {
        let mut stop = self.over();
        match self.member(index).state {
            MemberState::Training => {
                // A worker may report a wrong step, but never one beyond the end.
                self.global_step = self.global_step.max(report.global_step).min(self.last_step());
                let batch_size = self.job.batch_size;
                self.member(index).has_drawn(report.drawn, batch_size);
                if report.loss.is_finite() {
                    self.member(index).loss = Some(report.loss);
                }
            }
            MemberState::Lost => stop = stop.or_else(|| Some(too_late(index))),
            _ => {}
        }
        Effect::Reply(reply, Reported { stop, clock_us: 0 }.into())
    }

    /// Does whatever has become possible by a change.
    fn proceed(&mut self) -> Vec<Effect<R>> {
        match &self.phase {
            Phase::Starting => self.begin_if_ready(),
            Phase::Training => {
                let mut effects = self.go();
                effects.extend(self.evaluate_if_trained());
                effects
            }
            Phase::Failing(_) if self.members.values().all(Member::is_over) => self.end_failing(),
            _ => Vec::new(),
        }
    }

    fn begin_if_ready(&mut self) -> Vec<Effect<R>> {
        let ready = |member: &Member<R>| member.is_present() && matches!(member.state, MemberState::Ready(_));
        if !self.members.values().all(ready) {
            return Vec::new();
        }
        self.phase = Phase::Training;
        let mut effects = vec![Effect::Started];
        effects.extend(self.go());
        effects
    }

    /// Tells all workers that are ready to begin.
    fn go(&mut self) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        for index in self.in_state(|state| matches!(state, MemberState::Ready(_))) {
            let reply = self.member(index).put(MemberState::Training);
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
