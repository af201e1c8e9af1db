//! Reads any range of an object's bytes. This module must not depend on addresses.

use std::io;
use std::ops::Range;

use bytes::Bytes;

use super::pieces::{Fetch, PAUSE, attempt};
use super::runtime::wait;

/// A reader of the ranges of an object.
pub(crate) struct Ranges {
    fetch: Fetch,
}

impl Ranges {
    pub(super) fn new(fetch: Fetch) -> Self {
        Self { fetch }
    }

    /// Reads the bytes of `range`, and waits for them. Repeats the request if the store fails.
    ///
    /// # Errors
    /// If the store cannot be read, or if the object ends before `range` does.
    pub(crate) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let fetch = Fetch::clone(&self.fetch);
        wait(async move { attempt(&fetch, range, PAUSE).await })?
    }
}
