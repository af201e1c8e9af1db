//! Brings the cluster up, watches over it, and sees to what is wished for. Knows no rule of the job: it tells the desk.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::id::{GlobalStep, JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_storage::Catalog;
use pushpull_transport::{Identity, Patience, Transport};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agree::Agreement;
use crate::checkpoint::{Begin, Beginning, Order, RestoreChoice};
use crate::config::ChiefConfig;
use crate::desk::{Desk, Turn};
use crate::error::ChiefError;
use crate::job::Start;
use crate::placement::table;
use crate::ps_tasks::PsTasks;
use crate::report::JobProgress;
use crate::wish::Wish;

/// So long the shards are watched, to see how fast they train.
const PACE: Duration = Duration::from_millis(50);

/// What it leads, and with what.
pub(crate) struct Lead<'a> {
    pub config: &'a ChiefConfig,
    pub identity: &'a Identity,
    pub transport: &'a Arc<dyn Transport>,
    pub job: &'a JobSpec,
    pub progress: watch::Receiver<JobProgress>,
    pub interrupt: &'a CancellationToken,
    pub desk: &'a Addr<Desk>,
    pub ps: &'a PsTasks,
    /// For the saver, where checkpoints are made.
    pub orders: &'a mpsc::UnboundedSender<Order>,
    /// The job's own.
    pub checkpoints: Option<(Catalog, RestoreChoice)>,
    /// Set when the job is told to stop for another one to go on.
    pub drain: &'a OnceCell<Drain>,
}

/// The job is to stop, for another one to go on.
#[derive(Debug)]
pub(crate) struct Drain {
    pub reason: String,
    /// When all has to be saved.
    pub deadline: Instant,
}

