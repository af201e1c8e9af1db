//! Measures the speed and the accuracy of each synchronisation policy. In each round, every policy trains a
//! classifier of digits twice: with three equally fast workers, and with one of them slowed down. All jobs
//! apply the same number of gradients. The MNIST files are read from DIR; without --data-dir, digits are
//! generated. Run it with `cargo bench --bench modes -- [--data-dir DIR] [--modes LIST] [--rounds N]
//! [--epochs X] [--slow-down N] [--step-ms N] [--draw FILE.svg] [--json FILE]`.

mod figures;
mod picture;
mod trial;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use pushpull::SyncSpec;

use figures::Figures;
use trial::{Bench, Setting};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of workers of every job, except the job with one worker fewer that [`settings`] adds.
const WORKERS: u32 = 3;
/// The mode in which one of the workers is a backup worker: the slowest gradient of each step is dropped.
const BACKUP: SyncSpec = SyncSpec::Sync { aggregate: Some(WORKERS - 1) };

#[derive(Parser)]
struct Args {
    /// Directory of the MNIST files [default: digits are generated]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Synchronisation policies to measure, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "async,async:staleness-lr,bounded:2,sync,sync:2")]
    modes: Vec<SyncSpec>,
    /// Number of rounds; each round trains every job once
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Number of epochs of a job, over all workers
    #[arg(long, default_value_t = 4.0)]
    epochs: f64,
    /// Factor by which the steps of the slow worker are longer
    #[arg(long, default_value_t = 10)]
    slow_down: u32,
    /// Minimum duration of a step in milliseconds, 0 for none; a shorter step sleeps for the rest, so that
    /// workers do not compete for the cores
    #[arg(long, default_value_t = 10)]
    step_ms: u64,
    /// Learning rate, the same for all jobs
    #[arg(long, default_value_t = 0.3)]
    learning_rate: f32,
    /// Test accuracy in per cent; the table shows the time at which each job first reaches it
    #[arg(long, default_value_t = 97.0)]
    target: f64,
    /// SVG file to write, with plots of accuracy against seconds and against updates
    #[arg(long)]
    draw: Option<PathBuf>,
    /// JSON file to write, with all figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Read the figures from this JSON file instead of training
    #[arg(long)]
    from_json: Option<PathBuf>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// Returns the settings of every job of a round. If `modes` contains [`BACKUP`], adds a job with one worker
/// fewer, because the job with a backup worker should be as fast as that job.
fn settings(modes: &[SyncSpec]) -> Vec<Setting> {
    let of_mode = |&sync: &SyncSpec| [false, true].map(|slowed| Setting { sync, workers: WORKERS, slowed });
    let alone = Setting { sync: SyncSpec::SYNC, workers: WORKERS - 1, slowed: false };
    let backup = modes.contains(&BACKUP).then_some(alone);
    modes.iter().flat_map(of_mode).chain(backup).collect()
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(file) = &args.from_json {
        let figures: Vec<Figures> = serde_json::from_slice(&std::fs::read(file)?)?;
        return show(&figures, &args);
    }
    let bench = Bench::new(
        args.data_dir.as_deref(),
        args.epochs,
        args.learning_rate,
        args.slow_down,
        Duration::from_millis(args.step_ms),
    )?;
    let mut all: Vec<Figures> =
        settings(&args.modes).into_iter().map(|setting| Figures { setting, trials: Vec::new() }).collect();
    // Each round trains all jobs, so that a machine that becomes slower affects all of them.
    for round in 0..args.rounds.max(1) {
        for figures in &mut all {
            figures.trials.push(bench.run(figures.setting, round)?);
        }
        if let Some(file) = &args.json {
            std::fs::write(file, serde_json::to_vec(&all)?)?;
        }
        println!("after round {}:", round + 1);
        show(&all, &args)?;
    }
    Ok(())
}

fn show(all: &[Figures], args: &Args) -> anyhow::Result<()> {
    figures::print(all, args.target);
    match &args.draw {
        Some(file) => picture::draw(all, file),
        None => Ok(()),
    }
}
