//! Measures replicas with stages: how much micro-batches speed up two stages whose passes are lengthened to a
//! machine's worth of time, and how much memory each of two stages takes, beside one worker with the whole
//! model.
//!
//! `cargo bench --bench stages -- [--rounds N] [--step-ms N] [--width N]`.

mod memory;
#[path = "../../tests/support/ports.rs"]
mod ports;
mod speed;
#[path = "../support/spread.rs"]
mod spread;
#[path = "../support/usage.rs"]
mod usage;

use clap::Parser;
use spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of times that everything is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Time that each stage computes in one step, in milliseconds
    #[arg(long, default_value_t = 80)]
    step_ms: u64,
    /// Number of units in each hidden layer of the model whose memory is measured
    #[arg(long, default_value_t = 4096)]
    width: usize,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (mut single, mut parted, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    let (mut whole, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let [one, many] = [1, 8].map(|parts| speed::steps_per_second(args.step_ms, parts));
        let (one, many) = (one?, many?);
        gains.push(many / one);
        single.push(one);
        parted.push(many);
        let uncut = memory::peaks(args.width, false)?[0];
        let cut = memory::peaks(args.width, true)?;
        first.push(cut[0] / uncut);
        second.push(cut[1] / uncut);
        whole.push(uncut);
    }
    let show = |name: &str, figures: Vec<f64>, digits: usize| {
        println!("{name:42} {}", Spread::of(figures).shown(digits));
    };
    show("2 stages, steps/s", single, 2);
    show("2 stages, 8 micro-batches, steps/s", parted, 2);
    show("gain by micro-batches", gains, 2);
    show("peak of one worker, MiB", whole, 0);
    show("peak of stage 0 / peak of one worker", first, 2);
    show("peak of stage 1 / peak of one worker", second, 2);
    Ok(())
}
