//! Counts the wake-ups of a task, for the tests of what wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// A waker that counts how often a task is woken.
#[derive(Default)]
pub(super) struct Wakes(AtomicUsize);

impl Wakes {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
