//! Arithmetic of two tensors by numpy's broadcasting rules, and the reverse: sums, means and maxima over
//! axes. This module must not know what the axes stand for.

mod binary;
mod reduction;
mod shapes;

pub use binary::{Binary, binary};
pub use reduction::{Reduction, reduce};
pub use shapes::{BadShapes, Broadcast, Side};

#[cfg(test)]
mod tests;
