//! Shape inference for element-wise operations and reductions.

use super::super::element::UnaryOp;
use super::super::error::GraphError;
use super::{Site, broadcast, f32_of, reduced, shown};
use crate::tensor::TensorSpec;

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
        broadcast(a, b).map(TensorSpec::f32).ok_or_else(misfit)
    }

    pub(super) fn reduce(&self, axes: &[usize], keep: bool) -> Result<TensorSpec, GraphError> {
        let extents = self.floats(0).ok_or_else(|| self.misfit("f32"))?;
        reduced(extents, axes, keep).map(TensorSpec::f32).ok_or_else(|| {
            self.misfit(format!("an f32 tensor with the axes {}, in ascending order", shown(axes)))
        })
    }
}
