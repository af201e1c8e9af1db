//! Adding a bias vector to every row of a matrix, and its gradient. It must not know layers.

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map_loop};
use super::relu::rectify;
use super::shape::{expect_len, expect_rows};

/// `dst[r, j] = x[r, j] + bias[j]`, with `dst` and `x` `[rows, n]`, `bias` `[n]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn bias_add(dst: &mut [f32], x: &[f32], bias: &[f32]) {
    map_rows(dst, x, bias, |x, bias| x + bias);
}

/// `x[r, j] += bias[j]`, with `x` `[rows, n]`, `bias` `[n]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn bias_add_in_place(x: &mut [f32], bias: &[f32]) {
    map_rows_in_place(x, bias, |x, bias| x + bias);
}

/// `dst[r, j] = relu(x[r, j] + bias[j])`, with `dst` and `x` `[rows, n]`, `bias` `[n]`; relu as in
/// [`relu`](super::relu()).
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn bias_relu(dst: &mut [f32], x: &[f32], bias: &[f32]) {
    map_rows(dst, x, bias, |x, bias| rectify(x + bias));
}

/// `x[r, j] = relu(x[r, j] + bias[j])`, with `x` `[rows, n]`, `bias` `[n]`; relu as in
/// [`relu`](super::relu()).
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn bias_relu_in_place(x: &mut [f32], bias: &[f32]) {
    map_rows_in_place(x, bias, |x, bias| rectify(x + bias));
}

/// `dst[j] = Σ_r x[r, j]`, with `x` `[rows, n]`, `dst` `[n]`: the gradient of the bias. Rows are added in
/// order.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn sum_rows(dst: &mut [f32], x: &[f32]) {
    expect_rows("x", x, dst.len());
    dispatch(SumRows { dst, x });
}

#[track_caller]
fn map_rows(dst: &mut [f32], x: &[f32], bias: &[f32], f: impl Fn(f32, f32) -> f32) {
    expect_len("dst", dst, x.len());
    expect_rows("x", x, bias.len());
    dispatch(MapRows { dst, x, bias, f });
}

#[track_caller]
fn map_rows_in_place(x: &mut [f32], bias: &[f32], f: impl Fn(f32, f32) -> f32) {
    expect_rows("x", x, bias.len());
    dispatch(MapRowsInPlace { x, bias, f });
}

struct MapRows<'a, F> {
    dst: &'a mut [f32],
    x: &'a [f32],
    bias: &'a [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for MapRows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, bias, f } = self;
        // `max(1)`: without columns there are no rows to visit either.
        let n = bias.len().max(1);
        for (dst, x) in dst.chunks_exact_mut(n).zip(x.chunks_exact(n)) {
            zip_map_loop([dst], [x, bias], |_, [x, bias]| [f(x, bias)]);
        }
    }
}

struct MapRowsInPlace<'a, F> {
    x: &'a mut [f32],
    bias: &'a [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for MapRowsInPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, bias, f } = self;
        for x in x.chunks_exact_mut(bias.len().max(1)) {
            zip_map_loop([x], [bias], |[x], [bias]| [f(x, bias)]);
        }
    }
}

struct SumRows<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
}

impl WithSimd for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x } = self;
        dst.fill(0.0);
        for row in x.chunks_exact(dst.len().max(1)) {
            zip_map_loop([dst], [row], |[sum], [x]| [sum + x]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    proptest! {
        #[test]
        fn agree_with_f64(rows in 0usize..20, n in 0usize..70, seed: u32) {
            let (x, bias) = (floats(rows * n, seed.into()), floats(n, 1));
            let want = || (0..rows * n).map(|i| f64::from(x[i]) + f64::from(bias[i % n]));
            let mut dst = vec![f32::NAN; rows * n];

            bias_add(&mut dst, &x, &bias);
            assert_close(&dst, want(), 0.0);
            let mut in_place = x.clone();
            bias_add_in_place(&mut in_place, &bias);
            assert_eq!(bits(&dst), bits(&in_place));

            bias_relu(&mut dst, &x, &bias);
            assert_close(&dst, want().map(|y| y.max(0.0)), 0.0);
            let mut in_place = x.clone();
            bias_relu_in_place(&mut in_place, &bias);
            assert_eq!(bits(&dst), bits(&in_place));

            let mut sums = vec![f32::NAN; n];
            sum_rows(&mut sums, &x);
            let column = |j| (0..rows).map(|r| f64::from(x[r * n + j])).sum();
            assert_close(&sums, (0..n).map(column), rows as f64);
        }
    }

    #[test]
    #[should_panic(expected = "x has 5 elements, which is no whole number of rows of 2")]
    fn rows_must_be_whole() {
        bias_add_in_place(&mut [0.0; 5], &[0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "x has 1 elements, which is no whole number of rows of 0")]
    fn an_empty_bias_fits_only_an_empty_matrix() {
        sum_rows(&mut [], &[1.0]);
    }
}
