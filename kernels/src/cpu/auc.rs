//! The area under the ROC curve, from counts that can be summed over batches and workers. This module must
//! not depend on the source of the logits.
//!
//! Labels are data and may be hostile: a bad label is an error, never a panic.

use super::exp::sigmoid;
use super::labels::{LabelOutOfRange, check_labels};
use super::shape::expect_len;

/// Counts examples by label and score, where the score is the sigmoid of the logit. `counts` is `[2, bins]`:
/// row 0 is for the label 0, row 1 for the label 1, and each bin is one of `bins` equal parts of the range
/// from 0 to 1. The previous contents of `counts` are overwritten. `logits` and `labels` are `[rows]`.
///
/// A NaN has no score: if a logit is NaN, all counts become NaN, and so does the area computed from them. A
/// count is exact up to 2²⁴. The counts of several batches may be added; use `f64`, so that larger sums stay
/// exact.
///
/// # Errors
/// If a label is not 0 or 1; `counts` is left unchanged in that case.
///
/// # Panics
/// If `logits` and `labels` differ in length, or if `counts` does not consist of two rows with at
/// least one bin each.
#[track_caller]
pub fn auc_counts(counts: &mut [f32], logits: &[f32], labels: &[i32]) -> Result<(), LabelOutOfRange> {
    expect_len("auc_counts: labels", labels, logits.len());
    assert!(
        counts.len() >= 2 && counts.len().is_multiple_of(2),
        "auc_counts: {} counts are not two rows",
        counts.len()
    );
    check_labels(labels, 2)?;
    if logits.iter().any(|logit| logit.is_nan()) {
        counts.fill(f32::NAN);
        return Ok(());
    }
    counts.fill(0.0);
    let bins = counts.len() / 2;
    for (&logit, &label) in logits.iter().zip(labels) {
        let bin = (sigmoid(logit) * bins as f32) as usize;
        counts[label as usize * bins + bin.min(bins - 1)] += 1.0;
    }
    Ok(())
}

/// Returns the area under the ROC curve. `counts` is `[2, bins]`, as written by [`auc_counts`], or a sum of
/// such counts. The area is the probability that a positive example has a higher score than a negative one;
/// if both scores are in one bin, the pair counts as one half. The result is NaN if there are no positive or
/// no negative examples.
///
/// This is the statistic of Mann & Whitney 1947, divided by the number of pairs of a positive and a negative
/// example. It equals the area that the trapezoidal rule gives for a curve with one point for each edge
/// between bins (Hanley & McNeil 1982). The error is at most half the fraction of pairs that share a bin.
///
/// # Panics
/// If the length of `counts` is odd.
#[track_caller]
pub fn auc(counts: &[f64]) -> f64 {
    assert!(counts.len().is_multiple_of(2), "auc: {} counts are not two rows", counts.len());
    let (negatives, positives) = counts.split_at(counts.len() / 2);
    let (mut below, mut pairs) = (0.0, 0.0);
    for (negative, positive) in negatives.iter().zip(positives) {
        pairs += positive * (below + negative / 2.0);
        below += negative;
    }
    pairs / (below * positives.iter().sum::<f64>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::floats;

    proptest! {
        #[test]
        fn agrees_with_all_pairs(rows in 0usize..200, bins in 1usize..300, seed: u32) {
            let logits = floats(rows, seed.into());
            let labels: Vec<i32> = floats(rows, 1).iter().map(|x| i32::from(*x > 0.3)).collect();
            let mut counts = vec![f32::NAN; 2 * bins];
            // The counts of two batches are added.
            let mut sums = vec![0.0; 2 * bins];
            for part in [0..rows / 3, rows / 3..rows] {
                auc_counts(&mut counts, &logits[part.clone()], &labels[part]).unwrap();
                sums.iter_mut().zip(&counts).for_each(|(sum, &count)| *sum += f64::from(count));
            }
            let bin = |x: f32| ((1.0 / (1.0 + (-f64::from(x)).exp()) * bins as f64) as usize).min(bins - 1);
            let (mut pairs, mut ahead, mut exact, mut ties) = (0.0, 0.0, 0.0, 0.0);
            for (i, j) in (0..rows * rows).map(|at| (at / rows, at % rows)) {
                if labels[i] == 1 && labels[j] == 0 {
                    let half = |order: std::cmp::Ordering| f64::from(order as i8 + 1) / 2.0;
                    pairs += 1.0;
                    ahead += half(bin(logits[i]).cmp(&bin(logits[j])));
                    exact += half(logits[i].total_cmp(&logits[j]));
                    ties += f64::from(bin(logits[i]) == bin(logits[j]));
                }
            }
            let got = auc(&sums);
            if pairs == 0.0 {
                prop_assert!(got.is_nan());
            } else {
                // A sigmoid near the edge of a bin may be rounded into the next bin.
                prop_assert!((got - ahead / pairs).abs() < 2.0 / rows as f64 * 2.0, "{} {}", got, ahead / pairs);
                prop_assert!((got - exact / pairs).abs() <= ties / pairs / 2.0 + 4.0 / rows as f64);
            }
        }
    }

    #[test]
    fn a_perfect_order_and_its_reverse() {
        let mut counts = [f32::NAN; 20];
        for (labels, want) in [([0, 0, 1, 1], 1.0), ([1, 1, 0, 0], 0.0), ([0, 1, 0, 1], 0.75)] {
            auc_counts(&mut counts, &[f32::NEG_INFINITY, -2.0, 2.0, f32::INFINITY], &labels).unwrap();
            assert_eq!(auc(&counts.map(f64::from)), want);
        }
        auc_counts(&mut counts[..2], &[-1.0, 1.0], &[0, 1]).unwrap();
        assert_eq!(auc(&[1.0, 1.0]), 0.5);
        assert_eq!(counts[..2], [1.0, 1.0]);
    }

    #[test]
    fn bad_data_is_an_error() {
        let mut counts = [5.0; 4];
        for label in [-1, 2, i32::MIN, i32::MAX] {
            let want = LabelOutOfRange { row: 1, label, classes: 2 };
            assert_eq!(auc_counts(&mut counts, &[0.0; 2], &[1, label]), Err(want));
        }
        assert_eq!(counts, [5.0; 4]);
        auc_counts(&mut counts, &[0.0, f32::NAN], &[1, 0]).unwrap();
        assert!(auc(&counts.map(f64::from)).is_nan());
    }
}
