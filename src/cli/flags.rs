//! Flags that several programs share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pushpull_messages::cluster::{Address, ClusterConfig, ClusterError, ClusterFlags};
use pushpull_messages::id::JobName;
use pushpull_messages::job::{JOB_FILE_BYTES_MAX, JobSpec};
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;

use pushpull_worker::WorkerConfig;

use crate::exit::Failure;
use crate::http::EndpointConfig;
use crate::roles::Network;

/// Which cluster, and who in it: one of three spellings.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster (one of three spellings)")]
pub(crate) struct ClusterArgs {
    /// Cluster and task as JSON, as Kubeflow sets it
    #[arg(long, env = "TF_CONFIG", value_name = "JSON", hide_env_values = true)]
    tf_config: Option<String>,
    /// Such as 'ps|p0:2222,worker|w0:2222;w1:2222,chief|c0:2222'
    #[arg(long, value_name = "SPEC")]
    cluster_spec: Option<String>,
    /// Addresses of the ps tasks, by commas
    #[arg(long, value_name = "HOST:PORT,..")]
    ps_hosts: Option<String>,
    /// Addresses of the worker tasks, by commas
    #[arg(long, value_name = "HOST:PORT,..")]
    worker_hosts: Option<String>,
    /// Address of the chief; without one, worker 0 hosts it
    #[arg(long, value_name = "HOST:PORT", alias = "chief-hosts")]
    chief_host: Option<String>,
    /// What this task is for: chief, ps or worker
    #[arg(long, value_name = "JOB")]
    job_name: Option<String>,
    /// Which task of that job it is
    #[arg(long, value_name = "N")]
    task_index: Option<u32>,
    /// Where to listen, if not at the task's address in the cluster
    #[arg(long, value_name = "HOST:PORT")]
    bind: Option<Address>,
    /// How long to wait for the other tasks to come up, in seconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    start_timeout_s: u64,
    /// When a task that says nothing counts as lost, in seconds; the same for all tasks
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=86_400))]
    lost_after_s: u64,
    /// Ask again when no answer has come for so long, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    retry_after_ms: u64,
    /// Send a checksum with every payload
    #[arg(long)]
    payload_crc: bool,
}

impl ClusterArgs {
    fn flags(&self, job_name: Option<String>) -> ClusterFlags {
        ClusterFlags {
            tf_config: self.tf_config.clone(),
            cluster_spec: self.cluster_spec.clone(),
            ps_hosts: self.ps_hosts.clone(),
            worker_hosts: self.worker_hosts.clone(),
            chief_hosts: self.chief_host.clone(),
            job_name,
            task_index: self.task_index,
        }
    }

    /// The task that the flags say this process is; `None` where they name no cluster.
    pub(crate) fn resolve(&self) -> Result<Option<ClusterConfig>, Failure> {
        self.flags(self.job_name.clone()).resolve().map_err(Failure::usage)
    }

    /// The task of that job that the flags say this process is.
    pub(crate) fn resolve_as(&self, job: JobName) -> Result<ClusterConfig, Failure> {
        let resolved = match self.flags(self.job_name.clone()).resolve() {
            Err(ClusterError::NoJobName { .. }) => self.flags(Some(job.to_string())).resolve(),
            other => other,
        };
        let Some(config) = resolved.map_err(Failure::usage)? else {
            return Err(Failure::usage(
                "no cluster is given: expected TF_CONFIG, --cluster-spec, or --ps-hosts and --worker-hosts",
            ));
        };
        if config.task().job != job {
            let reason = format!("this program runs a {job} task, and is told that it is {}", config.task());
            return Err(Failure::Usage(reason));
        }
        Ok(config)
    }

    pub(crate) fn network(&self, http: EndpointConfig) -> Network {
        Network {
            bind: self.bind.as_ref().map(ToString::to_string),
            payload_crc: self.payload_crc,
            lost_after: Duration::from_secs(self.lost_after_s),
            retry_after: Duration::from_millis(self.retry_after_ms),
            http,
        }
    }

    pub(crate) const fn start_timeout(&self) -> Duration {
        Duration::from_secs(self.start_timeout_s)
    }
}

/// How a worker computes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Devices of each worker, each with a clone of the graph and its part of every batch: cpu:0 to cpu:N-1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=pushpull_worker::DEVICES_MAX as i64))]
    pub devices: u16,
    /// Run an operation that asks for a device which its clone is not on all the same
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub soft_placement: bool,
}

impl DeviceArgs {
    /// Settings of a worker that computes so.
    pub(crate) fn config(&self, threads: usize, log_placement: bool) -> WorkerConfig {
        let (devices, soft_placement) = (usize::from(self.devices), self.soft_placement);
        WorkerConfig { threads, devices, soft_placement, log_placement, ..Default::default() }
    }
}

/// How many shards a ps task may run.
pub(crate) fn shards() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(SHARDS_PER_TASK_MAX))
}

/// How many threads a worker may compute with.
pub(crate) fn threads() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=pushpull_worker::THREADS_MAX as i64)
}

/// Reads a job file.
pub(crate) fn read_job(path: &Path) -> Result<JobSpec, Failure> {
    let shown = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("cannot read the job file {shown}"))?.len();
    if size > JOB_FILE_BYTES_MAX {
        let reason =
            format!("the job file {shown} has {size} bytes, and may have at most {JOB_FILE_BYTES_MAX}");
        return Err(Failure::Error(anyhow::anyhow!(reason)));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the job file {shown}"))?;
    Ok(JobSpec::from_json(&text).with_context(|| format!("the job file {shown} cannot be used"))?)
}

/// An absolute path that can be written into a job file.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(Failure::usage(format!("{} is not UTF-8, and a job file is", absolute.display()))),
    }
}
