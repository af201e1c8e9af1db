//! Which part of which batch a device has before its step. This module must not depend on devices.

/// The part of a batch that was copied to a device before its step. Only one program of a device trains, so
/// the columns are those that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// The number of the batch.
    pub number: u64,
    /// The first example of the part.
    pub first: usize,
    /// The number of examples in the part.
    pub examples: usize,
}
