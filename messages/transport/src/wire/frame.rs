//! An envelope (a message with its payload), and its encoding as a frame.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use super::error::WireError;
use super::limits::Limits;
use super::prefix::{PREFIX_BYTES, Prefix};
use crate::buffer::{Buffer, Payload, Segment, payload_layout};
use pushpull_messages::excerpt::excerpt;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::Message;
use pushpull_messages::tensor::ALIGNMENT;

/// The largest number of characters in the error for a header that cannot be decoded. The error may quote
/// the header.
const ERROR_CHARS_MAX: usize = 300;

/// The largest number of bytes that MessagePack takes for a list of two items, the length of a list and the
/// length of a byte string.
const LIST_BYTES_MAX: usize = 11;

/// A message with its payload, as any transport sends it.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The id of the request. An answer has the same id as the request that it answers.
    pub request: RequestId,
    /// The message.
    pub message: Message,
    /// The tensor bytes that belong to the message.
    pub payload: Payload,
}

/// An encoded header: the lengths of the segments, and the encoded message as a byte string. In this form,
/// the lengths can be read before the message is decoded.
#[derive(Serialize)]
struct Header<'a>(Vec<u64>, #[serde(serialize_with = "bin")] &'a [u8]);

/// Reads a header with at most this number of segments.
struct HeaderWithin(u32);

/// Reads at most this number of segment lengths, and fails if there are more. A length can take as little as
/// one byte on the wire, but always takes eight in memory. So the limit on the header's size alone would
/// allow the lengths too much memory.
struct LengthsWithin(u32);

impl<'de> Visitor<'de> for HeaderWithin {
    type Value = Header<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("segment lengths and a message")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Header<'de>, A::Error> {
        let lengths = list.next_element_seed(LengthsWithin(self.0))?;
        let lengths = lengths.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let message = list.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
        Ok(Header(lengths, message))
    }
}

impl<'de> DeserializeSeed<'de> for LengthsWithin {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for LengthsWithin {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} segment lengths", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u64>, A::Error> {
        let mut lengths = Vec::new();
        while let Some(length) = list.next_element()? {
            if lengths.len() == self.0 as usize {
                return Err(A::Error::invalid_length(lengths.len() + 1, &self));
            }
            lengths.push(length);
        }
        Ok(lengths)
    }
}

/// Encodes bytes as MessagePack's `bin`. They can then be decoded as a slice of the header, without a copy.
fn bin<S: Serializer>(bytes: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// The encoded beginning of a frame, up to its payload, and the position of each segment in the payload.
#[derive(Debug)]
pub struct FrameHead {
    /// The encoded prefix and header.
    pub bytes: Vec<u8>,
    /// The start of each segment in the payload, in bytes.
    pub starts: Vec<u64>,
}

/// Encodes a frame up to its payload. If `payload_crc` is true, reads the payload to compute its checksum.
///
/// # Errors
/// Returns an error if the header is larger than the largest header that a peer accepts.
pub fn encode_head(envelope: &Envelope, payload_crc: bool) -> Result<FrameHead, WireError> {
    let segments = envelope.payload.segments();
    let lengths: Vec<u64> = segments.iter().map(|segment| segment.len() as u64).collect();
    let (starts, payload_bytes) =
        payload_layout(lengths.iter().copied()).expect("buffers in memory fit in a u64");
    let message = envelope.message.encode();
    // The prefix comes first, but depends on the header.
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + LIST_BYTES_MAX + 9 * lengths.len() + message.len());
    bytes.resize(PREFIX_BYTES, 0);
    rmp_serde::encode::write(&mut bytes, &Header(lengths, &message)).expect("plain data encodes");
    let (prefix_bytes, header) = bytes.split_at_mut(PREFIX_BYTES);
    let header_bytes = u32::try_from(header.len()).ok().filter(|&bytes| bytes <= super::HEADER_BYTES_MAX);
    let Some(header_bytes) = header_bytes else {
        return Err(WireError::TooLarge {
            what: "header",
            max: u64::from(super::HEADER_BYTES_MAX),
            got: header.len() as u64,
        });
    };
    let payload_crc = payload_crc.then(|| payload_checksum(&envelope.payload, &starts));
    let prefix = Prefix {
        kind: envelope.message.kind(),
        request: envelope.request,
        header_bytes,
        payload_bytes,
        payload_crc,
    };
    prefix_bytes.copy_from_slice(&prefix.encode(header));
    Ok(FrameHead { bytes, starts })
}

