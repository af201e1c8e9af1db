//! Compares our matrix products with those of the `gemm` crate, with `cargo bench --bench products --
//! [THREADS]`. Our products and those of `gemm` run alternately in one process. The ratio is our time
//! divided by that of `gemm`, so a ratio below 1 means that ours is faster. The output shows the median, the
//! tenth and the ninetieth percentile of the ratio over all rounds.

use std::time::Instant;

use gemm::Parallelism;
use pushpull_kernels::cpu::{self, Epilogue, Key, Product, Threads};

type Shape = ([usize; 3], bool, bool);

/// The matrix products of one training step, in each of four cases: an MLP 784-512-512-10 with batch 64, a
/// dense layer after convolutions, and the first and the second dense layer of a transformer block.
const STEPS: [(&str, &[Shape]); 4] = [
    (
        "mlp",
        &[
            ([64, 784, 512], false, false),
            ([64, 512, 512], false, false),
            ([64, 512, 10], false, false),
            ([784, 64, 512], true, false),
            ([512, 64, 512], true, false),
            ([512, 64, 10], true, false),
            ([64, 512, 512], false, true),
            ([64, 10, 512], false, true),
        ],
    ),
    (
        "dense",
        &[([64, 1600, 128], false, false), ([1600, 64, 128], true, false), ([64, 128, 1600], false, true)],
    ),
    (
        "up",
        &[([1024, 128, 512], false, false), ([128, 1024, 512], true, false), ([1024, 512, 128], false, true)],
    ),
    (
        "down",
        &[([1024, 512, 128], false, false), ([512, 1024, 128], true, false), ([1024, 128, 512], false, true)],
    ),
];
const ROUNDS: usize = 21;
const REPEATS: usize = 20;

struct Case {
    shape: Shape,
    product: Product,
    /// The memory of `a`, `b`, `dst` and scratch. Each buffer is one cache line longer than its content, so
    /// that the content can begin at a cache line.
    buffers: [Vec<f32>; 4],
    /// The mean duration of this product in each round, in seconds: ours, and that of `gemm`.
    times: [Vec<f64>; 2],
}

impl Case {
    fn new(shape: Shape, threads: Threads) -> Self {
        let ([m, k, n], transpose_a, transpose_b) = shape;
        let product = Product::new([m, k, n], transpose_a, transpose_b).unwrap();
        let buffers = [m * k, k * n, m * n, product.scratch(threads)].map(|len| {
            let mut buffer = vec![0.0; len + 16];
            cpu::fill_uniform(&mut buffer, Key { seed: 1, stream: len as u64 }, 0, -1.0, 1.0);
            buffer
        });
        Self { shape, product, buffers, times: [vec![], vec![]] }
    }

    /// Computes the product once: with our kernel if `ours` is true, otherwise with `gemm`. Returns the
    /// duration in seconds.
    fn time(&mut self, ours: bool, threads: Threads) -> f64 {
        let ([m, k, n], ..) = self.shape;
        let [a, b, dst, scratch] = self.buffers.each_mut().map(|buffer| {
            let start = buffer.as_ptr().align_offset(64);
            let len = buffer.len() - 16;
            &mut buffer[start..start + len]
        });
        let (a, b) = (&a[..m * k], &b[..k * n]);
        let start = Instant::now();
        if ours {
            cpu::matmul(dst, a, b, &self.product, Epilogue::Bare, scratch, threads);
        } else {
            theirs(dst, a, b, self.shape, threads);
        }
        start.elapsed().as_secs_f64()
    }
}

fn theirs(
    dst: &mut [f32],
    a: &[f32],
    b: &[f32],
    ([m, k, n], transpose_a, transpose_b): Shape,
    threads: Threads,
) {
    assert!(a.len() == m * k && b.len() == k * n && dst.len() == m * n);
    let (a_row, a_col) = if transpose_a { (1, m as isize) } else { (k as isize, 1) };
    let (b_row, b_col) = if transpose_b { (1, k as isize) } else { (n as isize, 1) };
    let (dst, a, b, row) = (dst.as_mut_ptr(), a.as_ptr(), b.as_ptr(), n as isize);
    let parallelism = match threads {
        Threads::Pool(threads) if m * n * k >= gemm::get_threading_threshold() => Parallelism::Rayon(threads),
        _ => Parallelism::None,
    };
    // SAFETY: the lengths of the slices were checked, and the strides address only elements within them.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst,
            1,
            row,
            false,
            a,
            a_col,
            a_row,
            b,
            b_col,
            b_row,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

fn main() {
    let count = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(1);
    let threads = if count == 1 { Threads::One } else { Threads::Pool(count) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
    pool.install(|| compare(threads));
}

fn compare(threads: Threads) {
    for (name, shapes) in STEPS {
        let mut cases: Vec<Case> = shapes.iter().map(|&shape| Case::new(shape, threads)).collect();
        let mut totals = [vec![], vec![]];
        for _ in 0..ROUNDS {
            let mut seconds = vec![[0.0; 2]; cases.len()];
            for ours in (0..2 * REPEATS).map(|turn| turn % 2 == 0) {
                for (case, seconds) in cases.iter_mut().zip(&mut seconds) {
                    seconds[usize::from(!ours)] += case.time(ours, threads) / REPEATS as f64;
                }
            }
            for whose in 0..2 {
                totals[whose].push(seconds.iter().map(|each| each[whose]).sum());
                cases.iter_mut().zip(&seconds).for_each(|(case, each)| case.times[whose].push(each[whose]));
            }
        }
        for case in &cases {
            let ([m, k, n], ta, tb) = case.shape;
            let label =
                format!("{m}x{k}{} · {k}x{n}{}", if ta { "ᵀ" } else { "" }, if tb { "ᵀ" } else { "" });
            report(&label, &case.times);
        }
        report(&format!("{name}, all of one step"), &totals);
    }
}

fn report(label: &str, [ours, theirs]: &[Vec<f64>; 2]) {
    let at = |values: &[f64], tenths: usize| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) * tenths / 10]
    };
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let [us, theirs] = [ours, theirs].map(|times| at(times, 5) * 1e6);
    let [low, middle, high] = [1, 5, 9].map(|tenths| at(&ratios, tenths));
    println!("{label:28} {us:8.1} µs, gemm {theirs:8.1} µs, ratio {middle:.2} ({low:.2} to {high:.2})");
}
