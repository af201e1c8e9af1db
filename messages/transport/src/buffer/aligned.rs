//! A buffer that begins on a cache line, so that it can be read as f32 or i32 in place.

use std::fmt;
use std::sync::Arc;

use pushpull_messages::tensor::ALIGNMENT;

use super::budget::Credit;
use super::free_list::{FreeList, Lines, lines_for};
use super::shared_memory::Arena;

/// A buffer that begins on a cache line. When it is dropped, it returns to its pool, if it has one.
pub struct Buffer {
    lines: Lines,
    bytes: usize,
    free_list: Option<FreeList>,
    /// The credit that was taken from a budget for the buffer's bytes. It is held until the memory is freed
    /// or goes back to the pool.
    credit: Option<Credit>,
}

impl Buffer {
    /// Returns a buffer of `bytes` zero bytes that belongs to no pool.
    pub fn zeroed(bytes: usize) -> Self {
        Self::from_lines(Lines::fresh(lines_for(bytes)), bytes, None)
    }

    /// Returns a buffer that contains a copy of these bytes and belongs to no pool.
    pub fn copied(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_bytes_mut().copy_from_slice(bytes);
        buffer
    }

    /// Returns a buffer that contains these floats and belongs to no pool.
    pub fn from_f32(values: &[f32]) -> Self {
        let mut buffer = Self::zeroed(size_of_val(values));
        buffer.as_f32_mut().copy_from_slice(values);
        buffer
    }

    pub(super) fn from_lines(lines: Lines, bytes: usize, free_list: Option<FreeList>) -> Self {
        debug_assert!(bytes <= lines.get().len() * ALIGNMENT);
        Self { lines, bytes, free_list, credit: None }
    }

    /// Returns where the buffer begins in `arena`, in bytes; `None` if it is elsewhere.
    pub(super) fn place(&self, arena: &Arc<Arena>) -> Option<usize> {
        self.lines.place(arena)
    }

    /// Attaches the credit that was taken from a budget for this buffer. The credit goes back to the budget
    /// when the buffer is dropped.
    #[must_use]
    pub fn with_credit(mut self, credit: Credit) -> Self {
        self.credit = Some(credit);
        self
    }

    /// Returns the length of the buffer in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the buffer's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(self.lines.get())[..self.bytes]
    }

    /// Returns the buffer's bytes for writing.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(self.lines.get_mut())[..self.bytes]
    }

    /// Returns the bytes as floats for writing. If the length is not a multiple of 4, the bytes after the
    /// last whole float are left out.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        let whole = self.bytes / 4;
        &mut bytemuck::cast_slice_mut(self.lines.get_mut())[..whole]
    }

    /// Returns the bytes as floats. If the length is not a multiple of 4, the bytes after the last whole
    /// float are left out.
    pub fn as_f32(&self) -> &[f32] {
        &bytemuck::cast_slice(self.lines.get())[..self.bytes / 4]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(free_list) = self.free_list.take() {
            free_list.put(std::mem::take(&mut self.lines));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_reads_back_as_floats() {
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
