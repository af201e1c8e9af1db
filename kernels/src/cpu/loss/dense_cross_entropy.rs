//! Softmax cross-entropy of logits against distributions, and its gradient. This module must not depend on
//! the source of the batches.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::exp::exp;
use crate::cpu::row_kernel::{RowKernel, Rows};
use crate::cpu::rows::{row_max, row_sum};
use crate::cpu::shape::{expect_len, expect_rows};
use crate::cpu::softmax::softmax_row;
use crate::cpu::threads::Threads;

/// Returns the mean over rows of `−Σ labels[r, ·] · log softmax(logits[r, ·])`, where both slices are
/// `[rows, classes]`. A row of labels should be a distribution, but any weights are accepted. The result is
/// 0 if there are no rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_cross_entropy_dense(logits: &[f32], labels: &[f32], classes: usize) -> f32 {
    expect_len("softmax_cross_entropy_dense: labels", labels, logits.len());
    let rows = expect_rows("softmax_cross_entropy_dense: logits", logits, classes);
    if rows == 0 {
        return 0.0;
    }
    let total = dispatch(Dense { logits, labels, classes });
    (total / rows as f64) as f32
}

/// The computation of the sum of the losses of all rows.
struct Dense<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
    classes: usize,
}

impl WithSimd for Dense<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { logits, labels, classes } = self;
        let mut total = 0.0;
        for (logits, labels) in zip(logits.chunks_exact(classes), labels.chunks_exact(classes)) {
            let max = row_max(logits);
            let sum = row_sum([logits], |[x]| exp(x - max)).ln();
            total += f64::from(row_sum([logits, labels], |[x, label]| label * (sum - (x - max))));
        }
        total
    }
}

/// Computes the gradient of [`softmax_cross_entropy_dense`] with respect to the logits, times `upstream`:
/// `dst[r, j] = (softmax[r, j] · Σ labels[r, ·] − labels[r, j]) · upstream / rows`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_cross_entropy_dense_grad(
    dst: &mut [f32],
    logits: &[f32],
    labels: &[f32],
    classes: usize,
    upstream: f32,
    threads: Threads,
) {
    expect_len("softmax_cross_entropy_dense_grad: dst", dst, logits.len());
    expect_len("softmax_cross_entropy_dense_grad: labels", labels, logits.len());
    let rows = expect_rows("softmax_cross_entropy_dense_grad: logits", logits, classes);
    let factor = upstream / rows as f32;
    Rows { dst, a: logits, b: labels, n: classes, row: DenseGrad { factor } }.share(threads);
}

#[derive(Clone, Copy)]
struct DenseGrad {
    factor: f32,
}

impl RowKernel for DenseGrad {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], logits: &[f32], labels: &[f32]) {
        softmax_row(dst, logits);
        let weight = row_sum([labels], |[label]| label);
        zip_map_loop([dst], [labels], |[y], [label]| [(y * weight - label) * self.factor]);
    }
}
