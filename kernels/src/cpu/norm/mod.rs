//! Normalisation to mean 0 and variance 1, over the last axis (layer norm: Ba et al. 2016) or over all others
//! (batch norm: Ioffe & Szegedy 2015), and the gradients.
//!
//! It must not depend on layers, nor how running statistics are maintained. Rows are summed within blocks,
//! then the blocks' sums are added in order. The division into blocks depends on the number of rows alone,
//! so `threads` does not affect any bit.

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
