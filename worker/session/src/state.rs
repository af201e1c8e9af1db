//! What all requests to a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Describe, Described, Reset, ResetDone, RunKey, TaskDescription};
use pushpull_transport::Identity;
use pushpull_transport::buffer::Payload;
use tokio::sync::Semaphore;

use crate::config::SessionConfig;
use crate::error::SessionError;
use crate::graphs::Graphs;
use crate::memory::{Memory, Share};
use crate::meter::RunMeter;
use crate::peers::Peers;
use crate::run::Site;
use crate::runs::Runs;
use crate::variables::Variables;

/// The number of threads that decode graphs and plan runs.
const PLANNERS_MAX: usize = 4;

/// What all requests to a server share.
pub(crate) struct State {
    pub config: SessionConfig,
    pub identity: Identity,
    /// The index of this task among the tasks of the cluster.
    pub index: usize,
    pub peers: Peers,
    pub variables: Arc<dyn Variables>,
    pub graphs: Graphs,
    pub runs: Arc<Runs>,
    /// A permit for each thread that may run a part. The parts of a run on this task get their permits
    /// together: a part that had to wait for a thread could be the one that the others wait for.
    pub threads: Arc<Semaphore>,
    pub meter: RunMeter,
    /// A permit for each thread that may decode a graph or plan a run. Without this bound, such threads could
    /// take those that runs in progress need.
    pub planners: Semaphore,
    pub memory: Arc<Memory>,
    next: AtomicU64,
}

impl State {
    pub fn new(
        config: SessionConfig,
        identity: Identity,
        index: usize,
        peers: Peers,
        variables: Arc<dyn Variables>,
    ) -> Self {
        let threads = Arc::new(Semaphore::new(config.threads_max as usize));
        let memory = Arc::new(Memory::new(config.bytes_max, config.client_bytes_max));
        let (graphs, runs, meter) = Default::default();
        Self {
            config,
            identity,
            index,
            peers,
            variables,
            graphs,
            runs,
            threads,
            planners: Semaphore::new(PLANNERS_MAX),
            memory,
            meter,
            next: AtomicU64::new(1),
        }
    }

    pub const fn task(&self) -> TaskId {
        self.identity.task
    }

    /// Returns what a run needs of this task.
    pub fn site(&self) -> Site {
        Site {
            task: self.task(),
            index: self.index,
            variables: Arc::clone(&self.variables),
            memory: Arc::clone(&self.memory),
            text_bytes_max: self.config.client_bytes_max,
        }
    }

    /// Takes memory for a client. Frees memory that is kept for later runs if that is needed.
    ///
    /// # Errors
    /// If a limit would be exceeded.
    pub fn take(&self, client: u64, what: &str, bytes: u64) -> Result<Share, SessionError> {
        self.memory.take(client, what, bytes).or_else(|_| {
            self.graphs.free_idle();
            self.memory.take(client, what, bytes)
        })
    }

    /// Takes memory for what may be kept for later runs of a client; `None` if there is not enough.
    pub fn take_spare(&self, client: u64, bytes: u64) -> Option<Share> {
        self.memory.take(client, "", bytes).ok()
    }

    /// Returns a number that no graph and no run of this task has had.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the identity of a new run that this task leads.
    pub fn run_key(&self) -> RunKey {
        let Identity { task, incarnation, .. } = self.identity;
        RunKey { task, incarnation, number: self.number() }
    }

    /// Describes this task.
    pub fn describe_own(&self, variables: bool) -> TaskDescription {
        let (bytes, bytes_max) = self.variables.bytes();
        TaskDescription {
            task: self.task(),
            incarnation: self.identity.incarnation,
            cpus: self.config.cpus,
            bytes,
            bytes_max,
            containers: if variables { self.variables.describe() } else { Vec::new() },
            error: None,
        }
    }

    /// Describes another task. A task that cannot be asked is described with the reason.
    pub async fn describe_other(&self, task: TaskId, variables: bool) -> TaskDescription {
        let ask = async {
            let peer = self.peers.connection(task).await.map_err(|error| error.to_string())?;
            let request = Describe { own: true, variables };
            let answer = peer.connection.call::<Described>(request, Payload::EMPTY).await;
            let (described, _) = answer.map_err(|error| error.to_string())?;
            let found = described.tasks.into_iter().find(|description| description.task == task);
            found.ok_or_else(|| format!("{task} did not describe itself"))
        };
        ask.await.unwrap_or_else(|error| TaskDescription {
            task,
            incarnation: Default::default(),
            cpus: 0,
            bytes: 0,
            bytes_max: 0,
            containers: Vec::new(),
            error: Some(error),
        })
    }

    /// Describes this task and, unless `own` is true, all other tasks.
    pub async fn describe(&self, Describe { own, variables }: Describe) -> Described {
        let cluster = self.identity.cluster.clone();
        let describe = async |task: TaskId| match task == self.task() {
            true => self.describe_own(variables),
            false => self.describe_other(task, variables).await,
        };
        let asked = cluster.tasks().map(|(task, _)| task).filter(|&task| !own || task == self.task());
        let tasks = join_all(asked.map(describe)).await;
        Described { cluster, tasks }
    }

    /// Removes variables of this task and, unless `own` is true, of all other tasks.
    ///
    /// # Errors
    /// Returns the reason if another task could not do so.
    pub async fn reset(&self, request: Reset) -> Result<ResetDone, String> {
        let mut variables = self.variables.reset(&request.containers);
        let others = self.identity.cluster.tasks().map(|(task, _)| task);
        for task in others.filter(|&task| !request.own && task != self.task()) {
            let peer = self.peers.connection(task).await.map_err(|error| error.to_string())?;
            let request = Reset { own: true, ..request.clone() };
            let answer = peer.connection.call::<ResetDone>(request, Payload::EMPTY).await;
            variables += answer.map_err(|error| error.to_string())?.0.variables;
        }
        Ok(ResetDone { variables })
    }
}
