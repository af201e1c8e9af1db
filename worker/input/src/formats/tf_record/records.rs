//! Reads the records of a TFRecord file. This module must not depend on the contents of the records.

use std::path::Path;

use pushpull_storage::record::{FrameError, HEAD_BYTES, RECORD_BYTES_MAX, TAIL_BYTES, check_data, read_head};

use crate::unpacked::Unpacked;
use crate::{InputError, RecordError};

/// A reader that returns the records of a file one at a time.
pub(super) struct Records {
    input: Unpacked,
    /// The number of records that have been read.
    number: u64,
    /// The offset of the last record read, in unpacked bytes.
    offset: u64,
    data: Vec<u8>,
    /// True if the start of the next record is known. It may be known even if the last record read is
    /// damaged.
    in_step: bool,
}

impl Records {
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        Ok(Self { input: Unpacked::open(path)?, number: 0, offset: 0, data: Vec::new(), in_step: true })
    }

    /// Returns the path of the opened file. Its ending may differ from that of the requested path.
    pub(super) fn path(&self) -> &Path {
        self.input.path()
    }

    /// Returns true if [`next`](Self::next) can go on after its last error: the damage lies within one
    /// record, and the start of the next record is known.
    pub(super) fn in_step(&self) -> bool {
        self.in_step
    }

    /// Returns the offset of the last record read, in unpacked bytes.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the data of the next record; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, InputError> {
        let Some(bytes) = self.head()? else { return Ok(None) };
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        let got = self.input.append(bytes, &mut data)?;
        if got < bytes {
            return Err(self.short("data", bytes, got));
        }
        let mut tail = [0; TAIL_BYTES];
        let got = self.input.fill(&mut tail)?;
        if got < TAIL_BYTES {
            return Err(self.short("the data's checksum", TAIL_BYTES, got));
        }
        self.in_step = true;
        let checked = check_data(&data, tail).map_err(|error| self.bad(error.into()));
        self.number += 1;
        self.data = data;
        checked.map(|()| Some(&self.data[..]))
    }

    /// Skips the next record without checking its data. Returns false at the end of the file.
    pub(super) fn skip(&mut self) -> Result<bool, InputError> {
        let Some(bytes) = self.head()? else { return Ok(false) };
        let got = self.input.discard(bytes + TAIL_BYTES)?;
        if got < bytes + TAIL_BYTES {
            return Err(self.short("data and their checksum", bytes + TAIL_BYTES, got));
        }
        self.in_step = true;
        self.number += 1;
        Ok(true)
    }

    /// Reads the head of the next record, and returns the number of bytes of its data; `None` at the end of
    /// the file.
    fn head(&mut self) -> Result<Option<usize>, InputError> {
        self.offset = self.input.offset();
        self.in_step = false;
        let mut head = [0; HEAD_BYTES];
        match self.input.fill(&mut head)? {
            0 => Ok(None),
            HEAD_BYTES => read_head(head).map(Some).map_err(|error| self.bad(error.into())),
            got => Err(self.short("a length and its checksum", HEAD_BYTES, got)),
        }
    }

    /// Returns an error about the last record that [`next`](Self::next) returned.
    pub(super) fn bad_last(&self, problem: RecordError) -> InputError {
        let file = self.input.path().to_path_buf();
        InputError::Record { file, record: self.number - 1, offset: self.offset, problem: Box::new(problem) }
    }

    /// Returns an error about the record that is currently being read.
    fn bad(&self, problem: RecordError) -> InputError {
        let file = self.input.path().to_path_buf();
        InputError::Record { file, record: self.number, offset: self.offset, problem: Box::new(problem) }
    }

    fn short(&self, part: &'static str, expected: usize, got: usize) -> InputError {
        self.bad(RecordError::Short { part, expected: expected as u64, got: got as u64 })
    }
}

impl From<FrameError> for RecordError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Checksum { part, stored, computed } => Self::Checksum { part, stored, computed },
            FrameError::TooLong { bytes } => Self::TooLong { bytes, max: RECORD_BYTES_MAX },
        }
    }
}
