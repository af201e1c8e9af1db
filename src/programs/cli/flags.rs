//! Flags that several programs share.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use pushpull_chief::ChiefConfig;
use pushpull_messages::cluster::{Address, ClusterConfig, ClusterError, ClusterFlags};
use pushpull_messages::id::JobName;
use pushpull_messages::job::{JOB_FILE_BYTES_MAX, JobSpec};
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_ps::{MakeDevice, PsConfig, PsDevice};
use pushpull_storage::Stores;
use pushpull_transport::{Congestion, SPIN};
use pushpull_worker::{DeviceChoice, DeviceList, Precision, ReplicaError, WorkerConfig, engine_replicas};

use super::join::JoinArgs;
use crate::programs::exit::Failure;
use crate::programs::http::EndpointConfig;
use crate::programs::roles::Network;

/// How tasks exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransportChoice {
    #[value(help = "Shared memory between tasks of one host and one user, TCP otherwise")]
    Auto,
    #[value(help = "TCP between all tasks")]
    Tcp,
}

/// The flag that chooses how tasks exchange messages.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TransportArgs {
    /// How tasks exchange messages: auto uses shared memory between tasks of one host and one user, and TCP
    /// otherwise
    #[arg(long, value_name = "NAME", default_value = "auto")]
    transport: TransportChoice,
}

impl TransportArgs {
    /// Returns whether tasks of one host may use shared memory.
    const fn is_local(self) -> bool {
        matches!(self.transport, TransportChoice::Auto)
    }

    /// Returns the flag for another process.
    pub(crate) fn to_flag(self) -> String {
        format!("--transport={}", if self.is_local() { "auto" } else { "tcp" })
    }
}

/// The flags that describe the cluster and this task's place in it. The cluster can be given in three ways:
/// as `TF_CONFIG`, as a cluster spec, or as lists of hosts.
#[derive(Clone, Debug, Args)]
pub(crate) struct TaskArgs {
    /// Cluster and task as JSON, as Kubeflow sets it
    #[arg(long, env = "TF_CONFIG", value_name = "JSON", hide_env_values = true)]
    tf_config: Option<String>,
    /// The whole cluster, such as 'ps|p0:2222,worker|w0:2222;w1:2222,chief|c0:2222'
    #[arg(long, value_name = "SPEC")]
    cluster_spec: Option<String>,
    /// Addresses of the ps tasks, separated by commas
    #[arg(long, value_name = "HOST:PORT,..")]
    ps_hosts: Option<String>,
    /// Addresses of the worker tasks, separated by commas
    #[arg(long, value_name = "HOST:PORT,..")]
    worker_hosts: Option<String>,
    /// Address of the chief; if it is not given, worker 0 hosts the chief
    #[arg(long, value_name = "HOST:PORT", alias = "chief-hosts")]
    chief_host: Option<String>,
    /// Job of this task: chief, ps or worker
    #[arg(long, value_name = "JOB")]
    job_name: Option<String>,
    /// Index of this task within its job
    #[arg(long, value_name = "N")]
    task_index: Option<u32>,
}

impl TaskArgs {
    /// Returns the settings as the cluster's rules read them, with this job name.
    pub(crate) fn flags(&self, job_name: Option<String>) -> ClusterFlags {
        ClusterFlags {
            tf_config: self.tf_config.clone(),
            cluster_spec: self.cluster_spec.clone(),
            ps_hosts: self.ps_hosts.clone(),
            worker_hosts: self.worker_hosts.clone(),
            chief_hosts: self.chief_host.clone(),
            job_name,
            task_index: self.task_index,
            workers_max: None,
        }
    }

    /// Returns the job name as it was given.
    pub(crate) fn job_name(&self) -> Option<String> {
        self.job_name.clone()
    }

    /// Returns the names of the flags, or of the environment variable, with which the cluster was given.
    const fn spelling(&self) -> &'static str {
        if self.cluster_spec.is_some() {
            "--cluster-spec"
        } else if self.ps_hosts.is_some() || self.worker_hosts.is_some() || self.chief_host.is_some() {
            "--ps-hosts, --worker-hosts and --chief-host"
        } else {
            "TF_CONFIG"
        }
    }

    /// Makes a usage failure from an error. If the error's text names neither a flag nor `TF_CONFIG`, the
    /// failure begins with the name of the setting that describes the cluster.
    pub(crate) fn named(&self, error: &ClusterError) -> Failure {
        let text = error.to_string();
        let names_one = text.contains("--") || text.contains("TF_CONFIG");
        Failure::Usage(if names_one { text } else { format!("{}: {text}", self.spelling()) })
    }
}

