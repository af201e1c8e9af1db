//! The job as a state machine: which workers are members, what they wait for, and when the job ends. Uses no
//! socket and no clock; `R` is the handle with which a reply is sent.

mod conclusion;
mod continuing;
mod early_end;
mod elastic;
mod ending;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod member;
mod order;
mod restarting;
mod status;
mod stopping;

use std::collections::BTreeMap;

use pushpull_messages::graph::MetricSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Evaluation, Finished, Go, Message, MetricValue, Refusal, RefusalCode, Register, Registered, Report,
    Reported, Resume, ServeStage, ShardSnapshot, TrainingResult,
};
use pushpull_messages::observe::TraceSpec;
use pushpull_messages::placement::Placement;
use pushpull_transport::Peer;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::checkpoint::SaveStatus;
use crate::error::ChiefError;
use crate::report::JobProgress;
pub(crate) use conclusion::conclude;
pub(crate) use early_end::{LastSave, SaveLimit, early_end};
use elastic::Elastic;
use member::{Member, MemberState};
pub(crate) use order::MembershipOrder;
pub(crate) use status::{Headline, JobStatus, MemberStatus};

/// An effect that the state machine requests and the actor carries out.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Sends this message as the reply to a request.
    Reply(R, Message),
    /// All workers are ready, and the training time starts.
    Started,
    /// All workers have finished at this step, and the training time stops. The evaluation of the job comes
    /// next.
    Trained(GlobalStep),
    /// The save of this step, the last one, may have failed because a ps task was lost, and is repeated.
    SaveAgain(GlobalStep),
    /// The trained job was evaluated at this step.
    Evaluated(GlobalStep, Evaluation),
    /// Tells all shards which incarnation of a worker may join, or which has left.
    Order(MembershipOrder),
    /// The job has ended.
    Ended(Result<TrainingEnd, ChiefError>),
}

/// A successful end of the training.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TrainingEnd {
    /// The variables were evaluated.
    Evaluated(TrainingOutcome),
    /// All workers have finished at this step, and another job can continue from it.
    Drained { step: GlobalStep },
}

impl TrainingEnd {
    /// Returns how the job settled; `None` if it did not.
    pub(crate) const fn settled(&self) -> Option<&Settled> {
        match self {
            Self::Evaluated(outcome) => outcome.settled.as_ref(),
            Self::Drained { .. } => None,
        }
    }
}

/// The outcome of a job that was evaluated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainingOutcome {
    /// The mean of the workers' last reported losses. Only the workers that stayed to the end count.
    pub train_loss: f32,
    pub evaluation: Evaluation,
    /// The number of workers whose losses are averaged in `train_loss`.
    pub workers: usize,
    pub skipped: u64,
    /// The number of times that the job has rolled back to a checkpoint under this run of the chief.
    pub rollbacks: u64,
    /// The number of updates that had been applied when this run of the chief began or continued the job.
    pub began: GlobalStep,
    /// The step at which the training ended.
    pub step: GlobalStep,
    /// The reason why the training ended before the job's last step, if it did.
    pub stopped: Option<String>,
    /// How the job settled; `None` if it could not roll back, or was told to drain.
    pub settled: Option<Settled>,
}

/// How a trained job settled: what was saved and observed while it could still roll back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    /// The time by which the last step must be saved.
    pub save_by: Instant,
    /// The final snapshots of the shards; `None` if the last step was not saved, or the shards did not
    /// answer.
    pub shards: Option<Vec<(ShardId, ShardSnapshot)>>,
    /// Whether the shards were asked for their final snapshots.
    pub observed: bool,
}

/// The state that a job begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobStart {
    /// The number of updates that have already been applied to the variables.
    pub step: GlobalStep,
    /// The position at which each worker continues in its input, indexed by worker.
    pub resumes: Vec<Resume>,
    /// Whether the job makes checkpoints.
    pub saves: bool,
    /// Whether the job keeps checkpoints in the memory of the ps tasks.
    pub saves_in_memory: bool,
    /// Whether the job rolls back if a ps task loses its variables.
    pub may_roll_back: bool,
    /// The number of a worker's steps between two plots of the graph's summaries; `None` if none are
    /// plotted.
    pub summary_every: Option<u64>,
    /// The steps that the workers trace, if any.
    pub trace: Option<TraceSpec>,
}

