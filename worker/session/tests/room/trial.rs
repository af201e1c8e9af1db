//! The bounds of the inputs of a random graph, as in the tests of the engine.

use std::collections::BTreeMap;

/// The bounds of a graph's inputs, by the input's name: an integer input with the bound n takes numbers below
/// n, and one without a bound takes 0 and 1.
pub(super) type Bounds = BTreeMap<String, usize>;