/// The flags of a task that trains: its cluster, and how it reaches the other tasks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster (given in one of three ways)")]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    task: TaskArgs,
    /// Largest number of workers, if workers may join that the cluster does not list: their indices follow
    /// those of the listed ones. Give it to the chief, which lets them join, and to these workers
    #[arg(long, value_name = "N")]
    workers_max: Option<u32>,
    /// Address to listen at, if it differs from the task's address in the cluster; has no effect on a worker
    /// that does not host the chief, because such a worker does not listen
    #[arg(long, value_name = "HOST:PORT")]
    bind: Option<Address>,
    /// Time limit for the other tasks to start, in seconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    start_timeout_s: u64,
    /// Time after which a silent task counts as lost, in seconds; use the same value for all tasks
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=86_400))]
    lost_after_s: u64,
    /// Time for which workers and ps tasks wait for a lost chief to be started again, in seconds; the workers
    /// train meanwhile
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    chief_lost_after_s: u64,
    /// Time after which an unanswered request is sent again, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    retry_after_ms: u64,
    /// Send a checksum with every payload
    #[arg(long)]
    payload_crc: bool,
    #[command(flatten)]
    transport: TransportArgs,
    /// Congestion control of TCP connections: auto (the host's, but reno instead of BBR between addresses of
    /// loopback), host (the host's), or a name such as cubic
    #[arg(long, value_name = "NAME", default_value = "auto")]
    tcp_congestion: Congestion,
    /// Time for which a task looks for the next message before its thread sleeps, in microseconds; 0 for
    /// never. Spinning makes small messages faster. A task spins rarely while that finds nothing
    #[arg(long, value_name = "N", default_value_t = SPIN.as_micros() as u64, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    spin_us: u64,
    #[command(flatten)]
    join: JoinArgs,
}

impl ClusterArgs {
    /// Returns the cluster and this process's task in it. Returns `None` if the flags do not describe a
    /// cluster.
    pub(crate) fn resolve(&self) -> Result<Option<ClusterConfig>, Failure> {
        self.flags(self.task.job_name()).resolve().map_err(|error| self.task.named(&error))
    }

    /// Returns the settings as the cluster's rules read them, with this job name.
    fn flags(&self, job_name: Option<String>) -> ClusterFlags {
        ClusterFlags { workers_max: self.workers_max, ..self.task.flags(job_name) }
    }

    /// Returns the cluster and this process's task in it. The task's job name must be `job`, the role that
    /// this program runs.
    pub(crate) fn resolve_as(&self, job: JobName) -> Result<ClusterConfig, Failure> {
        let resolved = match self.flags(self.task.job_name()).resolve() {
            Err(ClusterError::NoJobName { .. }) => self.flags(Some(job.to_string())).resolve(),
            other => other,
        };
        let Some(config) = resolved.map_err(|error| self.task.named(&error))? else {
            return Err(Failure::usage(
                "no cluster is given: expected TF_CONFIG, --cluster-spec, or --ps-hosts and --worker-hosts",
            ));
        };
        if config.task().job != job {
            let reason = format!(
                "{}: this program runs a {job} task, but the cluster assigns it the task {}",
                self.task.spelling(),
                config.task()
            );
            return Err(Failure::Usage(reason));
        }
        Ok(config)
    }

    /// Returns the network settings of this process's task in `cluster`, with this HTTP endpoint.
    ///
    /// # Errors
    /// Returns an error if the task cannot prove who it is with what the flags and the environment give.
    pub(crate) fn network(&self, cluster: &ClusterConfig, http: EndpointConfig) -> Result<Network, Failure> {
        let (credentials, insecure) = (self.join.credentials(cluster)?, self.join.insecure());
        Ok(Network {
            http: http.identified(credentials.clone(), insecure),
            credentials,
            insecure,
            bind: self.bind.as_ref().map(ToString::to_string),
            payload_crc: self.payload_crc,
            local: self.transport.is_local(),
            congestion: self.tcp_congestion.clone(),
            spin: Duration::from_micros(self.spin_us),
            lost_after: Duration::from_secs(self.lost_after_s),
            chief_lost_after: Duration::from_secs(self.chief_lost_after_s),
            retry_after: Duration::from_millis(self.retry_after_ms),
        })
    }

    /// Returns whether other hosts may reach the process although it has no join string.
    pub(crate) const fn insecure(&self) -> bool {
        self.join.insecure()
    }

    pub(crate) const fn start_timeout(&self) -> Duration {
        Duration::from_secs(self.start_timeout_s)
    }
}

