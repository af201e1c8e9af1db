//! The chief's desk: the actor that lets the job's state decide about what comes over connections, and sends what it
//! says. Knows no ps task and no rule of the job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::dev::SendError;
use actix::{Actor, Addr, AsyncContext, Context, Handler, MessageResult, SpawnHandle};
use pushpull_messages::id::{GlobalStep, Incarnation, JobName};
use pushpull_messages::message::{Message, Refusal, RefusalCode, Report};
use pushpull_messages::observe::{Clock, JobPhase, Meter, Queued, WorkerState};
use pushpull_messages::placement::Placement;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Peer, Reply, Service};
use tokio::sync::{Notify, mpsc, watch};

use crate::checkpoint::SaveStatus;
use crate::config::ChiefConfig;
use crate::error::ChiefError;
use crate::heard::Heard;
use crate::job::{Effect, End, JobState, Start};
use crate::overview::DeskSnapshot;
use crate::report::JobProgress;
use crate::show::since;
use crate::watch::Feed;

/// Requests that may wait in the chief's mailbox.
const REQUESTS_MAX: usize = 1 << 14;

/// What the desk tells the chief's run.
pub(crate) enum Event {
    Started,
    /// At that step.
    Trained(GlobalStep),
    Ended(Result<Box<End>, ChiefError>),
}

/// Lives of workers that the shards must not wait for: at most one for each that has begun.
pub(crate) type Leaves = mpsc::UnboundedSender<(u32, Incarnation)>;

/// Whom the desk tells what.
pub(crate) struct Links {
    pub progress: watch::Sender<JobProgress>,
    pub events: mpsc::UnboundedSender<Event>,
    pub leaves: Leaves,
    /// What workers report, for whoever watches the job.
    pub feed: Feed,
    /// Told when something is to be seen at once.
    pub bell: Arc<Notify>,
    pub meter: Arc<Meter>,
    pub clock: Clock,
    /// How many ps tasks the cluster has.
    pub ps: u32,
}

/// The actor.
pub(crate) struct Desk {
    state: JobState<Reply>,
    progress: watch::Sender<JobProgress>,
    events: mpsc::UnboundedSender<Event>,
    /// Dropped when the job has ended: nobody leaves after that.
    leaves: Option<Leaves>,
    feed: Feed,
    bell: Arc<Notify>,
    meter: Arc<Meter>,
    clock: Clock,
    /// As the job was when the bell was rung.
    glance: (JobPhase, bool, Vec<(WorkerState, u64)>),
    heard: Heard,
    /// Since the desk was asked last, if they were given places.
    placement: Option<Placement>,
    leave_timeout: Duration,
    reconnect_timeout: Duration,
    /// The end of the time that workers have to leave, once that has begun.
    leaving: Option<SpawnHandle>,
    /// The end of the time that a worker has to come back, and the connection that broke.
    away: BTreeMap<u32, (u64, SpawnHandle)>,
}

