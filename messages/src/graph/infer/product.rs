//! Shape inference for matrix products, biases and embeddings.

use super::super::error::GraphError;
use super::{Site, f32_of};
use crate::tensor::{Shape, TensorSpec};

impl Site<'_> {
    pub(super) fn mat_mul(&self, transpose_a: bool, transpose_b: bool) -> Result<TensorSpec, GraphError> {
        let misfit = || {
            self.misfit(format!(
                "f32 {} and {}, with equal leading axes (the second may be a matrix if the first is not transposed)",
                if transpose_a { "[.., k, m]" } else { "[.., m, k]" },
                if transpose_b { "[.., n, k]" } else { "[.., k, n]" },
            ))
        };
        let (Some([outer_a @ .., a1, a2]), Some([outer_b @ .., b1, b2])) = (self.floats(0), self.floats(1))
        else {
            return Err(misfit());
        };
        let (m, inner) = if transpose_a { (a2, a1) } else { (a1, a2) };
        let (k, n) = if transpose_b { (b2, b1) } else { (b1, b2) };
        let rows_times_matrix = outer_b.is_empty() && !transpose_a;
        if inner != k || !(outer_a == outer_b || rows_times_matrix) {
            return Err(misfit());
        }
        Ok(TensorSpec::f32(Shape([outer_a, &[*m, *n]].concat())))
    }

    pub(super) fn bias_add(&self) -> Result<TensorSpec, GraphError> {
        match (self.floats(0), self.floats(1)) {
            (Some(x @ [_, .., last]), Some([bias])) if last == bias => Ok(f32_of(x)),
            _ => Err(self.misfit("f32 [.., n] of two axes or more, and f32 [n]")),
        }
    }

    pub(super) fn embedding(&self) -> Result<TensorSpec, GraphError> {
        match (self.floats(0), self.integers(1)) {
            (Some([_, width]), Some(ids)) => Ok(TensorSpec::f32(Shape([ids, &[*width]].concat()))),
            _ => Err(self.misfit("an f32 table [rows, n] and i32 ids")),
        }
    }
}
