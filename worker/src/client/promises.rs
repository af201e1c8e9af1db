//! The promises of a step's gradients, and when each is kept. This module must not depend on layouts.

use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, Promise};

/// The promises of all gradients. A promise is kept when its gradient is complete. Only the last one is kept
/// when this value is dropped: the thread that sends gradients drops it when it learns that the computation
/// has ended. If it were kept earlier, that thread would be woken twice, and each wake-up takes the processor
/// from the computation.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The promise of each gradient; `None` if the gradient is complete. Empty until the gradients are
    /// promised.
    open: Vec<Option<Promise>>,
    /// The number of gradients that are promised and not complete.
    count: usize,
    /// The promise that was taken last, with its gradient.
    last: Option<(Promise, Buffer)>,
}

impl Promises {
    pub(super) fn new(promises: Vec<Promise>) -> Self {
        Self { count: promises.len(), open: promises.into_iter().map(Some).collect(), last: None }
    }

    /// Returns whether the gradients have been promised.
    pub(super) fn are_made(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes the promise of a gradient, if it has been promised and is not complete.
    pub(super) fn take(&mut self, variable: VariableId) -> Option<Promise> {
        let promise = self.open.get_mut(variable.index()).and_then(Option::take)?;
        self.count -= 1;
        Some(promise)
    }

    /// Keeps a promise that was taken, unless it was the last one.
    pub(super) fn keep(&mut self, promise: Promise, gradient: Buffer) {
        match self.count {
            0 => self.last = Some((promise, gradient)),
            _ => promise.keep(gradient),
        }
    }
}

impl Drop for Promises {
    fn drop(&mut self) {
        if let Some((promise, gradient)) = self.last.take() {
            promise.keep(gradient);
        }
    }
}
