//! The raw tensor bytes that travel beside a message: shared segments, never copied, never seen by serde.

use std::sync::Arc;

use super::promise::Promised;
use pushpull_messages::tensor::ALIGNMENT;

use super::{BrokenPromise, Buffer};

/// A run of bytes of a shared buffer: one slice of a variable, or of its gradient.
#[derive(Clone, Debug)]
pub struct Segment {
    source: Source,
    start: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Source {
    Here(Arc<Buffer>),
    /// Still being written.
    Promised(Promised),
}

impl Segment {
    /// `bytes` bytes from `start` on.
    ///
    /// # Panics
    /// Where that lies outside of the buffer, or `start` is not that of a float.
    pub fn new(buffer: Arc<Buffer>, start: usize, bytes: usize) -> Self {
        let all = buffer.len();
        Self::within(Source::Here(buffer), all, start, bytes)
    }

    /// The same of a buffer that is still being written.
    pub(super) fn promised(promised: Promised, all: usize, start: usize, bytes: usize) -> Self {
        Self::within(Source::Promised(promised), all, start, bytes)
    }

    fn within(source: Source, all: usize, start: usize, bytes: usize) -> Self {
        assert!(start.is_multiple_of(4), "segment starts at {start}, within a float");
        let end = start.checked_add(bytes).expect("a segment's end fits in usize");
        assert!(end <= all, "segment {start}..{end} of {all} bytes");
        Self { source, start, bytes }
    }

    /// All of a buffer.
    pub fn whole(buffer: Arc<Buffer>) -> Self {
        let bytes = buffer.len();
        Self { source: Source::Here(buffer), start: 0, bytes }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes.
    ///
    /// # Panics
    /// Where they are promised, and not there yet: [`ready`](Self::ready) waits for them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer().as_bytes()[self.start..self.start + self.bytes]
    }

    /// The floats; bytes beyond the last whole float are left out.
    ///
    /// # Panics
    /// As [`as_bytes`](Self::as_bytes).
    pub fn as_f32(&self) -> &[f32] {
        let first = self.start / 4;
        &self.buffer().as_f32()[first..first + self.bytes / 4]
    }

    fn buffer(&self) -> &Arc<Buffer> {
        match &self.source {
            Source::Here(buffer) => buffer,
            Source::Promised(promised) => promised.get().expect("a segment is read when it is ready"),
        }
    }

    /// Whether it is there.
    pub fn is_ready(&self) -> bool {
        match &self.source {
            Source::Here(_) => true,
            Source::Promised(promised) => promised.get().is_some(),
        }
    }

    /// Waits until it is there.
    ///
    /// # Errors
    /// Where it never will be.
    pub async fn ready(&self) -> Result<(), BrokenPromise> {
        match &self.source {
            Source::Here(_) => Ok(()),
            Source::Promised(promised) => promised.kept().await,
        }
    }
}

/// What travels beside a message. On the wire every segment begins at a multiple of [`ALIGNMENT`].
#[derive(Clone, Debug, Default)]
pub struct Payload {
    segments: Vec<Segment>,
}

impl Payload {
    /// Nothing.
    pub const EMPTY: Self = Self { segments: Vec::new() };

    /// These segments, in order.
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments }
    }

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segments, to keep.
    pub fn into_segments(self) -> Vec<Segment> {
        self.segments
    }

    /// Waits until all segments are there.
    ///
    /// # Errors
    /// Where one of them never will be.
    pub async fn ready(&self) -> Result<(), BrokenPromise> {
        for segment in &self.segments {
            segment.ready().await?;
        }
        Ok(())
    }

    /// Bytes of all segments, without padding.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// Where segments of these lengths lie when each begins on a cache line: the starts, and the bytes in all.
/// The last one is not padded. `None` where the sum does not fit in a `u64`.
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
    fn segments_see_their_own_part() {
        let mut buffer = Buffer::zeroed(200);
        buffer.as_f32_mut()[16] = 5.0;
        let segment = Segment::new(Arc::new(buffer), 64, 8);
        assert_eq!(segment.as_f32(), [5.0, 0.0]);
        assert_eq!(segment.as_bytes()[..4], 5.0f32.to_le_bytes());
    }

    #[test]
    fn layout_aligns_every_start_and_refuses_overflow() {
        assert_eq!(payload_layout([]), Some((vec![], 0)));
        assert_eq!(payload_layout([10, 64, 1]), Some((vec![0, 64, 128], 129)));
        assert_eq!(payload_layout([u64::MAX, 1]), None);
        assert_eq!(payload_layout([64, u64::MAX - 64]), Some((vec![0, 64], u64::MAX)));
    }

    #[test]
    #[should_panic(expected = "segment 64..80 of 70 bytes")]
    fn a_segment_outside_of_its_buffer_is_our_bug() {
        let _ = Segment::new(Arc::new(Buffer::zeroed(70)), 64, 16);
    }
}
