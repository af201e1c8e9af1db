//! Which gradients of a step are complete, each and all of a buffer.

use pushpull_messages::id::VariableId;

use super::layout::Layout;

/// Which gradients are complete.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// For each variable, whether its gradient is complete.
    complete: Vec<bool>,
    /// For each buffer, the number of its gradients that are not complete.
    left: Vec<usize>,
}

/// What a gradient was when it was marked as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completed {
    /// It was complete already.
    Before,
    /// Other gradients of its buffer are not complete yet.
    Now,
    /// All gradients of its buffer are complete now.
    LastOfBuffer,
}

impl Completion {
    /// Returns that no gradient is complete.
    pub(super) fn new(layout: &Layout) -> Self {
        let left = layout.buffers.iter().map(|buffer| buffer.variables.len()).collect();
        Self { complete: vec![false; layout.variables.len()], left }
    }

    /// Marks the gradient of a variable, which is in `buffer`, as complete.
    pub(super) fn complete(&mut self, variable: VariableId, buffer: usize) -> Completed {
        if std::mem::replace(&mut self.complete[variable.index()], true) {
            return Completed::Before;
        }
        self.left[buffer] -= 1;
        match self.left[buffer] {
            0 => Completed::LastOfBuffer,
            _ => Completed::Now,
        }
    }
}