/// A stop of the training before the job's last step.
#[derive(Clone, Debug)]
struct EarlyStop {
    reason: String,
    /// Whether the job ends without an evaluation, so that another job can continue from it.
    drains: bool,
    /// The step at which the shards have agreed to stop; `None` until they have agreed.
    step: Option<GlobalStep>,
}

/// The state machine of a job.
///
/// Wanted properties: (A) every request, even a repeated one, gets exactly one reply; (B) no worker begins
/// before all workers are ready, except that after a rollback each begins when it is ready; (C) a job ends
/// exactly once, and successfully only if it was evaluated or drained; (D) the other workers do not wait for
/// a worker that is disconnected for too long, is lost, or has no more input; (E) if a worker begins and
/// leaves before it has finished, the shards are informed exactly once for this incarnation; (F) if the
/// training stops early, only the step that the shards have agreed on is evaluated, and a job that drains is
/// not evaluated; (G) a worker begins only when all shards know that its incarnation is appointed, and an
/// incarnation that was replaced is refused; (H) after a rollback, requests have no effect if they come from
/// an incarnation that registered before the rollback.
pub(crate) struct JobState<R> {
    job: JobSpec,
    placement: Option<Placement>,
    /// The epoch of the latest placement; 0 before the first one.
    epoch: PlacementEpoch,
    members: BTreeMap<u32, Member<R>>,
    /// The workers that may join, and the shares of the examples; `None` if the workers are fixed.
    elastic: Option<Elastic>,
    phase: Phase,
    stopping: Option<EarlyStop>,
    /// Whether an earlier run of the chief has begun the job.
    continued: bool,
    /// Whether a ps task is lost. Until it is known whether the task's variables are lost, too, no worker
    /// receives the description of the job.
    suspended: bool,
    /// Whether the job has rolled back, and its variables have not been restored yet.
    rolls_back: bool,
    /// Whether the process of each worker hosts a ps task. A worker is then lost with the ps task.
    hosts_ps: bool,
    /// Whether another chief leads the job. If so, the workers that train are not told to stop.
    abandoned: bool,
    /// Whether the job makes checkpoints.
    saves: bool,
    /// Whether the job keeps checkpoints in the memory of the ps tasks.
    saves_in_memory: bool,
    /// Whether the job settles before it ends: it may roll back until its last step is saved.
    settles: bool,
    saved: SaveStatus,
    summary_every: Option<u64>,
    trace: Option<TraceSpec>,
    /// The number of times that the job has rolled back.
    rollbacks: u64,
    /// The number of updates that had been applied when this run of the chief began or continued the job, or
    /// when the job last rolled back.
    began: GlobalStep,
    global_step: GlobalStep,
    /// The number of steps that workers dropped because their gradients were not finite.
    skipped: u64,
    /// The first worker whose input ended before the last step, and the reason that it gave.
    input_ended: Option<(TaskId, String)>,
    /// The worker that gave up last, with its reason.
    gave_up: Option<(TaskId, String)>,
}

#[derive(Debug)]
enum Phase {
    /// The job waits until the variables are created and all workers are ready.
    Starting,
    Training,
    /// The worker with this index evaluates.
    Evaluating(u32),
    /// The job was evaluated with this outcome, and its last step is being saved. It may still roll back.
    Settling(Box<TrainingOutcome>),
    /// The job cannot continue because of this error, and waits for the workers to leave.
    Failing(ChiefError),
    /// The job was evaluated or drained. Its workers stay until it is saved and reported, so that a chief
    /// that is started again finds them.
    Concluding,
    /// The job has ended; the text is the reason if it failed.
    Ended(Option<String>),
}

fn refuse<R>(reply: R, reason: impl std::fmt::Display) -> Effect<R> {
    Effect::Reply(reply, Refusal::new(RefusalCode::Unavailable, reason).into())
}

/// Answers an older request that the worker has repeated. Only the newest request keeps waiting.
fn superseded<R>(reply: R) -> Effect<R> {
    Effect::Reply(reply, Refusal::superseded().into())
}

