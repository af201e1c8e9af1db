//! A cluster for one measurement: a real ps process, worker processes that only exchange values, and the
//! orders that a chief would give.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use pushpull::{ClusterSpec, InitializerSpec, PsDevice, SyncSpec};
use pushpull_identity::{Authority, Credentials};
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::message::{Appoint, Appointed, Claim, Claimed, CreateShard, ShardCreated};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, Patience, Tcp, Transport, dial};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

use crate::case::{Case, Wire};
use crate::child::{self, Measured, Task, congestion};
use crate::ports::free_address;
use crate::usage;

/// The time limit for starting a process.
pub(crate) const START: Duration = Duration::from_secs(30);
/// The shard of all variables.
const SHARD: ShardId = ShardId::new(0, 0);
/// The incarnation of every task.
const INCARNATION: Incarnation = Incarnation(1);

/// What all tasks of a cluster must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub case: Case,
    pub cluster: ClusterSpec,
    /// The file of the job's authority; `None` if the tasks do not prove who they are.
    pub authority: Option<PathBuf>,
}

/// What the processes of a cluster have used.
#[derive(Clone, Debug)]
pub(crate) struct Exchanged {
    pub workers: Vec<Measured>,
    /// The CPU time of the ps process; 0 if it is the worker's process.
    pub ps_cpu_s: f64,
    /// The peak resident memory of the ps process; 0 if it is the worker's process.
    pub ps_peak_bytes: u64,
}

impl Setup {
    /// Returns the setup of a case. The file of the authority, if there is one, is written into `dir`.
    fn new(case: Case, dir: &Path) -> anyhow::Result<Self> {
        let addresses = |count| (0..count).map(|_| free_address()).collect::<Vec<String>>();
        let jobs = [
            (JobName::Chief, addresses(1)),
            (JobName::Ps, addresses(1)),
            (JobName::Worker, addresses(case.workers)),
        ];
        let authority = (case.transport == Wire::Tls).then(|| dir.join("authority"));
        authority.iter().try_for_each(|path| Authority::new()?.write(path))?;
        Ok(Self { case, cluster: ClusterSpec::new(jobs)?, authority })
    }

    /// Returns the transport of `task`, whose large payloads are buffers of `pool`. The process has the
    /// authority's file, so it makes its certificate itself.
    pub(crate) fn tcp(&self, pool: BufferPool, task: TaskId) -> anyhow::Result<Tcp> {
        let local = self.case.transport == Wire::Shared;
        let credentials = |path: &PathBuf| {
            let authority = Authority::read(path)?;
            anyhow::Ok(Credentials::of_chief(authority, self.cluster.clone(), task)?)
        };
        let credentials = self.authority.as_ref().map(credentials).transpose()?;
        let tcp =
            Tcp::new(pool).with_local(local).with_congestion(congestion()).with_credentials(credentials);
        Ok(if self.case.spins { tcp } else { tcp.with_spin(Duration::ZERO) })
    }

    /// Returns the identity of a task.
    pub(crate) fn identity(&self, task: TaskId) -> Identity {
        let cluster = self.cluster.clone();
        Identity { task, incarnation: INCARNATION, cluster, graph: None, http: None, nonce: 0 }
    }

    /// Returns the address of the ps task.
    pub(crate) fn ps_address(&self) -> anyhow::Result<String> {
        Ok(self.cluster.address(TaskId::ps(0)).context("the ps is in the cluster spec")?.to_string())
    }

    /// Returns the variables of the job.
    pub(crate) fn variables(&self) -> Vec<VariableSpec> {
        let spec = |(at, elements): (usize, usize)| VariableSpec {
            name: format!("v{at}"),
            shape: [elements].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        };
        self.case.variables.elements().into_iter().enumerate().map(spec).collect()
    }

