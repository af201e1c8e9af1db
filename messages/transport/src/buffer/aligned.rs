//! A run of bytes that begins on a cache line, so that it can be read as f32 or i32 in place.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use pushpull_messages::tensor::ALIGNMENT;

use super::budget::Credit;
use super::pool::BufferPool;

/// One cache line. A vector of these is aligned without a line of unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; ALIGNMENT]);

/// Bytes that begin on a cache line. Goes back to its pool, if it has one, when dropped.
pub struct Buffer {
    lines: Vec<Line>,
    bytes: usize,
    pool: Option<BufferPool>,
    /// Held as long as the memory is.
    credit: Option<Credit>,
}

impl Buffer {
    /// `bytes` bytes, all 0, of no pool.
    pub fn zeroed(bytes: usize) -> Self {
        Self::from_lines(fresh_lines(lines_for(bytes)), bytes, None)
    }

    /// The bytes of these floats.
    pub fn from_f32(values: &[f32]) -> Self {
        let mut buffer = Self::zeroed(size_of_val(values));
        buffer.as_f32_mut().copy_from_slice(values);
        buffer
    }

    pub(super) fn from_lines(lines: Vec<Line>, bytes: usize, pool: Option<BufferPool>) -> Self {
        debug_assert!(bytes <= lines.len() * ALIGNMENT);
        Self { lines, bytes, pool, credit: None }
    }

    /// With the bytes that were taken from a budget for it, to be given back with its memory.
    #[must_use]
    pub fn with_credit(mut self, credit: Credit) -> Self {
        self.credit = Some(credit);
        self
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// To read.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    /// To write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    /// To write as floats; bytes beyond the last whole float are left out.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        let whole = self.bytes / 4;
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..whole]
    }

    /// To read as floats; bytes beyond the last whole float are left out.
    pub fn as_f32(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes / 4]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(std::mem::take(&mut self.lines));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

pub(super) const fn lines_for(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT)
}

/// From the system as zeros: large ones cost nothing until they are touched.
pub(super) fn fresh_lines(lines: usize) -> Vec<Line> {
    bytemuck::zeroed_vec(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_on_a_cache_line_and_reads_back_as_floats() {
        for bytes in [0, 1, 4, 63, 64, 65, 4096] {
            let buffer = Buffer::zeroed(bytes);
            assert_eq!(buffer.as_bytes().len(), bytes);
            assert!(buffer.as_bytes().iter().all(|&byte| byte == 0));
            assert_eq!(buffer.as_bytes().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.as_f32().len(), bytes / 4);
        }
        let buffer = Buffer::from_f32(&[1.0, -2.0]);
        assert_eq!(buffer.as_f32(), [1.0, -2.0]);
        assert_eq!(buffer.as_bytes()[..4], 1.0f32.to_le_bytes());
    }
}
