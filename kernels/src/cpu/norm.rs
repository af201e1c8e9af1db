//! Normalisation to mean 0 and variance 1, over the last axis (layer norm: Ba et al. 2016) or over all others
//! (batch norm: Ioffe & Szegedy 2015), and the gradients.
//!
//! It must not know layers, nor how running statistics are kept. Sums over rows are taken per block of rows and
//! then over the blocks in order; the blocks depend on the number of rows alone, so no bit depends on `threads`.

use std::iter::zip;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map, zip_map_loop};
use super::rows::row_sum;
use super::shape::{expect_len, expect_rows};
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Floats of scratch that [`layer_norm_grad`], [`column_moments`] and [`batch_norm_grad`] need for `[rows, n]`: two
/// sums of each column of each block of rows, if there is more than one block.
pub fn norm_scratch([rows, n]: [usize; 2]) -> usize {
    match Blocks::of(rows) {
        Blocks { count: 1, .. } => 0,
        blocks => blocks.count * 2 * n,
    }
}

/// How rows are cut into blocks.
#[derive(Clone, Copy)]
struct Blocks {
    /// Rows of each but the last.
    rows: usize,
    count: usize,
}

impl Blocks {
    /// Few enough to be small beside the rows, and long enough for a task.
    fn of(rows: usize) -> Self {
        let each = rows.div_ceil(64).max(128);
        Self { rows: each, count: rows.div_ceil(each).max(1) }
    }

    /// Calls `work` with two sums and the rows of each block, and that block's part of `dst`, `[rows, n]` or
    /// empty. `first` are the sums where there is one block, else `scratch` holds them.
    #[track_caller]
    fn share(
        self,
        [first, second]: [&mut [f32]; 2],
        dst: &mut [f32],
        rows: usize,
        scratch: &mut [f32],
        tasks: usize,
        work: impl Fn([&mut [f32]; 2], &mut [f32], Range<usize>) + Sync,
    ) {
        let n = first.len();
        if self.count == 1 {
            return work([first, second], dst, 0..rows);
        }
        let want = self.count * 2 * n;
        assert!(scratch.len() >= want, "norm: scratch has {} elements, expected {want}", scratch.len());
        let width = if dst.is_empty() { 0 } else { self.rows * n };
        let written = [(&mut scratch[..want], 2 * n), (dst, width)];
        share_rows(written, self.count, tasks, &|[sums, mut dst], blocks| {
            for (sums, block) in zip(sums.chunks_exact_mut(2 * n.max(1)), blocks) {
                let len = width.min(dst.len());
                let (here, rest) = std::mem::take(&mut dst).split_at_mut(len);
                dst = rest;
                let rows = block * self.rows..rows.min((block + 1) * self.rows);
                work(sums.split_at_mut(n).into(), here, rows);
            }
        });
    }

    /// Adds up the sums that [`Blocks::share`] has left in `scratch`.
    fn add_up(self, [first, second]: [&mut [f32]; 2], scratch: &[f32]) {
        let n = first.len();
        if self.count == 1 || n == 0 {
            return;
        }
        first.fill(0.0);
        second.fill(0.0);
        for sums in scratch.chunks_exact(2 * n).take(self.count) {
            zip_map([first, second], [&sums[..n], &sums[n..]], |[a, b], [c, d]| [a + c, b + d], Threads::One);
        }
    }
}

/// `dst[r, j] = (x[r, j] − mean[r]) · rstd[r] · gamma[j] + beta[j]`, with `mean` and `rstd = 1 / √(variance +
/// epsilon)` of each row, which are written too. `dst` and `x` are `[rows, n]`, `gamma` and `beta` `[n]`,
/// `mean` and `rstd` `[rows]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(
    dst: &mut [f32],
    [mean, rstd]: [&mut [f32]; 2],
    x: &[f32],
    [gamma, beta]: [&[f32]; 2],
    epsilon: f32,
    threads: Threads,
) {
    let rows = expect_rows("layer_norm: x", x, gamma.len());
    expect_len("layer_norm: dst", dst, x.len());
    expect_len("layer_norm: beta", beta, gamma.len());
    expect_len("layer_norm: mean", mean, rows);
    expect_len("layer_norm: rstd", rstd, rows);
    let (n, tasks) = (gamma.len(), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, n), (mean, 1), (rstd, 1)], rows, tasks, &|[dst, mean, rstd], part| {
        let x = &x[part.start * n..part.end * n];
        dispatch(LayerNorm { dst, mean, rstd, x, gamma, beta, epsilon });
    });
}

