//! Counts correct predictions. This module must not depend on the source of the batches.

use super::labels::classes_of;

/// Returns the number of rows in which the largest logit (the first one, if several are equal) has the index
/// `labels[row]`. `logits` is `[rows, classes]`.
///
/// A row is not counted if it contains a NaN or if its label is not a class.
///
/// # Panics
/// If the length of `logits` is not a multiple of the number of labels.
#[track_caller]
pub fn count_correct(logits: &[f32], labels: &[i32]) -> usize {
    let classes = classes_of(logits, labels);
    let correct = |(row, label): (&[f32], usize)| {
        let Some(&best) = row.get(label) else { return false };
        row[..label].iter().all(|&logit| logit < best) && row[label..].iter().all(|&logit| logit <= best)
    };
    rows(logits, labels, classes).filter(|&row| correct(row)).count()
}

/// Returns the number of rows in which the label's logit is among the `k` largest. Precisely: a logit ranks
/// above another if it is larger, or if both are equal and its index is lower; a row counts if fewer than
/// `k` logits rank above the label's logit. `logits` is `[rows, classes]`, `labels` is `[rows]`. If `k` is
/// 1, the result is the same as that of [`count_correct`].
///
/// A row is not counted if it contains a NaN or if its label is not a class.
///
/// # Panics
/// If the length of `logits` is not a multiple of the number of labels.
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

/// Iterates over the rows, each with its label. A negative label becomes `usize::MAX`, which is out of
/// range.
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
    use super::*;

    #[test]
    fn predictions() {
        let nan = f32::NAN;
        // The first of two equal logits is the prediction.
        assert_eq!(count_correct(&[1.0, 1.0, 1.0, 1.0], &[0, 1]), 1);
        assert_eq!(count_correct(&[nan, 1.0, 0.0, nan, nan, nan], &[1, 0, 0]), 0);
        assert_eq!(count_in_top_k(&[nan, 1.0, 0.0, nan, nan, nan], &[1, 0, 0], 2), 0);
        assert_eq!(count_in_top_k(&[0.0; 6], &[-1, 2, 1], 2), 1);
    }

    #[test]
    #[should_panic(expected = "logits for each label has 5 elements, expected 4")]
    fn rows_must_be_whole() {
        count_correct(&[0.0; 5], &[0, 0]);
    }
}
