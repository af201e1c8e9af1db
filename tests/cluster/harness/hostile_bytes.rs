//! Bytes that a hostile peer sends: valid frames, prefixes with any sizes, and noise.

use pushpull_messages::id::RequestId;
use pushpull_messages::message::Message;
use pushpull_transport::buffer::Payload;
use pushpull_transport::wire::{Envelope, PREFIX_BYTES, Prefix, encode_head};

/// Returns the bytes of a valid frame with this message.
pub(crate) fn frame(request: u64, message: impl Into<Message>) -> Vec<u8> {
    let envelope = Envelope { request: RequestId(request), message: message.into(), payload: Payload::EMPTY };
    encode_head(&envelope, false).expect("a small message").bytes
}

/// Returns a prefix of a frame whose checksum is wrong, and whose sizes are checked first.
pub(crate) fn prefix(kind: u16, header_bytes: u32, payload_bytes: u64) -> Vec<u8> {
    let prefix = Prefix { kind, request: RequestId(1), header_bytes, payload_bytes, payload_crc: None };
    // The checksum is wrong, too, but a task checks the sizes first.
    let mut bytes = [0; PREFIX_BYTES];
    bytes.copy_from_slice(&Prefix { header_bytes: 0, ..prefix }.encode(&[]));
    bytes[20..24].copy_from_slice(&header_bytes.to_le_bytes());
    bytes.to_vec()
}

/// Returns pseudorandom bytes from the generator xorshift64. They are the same on every run.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}
