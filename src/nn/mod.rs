//! Layers over the graph builder, with variable names that say where they belong: `dense1/kernel`.

mod dense;

pub use dense::{Activation, dense};
