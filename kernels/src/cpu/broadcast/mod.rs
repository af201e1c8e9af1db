//! Arithmetic of two tensors by numpy's broadcasting rules, and its reverse: sums and maxima over axes. It
//! must not depend on what the axes stand for.

mod binary;
mod reduction;
mod shapes;

pub use binary::{Binary, binary};
pub use reduction::{Reduction, reduce};
pub use shapes::{BadShapes, Broadcast, Side};

#[cfg(test)]
mod tests;
