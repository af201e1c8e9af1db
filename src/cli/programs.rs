//! The role binaries and `pushpull local`: generic programs that know no model.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pushpull_chief::ChiefConfig;
use pushpull_messages::id::JobName;
use pushpull_ps::PsConfig;
use pushpull_worker::WorkerConfig;

use super::checkpoint::CheckpointTool;
use super::flags::{ClusterArgs, DeviceArgs, absolute, read_job, shards, threads};
use super::observe::ObserveArgs;
use super::parse::main;
use super::saving::SavingArgs;
use crate::exit::{Failure, Outcome};
use crate::local::Local;
use crate::logging;
use crate::report::check_writable;
use crate::roles::{self, ChiefOrders};
use crate::threads::threads_per_worker;
use crate::top::Top;

/// On this thread, in an actor system.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(future)
}

#[derive(Debug, Parser)]
#[command(name = "pushpull-ps", version, about = "Hold variables: one ps task of a cluster")]
struct PsArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Shards, each on a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards())]
    shards: u32,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// The program `pushpull-ps`.
pub fn ps_main() -> ExitCode {
    main(|args: PsArgs| {
        let cluster = args.cluster.resolve_as(JobName::Ps)?;
        logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(args.observe.endpoint()?);
        let config = PsConfig {
            shards: args.shards,
            start_timeout: args.cluster.start_timeout(),
            ..Default::default()
        };
        block_on(roles::ps(&cluster, &network, config, None))
    })
}

/// What a chief is told, by flags.
#[derive(Debug, clap::Args)]
struct OrderArgs {
    /// The job to run, as an example writes it with --export-job
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Write what the job came to, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    saving: SavingArgs,
}

impl OrderArgs {
    fn orders(
        &self,
        cluster: &ClusterArgs,
        host: &str,
        log_placement: bool,
    ) -> Result<ChiefOrders<'_>, Failure> {
        let Some(job) = &self.job else {
            return Err(Failure::Usage(format!("{host} needs --job FILE")));
        };
        let config =
            ChiefConfig { start_timeout: cluster.start_timeout(), log_placement, ..Default::default() };
        self.report.as_deref().map_or(Ok(()), |path| check_writable("the report", path))?;
        let (config, hooks) = (self.saving.apply(config)?, self.saving.hooks(&[])?);
        Ok(ChiefOrders { job: read_job(job)?, config, report: self.report.as_deref(), hooks })
    }
}

#[derive(Debug, Parser)]
#[command(name = "pushpull-worker", version, about = "Compute gradients: one worker task of a cluster")]
struct WorkerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Threads for one step, shared by all devices [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    /// Where this host keeps the data, instead of the job's directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print where every operation runs; where it hosts the chief, also where every variable lives
    #[arg(long)]
    log_placement: bool,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten, next_help_heading = "Chief (for worker 0 of a cluster that names none)")]
    orders: OrderArgs,
}

/// The program `pushpull-worker`.
pub fn worker_main() -> ExitCode {
    main(|args: WorkerArgs| {
        let cluster = args.cluster.resolve_as(JobName::Worker)?;
        let log_placement = args.log_placement;
        let orders = if cluster.hosts_chief() {
            let host = "the cluster names no chief, so worker/0 hosts it and";
            Some(args.orders.orders(&args.cluster, host, log_placement)?)
        } else {
            None
        };
        logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(args.observe.endpoint()?);
        let threads = args.threads.map_or_else(|| threads_per_worker(1), usize::from);
        let config = WorkerConfig {
            data_dir: args.data_dir,
            start_timeout: args.cluster.start_timeout(),
            ..args.device.config(threads, log_placement)
        };
        block_on(roles::worker(&cluster, &network, config, None, orders))
    })
}

#[derive(Debug, Parser)]
#[command(name = "pushpull-chief", version, about = "Decide for the whole job: the chief task of a cluster")]
struct ChiefArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    orders: OrderArgs,
    /// Print where every variable lives
    #[arg(long)]
    log_placement: bool,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// The program `pushpull-chief`.
pub fn chief_main() -> ExitCode {
    main(|args: ChiefArgs| {
        let cluster = args.cluster.resolve_as(JobName::Chief)?;
        let orders = args.orders.orders(&args.cluster, "the chief", args.log_placement)?;
        logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(args.observe.endpoint()?);
        block_on(roles::chief(&cluster, &network, orders))
    })
}

