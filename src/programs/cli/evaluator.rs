//! The program `pushpull-evaluator` and its flags.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::FalseyValueParser;
use pushpull_input::Datasets;
use pushpull_storage::EVALUATIONS;
use pushpull_worker::{BestSpec, EvaluatorConfig, WorkerConfig};

use super::flags::{DeviceArgs, HangArgs, threads};
use super::join::INSECURE_ENV;
use super::observe::ObserveArgs;
use super::parse::main;
use super::paths::{located, summaries_below};
use super::plots::plotter;
use super::task::run;
use crate::programs::{logging, roles};
use crate::threads::threads_per_worker;

/// The flags of an evaluation.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvaluationArgs {
    /// Metric that selects the best checkpoint: loss or a metric of the model, with :max or :min [default:
    /// accuracy, or loss if the model has no accuracy]
    #[arg(long, value_name = "METRIC[:max|:min]")]
    best: Option<BestSpec>,
    /// Time between two checks for new checkpoints, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    poll_every_ms: u64,
    /// End when no new checkpoint has appeared for this many seconds; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle_timeout_s: u64,
}

impl EvaluationArgs {
    /// Returns the settings of an evaluator.
    pub(crate) fn config(&self, worker: WorkerConfig) -> EvaluatorConfig {
        let idle_timeout = (self.idle_timeout_s > 0).then(|| Duration::from_secs(self.idle_timeout_s));
        let poll_every = Duration::from_millis(self.poll_every_ms);
        EvaluatorConfig { worker, best: self.best.clone(), poll_every, idle_timeout, ..Default::default() }
    }
}

#[derive(Debug, Parser)]
#[command(
    name = "pushpull-evaluator",
    version,
    about = "Evaluate the newest checkpoint of a job whenever a new one has appeared, and keep the best"
)]
pub(super) struct EvaluatorArgs {
    /// Checkpoint directory of the job; evaluations are written to DIR/eval, and the best checkpoint to
    /// DIR/best
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: String,
    /// Directory of the data on this host, if it differs from the directory in the job file
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Threads for one batch, shared by all devices [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hang: HangArgs,
    #[command(flatten)]
    evaluation: EvaluationArgs,
    /// Directory of event files for TensorBoard [default: `summaries/eval` below the checkpoint directory]
    #[arg(long, value_name = "DIR")]
    summary_dir: Option<PathBuf>,
    /// Let other hosts read the HTTP endpoint although it has no token: everybody who reaches it can
    #[arg(long, env = INSECURE_ENV, value_parser = FalseyValueParser::new())]
    insecure: bool,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Runs the program `pushpull-evaluator`.
pub fn evaluator_main() -> ExitCode {
    evaluator_main_with(Datasets::default())
}

/// Runs the program `pushpull-evaluator` with the caller's own data sets, as
/// [`worker_main_with`](super::worker_main_with) does for workers.
pub fn evaluator_main_with(datasets: Datasets) -> ExitCode {
    main(|args: EvaluatorArgs| {
        let log = logging::start("evaluator/0", args.observe.log_format());
        let http = args.observe.endpoint(&log)?.alone(args.insecure);
        let threads = args.threads.map_or_else(|| threads_per_worker(1), usize::from);
        let device = args.device.config(threads, false)?;
        let (data_dir, hung_after) = (args.data_dir, args.hang.after());
        let worker = WorkerConfig { data_dir, datasets, hung_after, ..device };
        let config = args.evaluation.config(worker);
        let location = located("--checkpoint-dir", &args.checkpoint_dir)?;
        let beside = || summaries_below(&location).map(|dir| dir.join(EVALUATIONS));
        let plotter = plotter(args.summary_dir.or_else(beside));
        run(&log, roles::evaluator(&location, config, &http, plotter))
    })
}