/// The reason why no worker can register any more.
const TRAINED: &str = "the job has been trained, and is being evaluated";

/// Returns whether the message says that a signal has ended the training of a worker.
fn is_farewell(message: &Message) -> bool {
    matches!(message, Message::Finish(finish) if finish.result == TrainingResult::Interrupted)
}

/// Tells a worker to register again as another incarnation.
fn restart<R>(reply: R) -> Effect<R> {
    let reason = "a ps task was lost, and the job may have rolled back to a checkpoint: register again";
    Effect::Reply(reply, Refusal::new(RefusalCode::RolledBack, reason).into())
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
            epoch: PlacementEpoch(0),
            members: (0..workers).map(|index| (index, Member::absent())).collect(),
            elastic: None,
            phase: Phase::Starting,
            stopping: None,
            continued: false,
            suspended: false,
            rolls_back: false,
            hosts_ps: false,
            abandoned: false,
            saves: false,
            saves_in_memory: false,
            settles: false,
            saved: SaveStatus::default(),
            summary_every: None,
            trace: None,
            rollbacks: 0,
            began: GlobalStep(0),
            global_step: GlobalStep(0),
            skipped: 0,
            input_ended: None,
            gave_up: None,
        }
    }

    /// Sets whether the process of each worker hosts a ps task.
    pub(crate) const fn hosting_ps(mut self, hosts_ps: bool) -> Self {
        self.hosts_ps = hosts_ps;
        self
    }

    /// Returns whether a worker that is lost is waited for until it is known what its ps task has lost: the
    /// process of each worker hosts a ps task, and the job can roll back.
    pub(crate) const fn awaits_hosts(&self) -> bool {
        self.hosts_ps && self.settles
    }

    pub(crate) const fn job(&self) -> &JobSpec {
        &self.job
    }

    /// Returns the epoch of the latest placement. Orders to the shards are given at this epoch.
    pub(crate) const fn epoch(&self) -> PlacementEpoch {
        self.epoch
    }

    pub(crate) const fn global_step(&self) -> GlobalStep {
        self.global_step
    }

    /// Returns the step at which the training ends: the agreed step of an early stop or, without one, the
    /// job's last step.
    fn last_step(&self) -> GlobalStep {
        self.stopping.as_ref().and_then(|stopping| stopping.step).unwrap_or(self.job.last_step)
    }

    /// Returns the workers that have not registered or are disconnected. Empty when the job has begun.
    fn missing(&self) -> Vec<TaskId> {
        if !matches!(self.phase, Phase::Starting) {
            return Vec::new();
        }
        self.members
            .iter()
            .filter(|(_, member)| member.is_listed && !member.is_present())
            .map(|(&index, _)| TaskId::worker(index))
            .collect()
    }

    /// Returns whether the job is failing: it cannot continue, and its end waits until the workers have
    /// left.
    pub(crate) const fn is_failing(&self) -> bool {
        matches!(self.phase, Phase::Failing(_))
    }

    /// Returns the disconnected workers that may still reconnect, each with the number of its broken
    /// connection. If a worker does not reconnect in time, the caller must report it as
    /// [`lost`](Self::lost). Empty before the job begins, because until then the start timeout applies. Also
    /// empty while the job waits for a ps task that a worker hosts.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let waits_for_host = self.suspended && self.awaits_hosts();
        let limited = !waits_for_host
            && !matches!(
                self.phase,
                Phase::Starting | Phase::Settling(_) | Phase::Concluding | Phase::Ended(_)
            );
        let away = self.members.iter().filter(move |(_, member)| limited && member.is_here() && member.away);
        away.map(|(&index, member)| (index, member.connection))
    }

    /// Returns whether the worker was told to register again, and has not done so yet.
    pub(crate) fn restarts(&self, index: u32) -> bool {
        self.members.get(&index).is_some_and(|member| matches!(member.state, MemberState::Restarting))
    }

    /// Returns the progress of the job. The progress contains the mean of the last losses that workers have
    /// reported. Only workers that take part count.
    pub(crate) fn progress(&self) -> JobProgress {
        let trains =
            |member: &&Member<R>| member.is_present() && matches!(member.state, MemberState::Training);
        JobProgress {
            running: matches!(self.phase, Phase::Training),
            began: self.began,
            global_step: self.global_step,
            last_step: self.last_step(),
            gradients_per_update: self.job.sync.gradients_per_update(self.gradient_workers()),
            loss: self.mean_loss().map(|(mean, _)| mean),
            metrics: self.mean_metrics(),
            workers: self.members.values().filter(trains).count(),
            missing: self.missing(),
            rejoining: match &self.placement {
                None if !self.rolls_back => {
                    self.members.values().filter(|member| member.waits_for_chief()).count()
                }
                _ => 0,
            },
            settling: matches!(self.phase, Phase::Settling(_)),
            saves: self.saved.saves,
            saves_failed: self.saved.failed,
            last_checkpoint: self.saved.last,
            inputs: self
                .members
                .iter()
                .filter_map(|(&index, member)| Some((index, member.resume.files?)))
                .collect(),
        }
    }

    /// Returns the mean of the last losses that workers have reported, and the number of these losses;
    /// `None` if there are none. Only workers that take part count: the loss of a worker that leaves or is
    /// lost is dropped.
    fn mean_loss(&self) -> Option<(f32, usize)> {
        let losses: Vec<f32> = self.members.values().filter_map(|member| member.loss).collect();
        (!losses.is_empty()).then(|| (losses.iter().sum::<f32>() / losses.len() as f32, losses.len()))
    }

    /// Returns, for each metric, the mean of the last values that workers have reported. Only workers that
    /// take part count, and only finite values.
    fn mean_metrics(&self) -> Vec<MetricValue> {
        let mean = |(position, metric): (usize, &MetricSpec)| {
            let values = self.members.values().filter_map(|member| member.metrics.get(position));
            let finite: Vec<f32> = values.copied().filter(|value| value.is_finite()).collect();
            let value = finite.iter().sum::<f32>() / finite.len() as f32;
            (!finite.is_empty()).then(|| MetricValue { name: metric.name.clone(), value })
        };
        self.job.graph.metrics.iter().enumerate().filter_map(mean).collect()
    }

    /// Records the status of the saves.
    pub(crate) const fn saved(&mut self, saved: SaveStatus) {
        self.saved = saved;
    }

    /// Records that every variable has its initial value, and sends the job to the workers that wait for it.
    pub(crate) fn created(&mut self, placement: Placement, start: JobStart) -> Vec<Effect<R>> {
        self.epoch = placement.epoch;
        self.placement = Some(placement);
        (self.global_step, self.began) = (start.step, start.step);
        (self.saves, self.settles, self.trace) = (start.saves, start.may_roll_back, start.trace);
        (self.saves_in_memory, self.summary_every) = (start.saves_in_memory, start.summary_every);
        for (member, resume) in self.members.values_mut().zip(start.resumes) {
            member.resume = resume;
        }
        self.divide();
        // After a rollback, the shards are told again which workers are not there.
        let mut effects = if self.rolls_back { Vec::new() } else { self.excuse_unlisted() };
        effects.extend(self.restored());
        effects.extend(self.take_on_waiting());
        effects.extend(self.proceed());
        effects
    }

    /// Sends the job to all workers that wait for it.
    fn take_on_waiting(&mut self) -> Vec<Effect<R>> {
        let waiting = self.in_state(|state| matches!(state, MemberState::Registered(_)));
        waiting.into_iter().flat_map(|index| self.take_on(index)).collect()
    }

    /// Records that all shards know that this incarnation of a worker is appointed.
    pub(crate) fn appointed(&mut self, index: u32, incarnation: Incarnation) -> Vec<Effect<R>> {
        let member = self.member(index);
        if member.incarnation == Some(incarnation) {
            member.appointed = true;
            member.expected |= std::mem::take(&mut member.missed);
            member.ended.clear();
        }
        self.proceed()
    }

    /// Records that a worker has opened a connection. The worker counts as present even if it has no request
    /// to send.
    pub(crate) fn connected(&mut self, peer: &Peer) -> Vec<Effect<R>> {
        let Some(member) = self.members.get(&peer.task.index) else { return Vec::new() };
        if member.incarnation != Some(peer.incarnation) || peer.connection < member.connection {
            return Vec::new();
        }
        self.reconnected(peer);
        self.proceed()
    }

    /// Handles the request of a worker.
    pub(crate) fn request(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        if !self.members.contains_key(&index) {
            return vec![self.answer_stage(index, &message, reply)];
        }
        if let Message::Rejoin(rejoin) = &message {
            let mut effects = self.rejoin(peer, rejoin, reply);
            effects.extend(self.proceed());
            return effects;
        }
        let member = self.member(index);
        let is_current = member.incarnation == Some(peer.incarnation);
        let restarts = matches!(member.state, MemberState::Restarting) && !is_farewell(&message);
        let mut effects = if is_current && peer.connection < member.connection {
            vec![superseded(reply)]
        } else if is_current && restarts {
            self.reconnected(peer);
            vec![restart(reply)]
        } else if is_current {
            self.reconnected(peer);
            match self.register_again(index, message, reply) {
                Ok(effects) => effects,
                Err((message, reply)) => self.answer(index, message, reply),
            }
        } else if member.replaced.contains(&peer.incarnation) {
            let reason =
                format!("a later incarnation of worker/{index} has registered: the task was started again");
            vec![refuse(reply, reason)]
        } else {
            self.register(peer, message, reply)
        };
        effects.extend(self.proceed());
        effects
    }

    /// Answers a worker that leads no replica or is not in the job. It may register as often as it likes: it
    /// has no state here.
    fn answer_stage(&self, index: u32, message: &Message, reply: R) -> Effect<R> {
        let replicas = self.members.len() as u32;
        match (message, self.over()) {
            (Message::Register(_), Some(reason)) => refuse(reply, reason),
            (Message::Register(_), None) if self.job.graph.stages().count() == 1 => {
                refuse(reply, self.no_such_worker(index))
            }
            (Message::Register(_), None) if replicas > 0 => {
                Effect::Reply(reply, ServeStage { leader: index % replicas, replicas }.into())
            }
            (message, _) => refuse(reply, out_of_turn(index, message.name())),
        }
    }

    /// Records that a worker's connection has broken.
    pub(crate) fn disconnected(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let Some(member) = self.members.get_mut(&index) else { return };
        member.early.take_if(|early| *early == (peer.incarnation, peer.connection));
        let known = member.incarnation == Some(peer.incarnation) && member.connection == peer.connection;
        if !known || !member.is_here() {
            return;
        }
        member.away = true;
        match &self.phase {
            Phase::Starting => {
                warn!(worker = %TaskId::worker(index), "worker disconnected before the job began; it may come back");
            }
            Phase::Settling(_) | Phase::Concluding | Phase::Ended(_) => {}
            _ if matches!(member.state, MemberState::Restarting) => {}
            _ => warn!(worker = %TaskId::worker(index), "worker disconnected; waiting for it to come back"),
        }
    }

    /// Records that a worker did not reconnect in time after `connection` broke.
    pub(crate) fn lost(&mut self, index: u32, connection: u64) -> Vec<Effect<R>> {
        if !self.awaited().any(|awaited| awaited == (index, connection)) {
            return Vec::new();
        }
        warn!(worker = %TaskId::worker(index), step = %self.global_step, "worker lost; the others go on");
        let mut effects = self.lose(index);
        effects.extend(self.proceed());
        effects
    }

    /// Returns the indices of the workers for whose state `wanted` returns true.
    fn in_state(&self, wanted: impl Fn(&MemberState<R>) -> bool) -> Vec<u32> {
        self.members.iter().filter(|(_, member)| wanted(&member.state)).map(|(&index, _)| index).collect()
    }

    fn member(&mut self, index: u32) -> &mut Member<R> {
        self.members.get_mut(&index).expect("only workers of the job are admitted")
    }

    /// Records the latest connection of a worker's current incarnation.
    fn reconnected(&mut self, peer: &Peer) {
        let index = peer.task.index;
        let member = self.member(index);
        member.connection = peer.connection;
        member.http.clone_from(&peer.http);
        if std::mem::take(&mut member.away) && member.is_here() {
            info!(worker = %TaskId::worker(index), "worker reconnected");
        }
    }

    /// Handles the first request of a new incarnation. Only a request to register is accepted.
    fn register(&mut self, peer: &Peer, message: Message, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        let Message::Register(register) = message else {
            let reason = self.over().unwrap_or_else(|| out_of_turn(index, message.name()));
            return vec![refuse(reply, reason)];
        };
        // A worker that was told that the job has ended may ask again, because the reply was lost. The
        // refusal does not change the state of the worker.
        if let (Phase::Ended(_), Some(reason)) = (&self.phase, self.over()) {
            return vec![refuse(reply, reason)];
        }
        let waits = self.waits_for_rollback(&register);
        let trained = match self.phase {
            Phase::Evaluating(evaluator) => evaluator != index && !waits,
            Phase::Settling(_) => !waits,
            Phase::Concluding => true,
            _ => false,
        };
        let member = self.member(index);
        let restarts = member.incarnation.is_some() && register.after == member.incarnation;
        let early = member.early.filter(|&(life, _)| register.after != Some(life));
        if !restarts && (member.is_present() || early.is_some()) {
            let reason = format!("worker/{index} is already connected: is the same task started twice?");
            return vec![refuse(reply, reason)];
        }
        let restarts = restarts || matches!(member.state, MemberState::Restarting);
        if trained && !restarts && member.is_here() {
            // The incarnation that has finished may still reconnect, so a new one must not replace it.
            return vec![refuse(reply, TRAINED)];
        }
        let mut effects = Vec::new();
        if restarts {
            effects = self.end_before(index);
        } else if member.is_here() {
            warn!(worker = %TaskId::worker(index), "worker was started again");
            // The variables on a worker that hosts a ps task are lost, too, so the job rolls back, and the
            // worker stays a member.
            effects = if self.awaits_hosts() { self.end_before(index) } else { self.lose(index) };
        }
        let refusal = match &self.phase {
            Phase::Evaluating(_) | Phase::Settling(_) if waits => None,
            Phase::Evaluating(_) | Phase::Settling(_) | Phase::Concluding => Some(TRAINED.to_owned()),
            _ => self.over(),
        };
        let member = self.member(index);
        member.replace(peer.incarnation);
        (member.connection, member.away) = (peer.connection, false);
        member.again = register.after.is_some();
        member.http.clone_from(&peer.http);
        if let Some(reason) = refusal {
            member.state = MemberState::Left;
            effects.push(refuse(reply, reason));
            return effects;
        }
        member.state = MemberState::Registered(reply);
        info!(worker = %TaskId::worker(index), "worker registered");
        if self.placement.is_some()
            && !self.suspended
            && matches!(self.phase, Phase::Starting | Phase::Training)
        {
            effects.extend(self.take_on(index));
        }
        effects
    }

    /// Returns whether a worker of a trained job waits until it is known whether the job rolls back. A
    /// process that was started again has lost the variables of the ps task that it hosts, so the job does
    /// roll back, unless its last step is saved already.
    fn waits_for_rollback(&self, register: &Register) -> bool {
        let evaluated = matches!(self.phase, Phase::Evaluating(_) | Phase::Settling(_));
        evaluated && self.awaits_hosts() && register.after.is_none()
    }

    /// Sends the job to a worker that has registered, and tells the shards that the worker may join.
    pub(super) fn take_on(&mut self, index: u32) -> Vec<Effect<R>> {
        let incarnation = self.member(index).incarnation.expect("the worker has registered");
        let mut effects = vec![Effect::Order(MembershipOrder::Appoint(index, incarnation))];
        effects.extend(self.tell_job(index));
        effects
    }

    /// Handles a request of the current incarnation; the request may be a repeated one.
    fn answer(&mut self, index: u32, message: Message, reply: R) -> Vec<Effect<R>> {
        let over = self.over();
        match (message, &self.member(index).state) {
            (Message::Report(report), _) => vec![self.reported(index, &report, reply)],
            (Message::Finish(finish), MemberState::Left | MemberState::Lost) => match (over, finish.result) {
                // A repeated request gets the same reply as the first one.
                (Some(reason), TrainingResult::Completed | TrainingResult::InputEnded(_))
                    if !matches!(self.phase, Phase::Ended(None)) =>
                {
                    vec![refuse(reply, reason)]
                }
                _ => vec![done(reply)],
            },
            (Message::Finish(finish), _) => self.finished(index, *finish, reply),
            (Message::Evaluated(_), MemberState::Left) => vec![done(reply)],
            (Message::Evaluated(_), MemberState::Finished(_)) => {
                self.keep(index, MemberState::Finished(reply))
            }
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
            (Message::Ready(ready), MemberState::Preparing | MemberState::Ready(_)) => {
                self.reads(index, ready.files);
                self.keep(index, MemberState::Ready(reply))
            }
            (Message::Ready(_), MemberState::Training) => vec![Effect::Reply(reply, Go {}.into())],
            (message, _) => vec![refuse(reply, out_of_turn(index, message.name()))],
        }
    }

    /// Keeps the reply handle of a repeated request, and answers the earlier request.
    fn keep(&mut self, index: u32, state: MemberState<R>) -> Vec<Effect<R>> {
        let older = self.member(index).put(state);
        older.map(|older| superseded(older)).into_iter().collect()
    }

    fn tell_job(&mut self, index: u32) -> Vec<Effect<R>> {
        let placement = self.placement.clone().expect("variables are placed");
        let (workers, share) = (self.members.len() as u32, self.share(index));
        let (resume, saves, trace) = (self.member(index).resume, self.saves, self.trace);
        let (job, summary_every) = (self.job.clone(), self.summary_every);
        let begun = !matches!(self.phase, Phase::Starting);
        let saves_in_memory = self.saves_in_memory;
        let registered = Registered {
            job,
            placement,
            workers,
            share,
            resume,
            saves,
            saves_in_memory,
            summary_every,
            trace,
            begun,
        };
        let reply = self.member(index).put(MemberState::Preparing);
        reply.map(|reply| Effect::Reply(reply, registered.into())).into_iter().collect()
    }

    fn reported(&mut self, index: u32, report: &Report, reply: R) -> Effect<R> {
        let mut stop = self.over().filter(|_| !self.abandoned);
        match self.member(index).state {
            MemberState::Training => {
                // The step is limited, because a faulty worker may report a step beyond the end.
                self.global_step = self.global_step.max(report.global_step).min(self.last_step());
                let batch_size = self.job.batch_size;
                self.member(index).has_drawn(report.drawn, batch_size);
                if report.loss.is_finite() {
                    self.member(index).loss = Some(report.loss);
                }
                if !report.metrics.is_empty() {
                    self.member(index).metrics.clone_from(&report.metrics);
                }
            }
            MemberState::Lost => stop = stop.or_else(|| Some(too_late(index))),
            _ => {}
        }
        Effect::Reply(reply, Reported { stop, clock_us: 0, share: self.share(index) }.into())
    }

    /// Carries out every transition that a change has made possible.
    fn proceed(&mut self) -> Vec<Effect<R>> {
        self.divide();
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
        let is_ready = |member: &Member<R>| member.is_present() && member.may_begin();
        let mut listed = self.members.values().filter(|member| member.is_listed);
        if self.suspended || !listed.all(is_ready) {
            return Vec::new();
        }
        self.phase = Phase::Training;
        let mut effects = vec![Effect::Started];
        effects.extend(self.go());
        effects
    }

    /// Tells all ready workers to begin the training.
    fn go(&mut self) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        if self.suspended {
            return effects;
        }
        let ready = self.members.iter().filter(|(_, member)| member.may_begin());
        for index in ready.map(|(&index, _)| index).collect::<Vec<_>>() {
            let member = self.member(index);
            member.expected = false;
            let reply = member.put(MemberState::Training);
            effects.extend(reply.map(|reply| Effect::Reply(reply, Go {}.into())));
        }
        effects
    }
}

fn out_of_turn(index: u32, name: &str) -> String {
    format!("worker/{index} sent {name} out of turn")
}

fn too_late(index: u32) -> String {
    format!(
        "worker/{index} was away for too long, so the other workers continue without it: start it again to rejoin"
    )
}

#[cfg(test)]
pub(crate) mod tests;
