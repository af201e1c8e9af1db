//! Losses, each a mean over its rows or elements, and their gradients. Each loss has its own file. This
//! module must not depend on the source of the batches.

mod cross_entropy;
mod dense_cross_entropy;
mod sigmoid_cross_entropy;
mod squared_error;

pub use cross_entropy::{softmax_cross_entropy, softmax_cross_entropy_grad};
pub use dense_cross_entropy::{softmax_cross_entropy_dense, softmax_cross_entropy_dense_grad};
pub use sigmoid_cross_entropy::{sigmoid_cross_entropy, sigmoid_cross_entropy_grad};
pub use squared_error::{mean_squared_error, mean_squared_error_grad};

#[cfg(test)]
mod tests;
