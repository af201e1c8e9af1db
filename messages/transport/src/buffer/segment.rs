//! A range of a buffer. The buffer is shared, and its writer may not have finished yet. This module does not
//! interpret the bytes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use pushpull_messages::tensor::ALIGNMENT;

use super::aligned::Buffer;
use super::promise::{BrokenPromise, Promise, Promised};
use super::shared_memory::{Arena, Region};

/// A range of a shared buffer: one slice of a variable, or of its gradient.
#[derive(Clone, Debug)]
pub struct Segment {
    source: Source,
    start: usize,
    bytes: usize,
}

#[derive(Clone)]
enum Source {
    Ready(Arc<Buffer>),
    /// The buffer is promised: its writer may not have finished yet.
    Promised(Promised),
    /// The bytes are in the memory of another task, which has lent them for as long as the second value
    /// lives.
    Lent(Arc<Region>, #[expect(dead_code, reason = "it is kept for its drop")] Arc<dyn Any + Send + Sync>),
}

impl Source {
    /// Returns whether both are the same buffer of this task.
    fn is_same_buffer(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ready(own), Self::Ready(other)) => Arc::ptr_eq(own, other),
            (Self::Promised(own), Self::Promised(other)) => own.is(other),
            _ => false,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(buffer) => fmt::Debug::fmt(buffer, f),
            Self::Promised(promised) => fmt::Debug::fmt(promised, f),
            Self::Lent(region, _) => fmt::Debug::fmt(region, f),
        }
    }
}

impl Segment {
    /// Returns the segment of `bytes` bytes that begins at byte `start` of a buffer.
    ///
    /// # Panics
    /// If the range is not within the buffer, or if `start` is not a multiple of 4.
    pub fn new(buffer: Arc<Buffer>, start: usize, bytes: usize) -> Self {
        let all = buffer.len();
        Self::within(Source::Ready(buffer), all, start, bytes)
    }

    fn within(source: Source, all: usize, start: usize, bytes: usize) -> Self {
        assert!(start.is_multiple_of(4), "segment starts at byte {start}, expected a multiple of 4");
        let end = start.checked_add(bytes).expect("a segment's end fits in usize");
        assert!(end <= all, "segment {start}..{end} is outside its buffer of {all} bytes");
        Self { source, start, bytes }
    }

    /// Returns a segment that is a whole buffer.
    pub fn whole(buffer: Arc<Buffer>) -> Self {
        let bytes = buffer.len();
        Self { source: Source::Ready(buffer), start: 0, bytes }
    }

    /// Returns a segment that another task has lent for as long as `loan` lives. It has `bytes` bytes and
    /// begins at byte `start` of the region, which must be a multiple of 4.
    pub(crate) fn lent(
        region: Arc<Region>,
        loan: Arc<dyn Any + Send + Sync>,
        start: usize,
        bytes: usize,
    ) -> Self {
        Self { source: Source::Lent(region, loan), start, bytes }
    }

    /// Returns where the segment begins in `arena`, in bytes; `None` if it is elsewhere, or if it begins
    /// within a cache line.
    pub(crate) fn place(&self, arena: &Arc<Arena>) -> Option<u64> {
        let buffer = match &self.source {
            Source::Ready(buffer) => buffer,
            Source::Promised(promised) => promised.get()?,
            Source::Lent(..) => return None,
        };
        let start = buffer.place(arena)? + self.start;
        start.is_multiple_of(ALIGNMENT).then_some(start as u64)
    }

    /// Returns the length of the segment in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether the segment has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the segment's bytes.
    ///
    /// # Panics
    /// If the bytes are promised and have not been written yet; [`ready`](Self::ready) waits for them.
    pub fn as_bytes(&self) -> &[u8] {
        self.first_bytes(self.bytes)
    }

    /// Returns the bytes of the first of some segments, together with those of the next segments that follow
    /// in the same buffer and, on the wire, without padding. Also returns the number of these segments.
    ///
    /// # Panics
    /// If there is no segment, and as in [`as_bytes`](Self::as_bytes).
    pub(crate) fn adjoining(segments: &[Self]) -> (&[u8], usize) {
        let (first, mut bytes, mut count) = (&segments[0], segments[0].bytes, 1);
        let follows = |next: &Self, bytes: usize| {
            let is_next = next.start == first.start + bytes && bytes.is_multiple_of(ALIGNMENT);
            is_next && next.source.is_same_buffer(&first.source)
        };
        while let Some(next) = segments.get(count).filter(|next| follows(next, bytes)) {
            (bytes, count) = (bytes + next.bytes, count + 1);
        }
        (first.first_bytes(bytes), count)
    }

