//! The newest values of a shard, in a form that is refilled after updates without allocations.

use pushpull_messages::id::{GlobalStep, Version};
use pushpull_transport::buffer::{Payload, Segment};

/// The values and moving averages of all slices at one version. Empty until it is filled.
#[derive(Debug, Default)]
pub struct Newest {
    /// The version of the values, and the step at which the shard stops; `None` before the first
    /// values.
    pub(super) at: Option<(Version, GlobalStep)>,
    pub(super) values: Vec<Segment>,
    /// The values in the encodings of the replies to pushes. Empty if all values are sent exactly.
    pub(super) sent: Vec<Segment>,
    /// The moving average of each slice, or its value if it has none. Empty if the job keeps no averages.
    pub(super) averages: Vec<Segment>,
}

/// Which of a shard's tensors an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuesKind {
    /// The values, exactly.
    Current,
    /// The values in the encodings of the replies to pushes.
    Sent,
    /// The moving average of each slice, or its value if it has none.
    Averages,
}

impl Newest {
    /// Returns the version of the values and the step at which the shard stops; `None` if this is empty.
    pub(crate) const fn at(&self) -> Option<(Version, GlobalStep)> {
        self.at
    }

    /// Returns the payload of an answer.
    pub(crate) fn payload(&self, kind: ValuesKind) -> Payload {
        let other = match kind {
            ValuesKind::Current => &self.values,
            ValuesKind::Sent => &self.sent,
            ValuesKind::Averages => &self.averages,
        };
        Payload::new(if other.is_empty() { self.values.clone() } else { other.clone() })
    }

    /// Releases the values.
    pub(crate) fn clear(&mut self) {
        self.at = None;
        self.values.clear();
        self.sent.clear();
        self.averages.clear();
    }
}
