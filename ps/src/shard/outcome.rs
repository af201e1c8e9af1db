//! What comes of the work on blocks of gradients, in whatever order they are done.
//!
//! Wanted property: of the faults that were found, the first one of the push counts.

use std::time::Duration;

use pushpull_messages::id::SliceId;

/// What came of one or several blocks.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    /// The time spent on them.
    pub took: Duration,
    /// The first fault, with its place: the position of the slice in the push, and the first element of the
    /// block.
    pub fault: Option<([usize; 2], Fault)>,
}

/// A gradient that cannot be applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub slice: SliceId,
    /// Whether all elements are finite, so that one of them is too large.
    pub is_finite: bool,
}

impl Outcome {
    /// Adds what came of other blocks.
    pub(super) fn add(&mut self, other: Self) {
        self.took += other.took;
        let faults = [self.fault, other.fault].into_iter().flatten();
        self.fault = faults.min_by_key(|&(place, _)| place);
    }
}
