//! Measures the throughput of the CPU kernels, mostly on one thread: the matrix products of an MNIST MLP
//! (784-512-512-10, batch 64), the convolutions and poolings of a small MNIST network, and optimizers,
//! reductions and element-wise kernels over a million floats.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pushpull_kernels::cpu::{
    self, AdamStep, AdamWStep, Conv2d, Epilogue, FtrlStep, GradientTerms, Key, MomentumStep, Padding, Pool2d,
    Product, Threads,
};

const BATCH: usize = 64;
const ELEMENTS: usize = 1 << 20;

fn random(len: usize) -> Vec<f32> {
    let mut x = vec![0.0; len];
    cpu::fill_uniform(&mut x, Key { seed: 1, stream: len as u64 }, 0, -1.0, 1.0);
    x
}

/// Measures three matrix products of each dense layer of the MLP: `y = x · w`, `dw = xᵀ · dy` and
/// `dx = dy · wᵀ`. Also measures the two products of 64 attention heads. Criterion prints FLOP/s as elem/s.
fn matmul(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul");
    for (inputs, outputs) in [(784, 512), (512, 512), (512, 10)] {
        group.throughput(Throughput::Elements((2 * BATCH * inputs * outputs) as u64));
        for (name, sizes, ta, tb) in [
            ("y=x·w", [BATCH, inputs, outputs], false, false),
            ("dw=xᵀ·dy", [inputs, BATCH, outputs], true, false),
            ("dx=dy·wᵀ", [BATCH, outputs, inputs], false, true),
        ] {
            let (product, [m, k, n]) = (Product::new(sizes, ta, tb).unwrap(), sizes);
            let (a, b, mut dst) = (random(m * k), random(k * n), vec![0.0; m * n]);
            let mut scratch = vec![0.0; product.scratch(Threads::One)];
            group.bench_function(format!("{inputs}x{outputs} {name}"), |bencher| {
                bencher.iter(|| {
                    let (a, b) = (black_box(&a), black_box(&b));
                    cpu::matmul(&mut dst, a, b, &product, Epilogue::Bare, &mut scratch, Threads::One);
                });
            });
        }
    }
    for (name, sizes, tb) in [("q·kᵀ", [64, 32, 64], true), ("p·v", [64, 64, 32], false)] {
        let (product, [m, k, n]) = (Product::new(sizes, false, tb).unwrap(), sizes);
        let (a, b, mut dst) = (random(BATCH * m * k), random(BATCH * k * n), vec![0.0; BATCH * m * n]);
        let mut scratch = vec![0.0; cpu::batched_matmul_scratch(BATCH, &product, Threads::One)];
        group.throughput(Throughput::Elements((2 * BATCH * m * k * n) as u64));
        group.bench_function(format!("64 heads {name}"), |bencher| {
            bencher.iter(|| {
                let (a, b) = (black_box(&a), black_box(&b));
                cpu::batched_matmul(&mut dst, a, b, BATCH, &product, &mut scratch, Threads::One);
            });
        });
    }
    group.finish();
}

/// Measures how fast some of the optimizers update a million floats.
fn optimizers(criterion: &mut Criterion) {
    let (numbers, grad) = (random(ELEMENTS), random(ELEMENTS));
    let value = Some(numbers.as_slice());
    let (mut next, mut m, mut v) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
    let mut group = criterion.benchmark_group("million");

    let decayed = GradientTerms { scale: 0.25, weight_decay: 1e-4 };
    for (name, terms) in [("", GradientTerms::PLAIN), (" with terms", decayed)] {
        group.throughput(bytes(3));
        group.bench_function(format!("sgd{name}"), |bencher| {
            bencher.iter(|| cpu::sgd(black_box(&mut next), black_box(value), black_box(&grad), terms, 0.1));
        });
        group.throughput(bytes(5));
        group.bench_function(format!("momentum{name}"), |bencher| {
            let step = MomentumStep { learning_rate: 0.1, momentum: 0.9, nesterov: false };
            bencher.iter(|| {
                cpu::momentum(black_box(&mut next), black_box(value), &mut v, black_box(&grad), terms, step);
            });
        });
        group.throughput(bytes(7));
        let adam = AdamStep { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, step: 1 };
        group.bench_function(format!("adam{name}"), |bencher| {
            v.fill(0.0);
            bencher.iter(|| {
                cpu::adam(
                    black_box(&mut next),
                    black_box(value),
                    &mut m,
                    &mut v,
                    black_box(&grad),
                    terms,
                    adam,
                );
            });
        });
        group.bench_function(format!("adamw{name}"), |bencher| {
            v.fill(0.0);
            let step = AdamWStep { adam, weight_decay: 0.01 };
            bencher.iter(|| {
                cpu::adamw(
                    black_box(&mut next),
                    black_box(value),
                    &mut m,
                    &mut v,
                    black_box(&grad),
                    terms,
                    step,
                );
            });
        });
        group.bench_function(format!("ftrl{name}"), |bencher| {
            let step = FtrlStep { learning_rate: 0.05, rate: 1.0, l1: 0.0, l2: 0.0 };
            m.fill(0.0);
            v.fill(0.1);
            bencher.iter(|| {
                cpu::ftrl(
                    black_box(&mut next),
                    black_box(value),
                    &mut v,
                    &mut m,
                    black_box(&grad),
                    terms,
                    step,
                );
            });
        });
    }
    group.finish();
}

