//! Unpacks zstd files. A file may have any number of frames. If a frame has a checksum, the frame's data are
//! checked against it. This module must not depend on files or formats.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The first bytes of a zstd file (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Returns true if a file that begins with these bytes is a zstd file. A zstd file may also begin with a
/// frame that decoders skip (RFC 8878, section 3.1.2).
pub(super) fn is_zstd(first: [u8; 4]) -> bool {
    first == ZSTD_MAGIC || (first[0] & 0xf0 == 0x50 && first[1..] == [0x2a, 0x4d, 0x18])
}

/// A reader of the unpacked bytes of zstd frames. Its memory is bounded by the window of a frame, at most
/// 128 MiB.
pub(super) struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    /// True while a frame is being decoded.
    inside: bool,
}

impl<R: BufRead> ZstdReader<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), inside: false }
    }

    /// Begins the next frame that has data. Returns false at the end of the input.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => {
                    self.inside = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }

    /// Checks the checksum of the frame that ended.
    fn end(&mut self) -> io::Result<()> {
        self.inside = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(invalid("the checksum of a zstd frame does not match its data"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.inside && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.inside && self.decoder.is_finished() {
                self.end()?;
            }
            if !self.inside && !self.begin()? {
                return Ok(0);
            }
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.source, strategy).map_err(invalid)?;
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        ZstdReader::new(bytes).read_to_end(&mut data).map(|_| data)
    }

    fn pack(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    proptest! {
        #[test]
        fn frames_come_back_one_after_the_other(
            parts in prop::collection::vec(prop::collection::vec(0u8..9, 0..2000), 1..4), gap in 0usize..20,
        ) {
            let mut packed = Vec::new();
            for part in &parts {
                packed.extend(pack(part));
                // A frame that a decoder skips: RFC 8878, section 3.1.2.
                packed.extend([0x5a, 0x2a, 0x4d, 0x18, gap as u8, 0, 0, 0]);
                packed.extend(vec![7; gap]);
            }
            prop_assert_eq!(unpack(&packed).unwrap(), parts.concat());
        }

        #[test]
        fn damaged_bytes_never_panic(at in 0usize..400, flip in 1u8..=255, cut in 0usize..400) {
            let mut packed = pack(&[b"one two three four ".as_slice(), &[0; 300], b"five six"].concat());
            let (at, cut) = (at % packed.len(), cut % packed.len());
            packed[at] ^= flip;
            let _ = unpack(&packed);
            let _ = unpack(&packed[..cut]);
        }
    }

    /// Builds the input by hand, as RFC 8878 defines it in section 3.1.1: the magic number, the header of
    /// the frame, one raw block, and the checksum.
    #[test]
    fn a_wrong_checksum_is_found() {
        let frame =
            |checksum: [u8; 4]| [&ZSTD_MAGIC[..], &[0x24, 3], &[0x19, 0, 0], b"abc", &checksum].concat();
        let checksum = (xxh64_of_abc() as u32).to_le_bytes();
        assert_eq!(unpack(&frame(checksum)).unwrap(), b"abc");
        assert!(unpack(&frame([checksum[0] ^ 1, checksum[1], checksum[2], checksum[3]])).is_err());
    }

    /// Returns the XXH64 hash of the bytes "abc" with seed 0, from the test vectors of xxHash.
    const fn xxh64_of_abc() -> u64 {
        0x44bc_2cf5_ad77_0999
    }
}
