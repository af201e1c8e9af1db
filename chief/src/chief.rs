//! The chief task: its run from the first connection to the last. Knows no rule of the job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use messages::id::{Incarnation, JobName, TaskId};
use messages::job::JobSpec;
use messages::message::StopReason;
use messages::transport::{Identity, Listener, Patience, ServerConfig, Transport, serve};
use messages::wire::Limits;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::conclude::conclude;
use crate::config::ChiefConfig;
use crate::desk::{Desk, Door, Event, Turn};
use crate::error::ChiefError;
use crate::job::JobState;
use crate::placement::table;
use crate::ps_tasks::{FAREWELL, PsTasks};
use crate::report::{JobProgress, JobReport};

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
    /// A setting out of range, or whatever kept the job from its end; then all tasks that can be reached have been told.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(self, listener: Box<dyn Listener>) -> Result<JobReport, ChiefError> {
        self.config.validate()?;
        let workers = self.identity.cluster.addresses(JobName::Worker).len() as u32;
        let (leaves, left) = mpsc::unbounded_channel();
        let (events, mut happened) = mpsc::unbounded_channel();
        let state = JobState::new(self.job.clone(), workers);
        self.progress.send_replace(state.progress());
        let desk = Desk::new(state, &self.config, self.progress.clone(), events, leaves).start();
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
        let mut leaving = std::pin::pin!(tell_shards(&ps, left));
        let mut all_told = false;
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
                    () = &mut leaving, if !all_told => all_told = true,
                }
            }
        };
        if !all_told && tokio::time::timeout(FAREWELL, leaving).await.is_err() {
            tracing::warn!("the job has ended before every shard heard who had left");
        }
        let result = match ended {
            Ok((outcome, training)) => {
                ps.observe().await.and_then(|shards| conclude(&self.job, shards, *outcome, training))
            }
            Err(error) => Err(error),
        };
        let reason = match &result {
            Ok(_) => StopReason::Completed,
            Err(error) => StopReason::failed(error),
        };
        ps.stop(reason).await;
        // Whether its last answer has arrived, a worker tells by going; or else it comes and asks again.
        if tokio::time::timeout(self.config.reconnect_timeout, server.alone()).await.is_err() {
            tracing::debug!("some workers are still connected");
        }
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
            ps.connect(&self.transport, &self.identity, patience, self.config.retry).await?;
            ps.create(&self.job, &self.identity).await
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
