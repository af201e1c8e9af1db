//! The chief's desk: the actor that lets the job's state decide about what comes over connections, and sends what it
//! says. Knows no ps task and no rule of the job.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::dev::SendError;
use actix::{Actor, Addr, AsyncContext, Context, Handler, SpawnHandle};
use messages::buffer::Payload;
use messages::id::{GlobalStep, Incarnation, JobName};
use messages::message::{Message, Refusal, RefusalCode};
use messages::placement::Placement;
use messages::transport::{Peer, Reply, Service};
use tokio::sync::{mpsc, watch};

use crate::checkpoint::SaveStatus;
use crate::config::ChiefConfig;
use crate::error::ChiefError;
use crate::job::{Effect, End, JobState, Start};
use crate::report::JobProgress;
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

/// The actor.
pub(crate) struct Desk {
    state: JobState<Reply>,
    progress: watch::Sender<JobProgress>,
    events: mpsc::UnboundedSender<Event>,
    /// Dropped when the job has ended: nobody leaves after that.
    leaves: Option<Leaves>,
    /// What workers report, for whoever watches the job.
    feed: Feed,
    leave_timeout: Duration,
    reconnect_timeout: Duration,
    /// The end of the time that workers have to leave, once that has begun.
    leaving: Option<SpawnHandle>,
    /// The end of the time that a worker has to come back, and the connection that broke.
    away: BTreeMap<u32, (u64, SpawnHandle)>,
}

impl Desk {
    pub(crate) fn new(
        state: JobState<Reply>,
        config: &ChiefConfig,
        progress: watch::Sender<JobProgress>,
        events: mpsc::UnboundedSender<Event>,
        leaves: Leaves,
        feed: Feed,
    ) -> Self {
        Self {
            state,
            progress,
            events,
            leaves: Some(leaves),
            feed,
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
        let state = &mut self.state;
        let effects = match turn {
            Turn::Request { peer, mut message, reply } => {
                if let Message::Report(report) = &mut message {
                    self.feed.report(peer.task.index, report);
                }
                state.request(&peer, message, reply)
            }
            Turn::Connected(peer) => state.connected(&peer),
            Turn::Disconnected(peer) => {
                state.disconnected(&peer);
                Vec::new()
            }
            Turn::Lost { index, connection } => state.lost(index, connection),
            Turn::Created(placement, start) => state.created(placement, start),
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
}

/// Takes what comes from connections and lays it on the desk.
pub(crate) struct Door(pub Addr<Desk>);

impl Service for Door {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        match peer.task.job {
            JobName::Worker => {
                // Neither this nor the end may get lost; each comes once for a connection, and their number is bounded.
                self.0.do_send(Turn::Connected(peer.clone()));
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
        if let Err(SendError::Full(Turn::Request { reply, .. })) = self.0.try_send(turn) {
            reply.refuse(RefusalCode::Overloaded, "the chief's queue is full");
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.0.do_send(Turn::Disconnected(peer.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use messages::cluster::ClusterSpec;
    use messages::id::TaskId;
    use messages::message::{Go, Ready, Register, Registered};
    use messages::transport::{Client, Identity, InProcess, Patience, ServerConfig, Transport, dial, serve};

    use super::*;
    use crate::job::tests::{job, placement};

    /// Long enough for any machine.
    const PATIENCE: Duration = Duration::from_secs(60);

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
            let identity =
                Identity { task: TaskId::CHIEF, incarnation: Incarnation(1), cluster, graph: None };
            let chief = Chief { transport: InProcess::new(), identity };
            let (progress, _) = watch::channel(JobProgress::default());
            let (events, mut happened) = mpsc::unbounded_channel();
            let (leaves, mut left) = mpsc::unbounded_channel();
            let config = ChiefConfig { reconnect_timeout: Duration::from_millis(200), ..Default::default() };
            let desk =
                Desk::new(JobState::new(job(), 2), &config, progress, events, leaves, Feed::new().0).start();
            let listener = chief.transport.listen("chief0:1").await.unwrap();
            let door = Arc::new(Door(desk.clone()));
            let server = serve(listener, chief.identity.clone(), door, ServerConfig::default());
            desk.send(Turn::Created(placement(), Start::default())).await.unwrap();
            let [first, second] = chief.training().await;
            // The first has another connection, and nothing to say over it.
            let _back = chief.worker(0, 7).await;
            drop(first);
            drop(second);
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
