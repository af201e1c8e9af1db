//! The actor that passes every event to the job's state machine and carries out the effects that the state
//! machine returns. The rules of the job are in `job`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, MessageResult, SpawnHandle};
use pushpull_messages::id::{GlobalStep, PlacementEpoch};
use pushpull_messages::message::{Evaluation, Message, Report, StepEvaluation};
use pushpull_messages::observe::{self, Clock, Meter};
use pushpull_messages::placement::Placement;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Peer, Reply};
use tokio::sync::{Notify, mpsc, watch};
use tracing::Span;

use super::event::{JobEvent, PeerEvent};
use super::snapshot::CoordinatorSnapshot;
use crate::config::ChiefConfig;
use crate::elapsed::elapsed_at;
use crate::error::ChiefError;
use crate::job::{Effect, Headline, JobState, MembershipOrder, TrainingEnd};
use crate::monitor::{Feed, ReportLedger};
use crate::report::JobProgress;

/// The largest number of requests that may wait in the coordinator's mailbox.
const REQUESTS_MAX: usize = 1 << 14;

/// A milestone of the job. The coordinator reports it to the chief's loop that runs the job.
pub(crate) enum Milestone {
    /// All workers were told to begin.
    Started,
    /// A worker has evaluated the model while it trained.
    Evaluated(Box<StepEvaluation>),
    /// All workers have finished; the field is the step at which the training ended.
    Trained(GlobalStep),
    /// The save of this step, the last one, must be repeated.
    SaveAgain(GlobalStep),
    /// The trained job was evaluated at this step.
    TrainedEvaluated(GlobalStep, Evaluation),
    /// The job has ended.
    Ended(Result<Box<TrainingEnd>, ChiefError>),
}

/// The channels over which the coordinator sends its decisions.
pub(crate) struct CoordinatorChannels {
    pub progress: watch::Sender<JobProgress>,
    pub milestones: mpsc::UnboundedSender<Milestone>,
    /// What the shards must be told about workers that have registered or left. At most two orders are sent
    /// for each incarnation.
    pub orders: mpsc::UnboundedSender<(PlacementEpoch, MembershipOrder)>,
    pub feed: Feed,
    /// Notified when the status should be published without delay.
    pub bell: Arc<Notify>,
    pub meter: Arc<Meter>,
    pub clock: Clock,
}

/// The coordinator of one job.
pub(crate) struct Coordinator {
    state: JobState<Reply>,
    progress: watch::Sender<JobProgress>,
    milestones: mpsc::UnboundedSender<Milestone>,
    /// The sender of orders; `None` when the job has ended, because no worker joins or leaves after that.
    orders: Option<mpsc::UnboundedSender<(PlacementEpoch, MembershipOrder)>>,
    feed: Feed,
    bell: Arc<Notify>,
    meter: Arc<Meter>,
    clock: Clock,
    /// The job's headline at the last notification of `bell`.
    headline: Headline,
    ledger: ReportLedger,
    /// The placement; `None` before it is decided, and after the first snapshot that contains it.
    placement: Option<Placement>,
    leave_timeout: Duration,
    reconnect_timeout: Duration,
    rejoin_timeout: Duration,
    /// The timer of `leave_timeout`; runs while the job is failing.
    leave_timer: Option<SpawnHandle>,
    /// The workers whose connection is broken. Each has the number of the broken connection, and a timer of
    /// `reconnect_timeout`.
    reconnect_timers: BTreeMap<u32, (u64, SpawnHandle)>,
    /// The tracing span of the task; log lines inside this span name the task.
    span: Span,
}

