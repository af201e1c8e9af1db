//! Integer labels of rows of logits. Labels are data and may be hostile: a bad label is an error, never a
//! panic. This module must not depend on the use of the labels.

use std::error::Error;
use std::fmt;

use super::shape::expect_len;

/// The error for a label that is not a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelOutOfRange {
    /// The first row whose label is not a class.
    pub row: usize,
    /// The label of this row.
    pub label: i32,
    /// The number of classes; labels must be in `0..classes`.
    pub classes: usize,
}

impl fmt::Display for LabelOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, label, classes } = self;
        write!(f, "label {label} of row {row} is not in 0..{classes}")
    }
}

impl Error for LabelOutOfRange {}

/// Returns the number of classes, after checking that there is a row of logits for each label.
#[track_caller]
pub(super) fn classes_of(logits: &[f32], labels: &[i32]) -> usize {
    let classes = logits.len().checked_div(labels.len()).unwrap_or(0);
    expect_len("softmax: logits for each label", logits, labels.len() * classes);
    classes
}

/// Returns the number of classes, after checking that every label is a class.
#[track_caller]
pub(super) fn checked_classes(logits: &[f32], labels: &[i32]) -> Result<usize, LabelOutOfRange> {
    let classes = classes_of(logits, labels);
    check_labels(labels, classes)?;
    Ok(classes)
}

/// Checks that every label is a class.
///
/// # Errors
/// If a label is not in `0..classes`.
pub fn check_labels(labels: &[i32], classes: usize) -> Result<(), LabelOutOfRange> {
    let in_range = |label: i32| usize::try_from(label).is_ok_and(|label| label < classes);
    match labels.iter().position(|&label| !in_range(label)) {
        Some(row) => Err(LabelOutOfRange { row, label: labels[row], classes }),
        None => Ok(()),
    }
}
