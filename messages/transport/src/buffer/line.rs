//! A cache line, the unit of all buffers.

use bytemuck::{Pod, Zeroable};
use pushpull_messages::tensor::ALIGNMENT;

/// One cache line. A vector of lines is aligned to a cache line without unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; ALIGNMENT]);
