//! Messages of all kinds, from which fuzzing begins, and their comparison.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use pushpull_messages::message::Message;

use crate::fixtures::any_message::any_message;

/// A message with its payload segments.
type Sample = (Message, Vec<Vec<u8>>);

/// Returns messages with their payload segments: two of each kind, the shortest of many.
pub(crate) fn samples() -> Vec<Sample> {
    let mut runner = TestRunner::deterministic();
    let strategy = any_message();
    let drawn = (0..20_000).map(|_| strategy.new_tree(&mut runner).expect("a message").current());
    let mut samples: Vec<_> =
        drawn.map(|sample| (sample.0.kind(), sample.0.encode().len(), sample)).collect();
    samples.sort_by_key(|&(kind, bytes, _)| (kind, bytes));
    let mut chosen: Vec<(u16, usize, Sample)> = Vec::new();
    for group in samples.chunk_by(|one, other| one.0 == other.0) {
        // The shortest one often has nothing in it.
        let places = [group.len() / 8, group.len() / 3];
        chosen.extend(places.iter().map(|&at| group[at].clone()));
    }
    chosen.dedup_by(|one, other| one.2 == other.2);
    chosen.into_iter().map(|(.., sample)| sample).collect()
}

/// Returns whether two messages are the same. Floats that are no numbers differ from themselves, so the bytes
/// are compared.
pub(crate) fn same(one: &Message, other: &Message) -> bool {
    one.kind() == other.kind() && one.encode() == other.encode()
}
