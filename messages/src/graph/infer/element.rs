//! Shape inference for element-wise operations and reductions.

use super::super::element::UnaryOp;
use super::super::error::GraphError;
use super::{Site, f32_of, shown};
use crate::tensor::{DType, Shape, TensorSpec};

impl Site<'_> {
    pub(super) fn to_float(&self) -> Result<TensorSpec, GraphError> {
        let extents = self.integers(0).ok_or_else(|| self.misfit("i32"))?;
        Ok(f32_of(extents))
    }

    pub(super) fn unary(&self, op: UnaryOp) -> Result<TensorSpec, GraphError> {
        if let UnaryOp::LeakyRelu { slope } = op
            && !slope.is_finite()
        {
            return Err(self.out_of_range("slope", "a finite number", slope));
        }
        let extents = self.floats(0).ok_or_else(|| self.misfit("f32"))?;
        Ok(f32_of(extents))
    }

    pub(super) fn binary(&self) -> Result<TensorSpec, GraphError> {
        let misfit =
            || self.misfit("two f32 tensors whose extents, compared from the last axis, are equal or 1");
        let (Some(a), Some(b)) = (self.floats(0), self.floats(1)) else { return Err(misfit()) };
        let rank = a.len().max(b.len());
        let extent = |extents: &[usize], axis: usize| {
            (axis + extents.len()).checked_sub(rank).map_or(1, |axis| extents[axis])
        };
        let pairs = (0..rank).map(|axis| (extent(a, axis), extent(b, axis)));
        let extents = pairs.map(|pair| match pair {
            (a, b) if a == b => Ok(a),
            (1, other) | (other, 1) => Ok(other),
            _ => Err(misfit()),
        });
        Ok(TensorSpec::f32(Shape(extents.collect::<Result<_, _>>()?)))
    }

    pub(super) fn reduce(&self, axes: &[usize], keep: bool) -> Result<TensorSpec, GraphError> {
        let extents = self.floats(0).ok_or_else(|| self.misfit("f32"))?;
        let ascending = axes.windows(2).all(|pair| pair[0] < pair[1]);
        if axes.is_empty() || !ascending || axes.last().is_some_and(|&last| last >= extents.len()) {
            return Err(
                self.misfit(format!("an f32 tensor with the axes {}, in ascending order", shown(axes)))
            );
        }
        let left = extents.iter().enumerate().filter_map(|(axis, &extent)| match axes.contains(&axis) {
            false => Some(extent),
            true => keep.then_some(1),
        });
        Ok(TensorSpec { shape: Shape(left.collect()), dtype: DType::F32 })
    }
}
