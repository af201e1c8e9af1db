//! The program `pushpull-worker` and its flags.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pushpull_input::Datasets;
use pushpull_messages::id::JobName;
use pushpull_worker::{GivesWay, WorkerConfig};

use super::flags::{ClusterArgs, DeviceArgs, HangArgs, PsSettingArgs, threads};
use super::job::JobArgs;
use super::observe::ObserveArgs;
use super::parse::main;
use super::task::run;
use crate::programs::exit::Failure;
use crate::programs::{cores, logging, roles};
use crate::threads::threads_per_worker;

#[derive(Debug, Parser)]
#[command(
    name = "pushpull-worker",
    version,
    about = "Run a worker task of a cluster, which computes gradients"
)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hang: HangArgs,
    /// Threads for one step, shared by all devices [default: all cores, or 1 with --core]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    /// Run this worker, and the chief if it hosts one, on one core. A ps task that it hosts may use all cores
    /// for large variables. Linux only
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// No other program computes on this host, so in synchronous jobs of one host, the threads of a worker
    /// with --core always give way to the ps task [default: they do while they hardly wait for others]
    #[arg(long, requires = "core")]
    dedicated: bool,
    /// Directory of the data on this host, if it differs from the directory in the job file
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print where every operation runs; if this worker hosts the chief, also print where every variable
    /// lives
    #[arg(long)]
    log_placement: bool,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten, next_help_heading = "Hosted ps task (in a cluster that lists no ps tasks)")]
    hosted: PsSettingArgs,
    #[command(flatten, next_help_heading = "Chief (for worker 0 of a cluster that names none)")]
    orders: JobArgs,
}

/// Runs the program `pushpull-worker`.
pub fn worker_main() -> ExitCode {
    worker_main_with(Datasets::default())
}

/// Runs the program `pushpull-worker` with `datasets`. The input of a job selects one of them as
/// `{"custom": "name"}`.
pub fn worker_main_with(datasets: Datasets) -> ExitCode {
    main(|args: WorkerArgs| {
        let cluster = args.cluster.resolve_as(JobName::Worker)?;
        let log_placement = args.log_placement;
        let orders = if cluster.hosts_chief() {
            let host = "the cluster names no chief, so worker/0 hosts it and";
            Some(args.orders.orders(&args.cluster, host, log_placement)?)
        } else {
            None
        };
        let log = logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(&cluster, args.observe.endpoint(&log)?)?;
        let of_cores = || if args.core.is_some() { 1 } else { threads_per_worker(1) };
        let threads = args.threads.map_or_else(of_cores, usize::from);
        if args.core.is_some() && (threads > 1 || args.device.resolve()?.first_card().is_some()) {
            let alone = "--core binds a worker that computes with one thread on the processor";
            return Err(Failure::usage(format!("{alone}: expected --threads 1, and no card in --devices")));
        }
        let config = WorkerConfig {
            data_dir: args.data_dir,
            datasets,
            start_timeout: args.cluster.start_timeout(),
            hung_after: args.hang.after(),
            gives_way: match (args.core, args.dedicated) {
                (Some(_), false) if network.local => GivesWay::WhileAlone,
                (Some(_), true) if network.local => GivesWay::Always,
                _ => GivesWay::Never,
            },
            ..args.device.config(threads, log_placement)?
        };
        let mut ps = args.hosted.config(&args.cluster)?;
        if let Some(core) = args.core {
            ps.cores = cores::bind(core).map_err(|error| Failure::usage(format!("{error:#}")))?;
        }
        run(&log, roles::worker(&cluster, &network, (config, ps), None, orders))
    })
}
