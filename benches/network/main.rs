//! Measures training over a network that is slower than the processors: the ps and the workers are processes
//! in two network namespaces, each direction between them has a limited rate, and every byte is delayed.
//! Each round measures the raw line, and then every variant of the job. Needs root, Linux, and the programs
//! `ip`, `tc`, `unshare` and `nsenter`.
//!
//! `cargo bench --bench network -- --help` lists the flags.

mod child;
mod line;
mod relay;
mod results;
mod sides;
#[path = "../support/mod.rs"]
mod support;
mod variant;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use child::Task;
use clap::Parser;
use pushpull::{ClusterSpec, OptimizerSpec, SyncSpec};
use pushpull_messages::id::JobName;
use results::Results;
use sides::{HERE, Sides};
use support::models;
use support::tasks::{Tasks, Trained};
use tokio::signal::unix::{SignalKind, signal};
use variant::Variant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Parser)]
struct Args {
    /// Number of rounds; each round makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rate of each direction of the line, in the notation of tc
    #[arg(long, default_value = "1gbit")]
    rate: String,
    /// Time for a byte to travel to the other side and back, in milliseconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    delay_ms: u32,
    /// Numbers of workers, separated by commas; each number is measured with every variant
    #[arg(long, value_delimiter = ',', default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Vec<u32>,
    /// Size of the model's variables in megabytes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=2000))]
    megabytes: u32,
    /// Number of updates in each measurement
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(6..))]
    steps: u64,
    /// Measure only variants whose names contain one of these texts, separated by commas; the plain variant
    /// is always measured
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Approximate duration of each measurement of the raw line in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    line_seconds: u32,
    /// File for the results in JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// What a process that this benchmark starts does
    #[arg(long, hide = true)]
    task: Option<String>,
    /// Whether this process is in the namespaces that the benchmark has made
    #[arg(long, hide = true)]
    inside: bool,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// The ports of the ps and the chief on the line. The relay listens there.
const LINE_PORTS: [(JobName, u16); 2] = [(JobName::Ps, 7000), (JobName::Chief, 7001)];
/// The port of the raw line's server on the line.
const RAW_PORT: u16 = 7002;
/// A task listens on loopback, at its port on the line plus this number.
const BEHIND_RELAY: u16 = 100;
/// The port of the HTTP endpoint of the ps, on loopback.
const HTTP_PORT: u16 = 7200;

fn on_line(port: u16) -> String {
    format!("{HERE}:{port}")
}

fn on_loopback(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Returns the routes of the relay: from each port on the line to the task on loopback.
fn routes() -> Vec<(String, String)> {
    let ports = LINE_PORTS.iter().map(|&(_, port)| port).chain([RAW_PORT]);
    ports.map(|port| (on_line(port), on_loopback(port + BEHIND_RELAY))).collect()
}

/// Trains one variant with this number of workers.
async fn train(args: &Args, variant: &Variant, workers: u32, sides: &Sides) -> anyhow::Result<Trained> {
    let graph = models::mlp(models::mlp_width(u64::from(args.megabytes) * 1_000_000))?;
    let mut job = support::job_of(graph, OptimizerSpec::sgd(0.01), SyncSpec::ASYNC, args.steps);
    (variant.change)(&mut job);
    let [ps, chief] = LINE_PORTS.map(|(job, port)| (job, vec![on_line(port)]));
    // Workers do not listen, so no relay stands before their addresses.
    let others = (0..workers).map(|worker| format!("{}:{}", sides::THERE, 7000 + worker)).collect();
    let cluster = ClusterSpec::new([chief, ps, (JobName::Worker, others)])?;
    let mut tasks = Tasks::new(&job, cluster, on_loopback(HTTP_PORT))?;
    for (job, port) in LINE_PORTS {
        tasks.add_flag(job, format!("--bind={}", on_loopback(port + BEHIND_RELAY)));
        tasks.add_flag(job, "--transport=tcp".to_owned());
    }
    // One worker and two workers are compared, so each has the same number of threads.
    tasks.add_flag(JobName::Worker, "--threads=1".to_owned());
    tasks.add_flag(JobName::Worker, "--transport=tcp".to_owned());
    tasks.prefix_workers(sides.prefix_there());
    tasks.train().await
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let variants = variant::chosen(&args.only);
    let sides = Sides::join(&args.rate).await?;
    let one_way = Duration::from_millis(args.delay_ms.into()) / 2;
    let bytes_max = relay::bytes_max(sides::bits_per_second(&args.rate)?, one_way);
    let _relay = sides.start_here(&Task::Relay { routes: routes(), delay: one_way, bytes_max }).await?;
    let _server =
        sides.start_here(&Task::LineServer { address: on_loopback(RAW_PORT + BEHIND_RELAY) }).await?;
    let mut results = Results::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}: the raw line", args.rounds);
        let seconds = f64::from(args.line_seconds);
        results.add_line(line::measure(&sides, &on_line(RAW_PORT), seconds).await?);
        for &workers in &args.workers {
            for variant in &variants {
                eprintln!("round {round} of {}: {}, {workers} workers", args.rounds, variant.name);
                let trained = train(args, variant, workers, &sides).await;
                let trained = trained
                    .with_context(|| format!("cannot train '{}' with {workers} workers", variant.name))?;
                results.add(variant.name, workers, &trained);
            }
        }
    }
    println!(
        "mlp of {} MB, batch 64, async, 1 ps, {} each way, {} ms to and fro, {} updates, {} rounds",
        args.megabytes, args.rate, args.delay_ms, args.steps, args.rounds
    );
    print!("{results}");
    if let Some(path) = &args.json {
        write_json(path, &results)?;
    }
    Ok(())
}

fn write_json(path: &Path, results: &Results) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(&results.to_json())?;
    std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until the process that has started this one has ended, or a signal has arrived.
async fn interrupted() -> anyhow::Result<()> {
    let [mut interrupt, mut terminate] =
        [SignalKind::interrupt(), SignalKind::terminate()].map(signal).map(Result::ok);
    let (ended, mut parent) = tokio::sync::mpsc::channel(1);
    // The parent holds the other end of this process's standard input, and writes nothing.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = ended.blocking_send(());
    });
    let received = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    };
    tokio::select! {
        _ = received(&mut interrupt) => bail!("interrupted"),
        _ = received(&mut terminate) => bail!("interrupted"),
        _ = parent.recv() => bail!("the benchmark was ended"),
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if !args.inside && args.task.is_none() {
        return sides::run_inside();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = match &args.task {
        Some(task) => runtime.block_on(Task::from_text(task)?.run()),
        // When this process ends, the system ends all others in the namespaces, and removes these.
        None => runtime.block_on(async {
            tokio::select! {
                measured = measure(&args) => measured,
                ended = interrupted() => ended,
            }
        }),
    };
    // A thread may still wait for the parent's end.
    runtime.shutdown_background();
    ended
}
