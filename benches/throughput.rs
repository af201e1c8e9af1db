//! Examples per second of training, in one process and as real processes on loopback; beside it, if wanted, another
//! system's figure from the same minutes.
//!
//! `cargo bench --bench throughput -- [--rounds N] [--steps N] [--workers N] [--ps N] [--sync POLICY] [--peer 'COMMAND']`:
//! the command is run once a round, and its last words of the form `N examples/s` are taken as its figure.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull::nn::{Layer, dense};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, GraphSpec, InputSpec, JobProgress, JobSpec, OptimizerSpec, SyncSpec,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// How often each is measured, one after the other
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Updates in each measurement
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    #[arg(long, default_value_t = 1)]
    ps: u32,
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// How gradients of several workers meet, such as async, bounded:2, sync or sync:1
    #[arg(long, default_value_t)]
    sync: SyncSpec,
    /// Another system to measure beside ours
    #[arg(long)]
    peer: Option<String>,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// 784-512-512-10, the model of the yardsticks.
fn mlp() -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let mut x = g.reshape(images, [784]);
    for layer in ["dense1", "dense2"] {
        x = dense(layer, 512).relu().apply(&mut g, x);
    }
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    Ok(g.finish(loss, &[])?)
}

fn job(steps: u64, sync: SyncSpec) -> anyhow::Result<JobSpec> {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let input = InputSpec::new(digits(1, 20_000), digits(2, 500));
    Ok(JobSpec { optimizer: OptimizerSpec::sgd(0.01), sync, seed: 1, ..JobSpec::new(mlp()?, input, steps) })
}

fn embedded(args: &Args) -> anyhow::Result<f64> {
    let job = job(args.steps, args.sync)?;
    let per_update = job.sync.gradients_per_update(args.workers);
    let examples = args.steps * u64::from(job.batch_size) * u64::from(per_update);
    let (tell, _told) = tokio::sync::watch::channel(JobProgress::default());
    let cluster = Embedded::new(args.ps, args.workers);
    let run = cluster.run(job, tell, tokio_util::sync::CancellationToken::new());
    let report = actix_rt::System::new().block_on(run)?;
    Ok(examples as f64 / report.training.as_secs_f64())
}

fn processes(args: &Args, folder: &Path) -> anyhow::Result<f64> {
    let (job_file, report) = (folder.join("job.json"), folder.join("report.json"));
    std::fs::write(&job_file, job(args.steps, args.sync)?.to_json())?;
    let status = Command::new(env!("CARGO_BIN_EXE_pushpull"))
        .arg("local")
        .args(["--ps", &args.ps.to_string(), "--workers", &args.workers.to_string()])
        .arg("--job")
        .arg(&job_file)
        .arg("--report")
        .arg(&report)
        .stdout(Stdio::null())
        .env("RUST_LOG", "warn")
        .status()?;
    if !status.success() {
        bail!("pushpull local ended with {status}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    report["examples_per_second"].as_f64().context("the report has no examples_per_second")
}

fn peer(command: &str) -> anyhow::Result<f64> {
    let output = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let figure = words.windows(2).rev().find(|pair| pair[1] == "examples/s");
    let figure = figure.with_context(|| format!("'{command}' did not print 'N examples/s' but: {text}"))?[0];
    Ok(figure.parse()?)
}

fn spread(name: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    let (least, most) = (figures[0], figures[figures.len() - 1]);
    println!("{name:12} median {:9.0}   least {least:9.0}   most {most:9.0}   examples/s", median(&figures));
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let (mut in_process, mut on_loopback, mut others) = (Vec::new(), Vec::new(), Vec::new());
    println!("mlp 784-512-512-10, batch 64, {}, {} ps, {} workers", args.sync, args.ps, args.workers);
    // Turn by turn, so that a machine that slows down slows all of them.
    for _ in 0..args.rounds.max(1) {
        in_process.push(embedded(&args)?);
        on_loopback.push(processes(&args, folder.path())?);
        if let Some(command) = &args.peer {
            others.push(peer(command)?);
        }
    }
    let ratios: Vec<f64> = on_loopback.iter().zip(&others).map(|(ours, theirs)| ours / theirs).collect();
    spread("embedded", in_process);
    spread("processes", on_loopback);
    if !others.is_empty() {
        spread("peer", others);
        let mut ratios = ratios;
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        println!("processes / peer: median {:.2}, least {least:.2}, most {most:.2}", median(&ratios));
    }
    Ok(())
}
