//! The target `message`: decodes bytes as a message. The first byte selects the kind, and the next ones
//! are the lengths of the payload's segments.

use pushpull_messages::message::{ContentError, Message};

use crate::corpus::Form;
use crate::samples::{same, samples};
use crate::target::{Target, check_error};

/// The largest number of segments of an input.
const SEGMENTS_MAX: usize = 7;

pub(crate) const TARGET: Target = Target {
    name: "message",
    about: &["messages/src/message"],
    check,
    stages: &["undecodable", "breaks a rule", "decoded"],
    seeds,
    form: Form::MessagePack,
    content,
    ..Target::USUAL
};

/// Returns where the message begins: after its kind, the number of segments and their lengths.
fn content(bytes: &[u8]) -> usize {
    2 + 2 * (usize::from(bytes.get(1).copied().unwrap_or(0)) % (SEGMENTS_MAX + 1))
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let at = content(bytes);
    let Some((head, body)) = bytes.split_at_checked(at) else { return 0 };
    let kind = Message::KINDS[usize::from(head[0]) % Message::KINDS.len()];
    let lengths: Vec<u64> =
        head[2..].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]).into()).collect();
    match Message::decode(kind, body, &lengths) {
        Ok(message) => {
            let again =
                Message::decode(kind, &message.encode(), &lengths).expect("W1: decode(encode(m)) = m");
            assert!(same(&again, &message), "W1: decode(encode(m)) = m: {message:?}");
            assert!(message.kind() == kind, "the kind stays");
            2
        }
        Err(error) => {
            // The transport makes one line of it.
            check_error(&pushpull_messages::excerpt::excerpt(&error.to_string(), 300));
            usize::from(matches!(error, ContentError::Invalid { .. }))
        }
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let encoded = |(at, (message, segments)): (usize, (Message, Vec<Vec<u8>>))| {
        let kind = Message::KINDS.iter().position(|&kind| kind == message.kind()).expect("a known kind");
        let mut bytes = vec![kind as u8, segments.len() as u8];
        segments.iter().for_each(|segment| bytes.extend((segment.len() as u16).to_le_bytes()));
        bytes.extend(message.encode());
        (format!("{at:03}-{}", message.name().to_lowercase()), bytes)
    };
    let few = |(_, (_, segments)): &(usize, (Message, Vec<Vec<u8>>))| segments.len() <= SEGMENTS_MAX;
    samples().into_iter().enumerate().filter(few).map(encoded).collect()
}
