//! What a device did in a traced step. Knows no span.

use std::time::Instant;

/// A piece of a device's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub device: usize,
    pub name: &'static str,
    pub began: Instant,
    pub ended: Instant,
}
