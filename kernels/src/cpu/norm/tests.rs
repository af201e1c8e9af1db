//! Tests the norms against `f64`, their gradients against difference quotients, and both on several numbers
//! of threads.

use proptest::prelude::*;

use super::*;
use crate::cpu::Threads;
use crate::cpu::tests::{assert_close, bits, floats};

const EPSILON: f32 = 1e-3;

/// Returns `x` normalised over groups of elements, and the mean and reciprocal standard deviation of each
/// group. Element `i` is in group `group(i)`.
fn normalised(x: &[f64], groups: usize, group: impl Fn(usize) -> usize) -> (Vec<f64>, Vec<[f64; 2]>) {
    let (mut count, mut moments) = (vec![0.0; groups], vec![[0.0; 2]; groups]);
    for (i, x) in x.iter().enumerate() {
        count[group(i)] += 1.0;
        moments[group(i)][0] += x;
    }
    (0..groups).for_each(|g| moments[g][0] /= count[g]);
    for (i, x) in x.iter().enumerate() {
        moments[group(i)][1] += (x - moments[group(i)][0]).powi(2) / count[group(i)];
    }
    moments.iter_mut().for_each(|m| m[1] = 1.0 / (m[1] + f64::from(EPSILON)).sqrt());
    (x.iter().enumerate().map(|(i, x)| (x - moments[group(i)][0]) * moments[group(i)][1]).collect(), moments)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agree_with_f64(rows in 2usize..9, n in 2usize..40, seed: u32, columns: bool) {
        let (x, dy, gamma, beta) = (floats(rows * n, seed.into()), floats(rows * n, 1), floats(n, 2), floats(n, 3));
        let x64: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let groups = if columns { n } else { rows };
        let group = |i| if columns { i % n } else { i / n };
        let (hat, moments) = normalised(&x64, groups, group);
        let loss = |x: &[f64]| -> f64 {
            let hat = normalised(x, groups, group).0;
            hat.iter().enumerate().map(|(i, hat)| hat * f64::from(gamma[i % n]) * f64::from(dy[i])).sum()
        };

        let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; rows * n]);
        let [mut mean, mut rstd] = [(); 2].map(|()| vec![f32::NAN; groups]);
        let [mut dgamma, mut dbeta] = [(); 2].map(|()| vec![f32::NAN; n]);
        if columns {
            let mut variance = vec![f32::NAN; n];
            column_moments(&mut mean, &mut variance, &x, &mut [], Threads::One);
            reciprocal_stddev(&mut rstd, &variance, EPSILON);
            batch_norm(&mut y, &x, [&mean, &rstd], [&gamma, &beta], Threads::One);
            batch_norm_grad(&mut dx, [&mut dgamma, &mut dbeta], [&x, &dy], [&mean, &rstd], &gamma, &mut [], Threads::One);
        } else {
            layer_norm(&mut y, [&mut mean, &mut rstd], &x, [&gamma, &beta], EPSILON, Threads::One);
            layer_norm_grad(&mut dx, [&mut dgamma, &mut dbeta], [&x, &dy], [&mean, &rstd], &gamma, &mut [], Threads::One);
        }
        // The tolerance is wide. Two elements may be almost equal, and then the deviation consists mostly of
        // epsilon.
        assert_close(&mean, moments.iter().map(|m| m[0]), 4.0);
        assert_close(&rstd, moments.iter().map(|m| m[1]), 40.0);
        let want = |i: usize| hat[i] * f64::from(gamma[i % n]) + f64::from(beta[i % n]);
        assert_close(&y, (0..rows * n).map(want), 100.0);
        let column = |term: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..n).map(|j| (0..rows).map(|r| term(r * n + j)).sum()).collect()
        };
        assert_close(&dgamma, column(&|i| hat[i] * f64::from(dy[i])), 200.0);
        assert_close(&dbeta, column(&|i| f64::from(dy[i])), 30.0);
        for i in 0..rows * n {
            let h = 1e-6;
            let at = |h| {
                let mut x = x64.clone();
                x[i] += h;
                loss(&x)
            };
            let slope = (at(h) - at(-h)) / (2.0 * h);
            let error = (f64::from(dx[i]) - slope).abs();
            prop_assert!(error < 1e-3 * (1.0 + slope.abs()), "{} {}", dx[i], slope);
        }
    }
}