    /// Returns the placement, which puts all variables on one shard.
    pub(crate) fn placement(&self) -> Placement {
        let slice = |(at, elements): (usize, usize)| PlacedSlice {
            slice: SliceSpec { variable: VariableId(at as u32), row: 0, rows: elements as u64 },
            shard: SHARD,
        };
        let slices = self.case.variables.elements().into_iter().enumerate().map(slice).collect();
        Placement { epoch: PlacementEpoch(1), shards: vec![SHARD], slices }
    }

    /// Gives the orders of a chief: claims the ps task, creates the shard, and appoints the workers. The
    /// task serves for as long as the returned connection exists.
    pub(crate) async fn lead(&self, transport: &dyn Transport) -> anyhow::Result<Connection> {
        let (address, chief) = (self.ps_address()?, self.identity(TaskId::CHIEF));
        let chief = dial(transport, &address, &chief, TaskId::ps(0), Patience::of(START)).await?;
        chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await?;
        let create = CreateShard {
            shard: SHARD,
            placement: self.placement(),
            variables: self.variables(),
            update: self.case.optimizer().into(),
            compression: Vec::new(),
            sync: SyncSpec::ASYNC,
            pipeline: self.case.in_flight,
            deterministic: false,
            workers: self.case.workers,
            last_step: GlobalStep(u64::MAX / 2),
            seed: 1,
            job: 0,
            start: Default::default(),
        };
        chief.call::<ShardCreated>(create, Payload::EMPTY).await?;
        for worker in 0..self.case.workers {
            let appoint =
                Appoint { shard: 0, worker, incarnation: INCARNATION, number: u64::from(worker) + 1 };
            chief.call::<Appointed>(appoint, Payload::EMPTY).await?;
        }
        Ok(chief)
    }
}

/// How a ps process is started.
#[derive(Clone, Debug)]
pub(crate) struct PsProgram {
    pub path: PathBuf,
    pub device: PsDevice,
}

fn start_ps(setup: &Setup, program: &PsProgram) -> anyhow::Result<Child> {
    let mut command = Command::new(&program.path);
    command.arg(format!("--ps-device={}", program.device));
    command.arg(format!("--tcp-congestion={}", congestion()));
    command.args((!setup.case.spins).then_some("--spin-us=0"));
    command.arg(if setup.case.transport == Wire::Shared { "--transport=auto" } else { "--transport=tcp" });
    command.env("TF_CONFIG", setup.cluster.to_tf_config(TaskId::ps(0))).env("RUST_LOG", "error");
    if let Some(path) = &setup.authority {
        command.env("PUSHPULL_JOIN", Authority::read(path)?.join().text());
    }
    command.stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().context("cannot start the ps")
}

/// Measures a case for about this time.
pub(crate) async fn measure(case: &Case, program: &PsProgram, seconds: f64) -> anyhow::Result<Exchanged> {
    let dir = tempfile::tempdir()?;
    let setup = Setup::new(*case, dir.path())?;
    if case.transport == Wire::InProcess {
        let mut process = [child::start(&Task::Embedded(Box::new(setup)))?];
        process[0].ready().await?;
        let workers = child::measure(&mut process, seconds).await?;
        return Ok(Exchanged { workers, ps_cpu_s: 0.0, ps_peak_bytes: 0 });
    }
    let ps = start_ps(&setup, program)?;
    let id = ps.id().context("the ps runs")?.to_string();
    let transport = setup.tcp(BufferPool::default(), TaskId::CHIEF)?;
    let _chief = setup.lead(&transport).await?;
    let mut workers = Vec::new();
    for index in 0..case.workers {
        workers.push(child::start(&Task::Worker(Box::new(setup.clone()), index))?);
    }
    for worker in &mut workers {
        worker.ready().await?;
    }
    let before = usage::cpu_of(&id)?;
    let workers = child::measure(&mut workers, seconds).await?;
    let (ps_cpu_s, ps_peak_bytes) = (usage::cpu_of(&id)? - before, usage::peak_of(&id)?);
    Ok(Exchanged { workers, ps_cpu_s, ps_peak_bytes })
}
