//! The working memory of a program: floats that begin on a cache line. This module must not know what the
//! floats stand for.

use bytemuck::{Pod, Zeroable};

/// The maximum size of an arena, in floats: 16 GiB.
pub(super) const ARENA_ELEMENTS_MAX: usize = 1 << 32;

/// The number of floats in a cache line of 64 bytes.
const LINE_FLOATS: usize = 16;

/// One cache line. A vector of cache lines is aligned without unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE_FLOATS]);

/// Floats in memory that begins at a multiple of 64 bytes.
pub(super) struct Arena {
    lines: Vec<Line>,
    floats: usize,
}

impl Arena {
    /// Allocates `floats` zeros. Large allocations take no physical memory until they are written.
    pub fn zeroed(floats: usize) -> Self {
        Self { lines: bytemuck::zeroed_vec(floats.div_ceil(LINE_FLOATS)), floats }
    }

    /// Returns all floats of the arena for writing.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.floats]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_begins_on_a_cache_line() {
        for floats in [0, 1, 15, 16, 17, 1024] {
            let mut arena = Arena::zeroed(floats);
            let all = arena.floats_mut();
            assert_eq!(all.len(), floats);
            assert_eq!(all.as_ptr() as usize % 64, 0);
            assert!(all.iter().all(|&x| x == 0.0));
        }
    }
}