impl Coordinator {
    /// Creates the coordinator of a job. `ps` is the number of ps tasks in the cluster.
    pub(crate) fn new(
        state: JobState<Reply>,
        ps: u32,
        config: &ChiefConfig,
        channels: CoordinatorChannels,
    ) -> Self {
        let CoordinatorChannels { progress, milestones, orders, feed, bell, meter, clock } = channels;
        Self {
            headline: state.headline(),
            state,
            progress,
            milestones,
            orders: Some(orders),
            feed,
            bell,
            meter,
            clock,
            ledger: ReportLedger::new(ps),
            placement: None,
            leave_timeout: config.leave_timeout,
            reconnect_timeout: config.reconnect_timeout,
            rejoin_timeout: config.rejoin_timeout,
            leave_timer: None,
            reconnect_timers: BTreeMap::new(),
            span: Span::current(),
        }
    }

    /// Passes an event to the state machine, and carries out the effects. `received` is the time at which
    /// the event was received.
    fn apply(&mut self, event: JobEvent, received: Instant, ctx: &mut Context<Self>) {
        // The actor system does not enter spans: without this line the log lines would not name the task.
        let _task = self.span.clone().entered();
        let state = &mut self.state;
        let effects = match event {
            JobEvent::Request { peer, message, reply } => self.request(&peer, message, reply, received),
            JobEvent::Connected(peer) => state.connected(&peer),
            JobEvent::Disconnected(peer) => {
                state.disconnected(&peer);
                Vec::new()
            }
            JobEvent::Lost { index, connection } => state.lost(index, connection),
            JobEvent::Created(placement, start) => {
                self.placement = Some(placement.clone());
                state.created(placement, start)
            }
            JobEvent::Continued(placement, start, workers) => {
                self.placement = Some(placement.clone());
                state.continued(placement, start, &workers)
            }
            JobEvent::Suspend => {
                state.suspend();
                Vec::new()
            }
            JobEvent::Resume => state.resume(),
            JobEvent::RollBack(workers) => state.roll_back(&workers),
            JobEvent::HostLost(index) => state.host_lost(index),
            JobEvent::Release => state.release(),
            JobEvent::Appointed(index, incarnation) => state.appointed(index, incarnation),
            JobEvent::Saved(saved) => {
                state.saved(saved);
                Vec::new()
            }
            JobEvent::Stop { reason, drains } => state.stop(reason, drains),
            JobEvent::StoppingAt(step) => state.stopping_at(step),
            JobEvent::EndDrain => state.end_drain(),
            JobEvent::Settled(settled) => state.settled(Some(settled)),
            JobEvent::Fail(error) => state.fail(error),
            JobEvent::Interrupt => {
                let (step, last_step) = (state.global_step(), state.job().last_step);
                state.fail(ChiefError::Interrupted { step, last_step })
            }
            JobEvent::EndFailing => state.end_failing(),
        };
        self.carry_out(effects);
        self.set_timers(ctx);
    }

    fn request(
        &mut self,
        peer: &Peer,
        mut message: Message,
        reply: Reply,
        received: Instant,
    ) -> Vec<Effect<Reply>> {
        if let Message::Report(report) = &mut message {
            self.record(peer, received, report);
        }
        let mut effects = self.state.request(peer, message, reply);
        for effect in &mut effects {
            // The state machine has no clock, so times are filled in here.
            if let Effect::Reply(_, Message::Reported(reported)) = effect {
                reported.clock_us = self.clock.at(received);
            }
        }
        effects
    }