/// The flags that control how a worker computes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Devices of each worker: a number of virtual CPUs, 'all' for all CUDA devices of the host, which every
    /// worker then uses, or a list such as cuda:0,cuda:1; each device has a clone of the graph and computes
    /// an equal part of every batch
    #[arg(long, value_name = "LIST", default_value = "1")]
    pub devices: DeviceChoice,
    /// Largest part of a CUDA device's memory that a clone may take, above 0 and at most 1. A clone takes
    /// only what its batches need
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = memory_fraction)]
    pub gpu_memory_fraction: f64,
    /// Precision of the factors of products on CUDA devices: fp32, tf32, bf16 or fp16. Sums, variables and
    /// gradients are always fp32. All but fp32 use tensor cores, and need NVIDIA's library cuBLASLt
    #[arg(long, value_name = "NAME", default_value_t = Precision::F32)]
    pub precision: Precision,
    /// What to do if an operation requests a different device than that of its clone: true runs it on the
    /// clone's device, false refuses the job
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub soft_placement: bool,
}

impl DeviceArgs {
    /// Returns the devices, after looking for the cards among them.
    ///
    /// # Errors
    /// If the host lacks one of them, or if none of them has the precision.
    pub(crate) fn resolve(&self) -> Result<DeviceList, Failure> {
        let unusable = |error: ReplicaError| Failure::Error(anyhow!("--devices={}: {error}", self.devices));
        let devices = self.devices.clone().resolve().map_err(unusable)?;
        match devices.first_card() {
            None if self.precision != Precision::F32 => Err(Failure::Usage(format!(
                "--precision={} is for CUDA devices, but --devices={} has none; processors compute in fp32",
                self.precision, self.devices
            ))),
            _ => Ok(devices),
        }
    }

    /// Returns the settings of a worker with these flags.
    ///
    /// # Errors
    /// If the host lacks one of the devices, or if none of them has the precision.
    pub(crate) fn config(&self, threads: usize, log_placement: bool) -> Result<WorkerConfig, Failure> {
        let (devices, soft_placement) = (self.resolve()?, self.soft_placement);
        let replica = engine_replicas(self.gpu_memory_fraction, self.precision);
        Ok(WorkerConfig { threads, devices, soft_placement, log_placement, replica, ..Default::default() })
    }
}

/// The flag that limits how long a worker or an evaluator may compute.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct HangArgs {
    /// Time limit for the computation of a batch, in seconds; 0 for no limit. If 20 times the longest
    /// computation so far is longer than N, it is the limit. The first batch may take ten times N. A wait for
    /// input may take ten times N or 20 times the longest wait so far, whichever is longer. A task that
    /// exceeds a limit counts as hung, and leaves the job
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub hung_after_s: u64,
}

impl HangArgs {
    pub(crate) const fn after(self) -> Duration {
        Duration::from_secs(self.hung_after_s)
    }
}

/// The flag of the chief that limits how long a shard may be silent.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ShardHangArgs {
    /// Time in seconds after which a shard that does not answer the chief counts as hung, although its ps
    /// task is alive; 0 for no limit. A hung shard ends the job. A shard answers between two updates, so the
    /// limit must be longer than one update
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub shard_hung_after_s: u64,
}

/// The flags of the chief that say what happens when a shard is silent, or a ps task is lost.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PsFailureArgs {
    #[command(flatten)]
    hang: ShardHangArgs,
    /// Time for which a job that makes checkpoints waits for a lost ps task to be started again, in seconds;
    /// with 0, the loss ends the job at once. When the task is back, the job rolls back to its latest
    /// checkpoint and goes on
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    ps_lost_after_s: u64,
}

impl PsFailureArgs {
    /// Adds the settings of the flags to those of the chief.
    pub(crate) fn apply(self, config: ChiefConfig) -> ChiefConfig {
        let shard_hung_after = Duration::from_secs(self.hang.shard_hung_after_s);
        ChiefConfig {
            shard_hung_after: Some(shard_hung_after).filter(|limit| !limit.is_zero()),
            ps_lost_after: Duration::from_secs(self.ps_lost_after_s),
            ..config
        }
    }
}

/// The flags that limit the memory of a ps task.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PsMemoryArgs {
    /// Memory of each ps task for the older values that slow workers are still reading, in MiB; the shards
    /// have equal parts. A shard can always keep two versions. When the memory is used up, further replies
    /// wait. After the wait, they carry the newest values
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(..=1 << 24))]
    pub reply_mib: u64,
    /// Memory of each ps task for the checkpoints that --memory-checkpoint-every keeps there, in MiB: its own
    /// part, and a copy of another task's part
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub memory_checkpoint_mib: u64,
}

impl PsMemoryArgs {
    /// Returns the command-line flags that give another process the same settings.
    pub(crate) fn to_flags(self) -> [String; 2] {
        let Self { reply_mib, memory_checkpoint_mib } = self;
        [format!("--reply-mib={reply_mib}"), format!("--memory-checkpoint-mib={memory_checkpoint_mib}")]
    }

    /// Adds the settings of the flags to those of a ps task.
    pub(crate) fn apply(self, config: PsConfig) -> PsConfig {
        let Self { reply_mib, memory_checkpoint_mib } = self;
        let memory_checkpoint_bytes_max = memory_checkpoint_mib << 20;
        PsConfig { reply_bytes_max: reply_mib << 20, memory_checkpoint_bytes_max, ..config }
    }
}

