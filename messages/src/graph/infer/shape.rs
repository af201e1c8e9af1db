//! Shape inference for operations that move elements without changing them.

use super::super::error::GraphError;
use super::super::limits::RANK_MAX;
use super::{Site, shown};
use crate::tensor::{Shape, TensorSpec};

impl Site<'_> {
    pub(super) fn reshape(&self, shape: &Shape) -> Result<TensorSpec, GraphError> {
        let TensorSpec { shape: whole, dtype } = self.input(0);
        let reshaped = whole.0.first().map(|&batch| shape.with_leading(batch));
        match reshaped {
            _ if !dtype.is_of_examples() => Err(self.misfit("f32 or i32")),
            Some(reshaped) if reshaped.checked_elements() == whole.checked_elements() => {
                Ok(TensorSpec { shape: reshaped, dtype: *dtype })
            }
            _ => Err(self.misfit(format!("examples with as many elements as {shape}"))),
        }
    }

    pub(super) fn transpose(&self, axes: &[usize]) -> Result<TensorSpec, GraphError> {
        let extents = self.floats(0).ok_or_else(|| self.misfit("f32"))?;
        let mut seen = [false; RANK_MAX];
        let permutes = axes.len() == extents.len()
            && axes.iter().all(|&axis| axis < extents.len() && !std::mem::replace(&mut seen[axis], true));
        if !permutes {
            return Err(
                self.misfit(format!("an f32 tensor whose axes are each listed once in {}", shown(axes)))
            );
        }
        Ok(TensorSpec::f32(Shape(axes.iter().map(|&axis| extents[axis]).collect())))
    }

    pub(super) fn concat(&self, axis: usize) -> Result<TensorSpec, GraphError> {
        let misfit = || self.misfit(format!("f32 tensors of the same shape, except along axis {axis}"));
        let first = self.floats(0).filter(|first| axis < first.len()).ok_or_else(misfit)?;
        let mut extents = first.to_vec();
        for position in 1..self.inputs() {
            let next = self.floats(position).filter(|next| next.len() == first.len()).ok_or_else(misfit)?;
            let differs = |other: usize| other != axis && next[other] != first[other];
            if (0..first.len()).any(differs) {
                return Err(misfit());
            }
            extents[axis] = extents[axis].saturating_add(next[axis]);
        }
        Ok(TensorSpec::f32(Shape(extents)))
    }

    pub(super) fn slice(&self, axis: usize, start: usize, length: usize) -> Result<TensorSpec, GraphError> {
        let extents = self.floats(0).filter(|extents| {
            let end = start.checked_add(length);
            axis < extents.len() && length > 0 && end.is_some_and(|end| end <= extents[axis])
        });
        let expected = || {
            let end = start.saturating_add(length);
            self.misfit(format!(
                "an f32 tensor with elements {start}..{end} along axis {axis}, and a slice of at least one element"
            ))
        };
        let mut extents = extents.ok_or_else(expected)?.to_vec();
        extents[axis] = length;
        Ok(TensorSpec::f32(Shape(extents)))
    }
}
