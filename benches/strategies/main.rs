//! Measures synchronous training with ps tasks and without, in every way in which gradients travel: steps
//! per second, bytes on the wire, and memory, for several models and numbers of workers.
//!
//! `cargo bench --bench strategies -- [--rounds N] [--workers LIST] [--models LIST] [--only TEXT]`.

mod case;
mod run;
#[path = "../support/mod.rs"]
mod support;

use case::{Case, Model, Way};
use clap::Parser;
use run::{Cost, cost, steps_per_second};
use support::spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of times that each speed is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4")]
    workers: Vec<u32>,
    /// The models: an MLP, a CNN, and an MLP whose values take 400 MB
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mlp,cnn,large")]
    models: Vec<Model>,
    /// Measures only the cases whose names contain this text, such as `mlp 2 ring`
    #[arg(long, default_value = "")]
    only: String,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let all = args.models.iter().flat_map(|&model| args.workers.iter().map(move |&workers| (model, workers)));
    let cases =
        all.flat_map(|(model, workers)| Way::all(workers).map(move |way| Case { model, workers, way }));
    let cases: Vec<Case> = cases.filter(|case| case.to_string().contains(&args.only)).collect();
    let mut speeds = vec![Vec::new(); cases.len()];
    // A round measures every case, so that a machine that becomes slower affects all of them.
    for round in 1..=args.rounds {
        for (case, speeds) in cases.iter().zip(&mut speeds) {
            eprintln!("round {round} of {}: {case}", args.rounds);
            speeds.push(steps_per_second(case)?);
        }
    }
    println!("| case | steps/s | MB a step | MiB a worker | MiB in all |");
    println!("|---|---|---|---|---|");
    for (case, speeds) in cases.iter().zip(speeds) {
        eprintln!("bytes and memory: {case}");
        let Cost { step_bytes, worker, all } = cost(case)?;
        let (step, mib) = (step_bytes / 1e6, f64::from(1 << 20));
        let speed = Spread::of(speeds).shown(2);
        println!("| {case} | {speed} | {step:.1} | {:.0} | {:.0} |", worker / mib, all / mib);
    }
    Ok(())
}