/// The flag that selects where a ps task applies updates.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PsDeviceArgs {
    /// Where each ps task keeps the state of the optimizer and applies updates: cpu, or a CUDA device of its
    /// host, such as cuda:0 [default: cpu; in one process with --strategy mirrored or one_device, the first
    /// of
    /// --devices]
    #[arg(long, value_name = "DEVICE")]
    ps_device: Option<PsDevice>,
}

impl PsDeviceArgs {
    /// Returns the function that opens the device, after looking for the device; `None` for the processor.
    ///
    /// # Errors
    /// If the host lacks the device.
    pub(crate) fn resolve(self) -> Result<Option<MakeDevice>, Failure> {
        let device = self.ps_device.unwrap_or_default();
        let unusable = |error| Failure::Error(anyhow!("--ps-device={device}: {error}"));
        device.resolve().map_err(unusable)
    }

    /// Returns these flags, with `device` if they name none.
    pub(crate) fn or(self, device: PsDevice) -> Self {
        Self { ps_device: self.ps_device.or(Some(device)) }
    }

    /// Returns the flag for a ps task on this host, after looking for the device.
    ///
    /// # Errors
    /// If the host lacks the device.
    pub(crate) fn to_flag(self) -> Result<String, Failure> {
        self.resolve()?;
        Ok(format!("--ps-device={}", self.ps_device.unwrap_or_default()))
    }
}

/// The flags of a ps task: one of its own, or one that a worker hosts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PsSettingArgs {
    /// Number of shards; each shard of 1 MiB or more runs on a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards())]
    shards: u32,
    #[command(flatten)]
    device: PsDeviceArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    memory: PsMemoryArgs,
    /// Directory, or part of a bucket, below which the ps task reads and writes checkpoints. It refuses to do
    /// so elsewhere, whatever the chief orders
    #[arg(long, value_name = "DIR")]
    checkpoint_root: Option<String>,
}

impl PsSettingArgs {
    /// Returns the settings of the ps task.
    ///
    /// # Errors
    /// If the host lacks the device.
    pub(crate) fn config(self, cluster: &ClusterArgs) -> Result<PsConfig, Failure> {
        self.config_on(cluster, PsDevice::Cpu)
    }

    /// Returns the settings of the ps task, with `device` if the flags name none.
    ///
    /// # Errors
    /// If the host lacks the device.
    pub(crate) fn config_on(self, cluster: &ClusterArgs, device: PsDevice) -> Result<PsConfig, Failure> {
        let stores = Stores::default();
        Ok(self.memory.apply(PsConfig {
            stores: self.checkpoint_root.iter().fold(stores, |stores, root| stores.below(root)),
            shards: self.shards,
            start_timeout: cluster.start_timeout(),
            chief_lease: self.lease.time(),
            device: self.device.or(device).resolve()?,
            ..Default::default()
        }))
    }
}

/// The flag that limits how long a ps task refuses other chiefs after its own has disconnected.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// Time for which a ps task refuses other chiefs after its own has disconnected, in seconds. After this
    /// time, a chief that was started again can take the task over, and a ps task that was told to end by a
    /// signal ends
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    chief_lease_s: u64,
}

impl LeaseArgs {
    pub(crate) const fn time(self) -> Duration {
        Duration::from_secs(self.chief_lease_s)
    }
}

/// Parses a part of a device's memory.
fn memory_fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

/// Returns the parser for the number of shards of a ps task.
pub(crate) fn shards() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(SHARDS_PER_TASK_MAX))
}

/// Returns the parser for the number of threads that a worker computes with.
pub(crate) fn threads() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=pushpull_worker::THREADS_MAX as i64)
}

/// Reads the job file that `--job` names.
pub(crate) fn read_job(path: &Path) -> Result<JobSpec, Failure> {
    let text = read_text("--job", "the job file", path)?;
    Ok(JobSpec::from_json(&text)
        .with_context(|| format!("--job: cannot use the job file {}", path.display()))?)
}

/// Reads the JSON file that `flag` names. The file may be at most as large as a job file. Errors describe
/// the file with the text `what`.
pub(crate) fn read_text(flag: &str, what: &str, path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let failed = || format!("{flag}: cannot read {what} {shown}");
    let mut text = String::new();
    // The size is checked while the file is read, because the size of a pipe is not known before.
    let file = File::open(path).with_context(failed)?;
    file.take(JOB_FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(failed)?;
    if text.len() as u64 > JOB_FILE_BYTES_MAX {
        let reason =
            format!("{flag}: {what} {shown} is too large, expected at most {JOB_FILE_BYTES_MAX} bytes");
        return Err(Failure::Error(anyhow::anyhow!(reason)));
    }
    Ok(text)
}