    /// Records a report if it comes from the current incarnation of a worker over its latest connection.
    /// Other reports can be ignored: after a reconnect, the worker sends each report again until the chief
    /// answers it.
    fn record(&mut self, peer: &Peer, received: Instant, report: &mut Report) {
        if !self.state.is_latest(peer) {
            return;
        }
        let at = elapsed_at(&self.clock, received);
        if let Some(recorded) = self.ledger.record(peer, at, report) {
            self.feed.drop_spans(
                recorded.spans_dropped,
                "workers reported spans of other tasks or of impossible times",
            );
            self.feed.report(peer.task.index, recorded.steps, report);
            for mut evaluation in std::mem::take(&mut report.evaluations) {
                // The step is limited, because a faulty worker may report a step beyond the end.
                evaluation.step = evaluation.step.min(self.state.job().last_step);
                let _ = self.milestones.send(Milestone::Evaluated(Box::new(evaluation)));
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Reply>>) {
        for effect in effects {
            // Failures to send are ignored, because the receivers are gone if the run has already ended.
            match effect {
                Effect::Reply(reply, message) => reply.send(message, Payload::EMPTY),
                Effect::Started => drop(self.milestones.send(Milestone::Started)),
                Effect::Trained(step) => drop(self.milestones.send(Milestone::Trained(step))),
                Effect::SaveAgain(step) => drop(self.milestones.send(Milestone::SaveAgain(step))),
                Effect::Evaluated(step, evaluation) => {
                    drop(self.milestones.send(Milestone::TrainedEvaluated(step, evaluation)));
                }
                Effect::Order(order) => {
                    if let Some(orders) = &self.orders {
                        let _ = orders.send((self.state.epoch(), order));
                    }
                }
                Effect::Ended(result) => {
                    self.orders = None;
                    let _ = self.milestones.send(Milestone::Ended(result.map(Box::new)));
                }
            }
        }
        self.progress.send_replace(self.state.progress());
        let headline = self.state.headline();
        if headline != self.headline {
            self.headline = headline;
            self.bell.notify_one();
        }
    }

    /// Starts the timers that the state needs now, and cancels all others. A timer that keeps running would
    /// keep this actor alive, with everything that the actor holds.
    fn set_timers(&mut self, ctx: &mut Context<Self>) {
        if !self.state.is_failing() {
            self.leave_timer.take().map(|timer| ctx.cancel_future(timer));
        } else if self.leave_timer.is_none() {
            self.leave_timer = Some(ctx.notify_later(JobEvent::EndFailing, self.leave_timeout));
        }
        let mut running = std::mem::take(&mut self.reconnect_timers);
        for (index, connection) in self.state.awaited() {
            let timer = match running.remove(&index) {
                Some((broken, timer)) if broken == connection => timer,
                other => {
                    other.map(|(_, timer)| ctx.cancel_future(timer));
                    // The number 0 means that the worker was connected to an earlier run of the chief, but
                    // not yet to this one. If the worker hosts a ps task, the loss of that task is found out
                    // first.
                    let longer = connection == 0 || self.state.restarts(index) || self.state.awaits_hosts();
                    let limit = match longer {
                        true => self.rejoin_timeout.max(self.reconnect_timeout),
                        false => self.reconnect_timeout,
                    };
                    ctx.notify_later(JobEvent::Lost { index, connection }, limit)
                }
            };
            self.reconnect_timers.insert(index, (connection, timer));
        }
        for (_, timer) in running.into_values() {
            ctx.cancel_future(timer);
        }
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(REQUESTS_MAX);
    }
}

impl Handler<JobEvent> for Coordinator {
    type Result = ();

    fn handle(&mut self, event: JobEvent, ctx: &mut Self::Context) {
        let _handling = self.meter.begin();
        self.apply(event, observe::now(), ctx);
    }
}

impl Handler<PeerEvent> for Coordinator {
    type Result = ();

    fn handle(&mut self, PeerEvent { event, queued }: PeerEvent, ctx: &mut Self::Context) {
        let received = queued.since();
        let _handling = queued.handle();
        self.apply(event, received, ctx);
    }
}

/// A request for a snapshot of the coordinator.
#[derive(actix::Message)]
#[rtype(result = "CoordinatorSnapshot")]
pub(crate) struct Observe;

impl Handler<Observe> for Coordinator {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        MessageResult(CoordinatorSnapshot {
            status: self.state.status(),
            progress: self.state.progress(),
            latest: self.ledger.latest(),
            reports: self.ledger.take(),
            placement: self.placement.take(),
        })
    }
}
