//! The chief task: the actor around the job's state, and its run from the first connection to the last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::dev::SendError;
use actix::{Actor, Addr, AsyncContext, Context, Handler, SpawnHandle};
use messages::buffer::Payload;
use messages::id::{JobName, TaskId};
use messages::job::JobSpec;
use messages::message::{Message, Refusal, RefusalCode, StopReason};
use messages::placement::Placement;
use messages::transport::{
    Identity, Listener, Patience, Peer, Reply, ServerConfig, Service, Transport, serve,
};
use messages::wire::Limits;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::ChiefConfig;
use crate::error::ChiefError;
use crate::job::{Effect, JobState, Outcome};
use crate::placement::table;
use crate::ps_tasks::PsTasks;
use crate::report::{JobProgress, JobReport};

/// Requests that may wait in the chief's mailbox.
const REQUESTS_MAX: usize = 1 << 14;

/// The chief task, not started yet.
pub struct Chief {
    config: ChiefConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    job: JobSpec,
    progress: watch::Sender<JobProgress>,
    /// Cancelled when a signal wants the job to stop.
    interrupt: CancellationToken,
}

impl Chief {
    /// A chief for that job, which has been validated. It tells `progress` of every change, and ends the job early
    /// when `interrupt` is cancelled.
    pub fn new(
        config: ChiefConfig,
        identity: Identity,
        transport: Arc<dyn Transport>,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> Self {
        // Also where a worker hosts it: to everybody it is the chief.
        let identity = Identity { task: TaskId::CHIEF, ..identity };
        Self { config, identity, transport, job, progress, interrupt }
    }

    /// Runs the job on the current arbiter: brings everybody together, waits for the end, and says how it went.
    ///
    /// # Errors
    /// Whatever kept the job from its end; all tasks that can be reached have been told.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(self, listener: Box<dyn Listener>) -> Result<JobReport, ChiefError> {
        let workers = self.identity.cluster.addresses(JobName::Worker).len() as u32;
        let (events, mut happened) = mpsc::unbounded_channel();
        let state = JobState::new(self.job.clone(), workers);
        self.progress.send_replace(state.progress());
        let desk = Desk {
            state,
            progress: self.progress.clone(),
            events,
            leave_timeout: self.config.leave_timeout,
            leaving: None,
        }
        .start();
        let server = serve(
            listener,
            self.identity.clone(),
            Arc::new(Door(desk.clone())),
            // It carries no tensors.
            ServerConfig {
                limits: Limits { payload_bytes_max: 0, ..self.config.server.limits },
                ..self.config.server.clone()
            },
        );
        tracing::info!(
            "job '{}': {} steps, waiting for {} ps and {workers} worker task(s) at {}",
            self.job.graph.name,
            self.job.last_step,
            self.identity.cluster.addresses(JobName::Ps).len(),
            server.address()
        );
        let ps = PsTasks::default();
        let ended = {
            let mut everybody = std::pin::pin!(self.lead(&desk, &ps));
            let mut clock = Clock::default();
            loop {
                tokio::select! {
                    event = happened.recv() => match event.expect("the desk holds the sender") {
                        Event::Started => clock.start(),
                        Event::Trained => clock.stop(),
                        Event::Ended(result) => break result.map(|outcome| (outcome, clock.elapsed())),
                    },
                    never = &mut everybody => match never {},
                }
            }
        };
        let result = match ended {
            Ok((outcome, training)) => conclude(&ps, &self.job, *outcome, training).await,
            Err(error) => Err(error),
        };
        let reason = match &result {
            Ok(_) => StopReason::Completed,
            Err(error) => StopReason::failed(error),
        };
        ps.stop(reason).await;
        server.stop().await;
        result
    }

