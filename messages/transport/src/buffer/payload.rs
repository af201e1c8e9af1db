//! The tensor bytes that are sent together with a message. They are shared segments, which are sent without
//! being copied or encoded.

use std::sync::Arc;
use std::time::Instant;

use pushpull_messages::tensor::ALIGNMENT;

use super::countdown::all_done;
use super::promise::BrokenPromise;
use super::segment::Segment;

/// The segments of tensor bytes that are sent together with a message. On the wire, every segment begins at a
/// multiple of [`ALIGNMENT`] bytes from the beginning of the payload.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// The segments; `None` if there are none. A request is kept until it is answered, so payloads are
    /// cloned. The clones share this list.
    segments: Option<Arc<Vec<Segment>>>,
    taken: bool,
}

impl Payload {
    /// A payload without segments.
    pub const EMPTY: Self = Self { segments: None, taken: false };
    /// A payload whose segments a sink has taken.
    pub const TAKEN: Self = Self { segments: None, taken: true };

    /// Returns a payload that consists of these segments, in order.
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments: (!segments.is_empty()).then(|| Arc::new(segments)), taken: false }
    }

    /// Returns whether a sink has taken the segments.
    pub const fn is_taken(&self) -> bool {
        self.taken
    }

    /// Returns the payload's segments, in order.
    pub fn segments(&self) -> &[Segment] {
        self.segments.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Converts the payload into its segments, in order.
    pub fn into_segments(self) -> Vec<Segment> {
        self.segments.map_or_else(Vec::new, Arc::unwrap_or_clone)
    }

    /// Waits until all segments can be read.
    ///
    /// # Errors
    /// Returns an error if the writer of a promised segment has failed, once the others have been written.
    pub async fn ready(&self) -> Result<(), BrokenPromise> {
        let waits = self.segments().iter().filter(|segment| !segment.is_ready());
        all_done(waits.map(Segment::ready)).await
    }

    /// Returns when the last promised segment was written; `None` if one is not written yet, or if none was
    /// promised.
    pub fn complete_at(&self) -> Option<Instant> {
        if !self.segments().iter().all(Segment::is_ready) {
            return None;
        }
        self.segments().iter().filter_map(Segment::kept_at).max()
    }

    /// Returns the number of bytes in all segments together, without padding.
    pub fn bytes(&self) -> usize {
        self.segments().iter().map(Segment::len).sum()
    }
}

/// Lays out segments of these lengths so that each begins on a cache line. Returns the start of each segment
/// and the total number of bytes; no padding follows the last segment. Returns `None` if the total does not
/// fit in a `u64`.
pub(crate) fn payload_layout(lengths: impl IntoIterator<Item = u64>) -> Option<(Vec<u64>, u64)> {
    let (mut starts, mut end) = (Vec::new(), 0u64);
    for length in lengths {
        let start = end.checked_next_multiple_of(ALIGNMENT as u64)?;
        starts.push(start);
        end = start.checked_add(length)?;
    }
    Some((starts, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_aligns_every_start_and_refuses_overflow() {
        assert_eq!(payload_layout([]), Some((vec![], 0)));
        assert_eq!(payload_layout([10, 64, 1]), Some((vec![0, 64, 128], 129)));
        assert_eq!(payload_layout([u64::MAX, 1]), None);
        assert_eq!(payload_layout([64, u64::MAX - 64]), Some((vec![0, 64], u64::MAX)));
    }
}
