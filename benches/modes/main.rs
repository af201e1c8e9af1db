//! What the synchronisation policies cost and bring: a classifier of digits, trained on the same number of
//! examples by each of them, once with three equal workers and once with one of them slowed down.
//!
//! `cargo bench --bench modes -- [--data-dir DIR] [--modes LIST] [--rounds N] [--epochs X] [--slow-down N]
//! [--step-ms N] [--draw FILE.svg] [--json FILE]`; the MNIST files are looked for in the directory, and
//! digits are drawn without one.

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

/// Workers of every job but one.
const WORKERS: u32 = 3;
/// The mode in which one of them is a backup worker.
const BACKUP: SyncSpec = SyncSpec::Sync { aggregate: Some(WORKERS - 1) };

#[derive(Parser)]
struct Args {
    /// Directory of the MNIST files; without it digits are drawn
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Modes to measure, such as async,sync:2
    #[arg(long, value_delimiter = ',', default_value = "async,async:staleness-lr,bounded:2,sync,sync:2")]
    modes: Vec<SyncSpec>,
    /// Rounds of each job, in turns
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Epochs of a job, over all workers
    #[arg(long, default_value_t = 4.0)]
    epochs: f64,
    /// Factor by which the slow worker's steps are longer
    #[arg(long, default_value_t = 10)]
    slow_down: u32,
    /// Least ms of a step, as if each worker had a machine of its own; 0 for no bound
    #[arg(long, default_value_t = 10)]
    step_ms: u64,
    /// Learning rate, the same for all
    #[arg(long, default_value_t = 0.3)]
    learning_rate: f32,
    /// Test accuracy that a job is timed to, in per cent
    #[arg(long, default_value_t = 97.0)]
    target: f64,
    /// SVG file for accuracy against seconds and updates
    #[arg(long)]
    draw: Option<PathBuf>,
    /// JSON file for the figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Train nothing, and read the figures from this file
    #[arg(long)]
    from_json: Option<PathBuf>,
    /// Flag that `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// Every job of a round. The last is what a job with a backup worker should be as fast as.
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
    // Turn by turn, so that a machine that slows down slows all of them.
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
