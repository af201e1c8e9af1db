//! Normalisation to mean 0 and variance 1, over the last axis (layer norm: Ba et al. 2016) or over all other
//! axes (batch norm: Ioffe & Szegedy 2015), and the gradients.
//!
//! This module must not depend on layers or running statistics. Rows are summed within blocks; then the sums
//! of the blocks are added in order. Only the number of rows determines the blocks, so the bits of a result
//! do not depend on `threads`.

mod batch;
mod blocks;
mod layer;
mod moments;

pub use batch::{batch_norm, batch_norm_grad, reciprocal_stddev};
pub use blocks::norm_scratch;
pub use layer::{layer_norm, layer_norm_grad};
pub use moments::column_moments;

#[cfg(test)]
mod tests;
