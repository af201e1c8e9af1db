//! Measures what compressed pushes and pulls cost and save, on real data: bytes and time of an update, and
//! loss and accuracy after the training, for several seeds of each variant. Every job has one process per
//! task and uses TCP. MNIST and tinyshakespeare are read from DIR; without --data-dir, data is generated.
//!
//! `cargo bench --bench compression -- --help` lists the flags.

mod support;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull::EncodingSpec::{self, Bf16, Fp16, Int8, TopK};
use pushpull::{
    BabbleSpec, ClusterSpec, CompressionSpec, DatasetSpec, InputSpec, JobSpec, OptimizerSpec, ScheduleSpec,
    SyncSpec, TextSpec, WindowsSpec,
};
use pushpull_input::input_in_directory;
use pushpull_messages::id::JobName;
use serde::Serialize;
use support::models;
use support::ports::free_address;
use support::spread::Spread;
use support::tasks::{Tasks, Trained};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Directory with the folders mnist and tinyshakespeare [default: data is generated]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Number of seeds; each seed trains every variant of every job once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Number of updates of the MLP on MNIST
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u64).range(20..))]
    mnist_steps: u64,
    /// Number of updates of the language model
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..))]
    text_steps: u64,
    /// Measure only jobs and variants whose names, as in 'mnist int8', contain this text; f32 is always
    /// measured
    #[arg(long, default_value = "")]
    only: String,
    /// File for the results in JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// One way to compress what travels.
struct Variant {
    name: &'static str,
    /// Changes the settings of the job.
    change: fn(&mut JobSpec),
}

/// The variant that the others are compared with.
const PLAIN: &str = "f32";

/// All variants. The plain one comes first.
const VARIANTS: &[Variant] = &[
    Variant { name: PLAIN, change: |_| {} },
    Variant { name: "fp16", change: |job| both_ways(job, Fp16) },
    Variant { name: "bf16", change: |job| both_ways(job, Bf16) },
    Variant { name: "int8", change: |job| both_ways(job, Int8) },
    Variant { name: "top-k 0.01", change: |job| top(job, 0.01) },
    Variant { name: "top-k 0.05", change: |job| top(job, 0.05) },
];

/// Sends gradients and values in this encoding.
fn both_ways(job: &mut JobSpec, encoding: EncodingSpec) {
    job.compression = vec![CompressionSpec::new("*").gradients(encoding).values(encoding)];
}

/// Sends this fraction of the gradients, and all values exactly.
fn top(job: &mut JobSpec, fraction: f64) {
    job.compression = vec![CompressionSpec::new("*").gradients(TopK { fraction })];
}

/// The names of the jobs.
const JOBS: [&str; 2] = ["mnist", "text"];

/// Returns the data set, from files in a folder of the directory if there is one.
fn input(args: &Args, folder: &str, real: InputSpec, generated: InputSpec) -> anyhow::Result<InputSpec> {
    match &args.data_dir {
        None => Ok(generated),
        Some(directory) => Ok(input_in_directory(&real, &directory.join(folder))?),
    }
}

