//! Checks many inputs of the target `session` without a fuzzer: `many [INPUTS] [SEED] [FIRST]`. The seed
//! determines all inputs; those before the first one are drawn, but not checked. If one causes a panic, it is
//! written to a file, and the program fails.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use pushpull_fuzz::changes::Inputs;
use pushpull_fuzz::numbers::Numbers;
use pushpull_fuzz::seeds::sessions;
use pushpull_fuzz::session::{Reached, check};

const STAGES: [Reached; 5] =
    [Reached::Bytes, Reached::Graph, Reached::Valid, Reached::Inferred, Reached::Compiled];

fn main() -> Result<(), String> {
    let mut numbers =
        std::env::args().skip(1).map(|text| text.parse::<u64>().map_err(|e| format!("{text}: {e}")));
    let count = numbers.next().transpose()?.unwrap_or(1_000_000);
    let seed = numbers.next().transpose()?.unwrap_or(1);
    let first = numbers.next().transpose()?.unwrap_or(0);
    let (inputs, mut numbers) = (Inputs::new(sessions()), Numbers::new(seed));
    let (mut reached, mut slowest) = ([0u64; STAGES.len()], (Duration::ZERO, 0));
    let began = Instant::now();
    for number in 0..count {
        let input = inputs.draw(&mut numbers);
        if number < first {
            continue;
        }
        let at = Instant::now();
        let Ok(stage) = catch_unwind(|| check(&input)) else {
            let file = format!("panic-{seed}-{number}");
            std::fs::write(&file, &input).map_err(|error| format!("{file}: {error}"))?;
            return Err(format!("input {number} of seed {seed} causes a panic: see the file {file}"));
        };
        reached[stage as usize] += 1;
        slowest = slowest.max((at.elapsed(), number));
        if (number + 1) % (count / 10).max(1) == 0 {
            eprintln!(
                "{} inputs, {:.0} per second",
                number + 1,
                (number + 1) as f64 / began.elapsed().as_secs_f64()
            );
        }
    }
    println!("{count} inputs of seed {seed} in {:.0} s: no panic", began.elapsed().as_secs_f64());
    println!("input {} took the longest time, {:.1} ms", slowest.1, slowest.0.as_secs_f64() * 1e3);
    for (stage, count) in STAGES.iter().zip(reached) {
        println!("{count:>10} came as far as {stage:?}");
    }
    Ok(())
}
