//! Layers over the graph builder, with variable names that say where they belong: `dense1/kernel`.

mod conv;
mod dense;

pub use conv::{conv2d, flatten};
pub use dense::{Activation, dense};