    /// Brings the cluster up, then watches over it. Never returns: the desk says when the job has ended.
    async fn lead(&self, desk: &Addr<Desk>, ps: &PsTasks) -> std::convert::Infallible {
        tokio::select! {
            Err(error) = self.bring_up_and_watch(desk, ps) => desk.do_send(Turn::Fail(error)),
            () = self.interrupt.cancelled() => {
                tracing::warn!("interrupted: telling the workers to stop");
                desk.do_send(Turn::Interrupt);
            }
        }
        std::future::pending().await
    }

    async fn bring_up_and_watch(
        &self,
        desk: &Addr<Desk>,
        ps: &PsTasks,
    ) -> Result<std::convert::Infallible, ChiefError> {
        let deadline = tokio::time::Instant::now() + self.config.start_timeout;
        // Beyond the deadline, which is watched here for all tasks together.
        let patience = Patience::of(self.config.start_timeout + Duration::from_secs(60));
        let bring_up = async {
            ps.connect(&*self.transport, &self.identity, patience).await?;
            ps.create(&self.job).await
        };
        let placement = match tokio::time::timeout_at(deadline, bring_up).await {
            Ok(placement) => placement?,
            Err(_) => return Err(self.missing(ps)),
        };
        if self.config.log_placement {
            tracing::info!("placement:\n{}", table(&placement, &self.job.graph.variables));
        }
        desk.do_send(Turn::Created(placement));
        let mut log = tokio::time::interval(Duration::from_secs(3));
        log.tick().await;
        let mut progress = self.progress.subscribe();
        loop {
            tokio::select! {
                (task, reason) = ps.wait_lost() => {
                    let step = self.progress.borrow().global_step;
                    return Err(ChiefError::PsLost { task, step, reason });
                }
                // Whoever is missing when the time is up, or gets lost after that, does not keep the others.
                () = tokio::time::sleep_until(deadline), if !self.progress.borrow().missing.is_empty() => {
                    return Err(self.missing(ps));
                }
                _ = progress.changed() => {}
                _ = log.tick() => {
                    let missing = self.progress.borrow().missing.clone();
                    if !missing.is_empty() {
                        tracing::info!("waiting for {}", self.named(&missing).join(", "));
                    }
                }
            }
        }
    }

    /// Everybody who is not there now.
    fn missing(&self, ps: &PsTasks) -> ChiefError {
        let here = ps.tasks();
        let mut missing: Vec<TaskId> = self.identity.cluster.tasks().map(|(task, _)| task).collect();
        missing.retain(|task| task.job == JobName::Ps && !here.contains(task));
        missing.extend(&self.progress.borrow().missing);
        ChiefError::Missing { seconds: self.config.start_timeout.as_secs(), tasks: self.named(&missing) }
    }

    fn named(&self, tasks: &[TaskId]) -> Vec<String> {
        let cluster = &self.identity.cluster;
        let named = |task: &TaskId| match cluster.address(*task) {
            Some(address) => format!("{task} at {address}"),
            None => task.to_string(),
        };
        tasks.iter().map(named).collect()
    }
}

/// Reads every shard's counts, and holds them against V2 and V3.
async fn conclude(
    ps: &PsTasks,
    job: &JobSpec,
    outcome: Outcome,
    training: Duration,
) -> Result<JobReport, ChiefError> {
    let shards = ps.observe().await?;
    for (shard, snapshot) in &shards {
        let applied = snapshot.pushes.applied;
        if applied != job.last_step.0 || snapshot.version.0 != applied || !snapshot.pushes.add_up() {
            let version = snapshot.version.0;
            return Err(ChiefError::Miscount { shard: *shard, applied, version, last_step: job.last_step });
        }
    }
    Ok(JobReport {
        training,
        updates_applied: shards.first().map_or(0, |(_, snapshot)| snapshot.pushes.applied),
        train_loss: outcome.train_loss,
        evaluation: outcome.evaluation,
        workers: outcome.workers,
        shards,
    })
}

/// From the word to begin until the last worker had finished.
#[derive(Default)]
struct Clock {
    started: Option<Instant>,
    stopped: Option<Instant>,
}

impl Clock {
    fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    fn stop(&mut self) {
        // Evaluated once more by another worker, it is still the first end that counts.
        self.stopped.get_or_insert_with(Instant::now);
    }