    /// Returns the bytes from the segment's beginning on, which may be more than its own.
    fn first_bytes(&self, bytes: usize) -> &[u8] {
        match &self.source {
            Source::Lent(region, _) => region.bytes(self.start, bytes),
            Source::Ready(buffer) => &buffer.as_bytes()[self.start..self.start + bytes],
            Source::Promised(promised) => {
                let buffer = promised.get().expect("a segment is read only when it is ready");
                &buffer.as_bytes()[self.start..self.start + bytes]
            }
        }
    }

    /// Returns the bytes as floats. If the length is not a multiple of 4, the bytes after the last whole
    /// float are left out.
    ///
    /// # Panics
    /// If the bytes are promised and have not been written yet, as in [`as_bytes`](Self::as_bytes).
    pub fn as_f32(&self) -> &[f32] {
        bytemuck::cast_slice(&self.as_bytes()[..self.bytes / 4 * 4])
    }

    /// Returns whether the bytes can be read.
    pub fn is_ready(&self) -> bool {
        match &self.source {
            Source::Ready(_) | Source::Lent(..) => true,
            Source::Promised(promised) => promised.get().is_some(),
        }
    }

    /// Returns when the promise of the bytes was kept; `None` if it is not kept, or if there was none.
    pub(super) fn kept_at(&self) -> Option<Instant> {
        match &self.source {
            Source::Ready(_) | Source::Lent(..) => None,
            Source::Promised(promised) => promised.kept_at(),
        }
    }

    /// Waits until the bytes can be read.
    ///
    /// # Errors
    /// Returns an error if the bytes were promised and their writer has failed.
    pub async fn ready(&self) -> Result<(), BrokenPromise> {
        match &self.source {
            Source::Ready(_) | Source::Lent(..) => Ok(()),
            Source::Promised(promised) => promised.kept().await,
        }
    }
}

impl Promise {
    /// Returns the segment of `bytes` bytes that begins at byte `start` of the promised buffer.
    ///
    /// # Panics
    /// If the range is not within the buffer, or if `start` is not a multiple of 4.
    pub fn segment(&self, start: usize, bytes: usize) -> Segment {
        Segment::within(Source::Promised(self.promised()), self.bytes(), start, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_its_own_range() {
        let mut buffer = Buffer::zeroed(200);
        buffer.as_f32_mut()[16] = 5.0;
        let segment = Segment::new(Arc::new(buffer), 64, 8);
        assert_eq!(segment.as_f32(), [5.0, 0.0]);
        assert_eq!(segment.as_bytes()[..4], 5.0f32.to_le_bytes());
    }

    #[test]
    fn segments_that_follow_each_other_are_read_together() {
        let mut buffer = Buffer::zeroed(448);
        buffer.as_bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let (promise, other) = (Promise::new(448), Arc::new(Buffer::zeroed(448)));
        let at = |(start, bytes): (usize, usize)| promise.segment(start, bytes);
        let mut segments = [(64, 64), (128, 128), (256, 60), (320, 64), (128, 64)].map(at).to_vec();
        segments.push(Segment::new(other, 192, 64));
        promise.keep(buffer);
        let mut rest = &segments[..];
        for (expected, count) in [(64..316, 3), (320..384, 1), (128..192, 1)] {
            let (bytes, together) = Segment::adjoining(rest);
            assert_eq!(bytes, expected.map(|at| at as u8).collect::<Vec<_>>());
            assert_eq!(together, count);
            rest = &rest[count..];
        }
        assert_eq!(Segment::adjoining(rest), (&[0; 64][..], 1), "it follows in another buffer");
    }

    #[test]
    #[should_panic(expected = "segment 64..80 is outside its buffer of 70 bytes")]
    fn a_segment_outside_its_buffer_panics() {
        let _ = Segment::new(Arc::new(Buffer::zeroed(70)), 64, 16);
    }
}
