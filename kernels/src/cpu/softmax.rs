//! Softmax cross-entropy of logits against integer labels, its gradient, and the count of correct
//! predictions.
//!
//! Labels are data and may be hostile: a bad one is an error, never a panic. It must not know batches'
//! origins.

use std::error::Error;
use std::fmt;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map_loop};
use super::exp::exp;
use super::rows::{row_max, row_sum};
use super::shape::expect_len;
use super::softmax_axis::softmax_row;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// A label that names no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelOutOfRange {
    /// The first row with such a label.
    pub row: usize,
    /// The label.
    pub label: i32,
    /// Labels must be in `0..classes`.
    pub classes: usize,
}

impl fmt::Display for LabelOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, label, classes } = self;
        write!(f, "label {label} of row {row} is not in 0..{classes}")
    }
}

impl Error for LabelOutOfRange {}

/// The mean over rows of `−log softmax(logits[row])[labels[row]]`, with `logits` `[rows, classes]`, `labels`
/// `[rows]`.
///
/// Computed as `log Σ exp(logit − max) − (logit[label] − max)`, which does not overflow. 0 for no rows. NaN
/// if a row has a NaN, +∞ or nothing but −∞.
///
/// # Errors
/// If a label is not in `0..classes`.
///
/// # Panics
/// If `logits` is no whole number of classes for each label.
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

/// The sum of the rows' losses, of halves of halves: the cut depends on the number of rows alone.
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

/// The sum of the rows' losses, whose labels are classes.
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

/// The gradient of [`softmax_cross_entropy`] by the logits, times `upstream`:
/// `dst[row, class] = (softmax(logits[row])[class] − [class = labels[row]]) · upstream / rows`.
///
/// `dst` and `logits` are `[rows, classes]`, `labels` is `[rows]`.
///
/// # Errors
/// If a label is not in `0..classes`; `dst` is untouched then.
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

/// The gradients of some rows, whose labels are classes.
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

/// The number of rows whose largest logit (the first of equals) is at `labels[row]`, with `logits` `[rows,
/// classes]`.
///
/// A row with a NaN is not correct, nor is one whose label names no class.
///
/// # Panics
/// If `logits` is no whole number of classes for each label.
#[track_caller]
pub fn count_correct(logits: &[f32], labels: &[i32]) -> usize {
    let classes = classes_of(logits, labels);
    let correct = |(row, label): (&[f32], usize)| {
        let Some(&best) = row.get(label) else { return false };
        row[..label].iter().all(|&logit| logit < best) && row[label..].iter().all(|&logit| logit <= best)
    };
    rows(logits, labels, classes).filter(|&row| correct(row)).count()
}

/// The number of rows where fewer than `k` logits come before that of `labels[row]`: larger ones, and equal
/// ones at a lower index. With `logits` `[rows, classes]`, `labels` `[rows]`; `k` of 1 is [`count_correct`].
///
/// A row with a NaN is not counted, nor is one whose label names no class.
///
/// # Panics
/// If `logits` is no whole number of classes for each label.
#[track_caller]
pub fn count_in_top_k(logits: &[f32], labels: &[i32], k: usize) -> usize {
    let classes = classes_of(logits, labels);
    let within = |&(row, label): &(&[f32], usize)| {
        let Some(&own) = row.get(label) else { return false };
        let before = |(class, &logit): (usize, &f32)| logit > own || (logit == own && class < label);
        let ahead = row.iter().enumerate().filter(|&each| before(each)).count();
        ahead < k && !row.iter().any(|logit| logit.is_nan())
    };
    rows(logits, labels, classes).filter(within).count()
}

/// The number of classes, given that there is a row of logits for each label.
#[track_caller]
fn classes_of(logits: &[f32], labels: &[i32]) -> usize {
    let classes = logits.len().checked_div(labels.len()).unwrap_or(0);
    expect_len("softmax: logits for each label", logits, labels.len() * classes);
    classes
}

/// The number of classes, once every label is known to be one.
#[track_caller]
fn checked_classes(logits: &[f32], labels: &[i32]) -> Result<usize, LabelOutOfRange> {
    let classes = classes_of(logits, labels);
    let in_range = |label: i32| usize::try_from(label).is_ok_and(|label| label < classes);
    match labels.iter().position(|&label| !in_range(label)) {
        Some(row) => Err(LabelOutOfRange { row, label: labels[row], classes }),
        None => Ok(classes),
    }
}

/// Each row with its label; a negative label becomes one that is out of range.
fn rows<'a>(
    logits: &'a [f32],
    labels: &'a [i32],
    classes: usize,
) -> impl Iterator<Item = (&'a [f32], usize)> {
    logits
        .chunks_exact(classes.max(1))
        .zip(labels.iter().map(|&label| usize::try_from(label).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    /// Logits in ±`scale`, and labels that fit.
    fn batch(rows: usize, classes: usize, scale: f32, seed: u32) -> (Vec<f32>, Vec<i32>) {
        let logits = floats(rows * classes, seed.into()).into_iter().map(|x| x * scale).collect();
        (logits, (0..rows).map(|row| ((row * 7 + seed as usize % 97) % classes) as i32).collect())
    }

    /// `exp(logit − max)` of a row, and the sum.
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
            // The difference of two rounded logits, which may be thousands, is what the exponential sees.
            assert_close(&dst, grad, f64::from(scale).max(4.0));
            prop_assert_eq!(count_correct(&logits, &labels), correct);
            for k in 0..classes + 2 {
                let within = |(row, &label): (&[f32], &i32)| {
                    let mut order: Vec<usize> = (0..classes).collect();
                    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                    order.iter().take(k).any(|&class| class == label as usize)
                };
                // `total_cmp` tells the zeros of scale 0 apart by their sign.
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
    fn predictions() {
        let nan = f32::NAN;
        // The first of equals is the prediction.
        assert_eq!(count_correct(&[1.0, 1.0, 1.0, 1.0], &[0, 1]), 1);
        assert_eq!(count_correct(&[nan, 1.0, 0.0, nan, nan, nan], &[1, 0, 0]), 0);
        assert_eq!(count_in_top_k(&[nan, 1.0, 0.0, nan, nan, nan], &[1, 0, 0], 2), 0);
        assert_eq!(count_in_top_k(&[0.0; 6], &[-1, 2, 1], 2), 1);
        assert!(softmax_cross_entropy(&[nan, 1.0], &[1], Threads::One).unwrap().is_nan());
    }

    #[test]
    #[should_panic(expected = "logits for each label has 5 elements, expected 4")]
    fn rows_must_be_whole() {
        count_correct(&[0.0; 5], &[0, 0]);
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
