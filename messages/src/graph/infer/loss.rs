//! Shape inference for losses and metrics.

use super::super::error::GraphError;
use super::{Site, scalar};
use crate::tensor::TensorSpec;

/// The maximum number of bins of `Op::AucCounts`.
const BINS_MAX: usize = 1 << 16;

impl Site<'_> {
    /// Infers the scalar output of an operation on logits and one class label per row.
    pub(super) fn classified(&self) -> Result<TensorSpec, GraphError> {
        match (self.floats(0), self.integers(1)) {
            (Some([rows @ .., _]), Some(labels)) if rows == labels && !rows.is_empty() => Ok(scalar()),
            _ => Err(self.misfit("f32 logits [.., classes] and i32 labels [..]")),
        }
    }

    pub(super) fn softmax_cross_entropy(&self) -> Result<TensorSpec, GraphError> {
        match (self.floats(0), self.floats(1)) {
            (Some(logits @ [_, _, ..]), Some(labels)) if logits == labels => Ok(scalar()),
            _ => self.classified().map_err(|_| {
                self.misfit("f32 logits [.., classes] and i32 labels [..] or f32 labels [.., classes]")
            }),
        }
    }

    pub(super) fn alike(&self) -> Result<TensorSpec, GraphError> {
        match (self.floats(0), self.floats(1)) {
            (Some(a), Some(b)) if a == b => Ok(scalar()),
            _ => Err(self.misfit("two f32 tensors of the same shape")),
        }
    }

    pub(super) fn top_k(&self, k: usize) -> Result<TensorSpec, GraphError> {
        if k == 0 {
            return Err(self.out_of_range("k", "at least 1", k));
        }
        self.classified()
    }

    pub(super) fn auc_counts(&self, bins: usize) -> Result<TensorSpec, GraphError> {
        if !(2..=BINS_MAX).contains(&bins) {
            return Err(self.out_of_range("bins", "from 2 to 65536", bins));
        }
        match (self.floats(0), self.integers(1)) {
            (Some(logits), Some(labels)) if logits == labels => Ok(TensorSpec::f32([2, bins])),
            _ => Err(self.misfit("f32 logits and i32 labels of the same shape")),
        }
    }
}
