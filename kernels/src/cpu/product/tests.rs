//! Tests the products against loops in `f64`.

use proptest::prelude::*;

use super::*;
use crate::cpu::tests::{assert_close, bits, each_arch, floats};

/// Returns the matrix product `a · b`, computed in `f64`, and a scale for the tolerance. To find the scale,
/// adds up the magnitudes of the terms of each element of the result; the scale is the largest of these
/// sums, but at least 1.
fn reference(a: &[f32], b: &[f32], product: &Product) -> (Vec<f64>, f64) {
    let Product { m, k, n, transpose_a, transpose_b } = *product;
    let mut size = 1.0f64;
    let sums = (0..m * n).map(|at| {
        let (row, col) = (at / n, at % n);
        let of_a = |q| a[if transpose_a { q * m + row } else { row * k + q }];
        let of_b = |q| b[if transpose_b { col * k + q } else { q * n + col }];
        let terms = (0..k).map(|q| f64::from(of_a(q)) * f64::from(of_b(q)));
        let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        size = size.max(magnitude);
        sum
    });
    let sums = sums.collect();
    (sums, size)
}

fn scratch(product: &Product, threads: Threads) -> Vec<f32> {
    vec![f32::NAN; product.scratch(threads)]
}

/// Draws products whose sizes are close to those of tiles, panels and passes, so that every kind of plan
/// occurs.
fn products() -> impl Strategy<Value = Product> {
    let side = || prop_oneof![0usize..3, 3usize..20, 47usize..51, 60usize..70, 128usize..134];
    let depth = prop_oneof![0usize..3, 3usize..40, 126usize..130, 380usize..390];
    let wide = (190usize..200, depth.clone(), 60usize..135);
    let sizes = prop_oneof![4 => (side(), depth, side()), 1 => wide];
    (sizes, any::<[bool; 2]>()).prop_map(|((m, k, n), [ta, tb])| Product::new([m, k, n], ta, tb).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Checks that the products agree with `f64`, with every epilogue and on every instruction set.
    #[test]
    fn agree_with_f64(product in products(), seed: u32) {
        let [m, k, n] = product.sizes();
        let (a, b) = (floats(m * k, seed.into()), floats(k * n, 1));
        let (bias, old) = (floats(n, 2), floats(m * n, 3));
        let (want, size) = reference(&a, &b, &product);
        let biased = || want.iter().enumerate().map(|(i, y)| y + f64::from(bias[i % n]));
        for arch in each_arch() {
            let compute = |dst: &mut [f32], start, relu| {
                let call = Call { a: &a, b: &b, product: &product, start, relu };
                call.compute(dst, &mut scratch(&product, Threads::One), Threads::One, arch);
            };
            let mut dst = vec![f32::NAN; m * n];
            compute(&mut dst, Start::Zero, false);
            assert_close(&dst, want.iter().copied(), size);
            compute(&mut dst, Start::Bias(&bias), false);
            assert_close(&dst, biased(), size + 4.0);
            compute(&mut dst, Start::Bias(&bias), true);
            assert_close(&dst, biased().map(|y| y.max(0.0)), size + 4.0);
            dst.copy_from_slice(&old);
            compute(&mut dst, Start::Old, false);
            assert_close(&dst, want.iter().zip(&old).map(|(y, &old)| y + f64::from(old)), size + 4.0);
        }
    }

    /// Checks that all layouts and all instruction sets with fused multiply-add give equal bits, because an
    /// element's terms are always added in the same order.
    #[test]
    fn layouts_and_fused_instruction_sets_give_the_same_bits(product in products()) {
        let [m, k, n] = product.sizes();
        let (a, b) = (floats(m * k, 1), floats(k * n, 2));
        let of_a = |row: usize, q: usize| a[row * k + q];
        let of_b = |q: usize, col: usize| b[q * n + col];
        let mut all = vec![];
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let product = Product::new([m, k, n], ta, tb).unwrap();
            let a: Vec<f32> = (0..m * k).map(|i| if ta { of_a(i % m, i / m) } else { a[i] }).collect();
            let b: Vec<f32> = (0..k * n).map(|i| if tb { of_b(i % k, i / k) } else { b[i] }).collect();
            for arch in each_arch().into_iter().filter(|arch| !matches!(arch, Arch::Scalar)) {
                let mut dst = vec![f32::NAN; m * n];
                let call = Call { a: &a, b: &b, product: &product, start: Start::Zero, relu: false };
                call.compute(&mut dst, &mut scratch(&product, Threads::One), Threads::One, arch);
                all.push(bits(&dst));
            }
        }
        prop_assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn batches_are_products_one_by_one(batch in 0usize..6, m in 0usize..20, k in 0usize..20, n in 0usize..20, transposed: [bool; 2]) {
        let product = Product::new([m, k, n], transposed[0], transposed[1]).unwrap();
        let (a, b) = (floats(batch * m * k, 1), floats(batch * k * n, 2));
        let (mut dst, mut want) = (vec![f32::NAN; batch * m * n], vec![f32::NAN; batch * m * n]);
        let memory = &mut vec![f32::NAN; batched_matmul_scratch(batch, &product, Threads::One)];
        batched_matmul(&mut dst, &a, &b, batch, &product, memory, Threads::One);
        for i in 0..batch {
            let (a, b) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
            matmul(&mut want[i * m * n..][..m * n], a, b, &product, Epilogue::Bare, memory, Threads::One);
        }
        prop_assert_eq!(bits(&dst), bits(&want));
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for ([m, k, n], batch) in [
        ([64, 300, 200], 1),
        ([37, 257, 329], 2),
        ([300, 164, 165], 1),
        ([129, 784, 10], 1),
        ([64, 512, 512], 1),
        ([700, 64, 65], 1),
        ([65, 64, 64], 37),
        ([150, 150, 150], 2),
    ] {
        let (a, b) = (floats(batch * m * k, 1), floats(batch * k * n, 2));
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let product = Product::new([m, k, n], ta, tb).unwrap();
            let all = |threads| {
                let mut dst = vec![f32::NAN; batch * m * n];
                let mut memory = vec![f32::NAN; batched_matmul_scratch(batch, &product, threads)];
                batched_matmul(&mut dst, &a, &b, batch, &product, &mut memory, threads);
                bits(&dst)
            };
            let one = all(Threads::One);
            for threads in [0, 1, 2, 3, 8] {
                assert!(one == pool.install(|| all(Threads::Pool(threads))), "{product:?} {threads} threads");
            }
        }
    }
}

#[test]
fn special_values() {
    let product = Product::new([1, 1, 17], false, false).unwrap();
    let mut y = [0.0; 17];
    let epilogue = Epilogue::BiasRelu(&[0.0; 17]);
    matmul(&mut y, &[f32::NAN], &[1.0; 17], &product, epilogue, &mut [], Threads::One);
    assert!(y.iter().all(|y| y.is_nan()));
    // A sum of no terms is the bias.
    let product = Product::new([1, 0, 17], false, true).unwrap();
    matmul(
        &mut y,
        &[],
        &[],
        &product,
        Epilogue::Bias(&[3.0; 17]),
        &mut scratch(&product, Threads::One),
        Threads::One,
    );
    assert_eq!(y, [3.0; 17]);
}

#[test]
fn impossible_shapes() {
    use crate::cpu::window::BadGeometry;
    for sizes in [[1 << 40, 1 << 40, 1], [1, 1 << 40, 1 << 40], [1 << 40, 1, 1 << 40], [usize::MAX, 0, 2]] {
        assert_eq!(Product::new(sizes, false, false), Err(BadGeometry::TooLarge));
    }
}

#[test]
#[should_panic(expected = "matmul: b has 5 elements, expected 6")]
fn lengths_must_fit() {
    let product = Product::new([1, 2, 3], false, false).unwrap();
    matmul(&mut [0.0; 3], &[0.0; 2], &[0.0; 5], &product, Epilogue::Bare, &mut [], Threads::One);
}

#[test]
#[should_panic(expected = "matmul: scratch has 0 elements")]
fn scratch_must_be_long_enough() {
    let product = Product::new([1, 2, 3], false, true).unwrap();
    matmul(&mut [0.0; 3], &[0.0; 2], &[0.0; 6], &product, Epilogue::Bare, &mut [], Threads::One);
}
