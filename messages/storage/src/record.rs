//! TFRecord's framing, for data files and event files. A record consists of the length, the length's
//! checksum, the data, and the data's checksum, all little-endian. No length is trusted before it is
//! checked.
//!
//! Properties: (A) a written record is read back; (B) a changed bit is detected.

use std::io::{self, Write};

/// The largest size of a record's data, in bytes. Decoding a record may briefly take twenty times as much
/// memory.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// The number of bytes before the data: those of the data's length and of the length's checksum.
pub const HEAD_BYTES: usize = 12;
/// The number of bytes after the data: those of the data's checksum.
pub const TAIL_BYTES: usize = 4;

/// A fault in a record's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A stored checksum does not match the bytes.
    #[error("the {part} has checksum {computed:#010x}, but the stored checksum is {stored:#010x}")]
    Checksum {
        /// The part whose checksum is wrong: the length or the data.
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

/// Returns the checksum as it is stored: crc32c, rotated, plus a constant. A plain crc32c would be weak for
/// data that itself contains checksums. See `tensorflow/core/lib/hash/crc32c.h`.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes one record.
///
/// # Errors
/// If the output fails; or [`io::ErrorKind::InvalidInput`] if the data are longer than [`RECORD_BYTES_MAX`],
/// because [`read_head`] refuses such a record.
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

/// Checks a record's head and returns the number of data bytes that follow it.
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
/// If the checksum does not match.
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
        /// Checks that a written record is read back (A), and that a flipped bit at a random place is
        /// detected (B).
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
