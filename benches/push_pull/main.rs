//! Measures how fast variables move between workers and ps tasks: pushes, pulls and both, over TCP between
//! processes and within one process. Each round also measures the machine's own limits: a raw socket, a bare
//! ping-pong and a copy in memory. Ratios are formed within a round, so that a slower minute changes both.
//!
//! `cargo bench --bench push_pull -- [--rounds N] [--only TEXT] [--seconds X] [--congestion NAME]
//! [--tcp-congestion NAME] [--ps-device cpu|cuda:N] [--peer-python FILE] [--json FILE]`.

mod case;
mod child;
mod cluster;
mod figures;
mod limits;
mod peer;
#[path = "../support/peer_program.rs"]
mod peer_program;
#[path = "../../tests/support/ports.rs"]
mod ports;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/usage.rs"]
mod usage;
mod worker;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use case::{Case, Limit};
use child::Task;
use clap::Parser;
use cluster::PsProgram;
use figures::Table;
use pushpull::PsDevice;
use pushpull_transport::Congestion;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only the cases whose names contain this text
    #[arg(long, default_value = "")]
    only: String,
    /// Approximate duration of each measurement in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Measure in a network namespace of its own with this congestion control, such as reno; needs root
    #[arg(long)]
    congestion: Option<String>,
    /// Congestion control of ours and of the raw sockets: auto (the host's, but reno instead of BBR on
    /// loopback), host, or a name; with `--congestion`, the default is host
    #[arg(long, default_value = "auto")]
    tcp_congestion: Congestion,
    /// Device on which the ps tasks apply updates, but those within the worker's process: cpu or cuda:N
    #[arg(long, default_value_t)]
    ps_device: PsDevice,
    /// Program of the ps tasks; default: the one that was built with this benchmark
    #[arg(long)]
    ps_program: Option<PathBuf>,
    /// Python of an environment with TensorFlow, whose parameter server is then measured in each round
    #[arg(long)]
    peer_python: Option<PathBuf>,
    /// File for the results in JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// What a process that this benchmark starts does
    #[arg(long, hide = true)]
    task: Option<String>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn ps(&self) -> PsProgram {
        let built = || PathBuf::from(env!("CARGO_BIN_EXE_pushpull-ps"));
        PsProgram { path: self.ps_program.clone().unwrap_or_else(built), device: self.ps_device }
    }
}

/// Parses the duration of a measurement.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (0.01..=600.0).contains(&seconds).then_some(seconds).ok_or_else(|| "expected 0.01 to 600".to_owned())
}

/// Runs this program again in a new network namespace whose congestion control is `name`.
fn in_namespace(name: &str) -> anyhow::Result<()> {
    const SETUP: &str =
        "ip link set lo up && echo \"$0\" > /proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";
    let mut rest: Vec<String> = std::env::args().collect();
    let at = rest.iter().position(|arg| arg.starts_with("--congestion")).context("the flag was given")?;
    let values = if rest[at].contains('=') { 1 } else { 2 };
    rest.drain(at..at + values);
    rest[0] = std::env::current_exe()?.display().to_string();
    // Without a choice, the connections would use Reno instead of a congestion control that paces loopback.
    if !rest.iter().any(|arg| arg.starts_with("--tcp-congestion")) {
        rest.push("--tcp-congestion=host".to_owned());
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SETUP, name]).args(rest);
    let status = command.status().context("cannot run unshare, which is part of util-linux")?;
    if !status.success() {
        bail!("the benchmark in the network namespace ended with {status}");
    }
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| case.name().contains(&args.only)).collect();
    if cases.is_empty() {
        bail!("no case has a name that contains '{}'", args.only);
    }
    let mut table = Table::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for limit in Limit::of(&cases) {
            table.limit(limit, limits::measure(limit, args.seconds).await?);
        }
        if let Some(python) = &args.peer_python {
            table.peer(peer::measure(python, args.seconds).await.context("cannot measure TensorFlow")?);
        }
        for case in &cases {
            let measured = cluster::measure(case, &args.ps(), args.seconds).await;
            table.case(case, &measured.with_context(|| format!("cannot measure {}", case.name()))?);
        }
    }
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    println!(
        "congestion control of the host: {}, of the connections: {}",
        control.trim(),
        args.tcp_congestion
    );
    print!("{table}");
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&table.to_json())?)?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(name) = &args.congestion {
        return in_namespace(name);
    }
    child::set_congestion(args.tcp_congestion.clone());
    let system = actix_rt::System::new();
    match &args.task {
        Some(task) => system.block_on(Task::from_text(task)?.run()),
        None => system.block_on(measure(&args)),
    }
}
