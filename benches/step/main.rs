//! Measures the training step of one replica without a cluster: forward, backward and, on a device, the
//! copies of values and gradients. `cargo bench --bench step -- [--device cpu|cuda:N|emulated] [--models
//! LIST] [--precision fp32|tf32|bf16|fp16] [--resident] [--separate-attention] [--tiny] [--threads N]
//! [--rounds N] [--seconds X] [--json FILE]`. An emulated device says nothing about speed; it shows that the
//! benchmark itself works on a machine without a card.

mod device;
mod models;
mod replica;
#[path = "../support/spread.rs"]
mod spread;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull_cuda::Precision;
use serde::Serialize;

use device::{Device, DeviceName};
use models::{Kind, Model};
use replica::{OperationTime, Replica};
use spread::Spread;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of steps before the first round. A device captures graphs in the second step.
const WARM_UP_STEPS: usize = 3;
/// The least number of steps of a round.
const STEPS_MIN: usize = 3;

#[derive(Parser)]
struct Args {
    /// Device: cpu, cuda:N or emulated
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
    /// Models to train, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cnn,mlp,transformer")]
    models: Vec<Kind>,
    /// Precision of the factors of products on a CUDA device
    #[arg(long, default_value_t = Precision::F32)]
    precision: Precision,
    /// Leave the values and the gradients on the CUDA device, and copy only the batch and the loss
    #[arg(long)]
    resident: bool,
    /// Compute attention with separate operations on a CUDA device
    #[arg(long)]
    separate_attention: bool,
    /// Use a few examples and narrow layers, as an emulated device always does
    #[arg(long)]
    tiny: bool,
    /// Number of threads of the CPU; default: one for each core
    #[arg(long)]
    threads: Option<usize>,
    /// Number of rounds; each round measures all models
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of the steps of one model in each round, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// JSON file to write, with all figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// The figures of one model. `benches/peers/torch_step.py` writes the same fields.
#[derive(Debug, Serialize)]
struct Figures {
    system: &'static str,
    model: &'static str,
    device: String,
    /// How numbers are multiplied and added.
    precision: String,
    tiny: bool,
    batch: usize,
    step_ms: Spread,
    examples_per_second: f64,
    /// The floating-point operations of all products and convolutions of a step.
    flops: u64,
    tflop_s: f64,
    /// The rate of a large product of square matrices; `None` on the CPU.
    matrix_tflop_s: Option<f64>,
    share_of_matrix_rate: Option<f64>,
    /// The time to compile the graph to a program, in seconds.
    program_s: f64,
    /// The time to compile the kernels and to allocate memory, in seconds.
    kernels_s: f64,
    /// The working memory that the plan has for values between operations.
    arena_bytes: usize,
    /// The memory of all variables; their gradients have the same size.
    variables_bytes: usize,
    /// The time of each kind of operation in a step that waits for each of them, the longest first.
    operations: Vec<OperationTime>,
}

/// A model with the durations of its steps, in milliseconds, one for each round.
struct Measured {
    model: Model,
    replica: Replica,
    step_ms: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores).max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| measure_all(&args, threads))
}

impl Args {
    fn is_tiny(&self) -> bool {
        self.tiny || self.device == DeviceName::Emulated
    }
}

