//! The work of a device in a traced step. This module must not depend on spans.

use std::time::Instant;

/// A piece of work that a device has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub device: usize,
    pub name: &'static str,
    pub began: Instant,
    pub ended: Instant,
}
