//! Tests of property W1: decode(encode(m)) = m; decoding any bytes returns a frame or an error, never
//! panics, and never allocates more than the limits allow.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::buffer::{Buffer, Payload, Segment};
use crate::fixtures::any_message::any_message;
use pushpull_messages::id::RequestId;

/// Returns the bytes of a frame on the wire.
fn to_bytes(envelope: &Envelope, payload_crc: bool) -> Vec<u8> {
    let FrameHead { mut bytes, starts } = encode_head(envelope, payload_crc).unwrap();
    let head = bytes.len();
    for (segment, start) in envelope.payload.segments().iter().zip(starts) {
        bytes.resize(head + start as usize, 0);
        bytes.extend_from_slice(segment.as_bytes());
    }
    bytes
}

/// Decodes one frame from any bytes.
fn from_bytes(bytes: &[u8], limits: &Limits) -> Result<Envelope, WireError> {
    let prefix_bytes = bytes.first_chunk::<PREFIX_BYTES>().ok_or(WireError::Truncated)?;
    let prefix = Prefix::decode(prefix_bytes, limits)?;
    let rest = &bytes[PREFIX_BYTES..];
    let header = rest.get(..prefix.header_bytes as usize).ok_or(WireError::Truncated)?;
    let incoming = Incoming::decode(prefix_bytes, prefix, header, limits)?;
    let rest = &rest[header.len()..];
    let payload = rest.get(..incoming.payload_bytes()).ok_or(WireError::Truncated)?;
    let mut buffer = Buffer::zeroed(payload.len());
    buffer.as_bytes_mut().copy_from_slice(payload);
    incoming.complete(buffer)
}

fn payload(segments: &[Vec<u8>]) -> Payload {
    let segment = |bytes: &Vec<u8>| {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.as_bytes_mut().copy_from_slice(bytes);
        Segment::whole(Arc::new(buffer))
    };
    Payload::new(segments.iter().map(segment).collect())
}

proptest! {
    #[test]
    fn decode_of_encode_is_the_same((message, segments) in any_message(), request: u64, crc: bool) {
        let envelope = Envelope { request: RequestId(request), message, payload: payload(&segments) };
        let back = from_bytes(&to_bytes(&envelope, crc), &Limits::default()).unwrap();
        prop_assert_eq!(back.request, envelope.request);
        prop_assert_eq!(back.message, envelope.message);
        let bytes = |payload: &Payload| {
            payload.segments().iter().map(|segment| segment.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        prop_assert_eq!(bytes(&back.payload), segments);
    }

    #[test]
    fn any_bytes_are_refused_or_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = from_bytes(&bytes, &Limits::default());
    }

    /// Checks that headers of random bytes are refused or decoded without a panic. A correct prefix precedes
    /// them, so that they pass the checksum and reach the MessagePack decoder.
    #[test]
    fn any_header_is_refused_or_decoded_without_panic(
        header in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0u16..32,
        payload_bytes in 0u64..64,
    ) {
        let prefix = Prefix {
            kind,
            request: RequestId(1),
            header_bytes: header.len() as u32,
            payload_bytes,
            payload_crc: None,
        };
        let mut bytes = prefix.encode(&header).to_vec();
        bytes.extend_from_slice(&header);
        bytes.resize(bytes.len() + payload_bytes as usize, 0);
        let _ = from_bytes(&bytes, &Limits::default());
    }

    /// Checks that a flipped bit in the prefix or the header is detected and, if the payload has a checksum,
    /// also a flipped bit in the payload.
    #[test]
    fn a_flipped_bit_is_detected(
        (message, segments) in any_message(),
        position: prop::sample::Index,
        bit in 0u8..8,
        crc: bool,
    ) {
        let envelope = Envelope { request: RequestId(7), message, payload: payload(&segments) };
        let mut bytes = to_bytes(&envelope, crc);
        let payload_bytes: usize = encode_head(&envelope, crc).unwrap().bytes.len();
        let checked = if crc { bytes.len() } else { payload_bytes };
        bytes[position.index(checked)] ^= 1 << bit;
        prop_assert!(from_bytes(&bytes, &Limits::default()).is_err());
    }
}

fn small() -> Envelope {
    let message = pushpull_messages::message::Observe { shard: 0 }.into();
    Envelope { request: RequestId(1), message, payload: Payload::EMPTY }
}

#[test]
fn every_kind_of_bad_frame_has_its_own_error() {
    let good = to_bytes(&small(), false);
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        from_bytes(&frame, &Limits { header_bytes_max: 1000, payload_bytes_max: 1000, ..Limits::default() })
            .unwrap_err()
    };
    assert!(matches!(with(0, b"HTTP"), WireError::Magic { .. }));
    assert!(matches!(with(4, &[99, 0]), WireError::Version { got: 99, .. }));
    assert!(matches!(with(8, &[2]), WireError::Flags(2)));
    assert!(matches!(with(20, &1001u32.to_le_bytes()), WireError::TooLarge { what: "header", .. }));
    assert!(matches!(with(24, &u64::MAX.to_le_bytes()), WireError::TooLarge { what: "payload", .. }));
    assert!(matches!(with(6, &[99, 0]), WireError::Checksum { .. }));
    assert!(matches!(from_bytes(&good[..39], &Limits::default()), Err(WireError::Truncated)));
    assert!(matches!(from_bytes(&good[..good.len() - 1], &Limits::default()), Err(WireError::Truncated)));
}

#[test]
fn a_message_of_an_unknown_kind_is_named() {
    let header = rmp_serde::to_vec(&(Vec::<u64>::new(), rmp_serde::to_vec(&0).unwrap())).unwrap();
    let prefix = Prefix {
        kind: 999,
        request: RequestId(1),
        header_bytes: header.len() as u32,
        payload_bytes: 0,
        payload_crc: None,
    };
    let mut bytes = prefix.encode(&header).to_vec();
    bytes.extend_from_slice(&header);
    // A list of numbers is not accepted in place of a byte string.
    assert!(matches!(from_bytes(&bytes, &Limits::default()), Err(WireError::Message(_))));
    let error = pushpull_messages::message::Message::decode(999, &[], &[]).unwrap_err();
    assert!(error.to_string().contains("999"));
}

#[test]
fn a_newer_peer_may_add_a_field() {
    #[derive(serde::Serialize)]
    struct NewerObserve {
        shard: u32,
        added_later: &'static str,
    }
    let bytes = rmp_serde::to_vec_named(&NewerObserve { shard: 3, added_later: "x" }).unwrap();
    let message = pushpull_messages::message::Message::decode(26, &bytes, &[]).unwrap();
    assert_eq!(message, pushpull_messages::message::Observe { shard: 3 }.into());
}

#[test]
fn too_many_segments_are_refused_while_they_are_read() {
    let header = rmp_serde::to_vec(&(vec![0u64; (1 << 20) + 1], serde_bytes_of(&[0x80]))).unwrap();
    let prefix = Prefix {
        kind: 26,
        request: RequestId(1),
        header_bytes: header.len() as u32,
        payload_bytes: 0,
        payload_crc: None,
    };
    let mut bytes = prefix.encode(&header).to_vec();
    bytes.extend_from_slice(&header);
    let error = from_bytes(&bytes, &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("segment lengths"), "{error}");
}

/// Returns a value that serializes as MessagePack's `bin` with these bytes.
fn serde_bytes_of(bytes: &[u8]) -> impl serde::Serialize + '_ {
    struct Bin<'a>(&'a [u8]);
    impl serde::Serialize for Bin<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
    Bin(bytes)
}
