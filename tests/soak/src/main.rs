//! `soak` runs jobs of real processes on loopback, one after the other, each with a bad network and with
//! tasks that are killed or stopped at random. A job is started again until it is trained. Then nothing may
//! be lost. Prints a table of what happened; the exit status is 1 if anything was lost.
#![forbid(unsafe_code)]

mod again;
mod cluster;
mod fault;
mod job;
mod losses;
mod plan;
#[path = "../../support/ports.rs"]
mod ports;
mod program;
mod programs;
mod proxy;
#[path = "../../sim/src/random.rs"]
mod random;
mod round;
mod signals;
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Parser;
use plan::Plan;
use programs::Programs;
use round::Round;
use signals::Signals;
use tally::Tally;

/// Runs jobs of real processes, disturbs them at random, and checks that nothing is lost.
#[derive(Debug, Parser)]
struct Args {
    /// Begin no other job after this many minutes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Seed of the first job, and of everything that happens to it; the next job has the next seed
    #[arg(
        long,
        value_name = "N",
        help = "Seed of the first job; the next job has the next seed [default: from the time of day]"
    )]
    seed: Option<u64>,
    /// Run at most this many jobs
    #[arg(long, value_name = "N")]
    jobs: Option<u64>,
    /// Stop at this number of failures
    #[arg(long, value_name = "N", default_value_t = 3)]
    failures: usize,
    /// Most memory that a process may use, in MiB
    #[arg(long, value_name = "N", default_value_t = 256)]
    memory_mib_max: u64,
    /// Print what happens
    #[arg(long)]
    verbose: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let programs = Programs::build()?;
    let signals = Signals::listen()?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // A short number is easier to copy.
    let first = args.seed.unwrap_or(time % 1_000_000);
    println!("soak: {} minute(s) from --seed {first}", args.minutes);
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    let mut tally = Tally::default();
    for seed in (first..).take(args.jobs.map_or(usize::MAX, |jobs| jobs as usize)) {
        if Instant::now() >= end || tally.failed.len() >= args.failures {
            break;
        }
        let plan = Plan::of(seed);
        let dir = tempfile::Builder::new().prefix("soak-").tempdir().context("no temporary directory")?;
        let mut round = Round::new(plan, &programs, &signals, dir.path(), args.verbose);
        let held = round.run(args.memory_mib_max);
        if let Some(number) = signals.received() {
            println!("told to end in the job with seed {seed}\n{tally}");
            return Ok(ExitCode::from(128 + number));
        }
        tally.add(&round.happened, round.counts);
        if let Err(loss) = held {
            let kept = dir.keep();
            println!(
                "{}\n  LOST: {loss:#}\n  logs, job and checkpoints: {}\n",
                round.story(),
                kept.display()
            );
            tally.failed.push(seed);
        }
    }
    println!("{tally}");
    Ok(if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