#[derive(Debug, Parser)]
#[command(name = "pushpull", version, about = "A parameter server: tools", arg_required_else_help = false)]
struct ToolArgs {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Run a job on a cluster of real processes on this machine
    Local(Box<LocalArgs>),
    /// List, show, verify, export and import checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointTool),
    /// Watch a job on this terminal
    Top(TopArgs),
}

#[derive(Debug, clap::Args)]
struct TopArgs {
    /// The HTTP address of its chief
    #[arg(long, value_name = "HOST:PORT")]
    chief: String,
    /// Between two looks, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval_s: u64,
    /// Print how it is now, and end
    #[arg(long)]
    once: bool,
}

#[derive(Debug, clap::Args)]
struct LocalArgs {
    /// Ps tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ps: u32,
    /// Worker tasks
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// The job to run, as an example writes it with --export-job
    #[arg(long, value_name = "FILE")]
    job: PathBuf,
    /// Write what the job came to, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print where every variable lives, and where every operation runs
    #[arg(long)]
    log_placement: bool,
    /// Shards of each ps task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards())]
    shards: u32,
    #[command(flatten)]
    device: DeviceArgs,
    /// Threads for one step of each worker [default: the cores, shared among the workers]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    /// Where this host keeps the data, instead of the job's directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How long to wait for all tasks to come up, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    start_timeout_s: u64,
    #[command(flatten)]
    saving: SavingArgs,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// The program `pushpull`.
pub fn local_main() -> ExitCode {
    main(|ToolArgs { tool }: ToolArgs| match tool {
        Tool::Local(args) => local(*args),
        Tool::Checkpoint(tool) => block_on(tool.run()),
        Tool::Top(TopArgs { chief, interval_s, once }) => {
            Top { chief, every: Duration::from_secs(interval_s), once }.run()
        }
    })
}

fn local(args: LocalArgs) -> Outcome {
    args.report.as_deref().map_or(Ok(()), |path| check_writable("the report", path))?;
    // Better one line from here than the same from a child.
    read_job(&args.job)?;
    let timeout = format!("--start-timeout-s={}", args.start_timeout_s);
    let share = || threads_per_worker(args.workers as usize);
    let threads = args.threads.map_or_else(share, usize::from);
    let mut chief_flags = vec![timeout.clone()];
    if let Some(report) = &args.report {
        chief_flags.push(format!("--report={}", absolute(report)?.display()));
    }
    chief_flags.extend(args.log_placement.then(|| "--log-placement".to_owned()));
    chief_flags.extend(args.saving.to_flags()?);
    // Better one line from here, again.
    args.observe.endpoint()?;
    let (chief_observe, observe) = args.observe.to_flags()?;
    chief_flags.extend(chief_observe);
    let mut worker_flags = vec![
        timeout.clone(),
        format!("--threads={threads}"),
        format!("--devices={}", args.device.devices),
        format!("--soft-placement={}", args.device.soft_placement),
    ];
    worker_flags.extend(args.log_placement.then(|| "--log-placement".to_owned()));
    worker_flags.extend(observe.clone());
    let mut ps_flags = vec![timeout, format!("--shards={}", args.shards)];
    ps_flags.extend(observe);
    if let Some(data_dir) = &args.data_dir {
        worker_flags.push(format!("--data-dir={}", absolute(data_dir)?.display()));
    }
    let local = Local {
        ps: args.ps,
        workers: args.workers,
        job: args.job,
        chief_flags,
        ps_flags,
        worker_flags,
        log_format: args.observe.log_format(),
    };
    block_on(local.run())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// What a program's help says of a flag.
    fn help<Args: CommandFactory>(flag: &str) -> String {
        let command = Args::command();
        let flag = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).expect("such a flag");
        flag.get_help().expect("it is documented").to_string()
    }

    #[test]
    fn each_program_says_what_it_prints_of_the_placement() {
        assert_eq!(help::<ChiefArgs>("log-placement"), "Print where every variable lives");
        assert!(help::<WorkerArgs>("log-placement").starts_with("Print where every operation runs"));
    }
}
