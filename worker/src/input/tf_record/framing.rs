//! The framing of TFRecord files: length, its checksum, data, its checksum, all little-endian. Trusts nothing.
//! Knows not what is in a record.

use std::path::Path;

use crate::input::unpacked::Unpacked;
use crate::input::{InputError, RecordError};

/// Most bytes of a record's data: decoded, they may take twenty times as much for a moment.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;

/// The checksum as it is stored: crc32c, turned and shifted, so that a checksum of bytes that contain checksums is
/// no worse. See `tensorflow/core/lib/hash/crc32c.h`.
pub(super) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

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
        let mut head = [0; 12];
        match self.input.fill(&mut head)? {
            0 => return Ok(None),
            12 => {}
            got => return Err(self.short("a length and its checksum", 12, got)),
        }
        let (length, checksum) = head.split_at(8);
        self.check("length", length, checksum)?;
        let bytes = u64::from_le_bytes(length.try_into().expect("8 bytes"));
        if bytes > RECORD_BYTES_MAX {
            return Err(self.bad(RecordError::TooLong { bytes, max: RECORD_BYTES_MAX }));
        }
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        let got = self.input.append(bytes as usize, &mut data)?;
        if got < bytes as usize {
            return Err(self.short("data", bytes, got));
        }
        let mut checksum = [0; 4];
        match self.input.fill(&mut checksum)? {
            4 => self.check("data", &data, &checksum)?,
            got => return Err(self.short("the data's checksum", 4, got)),
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

    fn short(&self, part: &'static str, expected: u64, got: usize) -> InputError {
        self.bad(RecordError::Short { part, expected, got: got as u64 })
    }

    fn check(&self, part: &'static str, bytes: &[u8], checksum: &[u8]) -> Result<(), InputError> {
        let stored = u32::from_le_bytes(checksum.try_into().expect("4 bytes"));
        let computed = masked_crc32c(bytes);
        if stored == computed {
            Ok(())
        } else {
            Err(self.bad(RecordError::Checksum { part, stored, computed }))
        }
    }
}
