//! A generated text: sentences of a small, predictable language. Language models can be trained on it
//! without a download. This module must not depend on files or models.

use crate::InputError;
use crate::random::SplitMix64;
use crate::unpacked::UNPACKED_BYTES_MAX;

/// Separates the random streams of this module from all other streams of the same seed.
const STREAM: u64 = 0x4241_4242_4c45; // "BABBLE"

const ADJECTIVES: &[&str] = &["old", "small", "green", "quiet", "tall", "bright", "cold", "young"];
/// The singular and the plural of each animal.
const ANIMALS: &[[&str; 2]] = &[
    ["dog", "dogs"],
    ["fox", "foxes"],
    ["goose", "geese"],
    ["mouse", "mice"],
    ["horse", "horses"],
    ["cat", "cats"],
];
const THINGS: &[[&str; 2]] =
    &[["apple", "apples"], ["house", "houses"], ["river", "rivers"], ["leaf", "leaves"], ["stone", "stones"]];
/// The form of each verb after a singular and after a plural subject.
const VERBS: &[[&str; 2]] =
    &[["sees", "see"], ["finds", "find"], ["wants", "want"], ["carries", "carry"], ["likes", "like"]];
const PLACES: &[&str] =
    &["near the hill", "in the forest", "by the sea", "under the bridge", "behind the barn"];
const TIMES: &[&str] = &["today", "at night", "every morning", "in winter"];

/// The number of sentences in a paragraph.
const PARAGRAPH: u64 = 8;

/// Generates a text of exactly `bytes` bytes, all ASCII. Of two texts with the same seed, the shorter one is
/// a prefix of the longer one.
///
/// # Errors
/// Returns [`InputError::Extent`] if `bytes` is 0 or greater than [`UNPACKED_BYTES_MAX`].
pub(crate) fn text(seed: u64, bytes: u64) -> Result<Vec<u8>, InputError> {
    let bytes = check(bytes)? as usize;
    let mut text = String::with_capacity(bytes + 200);
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        sentence(&mut SplitMix64::stream(&[STREAM, seed, number]), &mut text);
        text.push(if number % PARAGRAPH == PARAGRAPH - 1 { '\n' } else { ' ' });
    }
    text.truncate(bytes);
    Ok(text.into_bytes())
}

/// Returns `bytes` unchanged if a text of this length may be generated, and [`InputError::Extent`] otherwise.
pub(crate) fn check(bytes: u64) -> Result<u64, InputError> {
    if (1..=UNPACKED_BYTES_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(InputError::Extent { examples: bytes, elements: 1, max: UNPACKED_BYTES_MAX })
    }
}

fn sentence(random: &mut SplitMix64, text: &mut String) {
    let many = random.below(2) as usize;
    let begin = text.len();
    noun(random, ANIMALS, many, text);
    text.push(' ');
    text.push_str(pick(random, VERBS)[many]);
    text.push(' ');
    let (things, count) = (if random.below(3) == 0 { ANIMALS } else { THINGS }, random.below(2) as usize);
    noun(random, things, count, text);
    if random.below(2) == 0 {
        text.push(' ');
        text.push_str(pick(random, PLACES));
    }
    if random.below(3) == 0 {
        text.push(' ');
        text.push_str(pick(random, TIMES));
    }
    text.push('.');
    text[begin..=begin].make_ascii_uppercase();
}

/// Appends a noun phrase, such as `the old dog`, `a dog`, `the dogs` or `two small dogs`.
fn noun(random: &mut SplitMix64, nouns: &[[&str; 2]], many: usize, text: &mut String) {
    let noun = pick(random, nouns)[many];
    let adjective = if random.below(2) == 0 { Some(pick(random, ADJECTIVES)) } else { None };
    let next = adjective.unwrap_or(noun);
    text.push_str(match (random.below(2), many) {
        (0, _) => "the ",
        (_, 0) if next.starts_with(['a', 'e', 'i', 'o', 'u']) => "an ",
        (_, 0) => "a ",
        (_, _) => "two ",
    });
    if let Some(adjective) = adjective {
        text.push_str(adjective);
        text.push(' ');
    }
    text.push_str(noun);
}

fn pick<T: Copy>(random: &mut SplitMix64, words: &[T]) -> T {
    words[random.below(words.len() as u32) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_text_begins_with_the_shorter_one() {
        let long = text(5, 5000).unwrap();
        for bytes in [1, 17, 1000, 4999] {
            assert_eq!(text(5, bytes).unwrap(), long[..bytes as usize]);
        }
        assert_eq!(long.len(), 5000);
        assert_ne!(text(6, 5000).unwrap(), long);
        assert!(long.is_ascii());
    }

    #[test]
    fn verbs_agree_with_their_subjects() {
        let text = String::from_utf8(text(1, 100_000).unwrap()).unwrap();
        let sentences: Vec<&str> = text.split_inclusive('.').map(str::trim).collect();
        for sentence in &sentences[..sentences.len() - 1] {
            assert!(sentence.starts_with(|c: char| c.is_ascii_uppercase()), "{sentence}");
            assert!(sentence.ends_with('.'));
            let words: Vec<&str> = sentence.trim_end_matches('.').split(' ').collect();
            let verb = words.iter().position(|word| VERBS.iter().flatten().any(|verb| verb == word)).unwrap();
            let one = ANIMALS.iter().any(|[one, _]| *one == words[verb - 1]);
            assert!(
                VERBS.iter().any(|[of_one, of_many]| words[verb] == if one { *of_one } else { *of_many })
            );
        }
    }

    /// Checks that the entropy of a letter is less than 1 bit if the four letters before it are known. If no
    /// letter before it is known, the entropy must be from 3.5 to 5 bits.
    #[test]
    fn the_next_letter_is_predictable() {
        let text = text(2, 200_000).unwrap();
        let entropy = |order: usize| {
            let mut windows: Vec<&[u8]> = text.windows(order + 1).collect();
            windows.sort_unstable();
            let mut bits = 0.0;
            for context in windows.chunk_by(|a, b| a[..order] == b[..order]) {
                for next in context.chunk_by(|a, b| a[order] == b[order]) {
                    bits -= next.len() as f64 * (next.len() as f64 / context.len() as f64).log2();
                }
            }
            bits / windows.len() as f64
        };
        let (blind, informed) = (entropy(0), entropy(4));
        assert!((3.5..5.0).contains(&blind) && informed < 1.0, "{blind} {informed}");
    }

    #[test]
    fn refuses_an_empty_text_and_one_too_long() {
        assert!(matches!(text(0, 0), Err(InputError::Extent { .. })));
        assert!(matches!(text(0, UNPACKED_BYTES_MAX + 1), Err(InputError::Extent { .. })));
    }
}