fn bytes(slices: usize) -> Throughput {
    Throughput::Bytes((slices * ELEMENTS * size_of::<f32>()) as u64)
}

/// Measures sums, reductions and random fills over a million floats.
fn slices(criterion: &mut Criterion) {
    let (value, grad, mut next) = (random(ELEMENTS), random(ELEMENTS), vec![0.0; ELEMENTS]);
    let mut group = criterion.benchmark_group("million");
    group.throughput(bytes(3));
    group.bench_function("accumulate", |bencher| {
        bencher.iter(|| cpu::accumulate(black_box(&mut next), black_box(&grad), Threads::One));
    });
    group.throughput(bytes(1));
    group.bench_function("all_finite", |bencher| bencher.iter(|| cpu::all_finite(black_box(&value))));
    group.bench_function("sum_of_squares", |bencher| bencher.iter(|| cpu::sum_of_squares(black_box(&value))));
    group.throughput(bytes(2));
    group.bench_function("dot", |bencher| bencher.iter(|| cpu::dot(black_box(&value), black_box(&grad))));
    group.throughput(bytes(1));
    let key = Key { seed: 1, stream: 0 };
    group.bench_function("fill_uniform", |bencher| {
        bencher.iter(|| cpu::fill_uniform(black_box(&mut next), key, 0, -1.0, 1.0));
    });
    group.bench_function("fill_normal", |bencher| {
        bencher.iter(|| cpu::fill_normal(black_box(&mut next), key, 0, 0.0, 1.0));
    });
    group.bench_function("fill_truncated_normal", |bencher| {
        bencher.iter(|| cpu::fill_truncated_normal(black_box(&mut next), key, 0, 0.0, 1.0));
    });
    group.finish();
}

/// Measures the MLP's bias gradients (`sum_rows`) and its softmax cross-entropy.
fn layers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("layers");
    for n in [512, 10] {
        let (x, mut bias) = (random(BATCH * n), random(n));
        group.throughput(Throughput::Elements((BATCH * n) as u64));
        group.bench_function(format!("sum_rows 64x{n}"), |bencher| {
            bencher.iter(|| cpu::sum_rows(black_box(&mut bias), black_box(&x), Threads::One));
        });
    }
    let (logits, mut dst) = (random(BATCH * 10), vec![0.0; BATCH * 10]);
    let labels: Vec<i32> = (0..BATCH as i32).map(|row| row % 10).collect();
    group.throughput(Throughput::Elements((BATCH * 10) as u64));
    group.bench_function("softmax_cross_entropy 64x10", |bencher| {
        bencher.iter(|| cpu::softmax_cross_entropy(black_box(&logits), black_box(&labels), Threads::One));
    });
    group.bench_function("softmax_cross_entropy_grad 64x10", |bencher| {
        bencher.iter(|| {
            cpu::softmax_cross_entropy_grad(
                black_box(&mut dst),
                black_box(&logits),
                &labels,
                1.0,
                Threads::One,
            )
        });
    });
    group.finish();
}

/// Measures the convolutions (3×3, without padding) and poolings (2×2) of a small MNIST network. The
/// throughput of convolutions is in FLOP/s; that of poolings is in input bytes per second.
fn images(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("images");
    for (size, cin, cout) in [(28, 1, 32), (13, 32, 64)] {
        let conv = Conv2d::new([BATCH, size, size, cin], [3, 3, cin, cout], [1, 1], Padding::Valid).unwrap();
        let [mut x, mut kernel, mut y] =
            [conv.input(), conv.kernel(), conv.output()].map(|shape| random(shape.iter().product()));
        let (bias, dy) = (random(cout), random(y.len()));
        let mut scratch = random(conv.input_grad_scratch());
        group.throughput(Throughput::Elements((2 * y.len() * 9 * cin) as u64));
        group.bench_function(format!("conv2d bias relu {size}x{size}x{cin}->{cout}"), |bencher| {
            bencher.iter(|| {
                let epilogue = Epilogue::BiasRelu(&bias);
                cpu::conv2d(
                    black_box(&mut y),
                    black_box(&x),
                    &kernel,
                    epilogue,
                    &conv,
                    &mut scratch,
                    Threads::One,
                );
            });
        });
        group.bench_function(format!("conv2d_kernel_grad {size}x{size}x{cin}->{cout}"), |bencher| {
            bencher.iter(|| {
                cpu::conv2d_kernel_grad(
                    black_box(&mut kernel),
                    black_box(&x),
                    &dy,
                    &conv,
                    &mut scratch,
                    Threads::One,
                );
            });
        });
        group.bench_function(format!("conv2d_input_grad {size}x{size}x{cin}->{cout}"), |bencher| {
            bencher.iter(|| {
                cpu::conv2d_input_grad(
                    black_box(&mut x),
                    black_box(&dy),
                    &kernel,
                    &conv,
                    &mut scratch,
                    Threads::One,
                );
            });
        });
    }
    for (size, channels) in [(26, 32), (11, 64)] {
        let pool = Pool2d::new([BATCH, size, size, channels], [2, 2], [2, 2], Padding::Valid).unwrap();
        let [mut x, mut y] = [pool.input(), pool.output()].map(|shape| random(shape.iter().product()));
        let mut argmax = vec![0; y.len()];
        group.throughput(Throughput::Bytes((x.len() * size_of::<f32>()) as u64));
        group.bench_function(format!("max_pool {size}x{size}x{channels}"), |bencher| {
            bencher
                .iter(|| cpu::max_pool(black_box(&mut y), &mut argmax, black_box(&x), &pool, Threads::One));
        });
        group.bench_function(format!("max_pool_grad {size}x{size}x{channels}"), |bencher| {
            bencher
                .iter(|| cpu::max_pool_grad(black_box(&mut x), black_box(&y), &argmax, &pool, Threads::One));
        });
    }
    group.finish();
}