fn payload_checksum(payload: &Payload, starts: &[u64]) -> u32 {
    let (mut crc, mut end) = (0, 0u64);
    for (segment, &start) in payload.segments().iter().zip(starts) {
        crc = crc32c::crc32c_append(crc, &PADDING[..(start - end) as usize]);
        crc = crc32c::crc32c_append(crc, segment.as_bytes());
        end = start + segment.len() as u64;
    }
    crc
}

/// Zeros for the padding between segments on the wire.
pub(crate) const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// A frame whose header has been read and checked, and whose payload has not been read yet.
#[derive(Debug)]
pub struct Incoming {
    prefix: Prefix,
    message: Message,
    starts: Vec<u64>,
    lengths: Vec<u64>,
}

impl Incoming {
    /// Decodes and checks a header, given the prefix before it.
    ///
    /// # Errors
    /// Returns an error if the checksum does not match, if there are more segments than `limits` allows, if
    /// the lengths of the segments do not add up to the length of the payload, or if the message cannot be
    /// decoded.
    pub fn decode(
        prefix_bytes: &[u8; PREFIX_BYTES],
        prefix: Prefix,
        header: &[u8],
        limits: &Limits,
    ) -> Result<Self, WireError> {
        Prefix::check_header(prefix_bytes, header)?;
        let undecodable =
            |error: &dyn fmt::Display| WireError::Message(excerpt(&error.to_string(), ERROR_CHARS_MAX));
        let mut decoder = rmp_serde::Deserializer::from_read_ref(header);
        decoder.set_max_depth(8);
        let Header(lengths, message) = decoder
            .deserialize_tuple(2, HeaderWithin(limits.segments_max))
            .map_err(|error| undecodable(&error))?;
        let got = prefix.payload_bytes;
        let (starts, described) = payload_layout(lengths.iter().copied())
            .ok_or(WireError::Segments { described: u64::MAX, got })?;
        if described != got {
            return Err(WireError::Segments { described, got });
        }
        let message = Message::decode(prefix.kind, message, &lengths).map_err(|error| undecodable(&error))?;
        Ok(Self { prefix, message, starts, lengths })
    }

    /// Returns the number of bytes of the payload, which is still to be read.
    pub fn payload_bytes(&self) -> usize {
        self.prefix.payload_bytes as usize
    }

    /// Returns the envelope, given the bytes of its payload.
    ///
    /// # Errors
    /// Returns an error if the payload's checksum does not match.
    ///
    /// # Panics
    /// If the buffer does not have [`payload_bytes`](Self::payload_bytes) bytes.
    pub fn complete(self, payload: Buffer) -> Result<Envelope, WireError> {
        let (envelope, layout) = self.into_parts();
        Ok(Envelope { payload: layout.payload(payload)?, ..envelope })
    }

    /// Returns the envelope without its payload, and the layout of the payload.
    pub(crate) fn into_parts(self) -> (Envelope, Layout) {
        let Self { prefix, message, starts, lengths } = self;
        let envelope = Envelope { request: prefix.request, message, payload: Payload::EMPTY };
        (envelope, Layout { starts, lengths, bytes: prefix.payload_bytes as usize, crc: prefix.payload_crc })
    }
}

/// Where the segments of a payload are.
#[derive(Debug)]
pub(crate) struct Layout {
    starts: Vec<u64>,
    pub lengths: Vec<u64>,
    /// The number of bytes of the payload.
    pub bytes: usize,
    /// The checksum that the payload must have; `None` if the peer sent none.
    pub crc: Option<u32>,
}

impl Layout {
    /// Returns the payload, given its bytes.
    ///
    /// # Errors
    /// Returns an error if the payload's checksum does not match.
    ///
    /// # Panics
    /// If the buffer does not have the payload's size.
    pub(crate) fn payload(self, buffer: Buffer) -> Result<Payload, WireError> {
        assert_eq!(buffer.len(), self.bytes);
        if let Some(expected) = self.crc {
            let got = crc32c::crc32c(buffer.as_bytes());
            if expected != got {
                return Err(WireError::Checksum { what: "payload", expected, got });
            }
        }
        let buffer = Arc::new(buffer);
        let segment = |(&start, &bytes): (&u64, &u64)| {
            Segment::new(Arc::clone(&buffer), start as usize, bytes as usize)
        };
        Ok(Payload::new(self.starts.iter().zip(&self.lengths).map(segment).collect()))
    }

    /// Iterates over the segments: the number of bytes of padding before each one, and its length in bytes.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut end = 0;
        self.starts.iter().zip(&self.lengths).map(move |(&start, &length)| {
            let padding = start - std::mem::replace(&mut end, start + length);
            (padding as usize, length as usize)
        })
    }
}
