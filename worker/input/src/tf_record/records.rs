//! The records of a TFRecord file, one after the other.
//! Knows not what is in a record.

use std::path::Path;

use pushpull_storage::record::{FrameError, HEAD_BYTES, RECORD_BYTES_MAX, TAIL_BYTES, check_data, read_head};

use crate::unpacked::Unpacked;
use crate::{InputError, RecordError};

/// Records of a file, one after the other.
pub(super) struct Records {
    input: Unpacked,
    /// How many have been read.
    number: u64,
    /// Where the last one begins.
    offset: u64,
    data: Vec<u8>,
}

impl Records {
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        Ok(Self { input: Unpacked::open(path)?, number: 0, offset: 0, data: Vec::new() })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        self.input.path()
    }

    /// The data of the next record; `None` at the file's end.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, InputError> {
        self.offset = self.input.offset();
        let mut head = [0; HEAD_BYTES];
        match self.input.fill(&mut head)? {
            0 => return Ok(None),
            HEAD_BYTES => {}
            got => return Err(self.short("a length and its checksum", HEAD_BYTES, got)),
        }
        let bytes = read_head(head).map_err(|error| self.bad(error.into()))?;
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        let got = self.input.append(bytes, &mut data)?;
        if got < bytes {
            return Err(self.short("data", bytes, got));
        }
        let mut tail = [0; TAIL_BYTES];
        match self.input.fill(&mut tail)? {
            TAIL_BYTES => check_data(&data, tail).map_err(|error| self.bad(error.into()))?,
            got => return Err(self.short("the data's checksum", TAIL_BYTES, got)),
        }
        self.number += 1;
        self.data = data;
        Ok(Some(&self.data))
    }

    /// What is wrong with the record that was read last.
    pub(super) fn bad_last(&self, problem: RecordError) -> InputError {
        let file = self.input.path().to_path_buf();
        InputError::Record { file, record: self.number - 1, offset: self.offset, problem: Box::new(problem) }
    }

    /// What is wrong with the record that is being read.
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