/// Checks inputs with many blocks: all results have the same bits on any number of threads, and the moments
/// and the gradients of beta agree with the definition in `f64`.
#[test]
fn blocks_are_summed_alike_on_any_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for (rows, n) in [(1000, 67), (20_000, 16), (127, 300), (129, 300), (9000, 1)] {
        let shape = [rows, n];
        // The numbers are far from 0, where a formula with sums of squares would lose digits.
        let x: Vec<f32> = floats(rows * n, 1).iter().map(|x| 100.0 + x).collect();
        let (dy, gamma, beta) = (floats(rows * n, 2), floats(n, 3), floats(n, 4));
        let all = |threads| {
            let scratch = &mut vec![f32::NAN; norm_scratch(shape)];
            let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; rows * n]);
            let [mut mean, mut variance, mut rstd, mut dgamma, mut dbeta] =
                [(); 5].map(|()| vec![f32::NAN; n]);
            column_moments(&mut mean, &mut variance, &x, scratch, threads);
            reciprocal_stddev(&mut rstd, &variance, EPSILON);
            batch_norm(&mut y, &x, [&mean, &rstd], [&gamma, &beta], threads);
            batch_norm_grad(
                &mut dx,
                [&mut dgamma, &mut dbeta],
                [&x, &dy],
                [&mean, &rstd],
                &gamma,
                scratch,
                threads,
            );
            let mut out = [mean, variance, y, dx, dgamma, dbeta].concat();
            let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; rows * n]);
            let [mut mean, mut rstd] = [(); 2].map(|()| vec![f32::NAN; rows]);
            let [mut dgamma, mut dbeta] = [(); 2].map(|()| vec![f32::NAN; n]);
            layer_norm(&mut y, [&mut mean, &mut rstd], &x, [&gamma, &beta], EPSILON, threads);
            layer_norm_grad(
                &mut dx,
                [&mut dgamma, &mut dbeta],
                [&x, &dy],
                [&mean, &rstd],
                &gamma,
                scratch,
                threads,
            );
            out.extend([mean, rstd, y, dx, dgamma, dbeta].concat());
            out
        };
        let one = all(Threads::One);
        for threads in [0, 1, 2, 3, 8] {
            assert!(bits(&one) == bits(&pool.install(|| all(Threads::Pool(threads)))), "{threads} threads");
        }
        let column = |j: usize, f: &dyn Fn(f64) -> f64| -> f64 {
            (0..rows).map(|r| f(f64::from(x[r * n + j]))).sum::<f64>() / rows as f64
        };
        let means: Vec<f64> = (0..n).map(|j| column(j, &|x| x)).collect();
        assert_close(&one[..n], means.iter().copied(), 0.0);
        assert_close(&one[n..2 * n], (0..n).map(|j| column(j, &|x| (x - means[j]).powi(2))), 20.0);
        let batch = 2 * n + 2 * rows * n;
        let sums = |j: usize| (0..rows).map(|r| f64::from(dy[r * n + j])).sum::<f64>();
        assert_close(&one[batch + n..batch + 2 * n], (0..n).map(sums), (rows as f64).sqrt());
        assert_close(&one[one.len() - n..], (0..n).map(sums), (rows as f64).sqrt());
    }
}

#[test]
fn nothing_has_no_moments() {
    let (mut mean, mut variance) = ([0.0; 3], [0.0; 3]);
    column_moments(&mut mean, &mut variance, &[], &mut [], Threads::One);
    assert!(mean.iter().chain(&variance).all(|x| x.is_nan()));
}
