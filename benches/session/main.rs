//! Measures runs of sessions over loopback: the time of a run of a scalar beside a bare ping-pong of tokio,
//! many clients at once, and an in-graph step of an MLP on one task and on two.
//!
//! `cargo bench --bench session -- [ROUNDS] [latency]`; with `latency`, only the first of these.

#[path = "../support/spread.rs"]
mod spread;

mod clients;
mod latency;
mod step;

use spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let rounds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let latency_alone = args.iter().any(|arg| arg == "latency");
    let (mut runs, mut pings, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut one, mut two, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        let (ping, run) = latency::measure()?;
        ratios.push(run.p50 / ping.p50);
        pings.push(ping);
        runs.push(run);
        if latency_alone {
            continue;
        }
        one.push(step::steps_per_second(1)?);
        two.push(step::steps_per_second(2)?);
        many.push(clients::runs_per_second(if round == 1 { 10_000 } else { 2_000 })?);
    }
    let show = |name: &str, figures: Vec<f64>, digits: usize| {
        println!("{name:34} {}", Spread::of(figures).shown(digits));
    };
    show("ping-pong p50, us", pings.iter().map(|times| times.p50).collect(), 1);
    show("ping-pong p99, us", pings.iter().map(|times| times.p99).collect(), 1);
    show("session.run of a scalar p50, us", runs.iter().map(|times| times.p50).collect(), 1);
    show("session.run of a scalar p99, us", runs.iter().map(|times| times.p99).collect(), 1);
    show("run divided by ping-pong, p50", ratios, 2);
    if latency_alone {
        return Ok(());
    }
    show("8 clients, runs/s", many, 0);
    show("MLP on one task, steps/s", one, 1);
    show("MLP on two tasks, steps/s", two, 1);
    Ok(())
}
