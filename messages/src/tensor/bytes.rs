//! The bytes of a tensor's elements, as they are sent and stored. Numbers are little endian, a truth value is
//! one byte, and a text is its length and its bytes. The bytes may be hostile: no more elements are made than
//! the bytes can contain.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DType, Elements, RANK_MAX, Shape, Tensor, TensorError, TensorSpec};

/// The number of bytes of a text's length.
const LENGTH_BYTES: usize = size_of::<u32>();
/// The maximum number of bytes for which memory is reserved before they are read.
const RESERVED_BYTES_MAX: usize = 1 << 16;

impl Tensor {
    /// Returns the number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub fn bytes_len(&self) -> usize {
        match (self.elements(), self.dtype().bytes()) {
            (Elements::Text(texts), _) => texts.iter().map(|text| LENGTH_BYTES + text.len()).sum(),
            (elements, bytes) => elements.len() * bytes.unwrap_or_default(),
        }
    }

    /// Returns the bytes of the elements, without the spec.
    ///
    /// # Panics
    /// If a text has 2^32 bytes or more.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes_len());
        match self.elements() {
            Elements::F32(elements) => elements.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            Elements::I32(elements) => elements.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            Elements::I64(elements) => elements.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            Elements::F64(elements) => elements.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            Elements::Bool(elements) => bytes.extend(elements.iter().map(|&x| u8::from(x))),
            Elements::U8(elements) => bytes.extend(elements),
            Elements::Text(elements) => {
                for text in elements {
                    let length = u32::try_from(text.len()).expect("a text has less than 4 GiB");
                    bytes.extend(length.to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes
    }

    /// Makes a tensor of this spec from the bytes of its elements, which may be hostile. The elements take at
    /// most as much memory as the bytes do, except that each text takes 24 bytes more.
    ///
    /// # Errors
    /// If the shape has more than 8 axes, if the bytes are too few or too many, or if a truth value or a text
    /// is not valid.
    pub fn from_bytes(spec: &TensorSpec, bytes: &[u8]) -> Result<Self, TensorError> {
        let TensorSpec { shape, dtype } = spec;
        if shape.rank() > RANK_MAX {
            return Err(TensorError::Rank { shape: shape.clone() });
        }
        let size = |expected: String| TensorError::Bytes { spec: spec.clone(), expected, got: bytes.len() };
        let count = shape.checked_elements();
        let elements = match (dtype.bytes(), count) {
            (Some(each), Some(count)) if count.checked_mul(each) == Some(bytes.len()) => {
                fixed(*dtype, bytes)?
            }
            (None, Some(count)) if count <= bytes.len() / LENGTH_BYTES => {
                Elements::Text(texts(count, bytes)?)
            }
            (None, _) => return Err(size("4 bytes for the length of each text".to_owned())),
            (Some(each), _) => return Err(size(format!("{each} for each element"))),
        };
        Self::new(shape.clone(), elements)
    }
}

/// Returns the elements of a type of fixed size. The number of bytes must be a multiple of this size.
fn fixed(dtype: DType, bytes: &[u8]) -> Result<Elements, TensorError> {
    fn each<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks().0.iter().map(|&chunk| element(chunk)).collect()
    }
    Ok(match dtype {
        DType::F32 => Elements::F32(each(bytes, f32::from_le_bytes)),
        DType::I32 => Elements::I32(each(bytes, i32::from_le_bytes)),
        DType::I64 => Elements::I64(each(bytes, i64::from_le_bytes)),
        DType::F64 => Elements::F64(each(bytes, f64::from_le_bytes)),
        DType::U8 => Elements::U8(bytes.to_vec()),
        DType::Bool => match bytes.iter().position(|&byte| byte > 1) {
            Some(position) => {
                return Err(TensorError::Element { position, dtype, expected: "a byte 0 or 1" });
            }
            None => Elements::Bool(bytes.iter().map(|&byte| byte == 1).collect()),
        },
        DType::Text => unreachable!("text has no fixed size"),
    })
}

/// Reads `count` texts, which must use up all bytes. `count` must be bounded by the number of bytes.
fn texts(count: usize, bytes: &[u8]) -> Result<Vec<String>, TensorError> {
    let (mut rest, mut texts) = (bytes, Vec::with_capacity(count));
    for position in 0..count {
        let fault = |expected| TensorError::Element { position, dtype: DType::Text, expected };
        let within = "a length, as 4 bytes, and as many bytes";
        let (&length, after) = rest.split_first_chunk().ok_or_else(|| fault(within))?;
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| fault(within))?;
        let (text, after) = after.split_at_checked(length).ok_or_else(|| fault(within))?;
        texts.push(str::from_utf8(text).map_err(|_| fault("UTF-8"))?.to_owned());
        rest = after;
    }
    if !rest.is_empty() {
        let expected = "no bytes after the last text";
        return Err(TensorError::Element { position: count, dtype: DType::Text, expected });
    }
    Ok(texts)
}

/// Bytes that are one binary value in MessagePack. In JSON, they are a list of numbers, so that every float
/// keeps its bits.
struct Binary<'a>(Cow<'a, [u8]>);

impl Serialize for Binary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Binary<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl<'de> Visitor<'de> for BytesVisitor {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a tensor")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<u8>, A::Error> {
                let reserved = elements.size_hint().unwrap_or(0).min(RESERVED_BYTES_MAX);
                let mut bytes = Vec::with_capacity(reserved);
                while let Some(byte) = elements.next_element()? {
                    bytes.push(byte);
                }
                Ok(bytes)
            }
        }
        Ok(Self(Cow::Owned(deserializer.deserialize_byte_buf(BytesVisitor)?)))
    }
}

/// The fields of a tensor that is encoded.
#[derive(Serialize)]
#[serde(rename = "Tensor")]
struct Encoded<'a> {
    shape: &'a Shape,
    dtype: DType,
    bytes: Binary<'a>,
}

/// The fields of a tensor that was decoded, but not checked.
#[derive(Deserialize)]
#[serde(rename = "Tensor", deny_unknown_fields)]
struct Decoded {
    shape: Shape,
    dtype: DType,
    bytes: Binary<'static>,
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = match self.elements() {
            Elements::U8(elements) => Cow::Borrowed(&elements[..]),
            _ => Cow::Owned(self.to_bytes()),
        };
        Encoded { shape: self.shape(), dtype: self.dtype(), bytes: Binary(bytes) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Decoded { shape, dtype, bytes } = Decoded::deserialize(deserializer)?;
        Self::from_bytes(&TensorSpec { shape, dtype }, &bytes.0).map_err(de::Error::custom)
    }
}