fn measure_all(args: &Args, threads: usize) -> anyhow::Result<()> {
    let tiny = args.is_tiny();
    if args.device == DeviceName::Cpu && (args.resident || args.precision != Precision::F32) {
        bail!(
            "--resident and --precision need a CUDA device: the processor has no copies, and computes in fp32"
        );
    }
    let mut device = Device::open(args.device, threads, args.precision)?;
    if args.separate_attention {
        device = device.without_attention();
    }
    println!("device: {}", device.name());
    let matrix_tflop_s = device.matrix_tflop_s(tiny)?;
    if let Some(rate) = matrix_tflop_s {
        println!("a product of square matrices: {rate:.3} TFLOP/s");
    }
    let mut all = Vec::new();
    for kind in &args.models {
        let model = kind.model(tiny)?;
        let mut replica = Replica::new(&model, &mut device)?;
        for _ in 0..WARM_UP_STEPS {
            let loss = replica.step(&mut device, false)?;
            if !loss.is_finite() {
                bail!("the loss of {} is {loss}", model.name);
            }
        }
        all.push(Measured { model, replica, step_ms: Vec::new() });
    }
    for _ in 0..args.rounds.max(1) {
        for Measured { replica, step_ms, .. } in &mut all {
            step_ms.push(round(replica, &mut device, args)?);
        }
    }
    println!(
        "{:12}{:>6}  {:<30}{:>12}{:>12}{:>10}{:>8}",
        "model", "batch", "step ms", "examples/s", "GFLOP", "TFLOP/s", "share"
    );
    let mut figures = Vec::new();
    for measured in all {
        let own = measured.figures(&mut device, args, matrix_tflop_s)?;
        own.print();
        figures.push(own);
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the mean duration of the steps of one round, in milliseconds.
fn round(replica: &mut Replica, device: &mut Device, args: &Args) -> anyhow::Result<f64> {
    let (began, least) = (Instant::now(), Duration::from_secs_f64(args.seconds.max(0.0)));
    let mut steps = 0;
    while steps < STEPS_MIN || began.elapsed() < least {
        match args.resident {
            true => replica.repeat(device)?,
            false => replica.step(device, false)?,
        };
        steps += 1;
    }
    Ok(began.elapsed().as_secs_f64() * 1e3 / steps as f64)
}

impl Measured {
    /// Returns the figures of the model, and releases its memory.
    fn figures(
        mut self,
        device: &mut Device,
        args: &Args,
        matrix_tflop_s: Option<f64>,
    ) -> anyhow::Result<Figures> {
        self.replica.step(device, true)?;
        let operations = self.replica.operation_times();
        let Self { model, replica, step_ms } = self;
        let step_ms = Spread::of(step_ms);
        let tflop_s = replica.flops() as f64 / (step_ms.median * 1e9);
        let figures = Figures {
            system: if args.resident { "pushpull, values and gradients stay" } else { "pushpull" },
            model: model.name,
            device: device.name(),
            precision: args.precision.to_string(),
            tiny: args.is_tiny(),
            batch: model.batch,
            step_ms,
            examples_per_second: model.batch as f64 / step_ms.median * 1e3,
            flops: replica.flops(),
            tflop_s,
            matrix_tflop_s,
            share_of_matrix_rate: matrix_tflop_s.map(|rate| tflop_s / rate),
            program_s: replica.program_s,
            kernels_s: replica.kernels_s,
            arena_bytes: replica.arena_bytes(),
            variables_bytes: replica.variables_bytes(),
            operations,
        };
        Ok(figures)
    }
}

impl Figures {
    fn print(&self) {
        let share = self.share_of_matrix_rate.map_or("-".to_owned(), |share| format!("{share:.3}"));
        let Self { model, batch, step_ms, examples_per_second, flops, tflop_s, .. } = self;
        let (spread, gflop) = (step_ms.shown(3), *flops as f64 / 1e9);
        println!(
            "{model:12}{batch:>6}  {spread:<30}{examples_per_second:>12.0}{gflop:>12.3}{tflop_s:>10.3}{share:>8}"
        );
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        println!(
            "{:12}graph compiled in {:.3} s, kernels in {:.3} s; plan {:.1} MiB, variables {:.1} MiB",
            "",
            self.program_s,
            self.kernels_s,
            mib(self.arena_bytes),
            mib(self.variables_bytes),
        );
        let longest: Vec<String> = self.operations.iter().take(6).map(OperationTime::to_string).collect();
        println!("{:12}longest operations of a step that waits for each: {}", "", longest.join(", "));
    }
}
