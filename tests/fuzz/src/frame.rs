//! The target `frame`: decodes bytes as a frame, as a connection receives it. The first byte selects the
//! limits, and whether the lengths and the checksum are corrected first.

use std::sync::Arc;

use pushpull_messages::id::RequestId;
use pushpull_messages::message::Message;
use pushpull_transport::buffer::{Buffer, Payload, Segment};
use pushpull_transport::wire::{Envelope, Incoming, Limits, PREFIX_BYTES, Prefix, encode_head};

use crate::samples::{same, samples};
use crate::target::{Target, check_error};

/// The largest payload that is made up for a header.
const PAYLOAD_BYTES_MAX: usize = 1 << 14;

pub(crate) const TARGET: Target = Target {
    name: "frame",
    about: &["messages/transport/src/wire"],
    check,
    stages: &["prefix refused", "header refused", "message decoded", "payload accepted"],
    seeds,
    words: &[b"PPUL"],
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, rest)) = bytes.split_first() else { return 0 };
    let Some((prefix, header)) = rest.split_first_chunk::<PREFIX_BYTES>() else { return 0 };
    let mut prefix = *prefix;
    if how & 1 == 0 {
        correct(&mut prefix, header);
    }
    let limits = if how & 2 == 0 { Limits::default() } else { Limits::STRANGER };
    let decoded = match Prefix::decode(&prefix, &limits) {
        Ok(decoded) => decoded,
        Err(error) => {
            check_error(&error);
            return 0;
        }
    };
    assert!(decoded.header_bytes <= limits.header_bytes_max, "W1: a header within the limits");
    assert!(decoded.payload_bytes <= limits.payload_bytes_max, "W1: a payload within the limits");
    let Some(header) = header.get(..decoded.header_bytes as usize) else { return 1 };
    let incoming = match Incoming::decode(&prefix, decoded, header, &limits) {
        Ok(incoming) => incoming,
        Err(error) => {
            check_error(&error);
            return 1;
        }
    };
    if incoming.payload_bytes() > PAYLOAD_BYTES_MAX {
        return 2;
    }
    let mut buffer = Buffer::zeroed(incoming.payload_bytes());
    buffer.as_bytes_mut().iter_mut().zip(0u8..).for_each(|(byte, number)| *byte = number ^ how);
    match incoming.complete(buffer) {
        Ok(envelope) => check_again(&envelope),
        Err(error) => {
            check_error(&error);
            return 2;
        }
    }
    3
}

/// Sets the lengths and the checksum of a prefix to those that its header needs. A change of any other byte
/// of the header is then not noticed before the message is decoded.
fn correct(prefix: &mut [u8; PREFIX_BYTES], header: &[u8]) {
    prefix[20..24].copy_from_slice(&(header.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&prefix[..PREFIX_BYTES - 4]), header);
    prefix[PREFIX_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
}

/// Encodes a frame that was accepted, and decodes it again.
fn check_again(envelope: &Envelope) {
    let head = encode_head(envelope, true).expect("what was received can be sent");
    let (prefix, header) = head.bytes.split_first_chunk::<PREFIX_BYTES>().expect("a whole prefix");
    let decoded = Prefix::decode(prefix, &Limits::default()).expect("W1: decode(encode(m)) = m");
    let again =
        Incoming::decode(prefix, decoded, header, &Limits::default()).expect("W1: decode(encode(m)) = m");
    let lengths: Vec<usize> = envelope.payload.segments().iter().map(Segment::len).collect();
    let buffer = Arc::new(Buffer::zeroed(again.payload_bytes()));
    let fits =
        head.starts.iter().zip(&lengths).all(|(&start, length)| start as usize + length <= buffer.len());
    assert!(fits, "every segment lies within the payload");
    let message = &envelope.message;
    let without = Message::decode(
        message.kind(),
        &message.encode(),
        &lengths.iter().map(|&bytes| bytes as u64).collect::<Vec<_>>(),
    );
    assert!(same(&without.expect("W1: decode(encode(m)) = m"), message), "W1: another message was read");
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let segment = |bytes: &Vec<u8>| Segment::whole(Arc::new(Buffer::copied(bytes)));
    let samples = samples();
    let chosen = samples.iter().enumerate().filter(|(at, (message, _))| {
        at % 6 == 0 || matches!(message, Message::Hello(_) | Message::Push(_) | Message::Pulled(_))
    });
    chosen
        .map(|(at, (message, segments))| {
            let payload = Payload::new(segments.iter().map(segment).collect());
            let envelope = Envelope { request: RequestId(7), message: message.clone(), payload };
            let head = encode_head(&envelope, false).expect("a small message");
            (format!("{at:03}-{}", message.name().to_lowercase()), [&[0], &head.bytes[..]].concat())
        })
        .collect()
}
