//! The ids of words. This module must not depend on where the words were read.

use std::collections::BTreeMap;

use pushpull_messages::input::{CategorySpec, VocabularySpec};

/// The words that a field may hold, and their ids.
pub(crate) struct Vocabulary {
    /// The id of each word; `None` if the field holds the id itself.
    ids: Option<BTreeMap<Vec<u8>, i32>>,
    /// The id that all words outside of the vocabulary share; `None` if the spec has none.
    unknown: Option<i32>,
}

impl Vocabulary {
    pub(crate) fn new(spec: &CategorySpec) -> Self {
        let ids = match &spec.vocabulary {
            VocabularySpec::Ids => None,
            VocabularySpec::Words(words) => {
                Some(words.iter().map(|word| word.as_bytes().to_vec()).zip(0..).collect())
            }
            VocabularySpec::Map(words) => {
                Some(words.iter().map(|(word, &id)| (word.as_bytes().to_vec(), id)).collect())
            }
        };
        Self { ids, unknown: spec.unknown }
    }

    /// Returns the id of a word; `None` if it has no id.
    pub(crate) fn id(&self, word: &[u8]) -> Option<i32> {
        let id = match &self.ids {
            Some(ids) => ids.get(word).copied(),
            None => std::str::from_utf8(word).ok().and_then(|text| text.parse().ok()),
        };
        id.or(self.unknown)
    }

    /// Returns what a field must hold, for an error message.
    pub(crate) fn expected(&self) -> &'static str {
        match self.ids {
            Some(_) => "a word of the vocabulary",
            None => "an integer of 32 bits",
        }
    }
}

/// The ids that only Parquet and Arrow files need: those of booleans, integers and nulls.
#[cfg(feature = "columnar")]
impl Vocabulary {
    /// Returns the id of a boolean; `None` if it has no id. The boolean counts as the word `true` or `false`
    /// or, if the field holds ids, as the id 1 or 0.
    pub(crate) fn id_of_boolean(&self, boolean: bool) -> Option<i32> {
        match self.ids {
            Some(_) => self.id(if boolean { b"true" } else { b"false" }),
            None => Some(boolean.into()),
        }
    }

    /// Returns the id of an integer; `None` if it has no id.
    pub(crate) fn id_of_integer(&self, integer: i128) -> Option<i32> {
        match self.ids {
            Some(_) => self.id(integer.to_string().as_bytes()),
            None => i32::try_from(integer).ok().or(self.unknown),
        }
    }

    /// Returns the id of a field that is missing, or whose word is not in the vocabulary; `None` if such
    /// fields have no id.
    pub(crate) fn unknown(&self) -> Option<i32> {
        self.unknown
    }
}
