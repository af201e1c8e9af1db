//! Measures the examples per second of training: with all tasks in one process, and with one process per
//! task over loopback. With `--peer`, each round also measures another system.
//!
//! `cargo bench --bench throughput -- [--rounds N] [--steps N] [--workers N] [--ps N] [--sync POLICY]
//! [--peer 'COMMAND']`. COMMAND is run once per round. Its result is the last text of the form `N
//! examples/s` that it prints.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Parser;
use pushpull::{Embedded, JobProgress, JobSpec, OptimizerSpec, SyncSpec};
use support::{local, tell, train};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round makes every measurement once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of updates in each measurement
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    #[arg(long, default_value_t = 1)]
    ps: u32,
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Synchronisation policy, such as async, bounded:2, sync or sync:1
    #[arg(long, default_value_t)]
    sync: SyncSpec,
    /// Command that measures another system, for comparison; it prints its result as N examples/s
    #[arg(long)]
    peer: Option<String>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

fn job(args: &Args) -> anyhow::Result<JobSpec> {
    support::job(512, OptimizerSpec::sgd(0.01), args.sync, args.steps)
}

fn embedded(args: &Args) -> anyhow::Result<f64> {
    let job = job(args)?;
    let per_update = job.sync.gradients_per_update(args.workers);
    let examples = args.steps * job.step_examples() * u64::from(per_update);
    let (tell, _told) = tokio::sync::watch::channel(JobProgress::default());
    let cluster = Embedded::new(args.ps, args.workers);
    let run = cluster.run(job, tell, tokio_util::sync::CancellationToken::new());
    let report = actix_rt::System::new().block_on(run)?;
    Ok(examples as f64 / report.training.as_secs_f64())
}

fn processes(args: &Args, folder: &Path) -> anyhow::Result<f64> {
    let file = folder.join("job.json");
    std::fs::write(&file, job(args)?.to_json())?;
    train(folder, local(folder, &file, args.ps, args.workers))
}

fn peer(command: &str) -> anyhow::Result<f64> {
    let output = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let figure = words.windows(2).rev().find(|pair| pair[1] == "examples/s");
    let figure = figure
        .with_context(|| format!("expected 'N examples/s' in the output of '{command}', found: {text}"))?[0];
    Ok(figure.parse()?)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let (mut in_process, mut on_loopback, mut others) = (Vec::new(), Vec::new(), Vec::new());
    println!("mlp 784-512-512-10, batch 64, {}, {} ps, {} workers", args.sync, args.ps, args.workers);
    // Each round makes all measurements, so that a machine that becomes slower affects all of them.
    for _ in 0..args.rounds.max(1) {
        in_process.push(embedded(&args)?);
        on_loopback.push(processes(&args, folder.path())?);
        if let Some(command) = &args.peer {
            others.push(peer(command)?);
        }
    }
    let ratios: Vec<f64> = on_loopback.iter().zip(&others).map(|(ours, theirs)| ours / theirs).collect();
    tell("embedded", in_process, "examples/s");
    tell("processes", on_loopback, "examples/s");
    if !others.is_empty() {
        tell("peer", others, "examples/s");
        tell("processes / peer", ratios, "");
    }
    Ok(())
}
