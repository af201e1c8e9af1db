//! What is recorded of a step, and the work of a device in a traced step. This module must not depend on
//! spans.

use std::borrow::Cow;
use std::time::Instant;

use pushpull_engine::Groups;

/// What is recorded of a step in addition to its loss and its gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    /// Whether the step is traced, so that the work of each device and the times of the push are recorded.
    pub traced: bool,
    /// Whether the time of every operation is recorded, too.
    pub ops: bool,
    /// The groups of tensors that the step fetches.
    pub groups: Groups,
}

/// A piece of work that a device has done: a part of a step, or an operation within it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub device: usize,
    pub name: Cow<'static, str>,
    pub began: Instant,
    pub ended: Instant,
}
