//! Measures how fast processes reduce gradients and get the updated values back, if each process stores a
//! part of the variables. Each round also measures a bare ping-pong and, with `--peer`, PyTorch over gloo.
//!
//! `cargo bench --bench all_reduce -- [--rounds N] [--seconds X] [--processes N] [--only TEXT] [--peer
//! PYTHON]`. PYTHON is the Python of an environment with PyTorch.

mod case;
mod exchange;
mod peer;
#[path = "../support/peer_program.rs"]
mod peer_program;
#[path = "../../tests/support/ports.rs"]
mod ports;
#[path = "../support/process.rs"]
mod process;
mod rank;
#[path = "../support/spread.rs"]
mod spread;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use case::{Case, Setup};
use clap::Parser;
use exchange::{Measured, Task};
use ports::free_address;
use process::Process;
use spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Approximate duration of each measurement in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Number of processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    processes: u32,
    /// Measure only the cases whose names contain this text
    #[arg(long, default_value = "")]
    only: String,
    /// Python of an environment with PyTorch
    #[arg(long)]
    peer: Option<PathBuf>,
    /// What a process that this benchmark starts does
    #[arg(long, hide = true)]
    task: Option<String>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// The figures of all rounds, by name. Those of one name are in the order of the rounds.
#[derive(Default)]
struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    fn add(&mut self, name: impl Into<String>, figure: f64) {
        self.0.entry(name.into()).or_default().push(figure);
    }
}

async fn ping_pong(seconds: f64) -> anyhow::Result<f64> {
    let address = free_address();
    let mut pong = Process::start(&Task::Pong(address.clone()), &[])?;
    pong.ready().await?;
    let mut ping = Process::start(&Task::Ping(address), &[])?;
    ping.ready().await?;
    let measured = exchange::repeat(std::slice::from_mut(&mut ping), seconds).await?;
    Ok(measured.median_us)
}

async fn all_reduce(case: Case, processes: u32, seconds: f64) -> anyhow::Result<Measured> {
    let setup = Setup::new(case, processes)?;
    let mut ranks = Vec::new();
    for index in 0..processes {
        let mut rank = Process::start(&Task::Rank(Box::new(setup.clone()), index), &[])?;
        rank.ready().await?;
        ranks.push(rank);
    }
    let _chief = setup.lead().await?;
    for rank in &mut ranks {
        rank.send("join").await?;
    }
    for rank in &mut ranks {
        rank.ready().await?;
    }
    exchange::repeat(&mut ranks, seconds).await
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let cases: Vec<Case> = Case::all().filter(|case| case.name().contains(&args.only)).collect();
    if cases.is_empty() {
        bail!("no case has a name that contains '{}'", args.only);
    }
    let mut figures = Figures::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let ping = ping_pong(args.seconds).await.context("cannot measure the ping-pong")?;
        figures.add("ping-pong of 4 KB, µs", ping);
        for case in &cases {
            let ours = all_reduce(*case, args.processes, args.seconds).await;
            let ours = ours.with_context(|| format!("cannot measure {}", case.name()))?;
            let name = case.name();
            figures.add(format!("{name}, µs"), ours.median_us);
            figures.add(format!("{name}, 99th percentile, µs"), ours.p99_us);
            figures.add(format!("{name}, GB/s"), case.bytes() as f64 / ours.median_us / 1e3);
            if case.is_small() {
                figures.add(format!("{name} / ping-pong"), ours.median_us / ping);
            }
            if let Some(python) = &args.peer {
                let theirs = peer::measure(python, args.processes, case.bytes(), args.seconds).await?;
                figures.add(format!("gloo {}, µs", case.size()), theirs);
                figures.add(format!("gloo / {name}"), theirs / ours.median_us);
            }
        }
    }
    println!("{} processes; median, minimum and maximum of {} rounds", args.processes, args.rounds);
    for (name, figures) in &figures.0 {
        println!("{name:>50}  {}", Spread::of(figures.iter().copied()).shown(2));
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let system = actix_rt::System::new();
    match &args.task {
        Some(task) => system.block_on(Task::from_text(task)?.run()),
        None => system.block_on(measure(&args)),
    }
}