/// The gradients of [`layer_norm`]: `dx` is `[rows, n]`, `dgamma` and `dbeta` are `[n]`; `dy` is the gradient
/// of its output, `mean` and `rstd` are what it has written.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    [x, dy]: [&[f32]; 2],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let rows = expect_rows("layer_norm_grad: x", x, gamma.len());
    expect_len("layer_norm_grad: dx", dx, x.len());
    expect_len("layer_norm_grad: dy", dy, x.len());
    expect_len("layer_norm_grad: dgamma", dgamma, gamma.len());
    expect_len("layer_norm_grad: dbeta", dbeta, gamma.len());
    expect_len("layer_norm_grad: mean", mean, rows);
    expect_len("layer_norm_grad: rstd", rstd, rows);
    let (n, blocks) = (gamma.len(), Blocks::of(rows));
    let tasks = threads.tasks(x.len(), ELEMENTS_PER_TASK);
    blocks.share([&mut *dgamma, &mut *dbeta], dx, rows, scratch, tasks, |[dgamma, dbeta], dx, rows| {
        let all = rows.start * n..rows.end * n;
        let (x, dy, mean, rstd) = (&x[all.clone()], &dy[all], &mean[rows.clone()], &rstd[rows]);
        dispatch(LayerNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma });
    });
    blocks.add_up([dgamma, dbeta], scratch);
}

/// The mean and the (biased) variance of each column of `x`, `[rows, n]`; `mean` and `variance` are `[n]`. NaN
/// for no rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn column_moments(
    mean: &mut [f32],
    variance: &mut [f32],
    x: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let n = mean.len();
    expect_len("column_moments: variance", variance, n);
    let rows = expect_rows("column_moments: x", x, n);
    let (blocks, tasks) = (Blocks::of(rows), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    blocks.share([&mut *mean, &mut *variance], &mut [], rows, scratch, tasks, |[mean, squares], _, rows| {
        dispatch(ColumnMoments { mean, squares, x: &x[rows.start * n..rows.end * n] });
    });
    if blocks.count > 1 {
        mean.fill(0.0);
        variance.fill(0.0);
        for (block, sums) in scratch.chunks_exact(2 * n.max(1)).take(blocks.count).enumerate() {
            let before = block * blocks.rows;
            let (block_mean, block_squares) = sums[..2 * n].split_at(n);
            let merge = Merge { counts: [before, blocks.rows.min(rows - before)] };
            merge.run([&mut *mean, &mut *variance], [block_mean, block_squares]);
        }
    }
    let count = rows as f32;
    zip_map([variance], [], |[squares], []| [squares / count], Threads::One);
    if rows == 0 {
        mean.fill(f32::NAN);
    }
}

/// Moments of some rows, and of as many others.
struct Merge {
    counts: [usize; 2],
}

impl Merge {
    /// Merges means and sums of squared differences from the mean (Chan et al. 1979).
    #[inline(always)]
    fn run(&self, merged: [&mut [f32]; 2], other: [&[f32]; 2]) {
        let [before, more] = self.counts.map(|count| count as f32);
        let share = more / (before + more);
        zip_map_loop(merged, other, |[mean, squares], [more_mean, more_squares]| {
            let delta = more_mean - mean;
            [mean + delta * share, squares + more_squares + delta * delta * (before * share)]
        });
    }
}

/// `dst[j] = 1 / √(variance[j] + epsilon)`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn reciprocal_stddev(dst: &mut [f32], variance: &[f32], epsilon: f32) {
    zip_map([dst], [variance], |_, [variance]| [1.0 / (variance + epsilon).sqrt()], Threads::One);
}

/// `dst[r, j] = (x[r, j] − mean[j]) · rstd[j] · gamma[j] + beta[j]`: batch norm, of
/// [`column_moments`] while training, of running statistics after. `dst` and `x` are `[rows, n]`, the others
/// `[n]`; `rstd` is from [`reciprocal_stddev`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm(
    dst: &mut [f32],
    x: &[f32],
    [mean, rstd]: [&[f32]; 2],
    [gamma, beta]: [&[f32]; 2],
    threads: Threads,
) {
    expect_len("batch_norm: dst", dst, x.len());
    let (rows, n) = (expect_rows("batch_norm: x", x, gamma.len()), gamma.len());
    expect_len("batch_norm: beta", beta, gamma.len());
    expect_len("batch_norm: mean", mean, gamma.len());
    expect_len("batch_norm: rstd", rstd, gamma.len());
    share_rows([(dst, n)], rows, threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        dispatch(BatchNorm { dst, x: &x[part.start * n..part.end * n], mean, rstd, gamma, beta });
    });
}

