//! Metrics: how often a label is among the best, and counts for the area under the ROC curve.

use super::lanes::RowLanes;
use super::{Operation, Slot, count, thread_for_each};
use crate::driver::Argument;
use crate::source::Library;

impl Operation {
    /// Logits, integer labels → the fraction of rows in which the label's logit is among the `k` largest, as
    /// [`count_in_top_k`](pushpull_kernels::cpu::count_in_top_k) says; NaN if there are no rows.
    pub fn top_k(rows: usize, classes: usize, k: usize) -> Self {
        if rows == 0 {
            return Self::fill(f32::NAN, 1);
        }
        let lanes = RowLanes::of(classes);
        let settings = [count(classes), count(k.min(classes)), lanes.slot()];
        Self::mean(Library::Metrics, "rows_in_top_k", rows, lanes.of_block(), &settings)
    }

    /// Logits, integer labels → the counts `[2, bins]` of the examples by label and score, as
    /// [`auc_counts`](pushpull_kernels::cpu::auc_counts) says. A label that is not 0 or 1 makes all counts
    /// NaN.
    pub fn auc_counts(examples: usize, bins: usize) -> Self {
        if bins == 0 {
            return Self::nothing();
        }
        let counts = 2 * bins;
        let scale = Slot::Number(Argument::F32(bins as f32));
        let clear = [Slot::Scratch(0), count(counts + 1)];
        let add = [Slot::Scratch(0), Slot::Input(0), Slot::Input(1), count(examples), count(bins), scale];
        let write = [Slot::Output(0), Slot::Kept(0), count(counts)];
        Self::default()
            .then(Library::Metrics, "clear_counts", thread_for_each(counts + 1), &clear)
            .then(Library::Metrics, "count_scores", thread_for_each(examples), &add)
            .then(Library::Metrics, "write_counts", thread_for_each(counts), &write)
            .with_scratch(4 * (counts as u64 + 1))
    }
}
