//! The flags of an evaluator, and its program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pushpull_chief::summary::{EventWriter, evaluated};
use pushpull_storage::{EVALUATIONS, EvaluationRecord};
use pushpull_worker::{BestSpec, EvaluatorConfig, WorkerConfig};

use super::flags::{DeviceArgs, threads};
use super::observe::ObserveArgs;
use super::parse::main;
use super::programs::block_on;
use super::saving::{located, summaries_below};
use crate::logging;
use crate::roles;
use crate::threads::threads_per_worker;

/// How checkpoints are evaluated as they appear.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvaluationArgs {
    /// What the best checkpoint is found by: a metric of the model or loss, with :max or :min [default: accuracy, or
    /// loss where the model has none]
    #[arg(long, value_name = "METRIC[:max|:min]")]
    best: Option<BestSpec>,
    /// Look for new checkpoints so often, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    poll_every_ms: u64,
    /// End when no new checkpoint has come for so long, in seconds; 0 waits for ever
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle_timeout_s: u64,
}

impl EvaluationArgs {
    /// Settings of an evaluator that computes so.
    pub(crate) fn config(&self, worker: WorkerConfig) -> EvaluatorConfig {
        let idle_timeout = (self.idle_timeout_s > 0).then(|| Duration::from_secs(self.idle_timeout_s));
        let poll_every = Duration::from_millis(self.poll_every_ms);
        EvaluatorConfig { worker, best: self.best.clone(), poll_every, idle_timeout }
    }
}

#[derive(Debug, Parser)]
#[command(
    name = "pushpull-evaluator",
    version,
    about = "Evaluate every new checkpoint of a job, and keep the best"
)]
struct EvaluatorArgs {
    /// The job's directory of checkpoints: DIR/eval and DIR/best are made in it
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: String,
    /// Where this host keeps the data, instead of the job's directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Threads for one batch, shared by all devices [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    evaluation: EvaluationArgs,
    /// Write event files for TensorBoard there [default: `summaries/eval` below a checkpoint directory]
    #[arg(long, value_name = "DIR")]
    summary_dir: Option<PathBuf>,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Plots every evaluation in that directory, if any: what cannot be written is told once, and evaluated all the same.
pub(super) fn plotter(dir: Option<PathBuf>) -> impl FnMut(&EvaluationRecord) + Send + 'static {
    let mut writer = None;
    let mut failed = dir.is_none();
    move |record| {
        if failed {
            return;
        }
        let dir = dir.as_deref().expect("or it has failed");
        let plotted = match &mut writer {
            Some(writer) => Ok(writer),
            none => EventWriter::create(dir).map(|created| none.insert(created)),
        };
        let summaries = evaluated(record.step, &record.evaluation);
        if let Err(error) = plotted.and_then(|writer: &mut EventWriter| writer.write(&summaries)) {
            tracing::warn!("evaluations are not plotted: {error}");
            failed = true;
        }
    }
}

/// The program `pushpull-evaluator`.
pub fn evaluator_main() -> ExitCode {
    main(|args: EvaluatorArgs| {
        logging::start("evaluator/0", args.observe.log_format());
        let http = args.observe.endpoint()?;
        let threads = args.threads.map_or_else(|| threads_per_worker(1), usize::from);
        let worker = WorkerConfig { data_dir: args.data_dir, ..args.device.config(threads, false) };
        let config = args.evaluation.config(worker);
        let location = located(&args.checkpoint_dir)?;
        let beside = || summaries_below(&location).map(|dir| dir.join(EVALUATIONS));
        let plotter = plotter(args.summary_dir.or_else(beside));
        block_on(roles::evaluator(&location, config, &http, plotter))
    })
}