/// The gradients of [`batch_norm`] where `mean` and `rstd` come from `x`: `dx` is `[rows, n]`, `dgamma` and
/// `dbeta` are `[n]`; `dy` is the gradient of its output.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    [x, dy]: [&[f32]; 2],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let n = gamma.len();
    let rows = expect_rows("batch_norm_grad: x", x, n);
    expect_len("batch_norm_grad: dx", dx, x.len());
    expect_len("batch_norm_grad: dy", dy, x.len());
    expect_len("batch_norm_grad: dgamma", dgamma, n);
    expect_len("batch_norm_grad: dbeta", dbeta, n);
    expect_len("batch_norm_grad: mean", mean, n);
    expect_len("batch_norm_grad: rstd", rstd, n);
    let (blocks, tasks) = (Blocks::of(rows), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    blocks.share([&mut *dgamma, &mut *dbeta], &mut [], rows, scratch, tasks, |[dgamma, dbeta], _, rows| {
        let all = rows.start * n..rows.end * n;
        dispatch(BatchNormSums { dgamma, dbeta, x: &x[all.clone()], dy: &dy[all], mean, rstd });
    });
    blocks.add_up([&mut *dgamma, &mut *dbeta], scratch);
    let (dgamma, dbeta, count) = (&*dgamma, &*dbeta, rows as f32);
    share_rows([(dx, n)], rows, tasks, &|[dx], part| {
        let all = part.start * n..part.end * n;
        let (x, dy) = (&x[all.clone()], &dy[all]);
        dispatch(BatchNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma, count });
    });
}

struct LayerNorm<'a> {
    dst: &'a mut [f32],
    mean: &'a mut [f32],
    rstd: &'a mut [f32],
    x: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
    epsilon: f32,
}

impl WithSimd for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, mean, rstd, x, gamma, beta, epsilon } = self;
        let (n, count) = (gamma.len().max(1), gamma.len() as f32);
        for ((dst, x), (mean, rstd)) in zip(zip(dst.chunks_exact_mut(n), x.chunks_exact(n)), zip(mean, rstd))
        {
            *mean = row_sum([x], |[x]| x) / count;
            let center = *mean;
            let variance = row_sum([x], |[x]| (x - center) * (x - center)) / count;
            *rstd = 1.0 / (variance + epsilon).sqrt();
            let scale = *rstd;
            zip_map_loop(
                [dst],
                [x, gamma, beta],
                |_, [x, gamma, beta]| [(x - center) * scale * gamma + beta],
            );
        }
    }
}

struct LayerNormGrad<'a> {
    dx: &'a mut [f32],
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
}

impl WithSimd for LayerNormGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dx, dgamma, dbeta, x, dy, mean, rstd, gamma } = self;
        let (n, count) = (gamma.len().max(1), gamma.len() as f32);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        let rows = zip(zip(x.chunks_exact(n), dy.chunks_exact(n)), zip(mean, rstd));
        for (dx, ((x, dy), (&mean, &rstd))) in zip(dx.chunks_exact_mut(n), rows) {
            zip_map_loop([dgamma, dbeta], [x, dy], |[dgamma, dbeta], [x, dy]| {
                [dgamma + dy * ((x - mean) * rstd), dbeta + dy]
            });
            let slope = row_sum([dy, gamma], |[dy, gamma]| dy * gamma) / count;
            let tilt = row_sum([dy, gamma, x], |[dy, gamma, x]| dy * gamma * ((x - mean) * rstd)) / count;
            zip_map_loop([dx], [x, dy, gamma], |_, [x, dy, gamma]| {
                [rstd * (dy * gamma - slope - (x - mean) * rstd * tilt)]
            });
        }
    }
}

/// Mean and sum of squared differences from the mean, of each column.
struct ColumnMoments<'a> {
    mean: &'a mut [f32],
    squares: &'a mut [f32],
    x: &'a [f32],
}