    fn elapsed(&self) -> Duration {
        match (self.started, self.stopped) {
            (Some(started), Some(stopped)) => stopped - started,
            _ => Duration::ZERO,
        }
    }
}

/// What the desk tells the chief's run.
enum Event {
    Started,
    Trained,
    Ended(Result<Box<Outcome>, ChiefError>),
}

/// The actor: lets the state machine decide, and sends what it says.
struct Desk {
    state: JobState<Reply>,
    progress: watch::Sender<JobProgress>,
    events: mpsc::UnboundedSender<Event>,
    leave_timeout: Duration,
    /// The end of the time that workers have to leave, once that has begun.
    leaving: Option<SpawnHandle>,
}

impl Desk {
    fn carry_out(&mut self, effects: Vec<Effect<Reply>>) {
        for effect in effects {
            // The run may have ended already; then nobody needs to hear.
            let _ = match effect {
                Effect::Reply(reply, message) => {
                    reply.send(message, Payload::EMPTY);
                    Ok(())
                }
                Effect::Started => self.events.send(Event::Started),
                Effect::Trained => self.events.send(Event::Trained),
                Effect::Ended(result) => self.events.send(Event::Ended(result.map(Box::new))),
            };
        }
        self.progress.send_replace(self.state.progress());
    }
}

impl Actor for Desk {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(REQUESTS_MAX);
    }
}

/// Everything that can happen to a job.
#[derive(actix::Message)]
#[rtype(result = "()")]
enum Turn {
    Request {
        peer: Peer,
        message: Message,
        reply: Reply,
    },
    Disconnected {
        index: u32,
        connection: u64,
    },
    /// Every variable has its initial value.
    Created(Placement),
    /// The job cannot go on.
    Fail(ChiefError),
    /// A signal came.
    Interrupt,
    /// The workers had time enough to leave.
    EndFailing,
}

impl Handler<Turn> for Desk {
    type Result = ();

    fn handle(&mut self, turn: Turn, ctx: &mut Self::Context) {
        let state = &mut self.state;
        let effects = match turn {
            Turn::Request { peer, message, reply } => {
                state.request(peer.task.index, peer.connection, message, reply)
            }
            Turn::Disconnected { index, connection } => state.disconnected(index, connection),
            Turn::Created(placement) => state.created(placement),
            Turn::Fail(error) => state.fail(error),
            Turn::Interrupt => {
                let (step, last_step) = (state.global_step(), state.job().last_step);
                state.fail(ChiefError::Interrupted { step, last_step })
            }
            Turn::EndFailing => state.end_failing(),
        };
        self.carry_out(effects);
        if !self.state.is_failing() {
            // A timer that still runs would keep this actor, and all that it holds, alive.
            self.leaving.take().map(|timer| ctx.cancel_future(timer));
        } else if self.leaving.is_none() {
            self.leaving = Some(ctx.notify_later(Turn::EndFailing, self.leave_timeout));
        }
    }
}

/// Takes what comes from connections and lays it on the desk.
struct Door(Addr<Desk>);

impl Service for Door {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        match peer.task.job {
            JobName::Worker => Ok(()),
            _ => Err(Refusal::new(
                RefusalCode::Mismatch,
                format!("the chief takes connections from workers, and this is {}", peer.task),
            )),
        }
    }

    fn call(&self, peer: &Peer, message: Message, _: Payload, reply: Reply) {
        let turn = Turn::Request { peer: peer.clone(), message, reply };
        if let Err(SendError::Full(Turn::Request { reply, .. })) = self.0.try_send(turn) {
            reply.refuse(RefusalCode::Overloaded, "the chief's queue is full");
        }
    }

    fn disconnected(&self, peer: &Peer) {
        // Must not get lost; there is at most one for each connection, and their number is bounded.
        self.0.do_send(Turn::Disconnected { index: peer.task.index, connection: peer.connection });
    }
}
