//! Functions of one number, element by element, and their gradients. This module must not depend on layers.

mod function;
mod map;

pub use function::{Saved, Unary};
pub(super) use function::{UnaryGradWork, UnaryWork};
pub(super) use map::InPlace;
pub use map::{unary, unary_grad, unary_in_place};

#[cfg(test)]
mod tests;
