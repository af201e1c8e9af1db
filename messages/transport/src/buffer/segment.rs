//! A range of a buffer. The buffer is shared, and its writer may not have finished yet. This module does not
//! interpret the bytes.

use std::sync::Arc;

use super::aligned::Buffer;
use super::promise::{BrokenPromise, Promise, Promised};

/// A range of a shared buffer: one slice of a variable, or of its gradient.
#[derive(Clone, Debug)]
pub struct Segment {
    source: Source,
    start: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Source {
    Ready(Arc<Buffer>),
    /// The buffer is promised: its writer may not have finished yet.
    Promised(Promised),
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
        &self.buffer().as_bytes()[self.start..self.start + self.bytes]
    }

    /// Returns the bytes as floats. If the length is not a multiple of 4, the bytes after the last whole
    /// float are left out.
    ///
    /// # Panics
    /// If the bytes are promised and have not been written yet, as in [`as_bytes`](Self::as_bytes).
    pub fn as_f32(&self) -> &[f32] {
        let first = self.start / 4;
        &self.buffer().as_f32()[first..first + self.bytes / 4]
    }

    fn buffer(&self) -> &Arc<Buffer> {
        match &self.source {
            Source::Ready(buffer) => buffer,
            Source::Promised(promised) => promised.get().expect("a segment is read only when it is ready"),
        }
    }

    /// Returns whether the bytes can be read.
    pub fn is_ready(&self) -> bool {
        match &self.source {
            Source::Ready(_) => true,
            Source::Promised(promised) => promised.get().is_some(),
        }
    }

    /// Waits until the bytes can be read.
    ///
    /// # Errors
    /// Returns an error if the bytes were promised and their writer has failed.
    pub async fn ready(&self) -> Result<(), BrokenPromise> {
        match &self.source {
            Source::Ready(_) => Ok(()),
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
    #[should_panic(expected = "segment 64..80 is outside its buffer of 70 bytes")]
    fn a_segment_outside_its_buffer_panics() {
        let _ = Segment::new(Arc::new(Buffer::zeroed(70)), 64, 16);
    }
}
