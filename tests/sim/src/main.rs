//! `pushpull-sim` simulates many jobs, each under its own seed, and prints the story of each that fails.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use pushpull_sim::scenario::Scenario;
use pushpull_sim::trace::story;
use pushpull_sim::world::{Held, run};

/// The number of panics so far.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Simulates whole clusters with failing tasks and networks, one for each seed.
#[derive(Debug, Parser)]
struct Args {
    /// Number of seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Simulate this many large clusters instead: 200 workers and 20 ps tasks, without faults
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    large: Option<u64>,
    /// Stop after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Run every nth seed twice, and compare the events; 0 for never
    #[arg(long, default_value_t = 100)]
    twice_every: u64,
    /// Stop at this number of failures
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Print the log of the tasks; use it with one seed
    #[arg(long)]
    log: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.log {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
    }
    // tokio catches a panic in a task, so it would go unnoticed.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        usual(panic);
    }));
    let began = Instant::now();
    let (mut ran, mut trained, mut faults, mut struck, mut failed) = (0u64, 0u64, 0, 0, Vec::new());
    let mut rolled_back = 0u64;
    for seed in args.first..args.first.saturating_add(args.large.unwrap_or(args.seeds)) {
        ran += 1;
        let scenario = if args.large.is_some() { Scenario::large(seed) } else { Scenario::of(seed) };
        match simulate(&scenario, args.twice_every) {
            Ok(held) => {
                trained += u64::from(held.trained);
                rolled_back += u64::from(held.rolled_back);
                struck += u64::from(held.struck);
                faults += scenario.faults.len();
            }
            Err(story) => {
                println!("{story}\n");
                failed.push(seed);
            }
        }
        let late = args.seconds.is_some_and(|seconds| began.elapsed().as_secs() >= seconds);
        if late || failed.len() >= args.failures {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{ran} simulated jobs, {trained} of them trained, {rolled_back} rolled back, in {seconds:.1} s ({:.0} a second); {struck} of {faults} faults struck during the training; failed seeds: {failed:?}",
        ran as f64 / seconds
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the scenario of a seed, compares its bits with those of the undisturbed job, and runs some scenarios
/// twice.
fn simulate(scenario: &Scenario, twice_every: u64) -> Result<Held, String> {
    let run = |scenario: &Scenario| run(scenario).map_err(|failure| failure.to_string());
    let panics = PANICS.load(Ordering::Relaxed);
    let held = run(scenario)?;
    if PANICS.load(Ordering::Relaxed) > panics {
        return Err(format!("{}\n{scenario}\n  FAILED: a task panicked", story(&held.events)));
    }
    if held.trained && scenario.keeps_bits() {
        let undisturbed = run(&scenario.undisturbed())?;
        if undisturbed.variables != held.variables {
            return Err(format!(
                "{}\n{scenario}\n  FAILED: other bits than undisturbed",
                story(&held.events)
            ));
        }
    }
    if twice_every > 0 && scenario.seed.is_multiple_of(twice_every) {
        let again = run(scenario)?;
        if again != held {
            let same = again.events.iter().zip(&held.events).take_while(|(one, other)| one == other).count();
            let next = |held: &Held| story(&held.events[same..held.events.len().min(same + 5)]);
            let (one, other) = (next(&held), next(&again));
            let ends = [&held, &again].map(|held| (held.took, held.variables));
            return Err(format!(
                "{scenario}\n  FAILED: two runs differ after {same} events:\n{one}or\n{other}{ends:?}"
            ));
        }
    }
    Ok(held)
}
