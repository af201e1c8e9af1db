//! The promises of a step's gradients, one for each buffer, and when each is kept.

use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::{Buffer, Promise};

use super::completion::{Completed, Completion};
use super::layout::Layout;

/// The size of the smallest buffer, in bytes, that is not held back until the computation has ended. To send
/// it takes so long that a wake-up matters less.
const AT_ONCE_BYTES_MIN: usize = 4 << 20;

/// The promises of all buffers. A promise is kept when all gradients of its buffer are complete. The last
/// promise is kept only when this value is dropped: the thread that sends gradients drops it when it learns
/// that the computation has ended. If it were kept earlier, that thread would be woken twice, and each
/// wake-up takes the processor from the computation.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The promise of each buffer; `None` if the buffer is complete. Empty until the gradients are promised.
    open: Vec<Option<Promise>>,
    completion: Completion,
    /// The number of buffers that are not complete.
    count: usize,
    /// The promise that was taken last, with its buffer; `None` if the buffer is large.
    last: Option<(Promise, Buffer)>,
}

impl Promises {
    pub(super) fn new(promises: Vec<Promise>, layout: &Layout) -> Self {
        let (count, completion) = (promises.len(), Completion::new(layout));
        Self { open: promises.into_iter().map(Some).collect(), completion, count, last: None }
    }

    /// Returns whether the gradients have been promised.
    pub(super) fn are_made(&self) -> bool {
        !self.open.is_empty()
    }

    /// Marks the gradient of a variable, which is in `buffer`, as complete. If all gradients of the buffer
    /// are complete now, and have been promised, returns the promise.
    pub(super) fn complete(&mut self, variable: VariableId, buffer: usize) -> Option<Promise> {
        if !self.are_made() || self.completion.complete(variable, buffer) != Completed::LastOfBuffer {
            return None;
        }
        self.count -= 1;
        self.open[buffer].take()
    }

    /// Keeps a promise that was taken, unless it was the last one.
    pub(super) fn keep(&mut self, promise: Promise, buffer: Buffer) {
        match self.count {
            0 if buffer.len() < AT_ONCE_BYTES_MIN => self.last = Some((promise, buffer)),
            _ => promise.keep(buffer),
        }
    }
}

impl Drop for Promises {
    fn drop(&mut self) {
        if let Some((promise, buffer)) = self.last.take() {
            promise.keep(buffer);
        }
    }
}
