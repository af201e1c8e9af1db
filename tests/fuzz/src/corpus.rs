//! The valid inputs of a target, and the inputs that are drawn from them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::numbers::Numbers;
use crate::{changes, trees};

/// The largest number of random bytes of an input without a valid one.
const RANDOM_BYTES_MAX: usize = 256;
/// The largest number of random bytes of a script.
const SCRIPT_BYTES_MAX: usize = 1600;
/// The largest number of changes of an input.
const CHANGES_MAX: usize = 6;

/// How the content of an input is encoded, after the bytes that select what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// No encoding is known: only bytes are changed.
    Bytes,
    /// MessagePack with the names of fields.
    MessagePack,
    /// JSON.
    Json,
    /// A graph: JSON if the first byte is odd, else MessagePack.
    Graph,
    /// A script for a state machine: any bytes are valid, and most inputs are random.
    Script,
}

/// How a tree is encoded.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    MessagePack,
    Json,
}

impl Form {
    /// Returns how the content of this input is encoded; `None` if it has no tree.
    fn encoding(self, input: &[u8]) -> Option<Encoding> {
        match self {
            Self::Bytes | Self::Script => None,
            Self::MessagePack => Some(Encoding::MessagePack),
            Self::Json => Some(Encoding::Json),
            Self::Graph if input.first()? % 2 == 1 => Some(Encoding::Json),
            Self::Graph => Some(Encoding::MessagePack),
        }
    }
}

/// A valid input.
#[derive(Clone, Debug)]
struct Seed {
    bytes: Vec<u8>,
    /// Where the content begins.
    content: usize,
    /// The content as a tree; `None` if the form has none.
    tree: Option<Value>,
}

/// The valid inputs of a target.
#[derive(Clone, Debug)]
pub struct Corpus {
    form: Form,
    words: &'static [&'static [u8]],
    seeds: Vec<Seed>,
}

impl Corpus {
    /// Returns the folder of a target's valid inputs.
    pub fn folder(target: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
    }

    /// Makes a corpus of these inputs. `content` returns where the content of an input begins.
    pub fn new(
        form: Form,
        words: &'static [&'static [u8]],
        content: fn(&[u8]) -> usize,
        inputs: impl IntoIterator<Item = Vec<u8>>,
    ) -> Self {
        let seed = |bytes: Vec<u8>| {
            let content = content(&bytes).min(bytes.len());
            let tree = match form.encoding(&bytes) {
                Some(Encoding::MessagePack) => rmp_serde::from_slice(&bytes[content..]).ok(),
                Some(Encoding::Json) => serde_json::from_slice(&bytes[content..]).ok(),
                None => None,
            };
            Seed { bytes, content, tree }
        };
        Self { form, words, seeds: inputs.into_iter().map(seed).collect() }
    }

    /// Returns the valid inputs.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.seeds.iter().map(|seed| &seed.bytes[..])
    }

    /// Draws an input: one of 16 is random. If the form has a tree, half of the others are encoded from a
    /// changed tree.
    pub fn draw(&self, numbers: &mut Numbers, input: &mut Vec<u8>) {
        input.clear();
        let (random, bytes_max) = match self.form {
            Form::Script => (12, SCRIPT_BYTES_MAX),
            _ => (1, RANDOM_BYTES_MAX),
        };
        if self.seeds.is_empty() || numbers.below(16) < random {
            let count = numbers.below(bytes_max);
            return input.extend((0..count).map(|_| numbers.byte()));
        }
        let (seed, other) = (numbers.choose(&self.seeds), numbers.choose(&self.seeds));
        let changed = numbers.changes(CHANGES_MAX);
        let (Some(tree), Some(from), 0) = (&seed.tree, &other.tree, numbers.below(2)) else {
            input.extend_from_slice(&seed.bytes);
            for _ in 0..changed {
                // The first bytes select what is done, so they are changed more often than others.
                let first = if numbers.below(8) == 0 { 0 } else { seed.content };
                changes::change(input, first, &other.bytes, self.words, numbers);
            }
            return;
        };
        input.extend_from_slice(&seed.bytes[..seed.content]);
        if seed.content > 0 && numbers.below(8) == 0 {
            input[numbers.below(seed.content)] = numbers.byte();
        }
        let mut tree = tree.clone();
        (0..changed).for_each(|_| trees::change(&mut tree, from, numbers));
        match self.form.encoding(&seed.bytes) {
            Some(Encoding::MessagePack) => {
                input.extend(rmp_serde::to_vec_named(&tree).expect("plain data encodes"));
            }
            _ => input.extend(serde_json::to_vec(&tree).expect("plain data encodes")),
        }
    }
}