/// Measures kernels that are limited by memory bandwidth, on one and on two threads. Also compares one chain
/// of element-wise steps with a separate kernel for each step.
fn memory(criterion: &mut Criterion) {
    use pushpull_kernels::cpu::{Binary, Broadcast, Extent, Operand, Side, Step, Unary};
    let shape @ [rows, n] = [4096, 256];
    let (x, dy, row, mut dst) = (random(rows * n), random(rows * n), random(n), vec![0.0; rows * n]);
    let mut between = vec![0.0; rows * n];
    let steps = [
        Step::Binary(Binary::Mul, Operand { index: 0, extent: Extent::Row }, Side::B),
        Step::Binary(Binary::Add, Operand { index: 1, extent: Extent::Whole }, Side::B),
        Step::Unary(Unary::Relu),
    ];
    let (by_row, whole) = (Broadcast::new(&shape, &[n]).unwrap(), Broadcast::new(&shape, &shape).unwrap());
    let mut scratch = vec![0.0; cpu::norm_scratch(shape)];
    let [mut mean, mut rstd] = [(); 2].map(|()| vec![0.0; rows]);
    let [mut dgamma, mut dbeta] = [(); 2].map(|()| vec![0.0; n]);
    let labels: Vec<f32> = x.iter().map(|x| x.abs()).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut group = criterion.benchmark_group("memory");
    group.throughput(Throughput::Elements((rows * n) as u64));
    for (name, threads) in [("1 thread", Threads::One), ("2 threads", Threads::Pool(2))] {
        let mut bench = |what: &str, work: &mut (dyn FnMut() + Send)| {
            group.bench_function(format!("{what}, {name}"), |bencher| {
                bencher.iter_custom(|count| {
                    pool.install(|| {
                        let start = Instant::now();
                        (0..count).for_each(|_| work());
                        start.elapsed()
                    })
                });
            });
        };
        bench("chain", &mut || cpu::chain(&mut dst, Some(&x), &steps, &[&row, &dy], threads));
        bench("chain one by one", &mut || {
            cpu::binary(&mut dst, &x, &row, Binary::Mul, &by_row, threads);
            cpu::binary(&mut between, &dst, &dy, Binary::Add, &whole, threads);
            cpu::unary_in_place(&mut between, Unary::Relu, threads);
        });
        bench("softmax", &mut || cpu::softmax(&mut dst, &x, n, threads));
        bench("gelu", &mut || cpu::unary(&mut dst, &x, Unary::Gelu, threads));
        bench("layer_norm", &mut || {
            cpu::layer_norm(&mut dst, [&mut mean, &mut rstd], &x, [&row, &row], 1e-5, threads);
        });
        bench("layer_norm_grad", &mut || {
            let sums = [&mut dgamma[..], &mut dbeta[..]];
            cpu::layer_norm_grad(&mut dst, sums, [&x, &dy], [&mean, &rstd], &row, &mut scratch, threads);
        });
        bench("column_moments", &mut || {
            cpu::column_moments(&mut dgamma, &mut dbeta, &x, &mut scratch, threads);
        });
        bench("sum_rows", &mut || cpu::sum_rows(&mut dgamma, &x, threads));
        bench("transpose", &mut || cpu::transpose(&mut dst, &x, &shape, &[1, 0], threads));
        bench("sigmoid_cross_entropy", &mut || {
            black_box(cpu::sigmoid_cross_entropy(&x, &labels));
        });
    }
    group.finish();
}

criterion_group!(benches, matmul, optimizers, slices, layers, images, memory);
criterion_main!(benches);
