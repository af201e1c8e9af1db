//! Checks many inputs of a target without a fuzzer: `many TARGET [INPUTS] [SEED] [FIRST]`. A seed and a
//! number determine an input. One that causes a panic, or costs more than it may, is written to a file, and
//! the program fails. `many --list [SCALE]` lists the targets and their inputs in a night, `many --about` the
//! code that each of them checks, and `many --table FILE...` adds up the output of several runs.

use std::alloc::System;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pushpull_fuzz::Target;
use pushpull_fuzz::numbers::Numbers;
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The time after which an input that is still being checked counts as one that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// The number of inputs after which the program writes down how far it is, in case it is killed.
const NOTE_EVERY: u64 = 1 << 10;

/// What the last panic said.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// What the program is told to do.
struct Job {
    target: &'static Target,
    count: u64,
    seed: u64,
    first: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("usage: many TARGET [INPUTS] [SEED] [FIRST]")?;
    if name == "--list" {
        let scale =
            args.next().map_or(Ok(1.0), |text| text.parse::<f64>().map_err(|e| format!("{text}: {e}")))?;
        for target in Target::ALL {
            println!("{} {:.0}", target.name, (target.class.inputs() as f64 * scale).ceil());
        }
        return Ok(());
    }
    if name == "--about" {
        Target::ALL.iter().for_each(|target| println!("{} {}", target.name, target.about.join(" ")));
        return Ok(());
    }
    if name == "--table" {
        return table(args);
    }
    if let Some(file) = name.strip_prefix('@') {
        return check_file(file, &args.next().ok_or("usage: many @FILE TARGET")?);
    }
    let target = Target::find(&name).ok_or_else(|| format!("no target is called '{name}'"))?;
    let mut numbers = args.map(|text| text.parse::<u64>().map_err(|e| format!("{text}: {e}")));
    let count = numbers.next().transpose()?.unwrap_or(1_000_000);
    let seed = numbers.next().transpose()?.unwrap_or(1);
    let first = numbers.next().transpose()?.unwrap_or(0);
    Job { target, count, seed, first }.run()
}

/// Adds up the last lines of these files, and prints a line for each target.
fn table(files: impl Iterator<Item = String>) -> Result<(), String> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
        let name = Path::new(&file).file_stem().and_then(|stem| stem.to_str()?.rsplit_once('-'));
        let name = name.map_or(file.clone(), |(name, _)| name.to_owned());
        let sum = sums.entry(name).or_default();
        let Some(line) = text.lines().last().and_then(|line| line.strip_prefix("SUM ")) else {
            sum.findings += 1;
            continue;
        };
        let mut fields = line.split(' ').skip(1);
        sum.inputs += fields.next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        sum.seconds += fields.next().and_then(|seconds| seconds.parse::<f64>().ok()).unwrap_or(0.0);
        let reached = fields.next().unwrap_or("").split(',').map(|count| count.parse().unwrap_or(0));
        for (at, count) in reached.enumerate() {
            sum.reached.resize(sum.reached.len().max(at + 1), 0);
            sum.reached[at] += count;
        }
    }
    println!(
        "{:<13} {:>11} {:>8} {:>9} {:>8}  how far they came",
        "target", "inputs", "seconds", "inputs/s", "findings"
    );
    for (name, Sum { inputs, seconds, reached, findings }) in &sums {
        let stages = Target::find(name).map_or(&[][..], |target| target.stages);
        let share = |count: u64| 100.0 * count as f64 / (*inputs).max(1) as f64;
        let far: Vec<String> = stages
            .iter()
            .zip(reached)
            .map(|(stage, &count)| format!("{stage} {:.3}%", share(count)))
            .collect();
        let rate = *inputs as f64 / seconds.max(1e-3);
        println!("{name:<13} {inputs:>11} {seconds:>8.0} {rate:>9.0} {findings:>8}  {}", far.join(", "));
    }
    Ok(())
}

/// What the parts of a target have checked.
#[derive(Default)]
struct Sum {
    inputs: u64,
    seconds: f64,
    reached: Vec<u64>,
    findings: u64,
}

