//! The message `tf.train.Example`: named lists of floats, integers or byte strings. The messages of
//! `tensorflow/core/example/example.proto` and `feature.proto` are declared here by hand. This module must
//! not depend on files or on columns.

use std::collections::BTreeMap;

use prost::Message;

/// A training example (`tf.train.Example`): features by their names. The features are encoded in the order
/// of their names, so equal examples have equal bytes.
#[derive(Clone, PartialEq, Message)]
pub struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    feature: BTreeMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Feature {
    #[prost(oneof = "Values", tags = "1, 2, 3")]
    pub(super) values: Option<Values>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Values {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub(super) value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub(super) value: Vec<i64>,
}

impl Example {
    /// Returns an example without features.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the example with a feature of floats added.
    #[must_use]
    pub fn floats(self, name: &str, value: impl Into<Vec<f32>>) -> Self {
        self.with(name, Values::Floats(FloatList { value: value.into() }))
    }

    /// Returns the example with a feature of integers added.
    #[must_use]
    pub fn ints(self, name: &str, value: impl Into<Vec<i64>>) -> Self {
        self.with(name, Values::Ints(Int64List { value: value.into() }))
    }

    /// Adds a feature whose value is one byte string, and returns the example.
    #[must_use]
    pub fn bytes(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.strings(name, vec![value.into()])
    }

    /// Returns the example with a feature of several byte strings added.
    #[must_use]
    pub fn strings(self, name: &str, value: Vec<Vec<u8>>) -> Self {
        self.with(name, Values::Bytes(BytesList { value }))
    }

    fn with(mut self, name: &str, values: Values) -> Self {
        let features = self.features.get_or_insert_default();
        features.feature.insert(name.to_owned(), Feature { values: Some(values) });
        self
    }

    pub(super) fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.as_ref()?.feature.get(name)
    }

    /// Returns the names of the features, in ascending order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.features.iter().flat_map(|features| features.feature.keys().map(String::as_str))
    }

    /// Encodes the example to the bytes of a record's data.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Decodes an example from the bytes of a record's data.
    ///
    /// # Errors
    /// If the bytes are not an encoded example.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        Self::decode(bytes)
    }
}
