//! TFRecord's framing, which data files and event files share: length, its checksum, data, its checksum, all
//! little-endian. Trusts no length; knows neither files nor the contents of a record.
//!
//! Properties: (A) a written record is read back; (B) a changed bit is detected.

use std::io::{self, Write};

/// The most bytes of a record's data. Decoding may briefly take twenty times as much memory.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// The bytes before the data: its length and the checksum of the length.
pub const HEAD_BYTES: usize = 12;
/// The bytes after the data: its checksum.
pub const TAIL_BYTES: usize = 4;

/// A fault in a record's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A stored checksum does not match the bytes.
    #[error("the {part} has checksum {computed:#010x}, expected {stored:#010x} as stored")]
    Checksum {
        /// The part that is checked: the length or the data.
        part: &'static str,
        /// The checksum that was read.
        stored: u32,
        /// The checksum of the bytes that were read.
        computed: u32,
    },
    /// The record is longer than the limit.
    #[error("the record has {bytes} bytes, expected at most {RECORD_BYTES_MAX}")]
    TooLong {
        /// The length that the record declares.
        bytes: u64,
    },
}

/// Returns the checksum as it is stored: crc32c, rotated and offset, so that data that contains checksums is
/// checked as well. See `tensorflow/core/lib/hash/crc32c.h`.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes one record.
///
/// # Errors
/// Any error of the output; `InvalidInput` for data longer than [`RECORD_BYTES_MAX`], which readers here
/// refuse.
pub fn write(output: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    if data.len() as u64 > RECORD_BYTES_MAX {
        let text = format!("the record has {} bytes, expected at most {RECORD_BYTES_MAX}", data.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let length = (data.len() as u64).to_le_bytes();
    output.write_all(&length)?;
    output.write_all(&masked_crc32c(&length).to_le_bytes())?;
    output.write_all(data)?;
    output.write_all(&masked_crc32c(data).to_le_bytes())
}

/// Returns the number of data bytes that follow this head.
///
/// # Errors
/// If the checksum does not match or the record is too long.
pub fn read_head(head: [u8; HEAD_BYTES]) -> Result<usize, FrameError> {
    let (length, checksum) = head.split_at(8);
    check("length", length, checksum.try_into().expect("4 bytes"))?;
    let bytes = u64::from_le_bytes(length.try_into().expect("8 bytes"));
    if bytes > RECORD_BYTES_MAX {
        return Err(FrameError::TooLong { bytes });
    }
    Ok(bytes as usize)
}

/// Checks the data against the checksum in the tail.
///
/// # Errors
/// If it does not match.
pub fn check_data(data: &[u8], tail: [u8; TAIL_BYTES]) -> Result<(), FrameError> {
    check("data", data, tail)
}

fn check(part: &'static str, bytes: &[u8], checksum: [u8; 4]) -> Result<(), FrameError> {
    let (stored, computed) = (u32::from_le_bytes(checksum), masked_crc32c(bytes));
    if stored == computed { Ok(()) } else { Err(FrameError::Checksum { part, stored, computed }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(frame: &[u8]) -> Result<&[u8], FrameError> {
        let bytes = read_head(frame[..HEAD_BYTES].try_into().unwrap())?;
        let (data, tail) = frame[HEAD_BYTES..].split_at(bytes);
        check_data(data, tail.try_into().unwrap())?;
        Ok(data)
    }

    proptest! {
        /// (A) and (B).
        #[test]
        fn records_round_trip_and_changed_bits_are_detected(
            data in prop::collection::vec(any::<u8>(), 0..100),
            at: prop::sample::Index,
            bit in 0..8,
        ) {
            let mut frame = Vec::new();
            write(&mut frame, &data).unwrap();
            prop_assert_eq!(frame.len(), HEAD_BYTES + data.len() + TAIL_BYTES);
            prop_assert_eq!(read(&frame), Ok(&data[..]));
            let at = at.index(frame.len());
            frame[at] ^= 1u8 << bit;
            let detected = matches!(read(&frame), Err(FrameError::Checksum { .. }));
            prop_assert!(detected, "{:?}", read(&frame));
        }
    }

    #[test]
    fn a_declared_length_is_not_trusted() {
        let claim = |bytes: u64| {
            let length = bytes.to_le_bytes();
            let head: Vec<u8> = [&length[..], &masked_crc32c(&length).to_le_bytes()].concat();
            read_head(head.try_into().unwrap())
        };
        assert_eq!(claim(RECORD_BYTES_MAX), Ok(RECORD_BYTES_MAX as usize));
        for bytes in [RECORD_BYTES_MAX + 1, u64::MAX] {
            assert_eq!(claim(bytes), Err(FrameError::TooLong { bytes }));
        }
        let long = vec![0; RECORD_BYTES_MAX as usize + 1];
        assert!(write(&mut io::sink(), &long).is_err());
    }
}
