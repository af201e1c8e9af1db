//! Measures one training step of a small model on the CPU (forward, backward and sgd), without a cluster.
//! Then measures only the step's matrix products, as the `gemm` crate computes them; a convolution counts as
//! a product of unrolled images. `cargo bench --bench step_products -- [--threads N] [--rounds N] [--peer
//! 'COMMAND'] [--json FILE]`. COMMAND measures another system. It is run once per round and model, with the
//! model's name as its last argument; its result is the last text `N ms` that it prints.

#[path = "support/models.rs"]
mod models;
#[path = "support/training.rs"]
mod training;

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use models::{cnn, mlp};
use serde::Serialize;
use training::{BATCH, Training};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of threads that compute one step
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number of rounds for each model; each round measures whole steps, and then only their matrix products
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Number of steps in each round
    #[arg(long, default_value_t = 150)]
    steps: usize,
    /// Command that measures another system, for comparison; it prints its result as N ms
    #[arg(long)]
    peer: Option<String>,
    /// JSON file to write, with all figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// The figures of one model.
#[derive(Serialize)]
struct Figures {
    model: &'static str,
    threads: usize,
    ms_median: f64,
    ms_min: f64,
    gemm_only_ms: f64,
}

/// The forward product of a layer as `[rows, inner size, columns]`, and true if the layer's input needs a
/// gradient.
type Products = ([usize; 3], bool);

const MLP: &[Products] = &[([BATCH, 784, 512], false), ([BATCH, 512, 512], true), ([BATCH, 512, 10], true)];
const CNN: &[Products] = &[
    ([BATCH * 26 * 26, 9, 32], false),
    ([BATCH * 11 * 11, 288, 64], true),
    ([BATCH, 1600, 128], true),
    ([BATCH, 128, 10], true),
];

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build()?;
    let mut figures = Vec::new();
    println!("{:6}{:>12}{:>12}{:>16}{:>14}", "model", "ms/step", "best", "products alone", "peer");
    for (model, graph, layers) in [("mlp", mlp(512)?, MLP), ("cnn", cnn()?, CNN)] {
        let mut training = Training::new(&graph, args.threads)?;
        let (mut ours, mut products, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ours.push(pool.install(|| timed(args.steps, || training.step())));
            let mut bare = Bare::new(layers, args.threads);
            products.push(pool.install(|| timed(args.steps, || bare.run())));
            if let Some(command) = &args.peer {
                peers.push(peer(command, model)?);
            }
        }
        let best = ours.iter().copied().fold(f64::INFINITY, f64::min);
        let (ms, gemm_only_ms) = (median(&mut ours), median(&mut products));
        let spread = |of: &[f64]| format!("({:.2}-{:.2})", of[0], of[of.len() - 1]);
        let peer = if peers.is_empty() {
            "-".to_owned()
        } else {
            let ms = median(&mut peers);
            format!("{ms:.2} {}", spread(&peers))
        };
        println!("{model:6}{ms:>12.3}{best:>12.3}{gemm_only_ms:>16.3}{peer:>14}");
        println!("      spread {}, products {}", spread(&ours), spread(&products));
        figures.push(Figures { model, threads: args.threads, ms_median: ms, ms_min: best, gemm_only_ms });
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Calls `step` repeatedly, and returns the median duration of the last `steps` calls in milliseconds.
fn timed(steps: usize, mut step: impl FnMut()) -> f64 {
    for _ in 0..10 {
        step();
    }
    let mut times: Vec<f64> = (0..steps)
        .map(|_| {
            let start = Instant::now();
            step();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    median(&mut times)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// The matrix products of a training step, without the rest of the step.
struct Bare {
    products: Vec<Product>,
    threads: usize,
}

struct Product {
    sizes: [usize; 3],
    transpose: [bool; 2],
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Bare {
    fn new(layers: &[Products], threads: usize) -> Self {
        let product = |[m, k, n]: [usize; 3], transpose: [bool; 2]| Product {
            sizes: [m, k, n],
            transpose,
            a: vec![0.5; m * k],
            b: vec![0.25; k * n],
            c: vec![0.0; m * n],
        };
        let mut products = Vec::new();
        for &([m, k, n], input_grad) in layers {
            products.push(product([m, k, n], [false, false]));
            products.push(product([k, m, n], [true, false]));
            if input_grad {
                products.push(product([m, n, k], [false, true]));
            }
        }
        Self { products, threads }
    }

    fn run(&mut self) {
        for Product { sizes: [m, k, n], transpose, a, b, c } in &mut self.products {
            let strides = |rows: usize, cols: usize, transposed: bool| {
                if transposed { (rows as isize, 1) } else { (1, cols as isize) }
            };
            let (a_col, a_row) = strides(*m, *k, transpose[0]);
            let (b_col, b_row) = strides(*k, *n, transpose[1]);
            let parallelism = match self.threads {
                1 => gemm::Parallelism::None,
                threads => gemm::Parallelism::Rayon(threads),
            };
            // SAFETY: the three matrices are separate vectors. The length of each is the product of its
            // matrix's sizes, and the strides fit these sizes.
            #[allow(unsafe_code)]
            unsafe {
                gemm::gemm(
                    *m,
                    *n,
                    *k,
                    c.as_mut_ptr(),
                    1,
                    *n as isize,
                    false,
                    a.as_ptr(),
                    a_col,
                    a_row,
                    b.as_ptr(),
                    b_col,
                    b_row,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
            black_box(&c);
        }
    }
}

/// Runs a command with the model's name as its last argument. Returns the N of the last text `N ms` that the
/// command prints.
fn peer(command: &str, model: &str) -> anyhow::Result<f64> {
    let output = Command::new("sh")
        .args(["-c", &format!("{command} {model}")])
        .stderr(Stdio::null())
        .output()
        .with_context(|| format!("cannot run '{command}'"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let figure = words.windows(2).rev().find_map(|pair| pair[0].parse().ok().filter(|_| pair[1] == "ms"));
    match figure {
        Some(figure) => Ok(figure),
        None => bail!("'{command} {model}' ended with {} and printed no 'N ms': {text}", output.status),
    }
}
