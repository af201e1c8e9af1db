//! The target `join`: parses text as a join string. If the first byte is even, the checksum is corrected
//! first.

use pushpull_identity::{Authority, JoinString, JoinStringError};

use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "join",
    about: &["messages/identity/src/join_string.rs", "messages/identity/src/hex.rs"],
    check,
    stages: &["no join string", "wrong parts", "wrong digits", "wrong checksum", "valid"],
    seeds,
    words: &[b"pushpull1.", b".", b"0123456789abcdef"],
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, text)) = bytes.split_first() else { return 0 };
    let Ok(text) = std::str::from_utf8(text) else { return 0 };
    let mut text = text.to_owned();
    if how % 2 == 0
        && let Some((all, _)) = text.rsplit_once('.')
    {
        text = format!("{all}.{:08x}", crc32c::crc32c(all.as_bytes()));
    }
    match text.parse::<JoinString>() {
        Ok(join) => {
            assert!(join.text() == text, "a join string is written as it was read");
            let shown = format!("{join:?}");
            let secret = text.split('.').nth(3).expect("a join string has a secret");
            assert!(!shown.contains(secret), "a secret is never shown");
            4
        }
        Err(error) => {
            check_error(&error);
            match error {
                JoinStringError::Format | JoinStringError::Client | JoinStringError::File(_) => 0,
                JoinStringError::Parts(_) => 1,
                JoinStringError::Digits { .. } => 2,
                JoinStringError::Checksum => 3,
            }
        }
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let text = |how: u8, text: String| [&[how], text.as_bytes()].concat();
    let join = Authority::new().expect("random numbers").join().text();
    vec![("corrected".to_owned(), text(0, join.clone())), ("as-it-is".to_owned(), text(1, join))]
}