impl WithSimd for ColumnMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        /// Columns and rows of a part that stays in the first cache between the mean and the differences, so
        /// that memory is read once.
        const COLS: usize = 64;
        const ROWS: usize = 64;
        let Self { mean, squares, x } = self;
        let n = mean.len().max(1);
        mean.fill(0.0);
        squares.fill(0.0);
        for (part, x) in x.chunks(ROWS * n).enumerate() {
            let rows = x.len() / n;
            for (col, (mean, squares)) in zip(mean.chunks_mut(COLS), squares.chunks_mut(COLS)).enumerate() {
                let cols = col * COLS..col * COLS + mean.len();
                let first = &x[cols.clone()];
                let (mut part_mean, mut part_squares) = ([0.0; COLS], [0.0; COLS]);
                let (part_mean, part_squares) =
                    (&mut part_mean[..mean.len()], &mut part_squares[..mean.len()]);
                for x in x.chunks_exact(n) {
                    // From the first row on: columns may lie far from 0.
                    zip_map_loop([&mut *part_mean], [&x[cols.clone()], first], |[sum], [x, first]| {
                        [sum + (x - first)]
                    });
                }
                zip_map_loop([&mut *part_mean], [first], |[sum], [first]| [first + sum / rows as f32]);
                for x in x.chunks_exact(n) {
                    zip_map_loop(
                        [&mut *part_squares],
                        [&x[cols.clone()], &*part_mean],
                        |[sum], [x, mean]| [sum + (x - mean) * (x - mean)],
                    );
                }
                Merge { counts: [part * ROWS, rows] }.run([mean, squares], [part_mean, part_squares]);
            }
        }
    }
}

struct BatchNorm<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
}

impl WithSimd for BatchNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, mean, rstd, gamma, beta } = self;
        let n = gamma.len().max(1);
        for (dst, x) in zip(dst.chunks_exact_mut(n), x.chunks_exact(n)) {
            zip_map_loop([dst], [x, mean, rstd, gamma, beta], |_, [x, mean, rstd, gamma, beta]| {
                [(x - mean) * rstd * gamma + beta]
            });
        }
    }
}

struct BatchNormSums<'a> {
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
}

impl WithSimd for BatchNormSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dgamma, dbeta, x, dy, mean, rstd } = self;
        let n = mean.len().max(1);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for (x, dy) in zip(x.chunks_exact(n), dy.chunks_exact(n)) {
            zip_map_loop([dgamma, dbeta], [x, dy, mean, rstd], |[dgamma, dbeta], [x, dy, mean, rstd]| {
                [dgamma + dy * ((x - mean) * rstd), dbeta + dy]
            });
        }
    }
}

/// Some rows of `dx`, of `count` in all.
struct BatchNormGrad<'a> {
    dx: &'a mut [f32],
    dgamma: &'a [f32],
    dbeta: &'a [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
    count: f32,
}

impl WithSimd for BatchNormGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dx, dgamma, dbeta, x, dy, mean, rstd, gamma, count } = self;
        let n = gamma.len().max(1);
        for (dx, (x, dy)) in zip(dx.chunks_exact_mut(n), zip(x.chunks_exact(n), dy.chunks_exact(n))) {
            zip_map_loop(
                [dx],
                [x, dy, mean, rstd, gamma, dgamma, dbeta],
                |_, [x, dy, mean, rstd, gamma, dgamma, dbeta]| {
                    [gamma * rstd * (dy - dbeta / count - (x - mean) * rstd * dgamma / count)]
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    const EPSILON: f32 = 1e-3;

    /// `x` normalised over groups of elements, `group(i)` being the one of element `i`; and each group's mean
    /// and reciprocal deviation.
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
        (
            x.iter().enumerate().map(|(i, x)| (x - moments[group(i)][0]) * moments[group(i)][1]).collect(),
            moments,
        )
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
            // Two elements may lie so close that the deviation is mostly epsilon's.
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

    /// Rows of many blocks: the same bits on any number of threads, near those of the definition.
    #[test]
    fn blocks_are_summed_alike_on_any_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (rows, n) in [(1000, 67), (20_000, 16), (127, 300), (129, 300), (9000, 1)] {
            let shape = [rows, n];
            // Far from 0, where sums of squares would cancel.
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
                assert!(
                    bits(&one) == bits(&pool.install(|| all(Threads::Pool(threads)))),
                    "{threads} threads"
                );
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
}
