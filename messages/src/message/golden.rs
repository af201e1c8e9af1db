//! Tests that this build encodes messages to the same bytes as earlier builds. An accidental change of a
//! name, kind or type would break clusters that mix builds, and would make existing files unreadable. Each
//! line of the golden file is one message.

use std::fmt::Write;
use std::path::PathBuf;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::Message;
use crate::fixtures::any_message::any_message;

/// The number of messages of each kind in the golden file.
const SAMPLES: usize = 12;
/// The number of random messages that are drawn. It is large enough to yield [`SAMPLES`] messages of every
/// kind.
const DRAWS: usize = 4000;

fn golden_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/messages.txt")
}

/// Returns the line of the golden file for a message: kind, name, segment lengths, and header bytes as
/// escaped ASCII.
fn line(message: &Message, segments: &[u64]) -> String {
    let lengths = segments.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!("{} {} [{lengths}] {}\n", message.kind(), message.name(), message.encode().escape_ascii())
}

/// Undoes [`slice::escape_ascii`].
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next().expect("an escape has a second character") {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

/// Draws samples of every kind of message from the strategy that the codec's tests use. The samples are the
/// same on every run.
fn fresh_samples() -> String {
    let mut runner = TestRunner::deterministic();
    let strategy = any_message();
    let mut samples = std::collections::BTreeMap::<u16, Vec<String>>::new();
    for _ in 0..DRAWS {
        let (message, segments) = strategy.new_tree(&mut runner).unwrap().current();
        let lengths: Vec<u64> = segments.iter().map(|segment| segment.len() as u64).collect();
        let lines = samples.entry(message.kind()).or_default();
        let fresh = line(&message, &lengths);
        if lines.len() < SAMPLES && !lines.contains(&fresh) {
            lines.push(fresh);
        }
    }
    samples.into_values().flatten().fold(String::new(), |mut all, line| {
        let _ = write!(all, "{line}");
        all
    })
}

#[test]
fn earlier_builds_are_understood_byte_for_byte() {
    let path = golden_file();
    if std::env::var_os("PUSHPULL_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, fresh_samples()).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for expected in golden.split_inclusive('\n') {
        let mut fields = expected.trim_end_matches('\n').splitn(4, ' ');
        let mut next = || fields.next().expect("a line has four fields");
        let (kind, name, lengths, header) = (next(), next(), next(), next());
        let lengths = lengths.trim_matches(['[', ']']);
        let lengths: Vec<u64> = lengths.split_terminator(',').map(|text| text.parse().unwrap()).collect();
        let kind: u16 = kind.parse().unwrap();
        let message = Message::decode(kind, &unescape(header), &lengths)
            .unwrap_or_else(|error| panic!("{name} of an earlier build is refused: {error}"));
        assert_eq!(
            line(&message, &lengths),
            expected,
            "{name} is encoded differently than before. If this is intended, write the golden file again: \
             PUSHPULL_WRITE_GOLDEN=1 cargo test -p pushpull-messages golden"
        );
        kinds.insert(kind);
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), Message::KINDS, "every kind has a golden message");
}