impl Desk {
    pub(crate) fn new(state: JobState<Reply>, config: &ChiefConfig, links: Links) -> Self {
        let Links { progress, events, leaves, feed, bell, meter, clock, ps } = links;
        Self {
            glance: state.glance(),
            state,
            progress,
            events,
            leaves: Some(leaves),
            feed,
            bell,
            meter,
            clock,
            heard: Heard::new(ps),
            placement: None,
            leave_timeout: config.leave_timeout,
            reconnect_timeout: config.reconnect_timeout,
            leaving: None,
            away: BTreeMap::new(),
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Reply>>) {
        for effect in effects {
            // The run may have ended already; then nobody needs to hear.
            match effect {
                Effect::Reply(reply, message) => reply.send(message, Payload::EMPTY),
                Effect::Started => drop(self.events.send(Event::Started)),
                Effect::Trained(step) => drop(self.events.send(Event::Trained(step))),
                Effect::Leave(worker, incarnation) => {
                    if let Some(leaves) = &self.leaves {
                        let _ = leaves.send((worker, incarnation));
                    }
                }
                Effect::Ended(result) => {
                    self.leaves = None;
                    let _ = self.events.send(Event::Ended(result.map(Box::new)));
                }
            }
        }
        self.progress.send_replace(self.state.progress());
        let glance = self.state.glance();
        if glance != self.glance {
            self.glance = glance;
            self.bell.notify_one();
        }
    }

    /// A worker has reported: what it says of itself is kept here, if it is of the life and of the connection that are known. What
    /// still comes over an earlier connection will be told again, or was.
    fn hear(&mut self, peer: &Peer, came: Instant, report: &mut Report) {
        if !self.state.is_latest(peer) {
            return;
        }
        if let Some(senseless) = self.heard.hear(peer, since(&self.clock, came), report) {
            self.feed.lose_spans(senseless, "workers tell of spans that cannot be theirs");
            self.feed.report(peer.task.index, peer.incarnation, report);
        }
    }

    /// Lets the state decide about what has come at that moment.
    fn turn(&mut self, turn: Turn, came: Instant, ctx: &mut Context<Self>) {
        let state = &mut self.state;
        let effects = match turn {
            Turn::Request { peer, mut message, reply } => {
                if let Message::Report(report) = &mut message {
                    self.hear(&peer, came, report);
                }
                let mut effects = self.state.request(&peer, message, reply);
                for effect in &mut effects {
                    // The state knows no clock.
                    if let Effect::Reply(_, Message::Reported(reported)) = effect {
                        reported.clock_us = self.clock.at(came);
                    }
                }
                effects
            }
            Turn::Connected(peer) => state.connected(&peer),
            Turn::Disconnected(peer) => {
                state.disconnected(&peer);
                Vec::new()
            }
            Turn::Lost { index, connection } => state.lost(index, connection),
            Turn::Created(placement, start) => {
                self.placement = Some(placement.clone());
                state.created(placement, start)
            }
            Turn::Saved(saved) => {
                state.saved(saved);
                Vec::new()
            }
            Turn::Stop { reason, drains } => state.stop(reason, drains),
            Turn::StoppingAt(step) => state.stopping_at(step),
            Turn::EndDrain => state.end_drain(),
            Turn::Fail(error) => state.fail(error),
            Turn::Interrupt => {
                let (step, last_step) = (state.global_step(), state.job().last_step);
                state.fail(ChiefError::Interrupted { step, last_step })
            }
            Turn::EndFailing => state.end_failing(),
        };
        self.carry_out(effects);
        self.set_timers(ctx);
    }

    /// Lets the timers run that the state wants now, and no others: one that still runs would keep this actor, and all
    /// that it holds, alive.
    fn set_timers(&mut self, ctx: &mut Context<Self>) {
        if !self.state.is_failing() {
            self.leaving.take().map(|timer| ctx.cancel_future(timer));
        } else if self.leaving.is_none() {
            self.leaving = Some(ctx.notify_later(Turn::EndFailing, self.leave_timeout));
        }
        let mut running = std::mem::take(&mut self.away);
        for (index, connection) in self.state.awaited() {
            let timer = match running.remove(&index) {
                Some((broken, timer)) if broken == connection => timer,
                other => {
                    other.map(|(_, timer)| ctx.cancel_future(timer));
                    ctx.notify_later(Turn::Lost { index, connection }, self.reconnect_timeout)
                }
            };
            self.away.insert(index, (connection, timer));
        }
        for (_, timer) in running.into_values() {
            ctx.cancel_future(timer);
        }
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
pub(crate) enum Turn {
    Request {
        peer: Peer,
        message: Message,
        reply: Reply,
    },
    Connected(Peer),
    Disconnected(Peer),
    /// The worker has had time enough to come back since that connection broke.
    Lost {
        index: u32,
        connection: u64,
    },
    /// Every variable has the value that it begins with.
    Created(Placement, Start),
    /// What has become of the checkpoints.
    Saved(SaveStatus),
    /// The shards are about to be told where to stop, for this reason; for another job to go on, if it `drains`.
    Stop {
        reason: String,
        drains: bool,
    },
    /// The shards have agreed on where.
    StoppingAt(GlobalStep),
    /// The time to drain is over.
    EndDrain,
    /// The job cannot go on.
    Fail(ChiefError),
    /// A signal came, and nothing can be saved.
    Interrupt,
    /// The workers had time enough to leave.
    EndFailing,
}

impl Handler<Turn> for Desk {
    type Result = ();

    fn handle(&mut self, turn: Turn, ctx: &mut Self::Context) {
        let _handling = self.meter.begin();
        self.turn(turn, Instant::now(), ctx);
    }
}

/// What came from a connection, and since when it lies on the desk.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Laid {
    turn: Turn,
    queued: Queued,
}

impl Handler<Laid> for Desk {
    type Result = ();

    fn handle(&mut self, Laid { turn, queued }: Laid, ctx: &mut Self::Context) {
        let came = queued.since();
        let _handling = queued.handle();
        self.turn(turn, came, ctx);
    }
}

/// Somebody wants to see the job.
#[derive(actix::Message)]
#[rtype(result = "DeskSnapshot")]
pub(crate) struct Observe;

impl Handler<Observe> for Desk {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        MessageResult(DeskSnapshot {
            seen: self.state.seen(),
            progress: self.state.progress(),
            told: self.heard.told(),
            reports: self.heard.take(),
            placement: self.placement.take(),
        })
    }
}

/// Takes what comes from connections and lays it on the desk.
pub(crate) struct Door {
    pub desk: Addr<Desk>,
    pub meter: Arc<Meter>,
}

impl Door {
    fn laid(&self, turn: Turn) -> Laid {
        Laid { turn, queued: self.meter.queue() }
    }
}

impl Service for Door {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        match peer.task.job {
            JobName::Worker => {
                // Neither this nor the end may get lost; each comes once for a connection, and their number is bounded.
                self.desk.do_send(self.laid(Turn::Connected(peer.clone())));
                Ok(())
            }
            _ => Err(Refusal::new(
                RefusalCode::Mismatch,
                format!("the chief takes connections from workers, and this is {}", peer.task),
            )),
        }
    }

