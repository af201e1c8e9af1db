//! A whole cluster in this process: the same tasks, the same messages, handed over without being encoded.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::Arbiter;
use anyhow::{Context, anyhow};
use pushpull_chief::{Chief, ChiefConfig, JobEnd, JobProgress, JobReport, MakeHook};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_ps::{Ps, PsConfig};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, InProcess, Transport};
use pushpull_worker::{Worker, WorkerConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::cluster::incarnation;
use crate::http::Endpoint;
use crate::logging;
use crate::threads::run_on;

/// So long the other tasks may take to hear from the chief that the job has ended.
const LEAVE: Duration = Duration::from_secs(5);

/// An embedded cluster, not started yet. Any number of them may run in one process.
#[derive(Clone)]
pub struct Embedded {
    /// Ps tasks.
    pub ps: u32,
    /// Worker tasks.
    pub workers: u32,
    /// For every ps task.
    pub ps_config: PsConfig,
    /// For every worker task.
    pub worker_config: WorkerConfig,
    /// For the chief.
    pub chief_config: ChiefConfig,
    /// What goes along with the job at the chief; what does at each worker is in the workers' settings.
    pub hooks: Vec<MakeHook>,
}

impl Embedded {
    /// Of so many tasks, with their usual settings and the machine's cores shared among the workers.
    pub fn new(ps: u32, workers: u32) -> Self {
        let threads = crate::threads::threads_per_worker(workers as usize);
        Self {
            ps,
            workers,
            ps_config: PsConfig::default(),
            worker_config: WorkerConfig { threads, ..Default::default() },
            chief_config: ChiefConfig::default(),
            hooks: Vec::new(),
        }
    }

    /// The cluster spec that its tasks hold. The addresses are names, and nothing listens there.
    ///
    /// # Errors
    /// Where there is no ps or no worker, or too many.
    pub fn cluster(&self) -> anyhow::Result<ClusterSpec> {
        let addresses = |job: JobName, count: u32| {
            (job, (0..count).map(|index| format!("{job}{index}:1")).collect::<Vec<_>>())
        };
        let jobs = [
            addresses(JobName::Chief, 1),
            addresses(JobName::Ps, self.ps),
            addresses(JobName::Worker, self.workers),
        ];
        Ok(ClusterSpec::new(jobs)?)
    }

    /// Trains a job to its end.
    ///
    /// # Errors
    /// Whatever kept it from that, `interrupt` among it.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> anyhow::Result<JobReport> {
        match self.run_or_save(job, progress, interrupt).await? {
            JobEnd::Completed(report) => Ok(report),
            JobEnd::Saved { step, checkpoint, reason } => {
                Err(anyhow!("stopped at step {step} ({reason}); saved as {checkpoint}"))
            }
        }
    }

    /// Trains a job to its end, or until `interrupt` is cancelled, where it saves what it has.
    ///
    /// # Errors
    /// Whatever kept it from that.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run_or_save(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> anyhow::Result<JobEnd> {
        self.run_observed(job, progress, interrupt, &Endpoint::default()).await
    }

    /// The same, and shows there what every task does.
    pub(crate) async fn run_observed(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
        endpoint: &Endpoint,
    ) -> anyhow::Result<JobEnd> {
        let cluster = self.cluster()?;
        let (transport, pool) = (InProcess::new(), BufferPool::default());
        let identity = |task: TaskId| Identity {
            task,
            incarnation: incarnation(),
            cluster: cluster.clone(),
            graph: Some(job.graph.digest()),
            http: endpoint.advertised(),
        };
        let address = |task: TaskId| cluster.address(task).expect("every task is in the cluster").to_string();
        // Nobody but the chief listens to signals: it tells the others. Whoever has not heard of the end is told so here.
        let leave = CancellationToken::new();
        let mut arbiters = Vec::new();
        let mut tasks = Vec::new();
        for index in 0..self.ps {
            let task = TaskId::ps(index);
            let listener = transport.listen(&address(task)).await?;
            let (config, identity) = (self.ps_config.clone(), identity(task));
            let (pool, interrupt) = (pool.clone(), leave.clone());
            let (arbiter, views) = (Arbiter::new(), endpoint.views());
            let run = move || async move {
                let ps = Ps::start(config, identity, listener, &pool)?;
                views.add(Arc::new(ps.view()));
                anyhow::Ok(ps.run(interrupt).await?)
            };
            let ps = run_on(&arbiter, move || run().instrument(logging::of_task(task)));
            tasks.push((task, ps));
            arbiters.push(arbiter);
        }
        for index in 0..self.workers {
            let task = TaskId::worker(index);
            let (config, identity) = (self.worker_config.clone(), identity(task));
            let (transport, pool) = (Arc::new(transport.clone()), pool.clone());
            let worker = Worker::new(config, identity, transport, pool, leave.clone())?;
            endpoint.add(Arc::new(worker.view()));
            let arbiter = Arbiter::new();
            let run = move || async move { anyhow::Ok(worker.run().await?) };
            let worker = run_on(&arbiter, move || run().instrument(logging::of_task(task)));
            tasks.push((task, worker));
            arbiters.push(arbiter);
        }
        let listener = transport.listen(&address(TaskId::CHIEF)).await?;
        let (config, identity) = (self.chief_config.clone(), identity(TaskId::CHIEF));
        let chief = Chief::new(config, identity, Arc::new(transport), job, progress, interrupt);
        let chief = chief.with_hooks(self.hooks.iter().map(|make| make()));
        // The chief's word is the reason; what the others say when it ends the job only follows from it.
        endpoint.lead(chief.view());
        let result = Box::pin(chief.run(listener)).instrument(logging::of_task(TaskId::CHIEF)).await;
        let out_of_patience = leave.clone();
        let patience = actix_rt::spawn(async move {
            tokio::time::sleep(LEAVE).await;
            out_of_patience.cancel();
        });
        let mut others = Ok(());
        for (task, ended) in tasks {
            let ended = match ended.await {
                Ok(ended) => ended.with_context(|| task.to_string()),
                Err(_) => Err(anyhow!("{task}: a thread of this task panicked: see above")),
            };
            if let Err(error) = &ended {
                endpoint.views().fail(task, format!("{error:#}"));
            }
            others = others.and(ended);
        }
        patience.abort();
        for arbiter in arbiters {
            arbiter.stop();
        }
        match result? {
            // Whoever had not begun has been turned away.
            end @ JobEnd::Saved { .. } => Ok(end),
            end => others.map(|()| end),
        }
    }
}
