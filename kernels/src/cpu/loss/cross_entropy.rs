//! Softmax cross-entropy of logits against integer labels, and its gradient. This module must not depend on
//! the source of the batches.

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::exp::exp;
use crate::cpu::labels::{LabelOutOfRange, checked_classes};
use crate::cpu::rows::{row_max, row_sum};
use crate::cpu::shape::expect_len;
use crate::cpu::softmax::softmax_row;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Returns the mean over rows of `−log softmax(logits[row])[labels[row]]`, where `logits` is `[rows,
/// classes]` and `labels` is `[rows]`.
///
/// A row's loss is computed as `log Σ exp(logit − max) − (logit[label] − max)`, which does not overflow. The
/// result is 0 if there are no rows, and NaN if a row contains a NaN or +∞, or only −∞.
///
/// # Errors
/// If a label is not in `0..classes`.
///
/// # Panics
/// If the length of `logits` is not a multiple of the number of labels.
#[track_caller]
pub fn softmax_cross_entropy(
    logits: &[f32],
    labels: &[i32],
    threads: Threads,
) -> Result<f32, LabelOutOfRange> {
    let classes = checked_classes(logits, labels)?;
    if labels.is_empty() {
        return Ok(0.0);
    }
    let tasks = threads.tasks(logits.len(), ELEMENTS_PER_TASK / 4);
    let total = total_loss(logits, labels, classes, tasks);
    Ok((total / labels.len() as f64) as f32)
}

/// Returns the sum of the losses of all rows. The rows are halved recursively, at positions that depend only
/// on the number of rows, so the order of additions does not depend on `tasks`.
fn total_loss(logits: &[f32], labels: &[i32], classes: usize, tasks: usize) -> f64 {
    const ROWS: usize = 64;
    if labels.len() <= ROWS {
        return dispatch(Losses { logits, labels, classes });
    }
    let mid = (labels.len() / 2).next_multiple_of(ROWS);
    let (logits, logits_2) = logits.split_at(mid * classes);
    let (labels, labels_2) = labels.split_at(mid);
    let first = || total_loss(logits, labels, classes, tasks / 2);
    let second = || total_loss(logits_2, labels_2, classes, tasks - tasks / 2);
    let (a, b) = if tasks > 1 { rayon::join(first, second) } else { (first(), second()) };
    a + b
}

/// The computation of the sum of the losses of some rows. Their labels have been checked.
struct Losses<'a> {
    logits: &'a [f32],
    labels: &'a [i32],
    classes: usize,
}

impl WithSimd for Losses<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let mut total = 0.0;
        for (row, &label) in self.logits.chunks_exact(self.classes).zip(self.labels) {
            let max = row_max(row);
            let sum = row_sum([row], |[logit]| exp(logit - max));
            total += f64::from(sum.ln() - (row[label as usize] - max));
        }
        total
    }
}

/// Computes the gradient of [`softmax_cross_entropy`] with respect to the logits, times `upstream`: `dst[row,
/// class] = (softmax(logits[row])[class] − [class = labels[row]]) · upstream / rows`.
///
/// `dst` and `logits` are `[rows, classes]`, `labels` is `[rows]`.
///
/// # Errors
/// If a label is not in `0..classes`; `dst` is left unchanged in that case.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_cross_entropy_grad(
    dst: &mut [f32],
    logits: &[f32],
    labels: &[i32],
    upstream: f32,
    threads: Threads,
) -> Result<(), LabelOutOfRange> {
    expect_len("dst", dst, logits.len());
    let classes = checked_classes(logits, labels)?;
    let factor = upstream / labels.len() as f32;
    let tasks = threads.tasks(logits.len(), ELEMENTS_PER_TASK / 4);
    share_rows([(dst, classes)], labels.len(), tasks, &|[dst], part| {
        let logits = &logits[part.start * classes..part.end * classes];
        dispatch(Gradients { dst, logits, labels: &labels[part], classes, factor });
    });
    Ok(())
}

/// The computation of the gradients of some rows. Their labels have been checked.
struct Gradients<'a> {
    dst: &'a mut [f32],
    logits: &'a [f32],
    labels: &'a [i32],
    classes: usize,
    factor: f32,
}

