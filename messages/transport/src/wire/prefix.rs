//! The prefix of a frame, which has a fixed size. It states how many bytes follow, so that a frame that is
//! too large is refused before it is read.

use super::error::WireError;
use super::limits::Limits;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::PROTOCOL;

/// The length of a prefix in bytes.
pub const PREFIX_BYTES: usize = 40;
/// The first four bytes of every frame: "PPUL", read as a little-endian number.
const MAGIC: u32 = u32::from_le_bytes(*b"PPUL");
/// The flag that says that the prefix contains the payload's crc32c.
const FLAG_PAYLOAD_CRC: u32 = 1;
/// The number of bytes before the checksum, which is at the end of the prefix.
const CHECKED_BYTES: usize = PREFIX_BYTES - 4;

/// The prefix of a frame, which states the sizes of the header and the payload, and the kind of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The kind of the message in the header.
    pub kind: u16,
    /// The id of the request. An answer has the same id as the request that it answers.
    pub request: RequestId,
    /// The size of the header in bytes.
    pub header_bytes: u32,
    /// The size of the payload in bytes, including the padding between segments.
    pub payload_bytes: u64,
    /// The payload's crc32c, if the sender computes it.
    pub payload_crc: Option<u32>,
}

impl Prefix {
    /// Encodes the prefix, with the checksum over the prefix and `header`.
    pub fn encode(&self, header: &[u8]) -> [u8; PREFIX_BYTES] {
        debug_assert_eq!(header.len(), self.header_bytes as usize);
        let mut bytes = [0; PREFIX_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&PROTOCOL.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_le_bytes());
        let flags = if self.payload_crc.is_some() { FLAG_PAYLOAD_CRC } else { 0 };
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.request.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.header_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.unwrap_or(0).to_le_bytes());
        let crc = checksum(&bytes, header);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a prefix, and checks it against `limits`.
    ///
    /// # Errors
    /// Returns the first fault in the order of the bytes: wrong first bytes, a different version,
    /// unknown flags, or a size beyond the limits.
    pub fn decode(bytes: &[u8; PREFIX_BYTES], limits: &Limits) -> Result<Self, WireError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(0) != MAGIC {
            return Err(WireError::Magic { expected: MAGIC, got: u32_at(0) });
        }
        if u16_at(4) != PROTOCOL {
            return Err(WireError::Version { expected: PROTOCOL, got: u16_at(4) });
        }
        let flags = u32_at(8);
        if flags & !FLAG_PAYLOAD_CRC != 0 {
            return Err(WireError::Flags(flags));
        }
        let (header_bytes, payload_bytes) = (u32_at(20), u64_at(24));
        for (what, max, got) in [
            ("header", u64::from(limits.header_bytes_max), u64::from(header_bytes)),
            ("payload", limits.payload_bytes_max, payload_bytes),
        ] {
            if got > max {
                return Err(WireError::TooLarge { what, max, got });
            }
        }
        Ok(Self {
            kind: u16_at(6),
            request: RequestId(u64_at(12)),
            header_bytes,
            payload_bytes,
            payload_crc: (flags & FLAG_PAYLOAD_CRC != 0).then(|| u32_at(32)),
        })
    }

    /// Checks the checksum over prefix and header.
    ///
    /// # Errors
    /// Returns an error if the checksum does not match.
    pub fn check_header(bytes: &[u8; PREFIX_BYTES], header: &[u8]) -> Result<(), WireError> {
        let expected = u32::from_le_bytes(bytes[CHECKED_BYTES..].try_into().expect("4 bytes"));
        let got = checksum(bytes, header);
        if expected == got { Ok(()) } else { Err(WireError::Checksum { what: "header", expected, got }) }
    }
}

fn checksum(prefix: &[u8; PREFIX_BYTES], header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&prefix[..CHECKED_BYTES]), header)
}