    fn call(&self, peer: &Peer, message: Message, _: Payload, reply: Reply) {
        let turn = Turn::Request { peer: peer.clone(), message, reply };
        if let Err(SendError::Full(Laid { turn: Turn::Request { reply, .. }, .. })) =
            self.desk.try_send(self.laid(turn))
        {
            reply.refuse(RefusalCode::Overloaded, "the chief's queue is full");
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.desk.do_send(self.laid(Turn::Disconnected(peer.clone())));
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::id::{LocalStep, TaskId};
    use pushpull_messages::message::{Go, Ready, Register, Registered, Reported};
    use pushpull_transport::{Client, Identity, InProcess, Patience, ServerConfig, Transport, dial, serve};

    use super::*;
    use crate::job::tests::{job, placement};

    /// Long enough for any machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn report() -> Report {
        Report {
            global_step: GlobalStep(2),
            local_step: LocalStep(3),
            loss: 0.5,
            drawn: 3,
            ..Report::default()
        }
    }

    struct Chief {
        transport: InProcess,
        identity: Identity,
    }

    impl Chief {
        async fn worker(&self, index: u32, life: u64) -> Client {
            let (task, incarnation) = (TaskId::worker(index), Incarnation(life));
            let identity = Identity { task, incarnation, ..self.identity.clone() };
            let patience = Patience::of(PATIENCE);
            dial(&self.transport, "chief0:1", &identity, TaskId::CHIEF, patience).await.unwrap()
        }

        /// Two workers that have been told to begin.
        async fn training(&self) -> [Client; 2] {
            let workers = [self.worker(0, 7).await, self.worker(1, 7).await];
            for worker in &workers {
                worker.call::<Registered>(Register {}, Payload::EMPTY).await.unwrap();
            }
            let ready = workers.iter().map(|worker| worker.call::<Go>(Ready {}, Payload::EMPTY));
            futures_util::future::try_join_all(ready).await.unwrap();
            workers
        }
    }

    #[test]
    fn a_worker_that_does_not_come_back_in_time_is_told_to_the_shards() {
        actix::System::new().block_on(async {
            let addresses = [
                (JobName::Chief, vec!["chief0:1"]),
                (JobName::Ps, vec!["ps0:1"]),
                (JobName::Worker, vec!["worker0:1", "worker1:1"]),
            ];
            let cluster = ClusterSpec::new(addresses).unwrap();
            let identity = Identity {
                task: TaskId::CHIEF,
                incarnation: Incarnation(1),
                cluster,
                graph: None,
                http: None,
            };
            let chief = Chief { transport: InProcess::new(), identity };
            let (progress, _) = watch::channel(JobProgress::default());
            let (events, mut happened) = mpsc::unbounded_channel();
            let (leaves, mut left) = mpsc::unbounded_channel();
            let config = ChiefConfig { reconnect_timeout: Duration::from_millis(200), ..Default::default() };
            let links = Links {
                progress,
                events,
                leaves,
                feed: Feed::new().0,
                bell: Arc::default(),
                meter: Arc::default(),
                clock: Clock::start(),
                ps: 1,
            };
            let (bell, meter) = (Arc::clone(&links.bell), Arc::clone(&links.meter));
            let desk = Desk::new(JobState::new(job(), 2), &config, links).start();
            let listener = chief.transport.listen("chief0:1").await.unwrap();
            let door = Arc::new(Door { desk: desk.clone(), meter: Arc::clone(&meter) });
            let server = serve(listener, chief.identity.clone(), door, ServerConfig::default());
            desk.send(Turn::Created(placement(), Start::default())).await.unwrap();
            let [first, second] = chief.training().await;
            bell.notified().await;
            let (reported, _) = first.call::<Reported>(report(), Payload::EMPTY).await.unwrap();
            let (again, _) = first.call::<Reported>(report(), Payload::EMPTY).await.unwrap();
            assert!(0 < reported.clock_us && reported.clock_us < again.clock_us);
            let seen = desk.send(Observe).await.unwrap();
            assert_eq!(seen.seen.phase, JobPhase::Training);
            assert!(seen.seen.workers.iter().all(|worker| worker.state == WorkerState::Training));
            assert_eq!((seen.told[&0].local_step.0, seen.reports[&0].steps), (3, 3));
            assert!(seen.placement.is_some() && desk.send(Observe).await.unwrap().placement.is_none());
            let actor = meter.snapshot("chief/0/desk", "");
            assert!(actor.queue == 0 && actor.handling.count() >= 7, "{actor:?}");
            // The first has another connection, and nothing to say over it.
            let _back = chief.worker(0, 7).await;
            drop(first);
            drop(second);
            // That is to be seen at once, long before anybody is given up.
            let away = async {
                loop {
                    bell.notified().await;
                    let seen = desk.send(Observe).await.unwrap().seen;
                    match seen.workers[1].state {
                        WorkerState::Training => {}
                        state => return (state, seen.workers[0].state),
                    }
                }
            };
            let away = tokio::time::timeout(PATIENCE, away).await.unwrap();
            assert_eq!(away, (WorkerState::Away, WorkerState::Training));
            let lost = tokio::time::timeout(PATIENCE, left.recv()).await.unwrap();
            assert_eq!(lost, Some((1, Incarnation(7))));
            // When the job has ended nothing runs on: the desk lets go of all it holds.
            desk.send(Turn::Fail(ChiefError::Interrupted {
                step: job().last_step,
                last_step: job().last_step,
            }))
            .await
            .unwrap();
            desk.send(Turn::EndFailing).await.unwrap();
            server.stop().await;
            drop(desk);
            let ended = async { while !matches!(happened.recv().await, Some(Event::Ended(_)) | None) {} };
            tokio::time::timeout(PATIENCE, ended).await.unwrap();
            assert!(tokio::time::timeout(PATIENCE, happened.recv()).await.unwrap().is_none());
            assert_eq!(left.recv().await, None);
        });
    }
}