fn mnist(args: &Args) -> anyhow::Result<JobSpec> {
    let idx = |images: &str, labels: &str| DatasetSpec::Idx { images: images.into(), labels: labels.into() };
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let real = InputSpec::new(
        idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        idx("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    );
    let input = input(args, "mnist", real, InputSpec::new(digits(0, 20_000), digits(1, 5_000)))?;
    let optimizer = OptimizerSpec::sgd(0.3);
    Ok(JobSpec { optimizer, ..JobSpec::new(models::classifier(512)?, input, args.mnist_steps) })
}

fn text(args: &Args) -> anyhow::Result<JobSpec> {
    let windows = models::CHARACTERS as u32;
    let text = |windows| DatasetSpec::Text(TextSpec { file: "input.txt".into(), windows });
    let babble = |seed, bytes, windows| DatasetSpec::Babble(BabbleSpec { seed, bytes, windows });
    let real = InputSpec::new(
        text(WindowsSpec::every(windows, 0.0, 0.9)),
        text(WindowsSpec::apart(windows, 0.9, 1.0)),
    );
    let generated = InputSpec::new(
        babble(0, 1 << 20, WindowsSpec::every(windows, 0.0, 1.0)),
        babble(1, 1 << 16, WindowsSpec::apart(windows, 0.0, 1.0)),
    );
    let input = input(args, "tinyshakespeare", real, generated)?;
    let optimizer = OptimizerSpec::adam(0.003);
    let job = JobSpec::new(models::language_model()?, input, args.text_steps);
    Ok(JobSpec { optimizer, batch_size: 32, ..job })
}

fn job(args: &Args, name: &str) -> anyhow::Result<JobSpec> {
    let job = match name {
        "mnist" => mnist(args)?,
        "text" => text(args)?,
        other => bail!("there is no job '{other}'"),
    };
    // Synchronous updates do not depend on timing: apart from the seed, only the compression differs.
    Ok(JobSpec { sync: SyncSpec::SYNC, schedule: ScheduleSpec::Cosine, ..job })
}

async fn train(job: &JobSpec, workers: u32) -> anyhow::Result<Trained> {
    let addresses = |count| (0..count).map(|_| free_address()).collect::<Vec<String>>();
    let jobs =
        [(JobName::Chief, addresses(1)), (JobName::Ps, addresses(1)), (JobName::Worker, addresses(workers))];
    let mut tasks = Tasks::new(job, ClusterSpec::new(jobs)?, free_address())?;
    for job in [JobName::Chief, JobName::Ps, JobName::Worker] {
        tasks.add_flag(job, "--transport=tcp".to_owned());
    }
    tasks.add_flag(JobName::Worker, "--threads=1".to_owned());
    tasks.train().await
}

/// The results of one variant of one job; each list has one entry for each seed.
#[derive(Default)]
struct Row {
    job: &'static str,
    variant: &'static str,
    trained: Vec<Trained>,
}

/// One result in the JSON file.
#[derive(Serialize)]
struct JsonRow {
    job: &'static str,
    variant: &'static str,
    seeds: usize,
    bytes_up_per_push: Spread,
    bytes_down_per_push: Spread,
    ms_per_update: Spread,
    test_loss: Spread,
    /// The loss minus that of f32 with the same seed.
    test_loss_more: Spread,
    /// In per cent.
    test_accuracy: Option<Spread>,
    /// The accuracy minus that of f32 with the same seed, in percentage points.
    test_accuracy_more: Option<Spread>,
}

impl Row {
    fn spread(&self, figure: impl Fn(&Trained) -> f64) -> Spread {
        Spread::of(self.trained.iter().map(figure))
    }

    /// Returns the spread of the differences from the plain variant, seed by seed.
    fn more(&self, plain: &Self, figure: impl Fn(&Trained) -> f64) -> Spread {
        let pairs = self.trained.iter().zip(&plain.trained);
        Spread::of(pairs.map(|(one, plain)| figure(one) - figure(plain)))
    }

    fn to_json(&self, plain: &Self) -> JsonRow {
        let has_accuracy = self.trained.iter().all(|trained| trained.test_accuracy.is_some());
        let per_cent = |trained: &Trained| trained.test_accuracy.unwrap_or_default() * 100.0;
        JsonRow {
            job: self.job,
            variant: self.variant,
            seeds: self.trained.len(),
            bytes_up_per_push: self.spread(|it| it.bytes_up_per_push),
            bytes_down_per_push: self.spread(|it| it.bytes_down_per_push),
            ms_per_update: self.spread(|it| it.seconds_per_update * 1e3),
            test_loss: self.spread(|it| it.test_loss),
            test_loss_more: self.more(plain, |it| it.test_loss),
            test_accuracy: has_accuracy.then(|| self.spread(per_cent)),
            test_accuracy_more: has_accuracy.then(|| self.more(plain, per_cent)),
        }
    }
}

fn to_json(rows: &[Row]) -> Vec<JsonRow> {
    let plain = |job| rows.iter().find(|row| row.job == job && row.variant == PLAIN);
    rows.iter().filter_map(|row| Some(row.to_json(plain(row.job)?))).collect()
}

/// Prints a Markdown table. A cell has the median over the seeds and, in brackets, minimum and maximum.
fn show(rows: &[JsonRow]) {
    println!(
        "| job | variant | MB per push, reply | ms per update | test loss | more than f32 | accuracy % | more than f32 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        let [up, down] = [row.bytes_up_per_push, row.bytes_down_per_push].map(|it| it.median / 1e6);
        let shown = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.shown(2));
        println!(
            "| {} | {} | {up:.3}, {down:.3} | {} | {} | {} | {} | {} |",
            row.job,
            row.variant,
            row.ms_per_update.shown(2),
            row.test_loss.shown(4),
            row.test_loss_more.shown(4),
            shown(row.test_accuracy),
            shown(row.test_accuracy_more)
        );
    }
}

async fn measure(args: &Args) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for job in JOBS {
        let chosen: Vec<&Variant> = VARIANTS
            .iter()
            .filter(|variant| format!("{job} {}", variant.name).contains(&args.only))
            .collect();
        if chosen.is_empty() {
            continue;
        }
        let plain = VARIANTS.iter().filter(|variant| variant.name == PLAIN);
        let others = chosen.into_iter().filter(|variant| variant.name != PLAIN);
        for variant in plain.chain(others) {
            rows.push(Row { job, variant: variant.name, trained: Vec::new() });
        }
    }
    if rows.is_empty() {
        bail!("no job and variant has a name that contains '{}'", args.only);
    }
    // Each seed trains all variants, so that a machine that becomes slower affects all of them.
    for seed in 1..=args.seeds {
        for row in &mut rows {
            eprintln!("seed {seed} of {}: {} {}", args.seeds, row.job, row.variant);
            let mut job = JobSpec { seed, ..job(args, row.job)? };
            for variant in VARIANTS.iter().filter(|variant| variant.name == row.variant) {
                (variant.change)(&mut job);
            }
            let trained = train(&job, args.workers).await;
            row.trained.push(trained.with_context(|| format!("cannot train {} {}", row.job, row.variant))?);
        }
    }
    Ok(rows)
}

fn write_json(path: &Path, rows: &[JsonRow]) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let rows = actix_rt::System::new().block_on(measure(&args))?;
    let rows = to_json(&rows);
    let data = if args.data_dir.is_some() { "real data" } else { "generated data" };
    println!("sync, 1 ps, {} workers, TCP on loopback, {data}, {} seeds", args.workers, args.seeds);
    show(&rows);
    match &args.json {
        Some(path) => write_json(path, &rows),
        None => Ok(()),
    }
}
