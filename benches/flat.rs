//! Checks that the memory of a ps and of a worker stays flat over a million small pushes and pulls. The ps is
//! a real process; this process is the worker, and gives the orders of a chief. Ends with an error if the
//! resident memory of either grows by more than the slack after a tenth of the requests.
//!
//! `cargo bench --bench flat -- [--requests N] [--bytes N] [--slack-mib N] [--transport tcp|auto]`.

#[path = "../tests/support/ports.rs"]
mod ports;

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use ports::free_address;
use pushpull::{ClusterSpec, InitializerSpec, OptimizerSpec, SyncSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::{Appoint, Appointed, Claim, Claimed, CreateShard, ShardCreated};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, Patience, RetryConfig, Tcp, Transport, dial};
use pushpull_worker::{ClientConfig, Parameters};
use tokio::process::{Child, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time limit for starting the ps.
const START: Duration = Duration::from_secs(30);
const SHARD: ShardId = ShardId::new(0, 0);
const MIB: f64 = (1 << 20) as f64;

#[derive(Parser)]
struct Args {
    /// Number of requests; half of them are push_pulls, the others pulls
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(20..))]
    requests: u64,
    /// Size of the variable in bytes
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(4..=1 << 30))]
    bytes: u64,
    /// Number of MiB by which the memory of a process may grow after a tenth of the requests
    #[arg(long, default_value_t = 2.0)]
    slack_mib: f64,
    /// How the tasks talk: tcp, or auto, which is a Unix socket here
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "auto"])]
    transport: String,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// What all tasks know.
struct Setup {
    cluster: ClusterSpec,
    variables: Vec<VariableSpec>,
    placement: Placement,
}

impl Setup {
    fn new(bytes: u64) -> anyhow::Result<Self> {
        let jobs = [JobName::Chief, JobName::Ps, JobName::Worker].map(|job| (job, vec![free_address()]));
        let (rows, initializer) = (bytes / 4, InitializerSpec::Zeros);
        let (name, shape) = ("v".to_owned(), [rows as usize].into());
        let variable =
            VariableSpec { name, shape, dtype: DType::F32, initializer, trainable: true, device: None };
        let slice = SliceSpec { variable: VariableId(0), row: 0, rows };
        let slices = vec![PlacedSlice { slice, shard: SHARD }];
        let placement = Placement { epoch: PlacementEpoch(1), shards: vec![SHARD], slices };
        Ok(Self { cluster: ClusterSpec::new(jobs)?, variables: vec![variable], placement })
    }

    fn identity(&self, task: TaskId) -> Identity {
        let cluster = self.cluster.clone();
        Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
    }

    fn start_ps(&self, transport: &str) -> anyhow::Result<Child> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pushpull-ps"));
        command.arg(format!("--transport={transport}")).env("RUST_LOG", "error");
        command.env("TF_CONFIG", self.cluster.to_tf_config(TaskId::ps(0)));
        command.stdout(Stdio::null()).kill_on_drop(true).spawn().context("cannot start the ps")
    }

    /// Gives the orders of a chief. The ps serves for as long as the returned connection exists.
    async fn lead(&self) -> anyhow::Result<Connection> {
        let address = self.cluster.address(TaskId::ps(0)).context("the ps is in the cluster spec")?;
        let (chief, patience) = (self.identity(TaskId::CHIEF), Patience::of(START));
        let chief = dial(&Tcp::default(), address.as_str(), &chief, TaskId::ps(0), patience).await?;
        chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await?;
        let create = CreateShard {
            shard: SHARD,
            placement: self.placement.clone(),
            variables: self.variables.clone(),
            update: OptimizerSpec::sgd(1e-3).into(),
            compression: Vec::new(),
            sync: SyncSpec::ASYNC,
            pipeline: 1,
            deterministic: false,
            workers: 1,
            last_step: GlobalStep(u64::MAX / 2),
            seed: 1,
            job: 0,
            start: Default::default(),
        };
        chief.call::<ShardCreated>(create, Payload::EMPTY).await?;
        let appoint = Appoint { shard: 0, worker: 0, incarnation: Incarnation(1), number: 1 };
        chief.call::<Appointed>(appoint, Payload::EMPTY).await?;
        Ok(chief)
    }

    async fn join(&self, local: bool) -> anyhow::Result<(Parameters, Vec<Version>)> {
        let pool = if local { BufferPool::shared() } else { BufferPool::default() };
        let transport: Arc<dyn Transport> = Arc::new(Tcp::new(pool.clone()).with_local(local));
        let (identity, retry) = (self.identity(TaskId::worker(0)), RetryConfig::default());
        let config = ClientConfig { start_timeout: START, retry, in_flight_bytes_max: 1 << 30 };
        let Self { placement, variables, .. } = self;
        let connect = Parameters::connect(&transport, &identity, placement, variables, &pool, config);
        let mut parameters = connect.await?;
        let joined = parameters.join(SyncSpec::ASYNC).await?;
        Ok((parameters, joined.versions))
    }
}

/// Returns the resident memory of a process in bytes. `id` is its id or `self`.
fn resident(id: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new(args.bytes)?;
    let ps = setup.start_ps(&args.transport)?;
    let id = ps.id().context("the ps runs")?.to_string();
    let _chief = setup.lead().await?;
    let (mut parameters, mut versions) = setup.join(args.transport == "auto").await?;
    let (began, mut all) = (Instant::now(), Vec::new());
    println!("{:>12}  {:>8}  {:>10}  {:>10}", "requests", "seconds", "ps MiB", "worker MiB");
    for request in 1..=args.requests {
        if request % 2 == 0 {
            parameters.pull(false).await?;
        } else {
            let mut gradients = parameters.gradients();
            gradients.variable_mut(VariableId(0)).fill(1e-3);
            let (gradients, step) = (gradients.into_payloads(), request.div_ceil(2));
            let pushed = parameters.push_pull(gradients, LocalStep(step), step, &versions, false).await?;
            versions = pushed.versions;
        }
        if [args.requests / 10, args.requests / 2, args.requests].contains(&request) {
            let (ps, worker, seconds) =
                (resident(&id)? / MIB, resident("self")? / MIB, began.elapsed().as_secs_f64());
            println!("{request:>12}  {seconds:>8.1}  {ps:>10.2}  {worker:>10.2}");
            all.push([ps, worker]);
        }
    }
    let first = all.first().copied().context("there are measurements")?;
    for (position, task) in ["ps", "worker"].into_iter().enumerate() {
        let most = all.iter().map(|measured| measured[position]).fold(0.0, f64::max);
        let grown = most - first[position];
        if grown > args.slack_mib {
            bail!(
                "the {task} grew by {grown:.2} MiB after a tenth of the requests, expected at most {} MiB",
                args.slack_mib
            );
        }
    }
    println!("neither grew by more than {} MiB after a tenth of the requests", args.slack_mib);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    actix_rt::System::new().block_on(measure(&args))
}
