//! Measures how much an attack slows training down. A secured job trains in processes of its own. Attackers
//! with the address 127.0.0.2 send the same load in turn to the job's ports and to a process that accepts
//! connections and closes them, so that the load itself costs both the same. Linux only.
//!
//! `cargo bench --bench attacks -- [--rounds N] [--seconds N] [--rate N]`.

#[path = "../../tests/support/anybody.rs"]
mod anybody;
mod job;
mod load;
#[path = "../../tests/support/secret.rs"]
mod secret;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use job::Job;
use load::{Load, Target};
use support::spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MIB: f64 = (1 << 20) as f64;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round measures the job under attack, beside the same load, and alone
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Length of one measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Attempts per second of all attackers together
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Accept connections and close them, instead of measuring
    #[arg(long, hide = true)]
    sink: bool,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// A process that accepts connections and closes them. It is killed when this value is dropped.
struct Sink {
    child: Child,
    address: String,
}

impl Sink {
    fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("--sink").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }

    /// Is the process: says where it listens, and accepts connections until it is killed.
    fn run() -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        // The end of this process's input is the end of the benchmark.
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_line(&mut String::new());
            std::process::exit(0);
        });
        for stream in listener.incoming() {
            drop(stream);
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The updates per second of all rounds, by what the attackers did.
#[derive(Default)]
struct Rates {
    attacked: Vec<f64>,
    beside: Vec<f64>,
    alone: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.sink {
        return Sink::run();
    }
    let (mut job, sink) = (Job::start()?, Sink::start()?);
    let load = Load::start(&job.targets(), &sink.address, args.rate)?;
    let window = Duration::from_secs(args.seconds);
    job.rate(window)?;
    let before = job.peaks()?;
    let mut rates = Rates::default();
    for round in 0..args.rounds {
        // A gradual change of the machine affects both kinds alike, because their order alternates.
        let mut order = [Target::Job, Target::Sink];
        order.rotate_left(round % 2);
        for target in order {
            load.aim(target);
            let rate = job.rate(window)?;
            match target {
                Target::Job => rates.attacked.push(rate),
                _ => rates.beside.push(rate),
            }
        }
        load.aim(Target::Nothing);
        rates.alone.push(job.rate(window)?);
    }
    let made = load.end();
    let Rates { attacked, beside, alone } = &rates;
    let ratios = attacked.iter().zip(beside).map(|(attacked, beside)| attacked / beside);
    println!("updates/s under attack            {}", Spread::of(attacked.iter().copied()).shown(0));
    println!("updates/s beside the same load    {}", Spread::of(beside.iter().copied()).shown(0));
    println!("updates/s without any load        {}", Spread::of(alone.iter().copied()).shown(0));
    println!("under attack / beside the load    {}", Spread::of(ratios).shown(3));
    println!("attempts                          {} at the job, {} at the other process", made[0], made[1]);
    for ((name, before), (_, after)) in before.iter().zip(job.peaks()?) {
        let (before, after) = (*before as f64 / MIB, after as f64 / MIB);
        println!("peak memory of {name:8}           {before:.1} MiB before, {after:.1} MiB after");
    }
    for line in job.refusals()? {
        println!("{line}");
    }
    job.is_well()
}
