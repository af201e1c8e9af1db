//! A buffer that is given out in parts, which several threads may write at the same time. Slices cannot
//! express this, because a part may outlive the call that gives it out.
//!
//! Wanted properties: (A) no two parts overlap; (B) the buffer is returned only when no part is left.

use std::sync::Arc;

use super::aligned::Buffer;

/// A buffer that is given out in parts, from its beginning on.
pub struct Parts {
    whole: Arc<Whole>,
    floats: usize,
    /// The number of floats in the parts that were given out.
    given: usize,
}

/// A part of a buffer. Only its owner can access it.
pub struct Part {
    whole: Arc<Whole>,
    start: usize,
    floats: usize,
}

struct Whole {
    buffer: Buffer,
    first: First,
}

/// Where the first float of a buffer is.
struct First(*mut f32);

// SAFETY: any thread may use the pointer, because the buffer that it leads to may be used by any thread. Each
// float is accessed by the owner of one part.
#[expect(unsafe_code)]
unsafe impl Send for First {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for First {}

impl Parts {
    /// Returns a buffer no part of which is given out yet.
    pub fn new(mut buffer: Buffer) -> Self {
        let floats = buffer.as_f32_mut().len();
        let mut whole = Arc::new(Whole { buffer, first: First(std::ptr::null_mut()) });
        // The buffer must not move after this, so the pointer is set when it is in its place.
        let own = Arc::get_mut(&mut whole).expect("it has just been made");
        own.first.0 = own.buffer.as_f32_mut().as_mut_ptr();
        Self { whole, floats, given: 0 }
    }

    /// Returns the next part, which has `floats` floats.
    ///
    /// # Panics
    /// If fewer are left.
    pub fn next_part(&mut self, floats: usize) -> Part {
        let left = self.floats - self.given;
        assert!(floats <= left, "a part of {floats} floats, expected at most {left}");
        let start = self.given;
        self.given += floats;
        Part { whole: Arc::clone(&self.whole), start, floats }
    }

    /// Returns the number of floats in the parts that were given out.
    pub const fn given(&self) -> usize {
        self.given
    }

    /// Returns the buffer.
    ///
    /// # Errors
    /// Returns this value while a part is left.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        let Self { whole, floats, given } = self;
        let buffer = Arc::try_unwrap(whole).map(|whole| whole.buffer);
        buffer.map_err(|whole| Self { whole, floats, given })
    }
}

impl Part {
    /// Returns the floats of this part.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: the range is within the buffer, which lives as long as a part of it. `next_part` gives each
        // float to one part, which the caller borrows as a whole.
        #[expect(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.whole.first.0.add(self.start), self.floats)
        }
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parts({} of {} floats given out)", self.given, self.floats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;

    #[test]
    fn threads_write_parts_of_a_buffer() {
        let pool = BufferPool::new(1 << 20);
        let mut parts = Parts::new(pool.take(4003));
        let sizes = [0, 400, 1, 599];
        let writers = sizes.map(|floats| {
            let mut part = parts.next_part(floats);
            std::thread::spawn(move || part.as_f32_mut().fill(floats as f32))
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let buffer = parts.into_buffer().expect("no part is left");
        let expected: Vec<f32> = sizes.iter().flat_map(|&floats| vec![floats as f32; floats]).collect();
        assert_eq!(buffer.as_f32(), expected);
        assert_eq!(buffer.len(), 4003);
    }

    #[test]
    fn the_buffer_is_whole_when_no_part_is_left() {
        let mut parts = Parts::new(Buffer::zeroed(16));
        let [first, second] = [(); 2].map(|()| parts.next_part(2));
        drop(first);
        let parts = parts.into_buffer().expect_err("a part is left");
        drop(second);
        assert_eq!(parts.into_buffer().unwrap().len(), 16);
    }

    #[test]
    #[should_panic(expected = "a part of 2 floats, expected at most 1")]
    fn a_part_beyond_the_buffer_panics() {
        let mut parts = Parts::new(Buffer::zeroed(12));
        let _ = parts.next_part(2);
        let _ = parts.next_part(2);
    }

    #[test]
    fn a_lost_part_gives_its_memory_back() {
        let pool = BufferPool::new(1 << 20);
        let mut parts = Parts::new(pool.take(64));
        let part = parts.next_part(16);
        drop(parts);
        assert_eq!(pool.bytes_kept(), 0);
        drop(part);
        assert_eq!(pool.bytes_kept(), 64);
    }
}