/// Checks the input in a file.
fn check_file(file: &str, target: &str) -> Result<(), String> {
    let target = Target::find(target).ok_or_else(|| format!("no target is called '{target}'"))?;
    let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let (began, before) = (Instant::now(), GLOBAL.stats().bytes_allocated);
    let stage = (target.check)(&input);
    let allocated = GLOBAL.stats().bytes_allocated - before;
    println!(
        "it came as far as '{}' in {:?}, and {allocated} bytes were allocated",
        target.stages[stage],
        began.elapsed()
    );
    Ok(())
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Job {
    fn run(&self) -> Result<(), String> {
        let &Self { target, count, seed, first } = self;
        let folder = std::env::current_dir().map_err(|error| error.to_string())?;
        let corpus = target.corpus().map_err(|error| format!("the corpus of {}: {error}", target.name))?;
        let (mut reached, mut slowest, mut largest) =
            (vec![0u64; target.stages.len()], (Duration::ZERO, 0), (0, 0));
        // The first one makes what a target makes once for all inputs.
        corpus.inputs().for_each(|input| {
            (target.check)(input);
        });
        // Decoders of other projects panic, too, and that is caught: only the last panic counts.
        std::panic::set_hook(Box::new(|panic| {
            *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
        }));
        let progress = watch(target.name, seed);
        let (began, mut input) = (Instant::now(), Vec::new());
        for number in first..first + count {
            progress.store(number, Ordering::Relaxed);
            if number % NOTE_EVERY == 0 {
                self.note(&folder, number);
            }
            (target.draw)(&corpus, &mut Numbers::of_input(seed, number), &mut input);
            let (at, before) = (Instant::now(), GLOBAL.stats().bytes_allocated);
            let checked = catch_unwind(AssertUnwindSafe(|| (target.check)(&input)));
            let (took, allocated) = (at.elapsed(), GLOBAL.stats().bytes_allocated - before);
            let Ok(stage) = checked else {
                let panic = LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return Err(self.found("panic", number, &input, &format!("it causes a panic: {panic}")));
            };
            reached[stage] += 1;
            if took > target.limits.time {
                // Another process may have had the processor meanwhile.
                let before = processor_time();
                (target.check)(&input);
                let took = processor_time() - before;
                if took > target.limits.time {
                    return Err(self.found("slow", number, &input, &format!("it takes {took:?}")));
                }
            }
            if allocated > target.limits.allocated_bytes {
                return Err(self.found("large", number, &input, &format!("{allocated} bytes are allocated")));
            }
            slowest = slowest.max((took, number));
            largest = largest.max((allocated, number));
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{count} inputs of {} from {first} of seed {seed} in {seconds:.0} s: nothing found",
            target.name
        );
        println!("input {} took the longest time, {:.1} ms", slowest.1, slowest.0.as_secs_f64() * 1e3);
        println!("input {} had the most bytes allocated, {}", largest.1, largest.0);
        for (stage, count) in target.stages.iter().zip(&reached) {
            println!("{count:>12} came as far as '{stage}'");
        }
        let reached: Vec<String> = reached.iter().map(u64::to_string).collect();
        println!("SUM {} {count} {seconds:.3} {}", target.name, reached.join(","));
        Ok(())
    }

    /// Writes down how far this is.
    fn note(&self, folder: &Path, number: u64) {
        let Self { target, seed, first, .. } = self;
        let path = folder.join(format!("progress-{}-{seed}-{first}", target.name));
        let _ = std::fs::File::create(path).and_then(|mut file| writeln!(file, "{number}"));
    }

    /// Writes the input that was found to a file, and returns what to do with it.
    fn found(&self, kind: &str, number: u64, input: &[u8], what: &str) -> String {
        let (name, seed) = (self.target.name, self.seed);
        let file = PathBuf::from(format!("{kind}-{name}-{seed}-{number}"));
        if let Err(error) = std::fs::write(&file, input) {
            return format!("{}: {error}", file.display());
        }
        let file = file.display();
        format!(
            "input {number} of seed {seed} of {name}: {what}\nit is in the file {file}; repeat it with \
             `many @{file} {name}` or `many {name} 1 {seed} {number}`"
        )
    }
}

/// Ends the program if an input hangs. The returned number is that of the input that is being checked.
fn watch(name: &'static str, seed: u64) -> Arc<AtomicU64> {
    let progress = Arc::new(AtomicU64::new(u64::MAX));
    let watched = Arc::clone(&progress);
    std::thread::spawn(move || {
        loop {
            let before = watched.load(Ordering::Relaxed);
            std::thread::sleep(HANGS_AFTER);
            if before != u64::MAX && watched.load(Ordering::Relaxed) == before {
                eprintln!(
                    "input {before} of seed {seed} of {name} hangs; repeat it with `many {name} 1 {seed} {before}`"
                );
                std::process::exit(1);
            }
        }
    });
    progress
}