impl Lead<'_> {
    /// Leads the job. Never returns: the desk says when it has ended.
    pub(crate) async fn run(
        &self,
        wishes: &mut mpsc::UnboundedReceiver<Wish>,
        asked: &mut mpsc::Receiver<Wish>,
    ) -> Infallible {
        let started = tokio::select! {
            started = self.bring_up() => started,
            () = self.interrupt.cancelled() => {
                tracing::warn!("interrupted before the job began");
                self.desk.do_send(Turn::Interrupt);
                return std::future::pending().await;
            }
        };
        let ended = match started {
            Ok(deadline) => tokio::select! {
                ended = self.watch_over(deadline) => ended,
                ended = self.fulfil(wishes, asked) => ended,
            },
            Err(error) => Err(error),
        };
        let Err(error) = ended;
        self.desk.do_send(Turn::Fail(error));
        std::future::pending().await
    }

    /// Until all shards have their variables. Gives the time at which the workers have to be there.
    async fn bring_up(&self) -> Result<Instant, ChiefError> {
        let timeout = self.config.start_timeout;
        let deadline = Instant::now() + timeout;
        // Beyond the deadline, which is watched here for all tasks together.
        let patience = Patience::of(timeout + Duration::from_secs(60));
        let connect = self.ps.connect(self.transport, self.identity, patience, self.config.retry);
        match tokio::time::timeout_at(deadline, connect).await {
            Ok(connected) => connected?,
            Err(_) => return Err(self.missing()),
        }
        let placement = self.ps.place(self.job)?;
        if self.config.log_placement {
            tracing::info!("placement:\n{}", table(&placement, &self.job.graph.variables));
        }
        let begin = Begin {
            ps: self.ps,
            job: self.job,
            workers: self.identity.cluster.addresses(JobName::Worker).len() as u32,
            checkpoints: self.checkpoints.as_ref().map(|(catalog, restore)| (catalog, *restore)),
            warm_start: self.config.warm_start.as_ref(),
        };
        let Ok(began) = tokio::time::timeout(timeout, begin.run(placement)).await else {
            return Err(ChiefError::SlowStart(timeout.as_secs()));
        };
        let Beginning { begun, resumes } = began?;
        let (step, saves) = (GlobalStep(begun.version.0), self.checkpoints.is_some());
        let start = Start { step, resumes, saves, trace: self.config.trace };
        self.desk.do_send(Turn::Created(begun.placement.clone(), start));
        let _ = self.orders.send(Order::Begin(begun));
        Ok(deadline)
    }

    async fn watch_over(&self, deadline: Instant) -> Result<Infallible, ChiefError> {
        let mut log = tokio::time::interval(Duration::from_secs(3));
        log.tick().await;
        let mut progress = self.progress.clone();
        loop {
            tokio::select! {
                (task, reason) = self.ps.wait_lost() => {
                    let step = self.progress.borrow().global_step;
                    return Err(ChiefError::PsLost { task, step, reason });
                }
                // Whoever is missing when the time is up, or gets lost after that, does not keep the others.
                () = tokio::time::sleep_until(deadline), if !self.progress.borrow().missing.is_empty() => {
                    return Err(self.missing());
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

    /// Sees to every wish, a signal among them.
    async fn fulfil(
        &self,
        wishes: &mut mpsc::UnboundedReceiver<Wish>,
        asked: &mut mpsc::Receiver<Wish>,
    ) -> Result<Infallible, ChiefError> {
        let mut interrupted = false;
        let mut out_of_time = None;
        // At most one.
        let mut agreeing = FuturesUnordered::new();
        let mut stops = false;
        loop {
            let end_drain = async {
                match out_of_time {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let wish = tokio::select! {
                Some(wish) = wishes.recv() => wish,
                Some(wish) = asked.recv() => wish,
                () = self.interrupt.cancelled(), if !interrupted => {
                    interrupted = true;
                    Wish::Drain { reason: "a signal said so".into() }
                }
                Some(agreed) = agreeing.next() => {
                    let step: GlobalStep = agreed?;
                    tracing::info!("the training ends at step {step}");
                    self.desk.do_send(Turn::StoppingAt(step));
                    continue;
                }
                () = end_drain => {
                    tracing::warn!("the workers have not finished in time");
                    out_of_time = None;
                    self.desk.do_send(Turn::EndDrain);
                    continue;
                }
            };
            let (reason, drains) = match (wish, &self.config.checkpoint) {
                (Wish::Save, Some(_)) => {
                    let _ = self.orders.send(Order::Save);
                    continue;
                }
                (Wish::Save, None) => {
                    tracing::warn!("a checkpoint is wished for, and the job has no place for any");
                    continue;
                }
                (Wish::Stop { reason }, _) => (reason, false),
                (Wish::Drain { reason }, Some(config)) => {
                    let now = Instant::now();
                    let deadline = now + config.drain_timeout;
                    if self.drain.set(Drain { reason: reason.clone(), deadline }).is_ok() {
                        out_of_time = Some(now + config.drain_timeout * 3 / 5);
                    }
                    (reason, true)
                }
                (Wish::Drain { reason }, None) => {
                    tracing::warn!(
                        "interrupted ({reason}): telling the workers to stop; no checkpoints are made"
                    );
                    let step = self.progress.borrow().global_step;
                    self.desk.do_send(match self.interrupt.is_cancelled() {
                        true => Turn::Interrupt,
                        false => Turn::Fail(ChiefError::NotSaved { reason, step }),
                    });
                    continue;
                }
            };
            tracing::warn!("stopping before the last step: {reason}");
            // Before any shard hears of it: what a worker says because of that comes after.
            self.desk.do_send(Turn::Stop { reason, drains });
            if !std::mem::replace(&mut stops, true) {
                agreeing.push(self.agree());
            }
        }
    }

    /// The step at which all shards stop.
    async fn agree(&self) -> Result<GlobalStep, ChiefError> {
        let furthest = async || {
            let shards = self.ps.observe().await?;
            Ok::<_, ChiefError>(shards.iter().map(|(_, snapshot)| snapshot.version).max().unwrap_or_default())
        };
        let first = furthest().await?;
        let trains = self.progress.borrow().workers > 0;
        let (seen, pace) = if trains {
            tokio::time::sleep(PACE).await;
            let seen = furthest().await?;
            (seen, Some(seen.0.saturating_sub(first.0)))
        } else {
            (first, None)
        };
        let mut agreement = Agreement::new(seen, pace, self.job.last_step);
        while !agreement.told(&self.ps.stop_at(agreement.step()).await?) {}
        Ok(agreement.step())
    }

    /// Everybody who is not there now.
    fn missing(&self) -> ChiefError {
        let here = self.ps.tasks();
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
