//! Measures the examples per second of training: with all tasks in one process, with one process per task,
//! and with processes that only compute. With `--peer`, each round also measures another system.
//!
//! `cargo bench --bench throughput -- [--model NAME] [--rounds N] [--steps N] [--workers N] [--ps N]
//! [--dedicated] [--sync POLICY] [--peer 'COMMAND']`. COMMAND prints its result as `N examples/s`.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use pushpull::{Embedded, GraphSpec, JobProgress, JobSpec, OptimizerSpec, SyncSpec};
use support::training::{BATCH, Training};
use support::{local, models, tell, train};

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
    /// The model: an MLP 784-512-512-10, or a CNN 32C3-P2-64C3-P2-128-10
    #[arg(long, default_value = "mlp")]
    model: Model,
    #[arg(long, default_value_t = 1)]
    ps: u32,
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Synchronisation policy, such as async, bounded:2, sync or sync:1
    #[arg(long, default_value_t)]
    sync: SyncSpec,
    /// Passes `--dedicated` to `pushpull local`: no other program computes on this host
    #[arg(long)]
    dedicated: bool,
    /// Command that measures another system, for comparison; it prints its result as N examples/s
    #[arg(long)]
    peer: Option<String>,
    /// Only computes, with one thread and without a cluster, and prints the seconds of each step
    #[arg(long, hide = true)]
    compute: bool,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    Mlp,
    Cnn,
}

impl Model {
    fn graph(self) -> anyhow::Result<GraphSpec> {
        match self {
            Self::Mlp => models::mlp(512),
            Self::Cnn => models::cnn(),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
        }
    }
}

/// How long a process computes for [`Computing`].
const COMPUTE: Duration = Duration::from_secs(4);

fn job(args: &Args) -> anyhow::Result<JobSpec> {
    Ok(support::job_of(args.model.graph()?, OptimizerSpec::sgd(0.01), args.sync, args.steps))
}

/// Computes steps with one thread, and prints how many seconds each took.
fn compute(args: &Args) -> anyhow::Result<()> {
    let mut training = Training::new(&args.model.graph()?, 1)?;
    (0..10).for_each(|_| training.step());
    let (began, mut steps) = (Instant::now(), Vec::new());
    while began.elapsed() < COMPUTE {
        let step = Instant::now();
        training.step();
        steps.push(step.elapsed().as_secs_f64());
    }
    println!("{}", serde_json::to_string(&steps)?);
    Ok(())
}

/// The examples per second of as many processes as workers that only compute, at the same time.
struct Computing {
    /// The rate of all processes.
    free: f64,
    /// The rate that they would have if each step ended for all when it ends for the slowest, at no cost.
    in_step: f64,
}

impl Computing {
    fn measure(args: &Args) -> anyhow::Result<Self> {
        let start = |_| {
            let mut command = Command::new(std::env::current_exe()?);
            // Like a worker's device, the process has one thread.
            command.args(["--compute", "--model", args.model.name()]).env("RAYON_NUM_THREADS", "1");
            Ok(command.stdout(Stdio::piped()).spawn()?)
        };
        let children = (0..args.workers).map(start).collect::<anyhow::Result<Vec<Child>>>()?;
        let steps = |child: Child| Ok(serde_json::from_slice(&child.wait_with_output()?.stdout)?);
        let steps = children.into_iter().map(steps).collect::<anyhow::Result<Vec<Vec<f64>>>>()?;
        let rate = |own: &Vec<f64>| (own.len() * BATCH) as f64 / own.iter().sum::<f64>();
        let common = steps.iter().map(Vec::len).min().context("at least one worker")?;
        let slowest = |at| steps.iter().map(|own| own[at]).fold(0.0, f64::max);
        let seconds: f64 = (0..common).map(slowest).sum();
        let free = steps.iter().map(rate).sum();
        Ok(Self { free, in_step: (steps.len() * common * BATCH) as f64 / seconds })
    }
}

/// Returns the N of the last text of the form `N examples/s` in what a program has printed.
fn examples_per_second(output: &[u8]) -> anyhow::Result<f64> {
    let text = String::from_utf8_lossy(output);
    let words: Vec<&str> = text.split_whitespace().collect();
    let figure = words.windows(2).rev().find(|pair| pair[1] == "examples/s");
    let figure = figure.with_context(|| format!("expected 'N examples/s', found: {text}"))?[0];
    Ok(figure.parse()?)
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
    let mut command = local(folder, &file, args.ps, args.workers);
    if args.dedicated {
        command.arg("--dedicated");
    }
    train(folder, command)
}

fn peer(command: &str) -> anyhow::Result<f64> {
    let output = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).output()?;
    examples_per_second(&output.stdout).with_context(|| format!("in the output of '{command}'"))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.compute {
        return compute(&args);
    }
    let folder = tempfile::tempdir()?;
    let (mut in_process, mut on_loopback, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let (mut alone, mut in_step) = (Vec::new(), Vec::new());
    let Args { model, sync, ps, workers, .. } = &args;
    println!("{}, batch 64, {sync}, {ps} ps, {workers} workers", model.name());
    // Each round makes all measurements, so that a machine that becomes slower affects all of them.
    for _ in 0..args.rounds.max(1) {
        in_process.push(embedded(&args)?);
        on_loopback.push(processes(&args, folder.path())?);
        let computing = Computing::measure(&args)?;
        alone.push(computing.free);
        in_step.push(computing.in_step);
        if let Some(command) = &args.peer {
            others.push(peer(command)?);
        }
    }
    let ratios: Vec<f64> = on_loopback.iter().zip(&others).map(|(ours, theirs)| ours / theirs).collect();
    tell("embedded", in_process, "examples/s");
    let of = |limit: &[f64]| on_loopback.iter().zip(limit).map(|(ours, limit)| ours / limit).collect();
    let (of_alone, of_in_step) = (of(&alone), of(&in_step));
    tell("processes", on_loopback, "examples/s");
    tell("processes that only compute", alone, "examples/s");
    tell("processes / only computing", of_alone, "");
    tell("only computing, in step", in_step, "examples/s");
    tell("processes / in step", of_in_step, "");
    if !others.is_empty() {
        tell("peer", others, "examples/s");
        tell("processes / peer", ratios, "");
    }
    Ok(())
}
