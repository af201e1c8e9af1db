//! The chief task: its run from the first connection to the last. Knows no rule of the job.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use actix::Actor;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::StopReason;
use pushpull_messages::observe::{Clock, Micros, SpanSpec, TaskState};
use pushpull_storage::Store;
use pushpull_transport::wire::Limits;
use pushpull_transport::{Identity, Listener, ServerConfig, Transport, serve};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::{Order, SaveStatus, Saver, follow};
use crate::conclude::conclude;
use crate::config::ChiefConfig;
use crate::desk::{Desk, Door, Event, Links, Turn};
use crate::error::ChiefError;
use crate::hook::Hook;
use crate::job::{End, JobState};
use crate::lead::{Drain, Lead};
use crate::lookout::Lookout;
use crate::overview::Overview;
use crate::ps_tasks::{FAREWELL, PsTasks};
use crate::report::{JobEnd, JobProgress};
use crate::show::{Show, Showing, now, show};
use crate::view::{ChiefView, Shown, VIEW_WISHES_MAX};
use crate::watch::{Feed, News, Watch};
use crate::wish::Wish;

/// The chief task, not started yet.
pub struct Chief {
    config: ChiefConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    job: JobSpec,
    progress: watch::Sender<JobProgress>,
    /// Cancelled when a signal wants the job to stop.
    interrupt: CancellationToken,
    hooks: Vec<Box<dyn Hook>>,
    wishes: mpsc::UnboundedSender<Wish>,
    wished: mpsc::UnboundedReceiver<Wish>,
    /// The same of whoever looks, who may be anybody.
    asks: mpsc::Sender<Wish>,
    asked: mpsc::Receiver<Wish>,
    /// Where it shows itself.
    shown: Shown,
    clock: Clock,
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
        let (wishes, wished) = mpsc::unbounded_channel();
        let (asks, asked) = mpsc::channel(VIEW_WISHES_MAX);
        let hooks = Vec::new();
        let (shown, clock) = (Shown::new(), Clock::start());
        Self {
            config,
            identity,
            transport,
            job,
            progress,
            interrupt,
            hooks,
            wishes,
            wished,
            asks,
            asked,
            shown,
            clock,
        }
    }

    /// Lets these hooks go along with the job, too.
    #[must_use]
    pub fn with_hooks(mut self, hooks: impl IntoIterator<Item = Box<dyn Hook>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// What it shows of itself and the job.
    pub fn view(&self) -> ChiefView {
        let makes_checkpoints = self.config.checkpoint.is_some();
        self.shown.view(self.identity.incarnation, makes_checkpoints, self.asks.clone())
    }

    /// Runs the job on the current arbiter: brings everybody together, waits for the end, and says how it went.
    ///
    /// # Errors
    /// A setting out of range, or whatever kept the job from its end; then all tasks that can be reached have been told.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(mut self, listener: Box<dyn Listener>) -> Result<JobEnd, ChiefError> {
        let shown = Rc::new(std::mem::replace(&mut self.shown, Shown::new()));
        let result = Box::pin(self.run_and_show(listener, &shown)).await;
        if let Some(shown) = Rc::into_inner(shown) {
            shown.end(ended_because(&result), result.is_err());
        }
        result
    }

    async fn run_and_show(
        mut self,
        listener: Box<dyn Listener>,
        shown: &Rc<Shown>,
    ) -> Result<JobEnd, ChiefError> {
        self.config.validate()?;
        let saver = self.saver().await?;
        let workers = self.identity.cluster.addresses(JobName::Worker).len() as u32;
        let (leaves, left) = mpsc::unbounded_channel();
        let (events, mut happened) = mpsc::unbounded_channel();
        let state = JobState::new(self.job.clone(), workers);
        self.progress.send_replace(state.progress());
        let (feed, mut news) = Feed::new();
        let mut hooks = std::mem::take(&mut self.hooks);
        let began = SystemTime::now() - now(&self.clock);
        hooks.iter_mut().for_each(|hook| hook.clock(began));
        let mut watch = Watch::new(self.job.clone(), workers, hooks, self.wishes.clone());
        let (bell, meter, clock) = (Arc::new(Notify::new()), Arc::clone(shown.desk()), self.clock);
        let links = Links {
            progress: self.progress.clone(),
            events,
            leaves,
            feed: feed.clone(),
            bell: Arc::clone(&bell),
            meter: Arc::clone(&meter),
            clock,
            ps: self.identity.cluster.addresses(JobName::Ps).len() as u32,
        };
        let desk = Desk::new(state, &self.config, links).start();
        let server = serve(
            listener,
            self.identity.clone(),
            Arc::new(Door { desk: desk.clone(), meter }),
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
        shown.state(TaskState::Ready);
        let (ps, drain) = (Rc::new(PsTasks::default()), OnceCell::new());
        let location = self.config.checkpoint.as_ref().map(|config| config.location.as_str());
        let overview = Rc::new(RefCell::new(Overview::new(&self.job, &self.identity, location)));
        let lookout = Rc::new(Lookout::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        let lead = Lead {
            config: &self.config,
            identity: &self.identity,
            transport: &self.transport,
            job: &self.job,
            progress: self.progress.subscribe(),
            interrupt: &self.interrupt,
            desk: &desk,
            ps: &ps,
            orders: &orders,
            checkpoints: saver.as_ref().map(Saver::checkpoints),
            drain: &drain,
        };
        let mut saves = saver.as_ref().map_or_else(|| watch::channel(SaveStatus::default()).1, Saver::status);
        let showing = || Show {
            overview: Rc::clone(&overview),
            shown: Rc::clone(shown),
            clock,
            desk: desk.clone(),
            bell: Arc::clone(&bell),
            ps: Rc::clone(&ps),
            lookout: Rc::clone(&lookout),
            saves: saves.clone(),
            feed: feed.clone(),
        };
        let mut last_look = showing();
        let showing = Showing::start(showing());
        // What the chief itself takes its time for.
        let traced = self.config.trace.is_some();
        let note = |step, lane: &str, name: String, start_us: Micros| {
            if traced {
                let (task, lane, took_us) = (TaskId::CHIEF, lane.to_owned(), clock.now() - start_us);
                let (push, local_step) = (None, None);
                feed.spans(step, vec![SpanSpec { task, lane, name, push, local_step, start_us, took_us }]);
            }
        };
        let progress = self.progress.subscribe();
        let own = saver.as_ref().map(|saver| (saver.checkpoints().0, saver.life()));
        let evaluating = async {
            match &own {
                Some((catalog, life)) => {
                    let found = |step, evaluation| {
                        overview.borrow_mut().evaluated(now(&clock), step, &evaluation);
                        feed.tell(News::Evaluated(step, Box::new(evaluation)));
                    };
                    follow(catalog, *life, found).await
                }
                None => std::future::pending().await,
            }
        };
        let saving = async {
            match saver {
                Some(saver) => saver.run(&ps, progress, ordered).await,
                None => std::future::pending().await,
            }
        };
        let mut saving = std::pin::pin!(saving);
        let mut leaving = std::pin::pin!(tell_shards(&ps, left));
        let mut all_told = false;
        let (mut training, mut trained_us, mut made) = (Stopwatch::default(), None, 0);
        let ended = {
            let mut leading = std::pin::pin!(lead.run(&mut self.wished, &mut self.asked));
            let mut evaluating = std::pin::pin!(evaluating);
            let mut watching = std::pin::pin!(watch.run(&lookout, self.progress.subscribe(), &mut news));
            loop {
                tokio::select! {
                    event = happened.recv() => match event.expect("the desk holds the sender") {
                        Event::Started => training.start(),
                        Event::Trained(step) => {
                            training.stop();
                            trained_us = Some(clock.now());
                            let _ = orders.send(Order::Trained(step));
                        }
                        Event::Ended(result) => break result,
                    },
                    never = &mut leading => match never {},
                    never = &mut watching => match never {},
                    never = &mut evaluating => match never {},
                    () = &mut leaving, if !all_told => all_told = true,
                    _ = &mut saving => unreachable!("it has no order to end"),
                    Ok(()) = saves.changed() => {
                        let status = *saves.borrow_and_update();
                        desk.do_send(Turn::Saved(status));
                        if status.saves > std::mem::replace(&mut made, status.saves)
                            && let Some(last) = status.last
                        {
                            let took_us = status.last_took.as_micros() as Micros;
                            note(last.step, "checkpoints", last.to_string(), clock.now() - took_us);
                        }
                        if let Some(last) = status.last {
                            feed.tell(News::Checkpoint(last.step, last.to_string()));
                        }
                    }
                }
            }
        };
        // Nobody listens any more.
        self.wished.close();
        self.asked.close();
        if let Ok(End::Evaluated(outcome)) = ended.as_deref() {
            overview.borrow_mut().evaluated(now(&clock), outcome.step, &outcome.evaluation);
            bell.notify_one();
            if let Some(trained_us) = trained_us {
                note(outcome.step, "evaluation", format!("step {}", outcome.step), trained_us);
            }
        }
        // Before the last save: what those have given who left makes an update where they are waited for no more.
        if !all_told && tokio::time::timeout(FAREWELL, leaving).await.is_err() {
            tracing::warn!("the job has ended before every shard heard who had left");
        }
        let last = match self.config.checkpoint.as_ref().zip(step_to_save(&ended)) {
            Some((config, step)) => {
                let deadline = match (drain.get(), &ended) {
                    (Some(drain), _) => Some(drain.deadline),
                    // What was trained to its end is worth any time.
                    (None, Ok(_)) => None,
                    (None, Err(_)) => Some(tokio::time::Instant::now() + config.drain_timeout),
                };
                let _ = orders.send(Order::End { step, deadline });
                let last = saving.await;
                if let (Ok(true), Ok(name)) = (saves.has_changed(), &last) {
                    let took_us = saves.borrow().last_took.as_micros() as Micros;
                    note(name.step, "checkpoints", name.to_string(), clock.now() - took_us);
                    feed.tell(News::Checkpoint(name.step, name.to_string()));
                }
                Some(last)
            }
            None => None,
        };
        let saves = *saves.borrow();
        desk.do_send(Turn::Saved(saves));
        let result = match ended.map(|end| *end) {
            Ok(End::Evaluated(outcome)) => {
                if let Some(Err(reason)) = last {
                    tracing::error!("the last step was not saved: {reason}; {}", saves.newest());
                }
                let training = training.elapsed();
                let shards = ps.observe().await;
                let report = shards.and_then(|shards| conclude(&self.job, shards, outcome, training, saves));
                report.map(JobEnd::Completed)
            }
            Ok(End::Drained { step }) => {
                let interrupted = ChiefError::Interrupted { step, last_step: self.job.last_step };
                stopped_early(interrupted, drain.into_inner(), last, saves)
            }
            Err(error) => stopped_early(error, drain.into_inner(), last, saves),
        };
        let reason = match &result {
            Ok(JobEnd::Completed(_)) => StopReason::Completed,
            Ok(JobEnd::Saved { .. }) => StopReason::Saved,
            Err(error) => StopReason::failed(error),
        };
        ps.stop(reason).await;
        // Whether its last answer has arrived, a worker tells by going; or else it comes and asks again.
        if tokio::time::timeout(self.config.reconnect_timeout, server.alone()).await.is_err() {
            tracing::debug!("some workers are still connected");
        }
        server.stop().await;
        showing.stop().await;
        last_look.look(true).await;
        {
            let (mut overview, at) = (overview.borrow_mut(), now(&clock));
            if let Ok(JobEnd::Completed(report)) = &result {
                for (shard, snapshot) in &report.shards {
                    overview.shard(at, *shard, Some(snapshot.clone()));
                }
            }
            overview.end(ended_because(&result), result.is_err());
            show(&overview, shown, overview.rows(at));
        }
        watch.end(result.as_ref(), &self.progress.borrow(), &mut news);
        result
    }

    /// What makes its checkpoints, if it makes any.
    async fn saver(&self) -> Result<Option<Saver>, ChiefError> {
        let Some(config) = self.config.checkpoint.clone() else { return Ok(None) };
        let mut location = config.location.clone();
        if !location.contains("://")
            && let Ok(path) = std::path::absolute(&location)
        {
            // The ps tasks were started elsewhere.
            location = path.to_string_lossy().into_owned();
        }
        let store = Store::create(&location)?;
        // Better to hear now that nothing can be saved than after hours.
        let probe = format!("probe-{}", self.identity.incarnation);
        store.put(&probe, "").await?;
        store.delete(&probe).await?;
        Ok(Some(Saver::new(config, store, self.job.clone(), &self.identity).await?))
    }
}

/// Why a job ended so, if it did not train to its end.
fn ended_because(result: &Result<JobEnd, ChiefError>) -> Option<String> {
    match result {
        Ok(JobEnd::Completed(report)) => report.stopped.clone(),
        Ok(JobEnd::Saved { reason, .. }) => Some(reason.clone()),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether something is left to be saved when a job has ended so: of that step, or of whatever step all shards are at.
fn step_to_save(ended: &Result<Box<End>, ChiefError>) -> Option<Option<GlobalStep>> {
    match ended.as_deref() {
        Ok(End::Evaluated(outcome)) => Some(Some(outcome.step)),
        Ok(End::Drained { .. }) => Some(None),
        Err(
            ChiefError::Interrupted { .. } | ChiefError::NoWorkers { .. } | ChiefError::WorkerLeft { .. },
        ) => Some(None),
        // What is wrong may be what the shards hold.
        Err(_) => None,
    }
}

/// How a job ends that was not trained to its end, for that reason: it is no error where it was told to stop, and all
/// of it is saved.
fn stopped_early(
    error: ChiefError,
    drain: Option<Drain>,
    last: Option<Result<CheckpointName, String>>,
    saves: SaveStatus,
) -> Result<JobEnd, ChiefError> {
    match (last, drain) {
        (Some(Ok(checkpoint)), Some(Drain { reason, .. })) => {
            Ok(JobEnd::Saved { step: checkpoint.step, checkpoint, reason })
        }
        (Some(Ok(checkpoint)), None) if error.is_interrupt() => {
            let reason = "all workers were told to".to_owned();
            Ok(JobEnd::Saved { step: checkpoint.step, checkpoint, reason })
        }
        (Some(Ok(checkpoint)), None) => {
            tracing::warn!("all that was trained is in {checkpoint}");
            Err(error)
        }
        (Some(Err(reason)), _) => {
            tracing::error!("what was trained last is lost: {reason}; {}", saves.newest());
            Err(error)
        }
        (None, _) => Err(error),
    }
}

/// Tells the shards of every worker that leaves, until the job has ended. One that is slow to answer holds up no other
/// word.
async fn tell_shards(ps: &PsTasks, mut left: mpsc::UnboundedReceiver<(u32, Incarnation)>) {
    let mut telling = FuturesUnordered::new();
    let mut open = true;
    while open || !telling.is_empty() {
        tokio::select! {
            leaving = left.recv(), if open => match leaving {
                Some((worker, incarnation)) => telling.push(ps.leave(worker, incarnation)),
                None => open = false,
            },
            Some(()) = telling.next() => {}
        }
    }
}

/// From the word to begin until the last worker had finished.
#[derive(Default)]
struct Stopwatch {
    started: Option<Instant>,
    stopped: Option<Instant>,
}

impl Stopwatch {
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

#[cfg(test)]
mod tests;