impl WithSimd for Gradients<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, logits, labels, classes, factor } = self;
        let rows = logits.chunks_exact(classes.max(1)).zip(labels);
        for (dst, (row, &label)) in dst.chunks_exact_mut(classes.max(1)).zip(rows) {
            softmax_row(dst, row);
            zip_map_loop([&mut *dst], [], |[y], []| [y * factor]);
            dst[label as usize] -= factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, bits, floats};
    use crate::cpu::{count_correct, count_in_top_k};

    /// Returns a batch: normally distributed logits with standard deviation `scale`, and a valid label for
    /// each row.
    fn batch(rows: usize, classes: usize, scale: f32, seed: u32) -> (Vec<f32>, Vec<i32>) {
        let logits = floats(rows * classes, seed.into()).into_iter().map(|x| x * scale).collect();
        (logits, (0..rows).map(|row| ((row * 7 + seed as usize % 97) % classes) as i32).collect())
    }

    /// Returns `exp(logit − max)` for each logit of a row, and the sum of these exponentials.
    fn exponentials(row: &[f32]) -> (Vec<f64>, f64) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: Vec<f64> = row.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).collect();
        let sum = all.iter().sum();
        (all, sum)
    }

    proptest! {
        #[test]
        fn agree_with_f64(
            rows in 1usize..20, classes in 1usize..40,
            scale in prop::sample::select(vec![0.0f32, 1.0, 20.0, 1e3]), upstream in -2f32..2.0, seed: u32,
        ) {
            let (logits, labels) = batch(rows, classes, scale, seed);
            let (mut loss, mut grad, mut correct) = (0.0, vec![], 0);
            for (row, &label) in logits.chunks(classes).zip(&labels) {
                let (exps, sum) = exponentials(row);
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                loss += sum.ln() - (f64::from(row[label as usize]) - f64::from(max));
                correct += usize::from(row.iter().position(|&x| x == max) == Some(label as usize));
                grad.extend(exps.iter().enumerate().map(|(class, e)| {
                    let one_hot = f64::from(class == label as usize);
                    (e / sum - one_hot) * f64::from(upstream) / rows as f64
                }));
            }
            let got = softmax_cross_entropy(&logits, &labels, Threads::One).unwrap();
            assert_close(&[got], [loss / rows as f64], 1.0);
            let mut dst = vec![f32::NAN; logits.len()];
            softmax_cross_entropy_grad(&mut dst, &logits, &labels, upstream, Threads::One).unwrap();
            // The tolerance grows with the scale, because the exponential amplifies the rounding error of
            // the differences of logits.
            assert_close(&dst, grad, f64::from(scale).max(4.0));
            prop_assert_eq!(count_correct(&logits, &labels), correct);
            for k in 0..classes + 2 {
                let within = |(row, &label): (&[f32], &i32)| {
                    let mut order: Vec<usize> = (0..classes).collect();
                    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                    order.iter().take(k).any(|&class| class == label as usize)
                };
                // With scale 0 the logits are zeros of both signs, which `total_cmp` does not treat as
                // equal.
                if scale != 0.0 {
                    let want = logits.chunks(classes).zip(&labels).filter(|&row| within(row)).count();
                    prop_assert_eq!(count_in_top_k(&logits, &labels, k), want);
                }
            }
            prop_assert_eq!(count_in_top_k(&logits, &labels, 1), correct);
        }

        #[test]
        fn a_bad_label_is_an_error(
            rows in 1usize..10, classes in 0usize..10, at: prop::sample::Index,
            bad in prop::sample::select(vec![-1, i32::MIN, i32::MAX, 10]),
        ) {
            let (logits, mut labels) = batch(rows, classes.max(1), 1.0, 1);
            let logits = &logits[..rows * classes];
            let row = if classes == 0 { 0 } else { at.index(rows) };
            labels[row] = bad;
            let want = LabelOutOfRange { row, label: bad, classes };
            prop_assert_eq!(softmax_cross_entropy(logits, &labels, Threads::One), Err(want));
            let mut dst = vec![5.0; logits.len()];
            prop_assert_eq!(softmax_cross_entropy_grad(&mut dst, logits, &labels, 1.0, Threads::One), Err(want));
            prop_assert!(dst.iter().all(|&x| x == 5.0));
            prop_assert!(count_correct(logits, &labels) < rows);
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [f32::MAX, 0.0, -f32::MAX, 1e30];
        assert_eq!(softmax_cross_entropy(&logits, &[0, 1], Threads::One), Ok(0.0));
    }

    #[test]
    fn no_rows() {
        assert_eq!(softmax_cross_entropy(&[], &[], Threads::One), Ok(0.0));
        assert_eq!(softmax_cross_entropy_grad(&mut [], &[], &[], 1.0, Threads::One), Ok(()));
        assert_eq!(count_correct(&[], &[]), 0);
    }

    #[test]
    fn a_nan_logit_is_a_nan_loss() {
        assert!(softmax_cross_entropy(&[f32::NAN, 1.0], &[1], Threads::One).unwrap().is_nan());
    }

    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (rows, classes) in [(3001, 40), (9, 5000), (65, 1)] {
            let (logits, labels) = batch(rows, classes, 2.0, 1);
            let all = |threads| {
                let mut dst = vec![f32::NAN; logits.len()];
                softmax_cross_entropy_grad(&mut dst, &logits, &labels, 1.5, threads).unwrap();
                (bits(&dst), softmax_cross_entropy(&logits, &labels, threads).unwrap().to_bits())
            };
            let one = all(Threads::One);
            for threads in [0, 1, 2, 3, 8] {
                assert!(one == pool.install(|| all(Threads::Pool(threads))), "{threads} threads");
            }
        }
    }
}
