//! A decoder for MessagePack as `rmp_serde::to_vec_named` writes it. The bytes may be hostile, so the
//! decoder reserves no memory for elements before it reads them, and it bounds the nesting.
//!
//! The decoder is not generic over the source of the bytes, so its largest part is compiled only once. The
//! decoder of `rmp_serde` is compiled again for every type. When this crate used that decoder, it made up
//! half of the crate's machine code.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

/// Decodes one value. Ignores any bytes after the value, as `rmp_serde` does.
///
/// # Errors
/// If the bytes end early; if they are not MessagePack; if values are nested deeper than `depth_max`; if the
/// value does not fit the type.
pub(super) fn from_bytes<T: DeserializeOwned>(bytes: &[u8], depth_max: usize) -> Result<T, DecodeError> {
    T::deserialize(&mut Decoder { rest: bytes, depth_left: depth_max })
}

/// The error for bytes that cannot be decoded as the expected type.
#[derive(Debug)]
pub(super) struct DecodeError(String);

impl DecodeError {
    fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::new(what)
    }
}

/// A token: a whole scalar, or the length of an array or a map whose elements follow.
enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
}

/// A decoder, with the bytes that it has not read yet.
struct Decoder<'a> {
    rest: &'a [u8],
    depth_left: usize,
}

impl<'a> Decoder<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(bytes) else {
            let left = self.rest.len();
            return Err(DecodeError::new(format_args!("the bytes end early: {bytes} expected, {left} left")));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    /// Reads an unsigned big-endian number of 1, 2, 4 or 8 bytes.
    fn unsigned(&mut self, bytes: usize) -> Result<u64, DecodeError> {
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn text(&mut self, bytes: usize) -> Result<Token<'a>, DecodeError> {
        std::str::from_utf8(self.take(bytes)?).map(Token::Text).map_err(DecodeError::new)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, DecodeError> {
        usize::try_from(self.unsigned(bytes)?).map_err(DecodeError::new)
    }

    /// Reads the next token. The specification of MessagePack defines the meaning of each first byte.
    fn token(&mut self) -> Result<Token<'a>, DecodeError> {
        let [first] = self.array()?;
        Ok(match first {
            0x00..=0x7f => Token::Unsigned(u64::from(first)),
            0x80..=0x8f => Token::Map(usize::from(first & 0x0f)),
            0x90..=0x9f => Token::Array(usize::from(first & 0x0f)),
            0xa0..=0xbf => self.text(usize::from(first & 0x1f))?,
            0xc0 => Token::Nil,
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                Token::Bytes(self.take(length)?)
            }
            0xca => Token::F32(f32::from_be_bytes(self.array()?)),
            0xcb => Token::F64(f64::from_be_bytes(self.array()?)),
            0xcc..=0xcf => Token::Unsigned(self.unsigned(1 << (first - 0xcc))?),
            0xd0 => Token::Signed(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => Token::Signed(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => Token::Signed(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => Token::Signed(i64::from_be_bytes(self.array()?)),
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                self.text(length)?
            }
            0xdc | 0xdd => Token::Array(self.length(2 << (first - 0xdc))?),
            0xde | 0xdf => Token::Map(self.length(2 << (first - 0xde))?),
            0xe0..=0xff => Token::Signed(i64::from(first as i8)),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => {
                return Err(DecodeError::new(format_args!(
                    "a value begins with {first:#04x}, expected a MessagePack type other than an extension"
                )));
            }
        })
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        self.depth_left =
            self.depth_left.checked_sub(1).ok_or_else(|| DecodeError::new("values are nested too deep"))?;
        Ok(())
    }

    fn leave(&mut self, left: usize) -> Result<(), DecodeError> {
        self.depth_left += 1;
        if left > 0 {
            return Err(DecodeError::new(format_args!(
                "the value has too many elements: {left} more than expected"
            )));
        }
        Ok(())
    }
}

/// Passes a scalar to the visitor. Refuses arrays and maps.
fn visit_scalar<'de, V: Visitor<'de>>(token: Token<'_>, visitor: V) -> Result<V::Value, DecodeError> {
    match token {
        Token::Nil => visitor.visit_unit(),
        Token::Bool(value) => visitor.visit_bool(value),
        Token::Unsigned(value) => visitor.visit_u64(value),
        Token::Signed(value) => visitor.visit_i64(value),
        Token::F32(value) => visitor.visit_f32(value),
        Token::F64(value) => visitor.visit_f64(value),
        Token::Text(value) => visitor.visit_str(value),
        Token::Bytes(value) => visitor.visit_bytes(value),
        Token::Array(_) | Token::Map(_) => Err(unexpected(&token, &visitor)),
    }
}

/// Returns the error for a token that has another type than expected.
fn unexpected(token: &Token<'_>, expected: &dyn de::Expected) -> DecodeError {
    let got = match token {
        Token::Nil => Unexpected::Unit,
        Token::Bool(value) => Unexpected::Bool(*value),
        Token::Unsigned(value) => Unexpected::Unsigned(*value),
        Token::Signed(value) => Unexpected::Signed(*value),
        Token::F32(value) => Unexpected::Float(f64::from(*value)),
        Token::F64(value) => Unexpected::Float(*value),
        Token::Text(value) => Unexpected::Str(value),
        Token::Bytes(value) => Unexpected::Bytes(value),
        Token::Array(_) => Unexpected::Seq,
        Token::Map(_) => Unexpected::Map,
    };
    de::Error::invalid_type(got, expected)
}

impl Decoder<'_> {
    /// Enters an array or a map, and returns its length. Refuses scalars.
    fn enter_elements(
        &mut self,
        token: &Token<'_>,
        expected: &dyn de::Expected,
    ) -> Result<usize, DecodeError> {
        let (Token::Array(left) | Token::Map(left)) = *token else { return Err(unexpected(token, expected)) };
        self.enter()?;
        Ok(left)
    }

    /// Passes the elements of an array, or the entries of a map, to the visitor. Refuses scalars.
    fn visit_elements<'de, V: Visitor<'de>>(
        &mut self,
        token: Token<'_>,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let left = self.enter_elements(&token, &visitor)?;
        let mut elements = Elements { decoder: self, left };
        let value = match token {
            Token::Map(_) => visitor.visit_map(&mut elements),
            _ => visitor.visit_seq(&mut elements),
        };
        let Elements { decoder, left } = elements;
        if value.is_ok() {
            decoder.leave(left)?;
        }
        value
    }
}

/// Passes a number to the visitor. Refuses every other token.
fn visit_number<'de, V: Visitor<'de>>(token: Token<'_>, visitor: V) -> Result<V::Value, DecodeError> {
    match token {
        Token::Unsigned(value) => visitor.visit_u64(value),
        Token::Signed(value) => visitor.visit_i64(value),
        Token::F32(value) => visitor.visit_f32(value),
        Token::F64(value) => visitor.visit_f64(value),
        _ => Err(unexpected(&token, &visitor)),
    }
}

/// Passes a text, such as the name of a field, to the visitor. Refuses every other token.
fn visit_text<'de, V: Visitor<'de>>(token: Token<'_>, visitor: V) -> Result<V::Value, DecodeError> {
    match token {
        Token::Text(value) => visitor.visit_str(value),
        _ => Err(unexpected(&token, &visitor)),
    }
}

/// Defines `deserialize_*` methods for types that are always numbers, texts, arrays or maps. These methods
/// compile to less code than methods that accept every token.
macro_rules! narrow {
    ($visit:ident: $($method:ident($($argument:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $argument,)* visitor: V) -> Result<V::Value, DecodeError> {
            let token = self.token()?;
            narrow!(@$visit self, token, visitor)
        })*
    };
    (@scalar $this:ident, $token:ident, $visitor:ident) => { visit_scalar($token, $visitor) };
    (@number $this:ident, $token:ident, $visitor:ident) => { visit_number($token, $visitor) };
    (@text $this:ident, $token:ident, $visitor:ident) => { visit_text($token, $visitor) };
    (@elements $this:ident, $token:ident, $visitor:ident) => { $this.visit_elements($token, $visitor) };
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            token @ (Token::Array(_) | Token::Map(_)) => self.visit_elements(token, visitor),
            token => visit_scalar(token, visitor),
        }
    }

    narrow! { scalar: deserialize_bool() deserialize_unit() }

    narrow! { number:
        deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64() deserialize_u8() deserialize_u16()
        deserialize_u32() deserialize_u64() deserialize_f32() deserialize_f64()
    }

    narrow! { text: deserialize_char() deserialize_str() deserialize_string() }

    /// Decodes the name of a field or a variant. Passes a short name as bytes, without a check for UTF-8,
    /// because the visitor only compares them. The check took a quarter of the instructions that decode a
    /// push.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let before = self.rest;
        let name = match self.array()? {
            [first @ 0xa0..=0xbf] => self.take(usize::from(first & 0x1f))?,
            _ => {
                self.rest = before;
                return visit_text(self.token()?, visitor);
            }
        };
        visitor.visit_bytes(name)
    }

    narrow! { elements:
        deserialize_seq() deserialize_map() deserialize_tuple(usize)
        deserialize_tuple_struct(&'static str, usize) deserialize_struct(&'static str, &'static [&'static str])
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.rest.split_first() {
            Some((0xc0, rest)) => {
                self.rest = rest;
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    /// Decodes an enum. A variant without content is encoded as its name. A variant with content is encoded
    /// as a map of one entry.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let before = self.rest;
        match self.token()? {
            Token::Map(1) => {
                self.enter()?;
                let value = visitor.visit_enum(Variant { decoder: &mut *self, has_content: true })?;
                self.leave(0)?;
                Ok(value)
            }
            Token::Text(_) => {
                self.rest = before;
                visitor.visit_enum(Variant { decoder: self, has_content: false })
            }
            _ => Err(DecodeError::new("expected an enum variant: its name, or a map of one entry")),
        }
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    /// Decodes a unit struct. `rmp_serde` writes it as an empty array.
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Nil | Token::Array(0) => visitor.visit_unit(),
            token => Err(unexpected(&token, &visitor)),
        }
    }

    forward_to_deserialize_any! { i128 u128 bytes byte_buf ignored_any }
}

/// An access to the elements of an array, or to the entries of a map.
struct Elements<'r, 'a> {
    decoder: &'r mut Decoder<'a>,
    left: usize,
}

impl Elements<'_, '_> {
    /// Returns true if another element follows, and counts it as read.
    fn advance(&mut self) -> bool {
        let more = self.left > 0;
        self.left -= usize::from(more);
        more
    }
}

impl<'de> de::SeqAccess<'de> for &mut Elements<'_, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        if self.advance() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> de::MapAccess<'de> for &mut Elements<'_, '_> {
    type Error = DecodeError;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        if self.advance() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

struct Variant<'r, 'a> {
    decoder: &'r mut Decoder<'a>,
    has_content: bool,
}

impl Variant<'_, '_> {
    fn expect_content(&self, expected: bool) -> Result<(), DecodeError> {
        let shown = |has: bool| if has { "a variant with content" } else { "a variant without content" };
        match self.has_content == expected {
            true => Ok(()),
            false => Err(DecodeError::new(format_args!(
                "expected {}, got {}",
                shown(expected),
                shown(self.has_content)
            ))),
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, '_> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), DecodeError> {
        let value = seed.deserialize(&mut *self.decoder)?;
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, '_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        if !self.has_content {
            return Ok(());
        }
        match self.decoder.token()? {
            Token::Nil => Ok(()),
            _ => self.expect_content(false),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        self.expect_content(true)?;
        seed.deserialize(self.decoder)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.expect_content(true)?;
        let token = self.decoder.token()?;
        self.decoder.visit_elements(token, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.expect_content(true)?;
        let token = self.decoder.token()?;
        self.decoder.visit_elements(token, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::fixtures::graphs::any_session_graph;
    use crate::graph::GraphSpec;

    const DEPTH_MAX: usize = 16;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Choice {
        Plain,
        New(Box<Everything>),
        Pair(i8, String),
        Named { at: u16, bytes: Vec<f32> },
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Unit;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct New(u32);

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Everything {
        unsigned: (u8, u16, u32, u64),
        signed: (i8, i16, i32, i64),
        floats: (f32, f64),
        flag: bool,
        letter: char,
        text: String,
        optional: Option<New>,
        choices: Vec<Choice>,
        map: BTreeMap<String, i32>,
        unit: ((), Unit),
    }

    fn any_everything() -> impl Strategy<Value = Everything> {
        let scalars = any::<((u8, u16, u32, u64), (i8, i16, i32, i64), (f32, f64), bool, char)>();
        let rest = (".{0,40}", prop::option::of(any::<u32>().prop_map(New)));
        let map = prop::collection::btree_map(".{0,4}", any::<i32>(), 0..20);
        let leaf = (scalars, rest, map).prop_map(|((unsigned, signed, floats, flag, letter), rest, map)| {
            let (text, optional) = rest;
            let choices = vec![];
            Everything {
                unsigned,
                signed,
                floats,
                flag,
                letter,
                text,
                optional,
                choices,
                map,
                unit: ((), Unit),
            }
        });
        leaf.prop_recursive(2, 8, 3, |inner| {
            let choice = prop_oneof![
                Just(Choice::Plain),
                inner.clone().prop_map(|everything| Choice::New(Box::new(everything))),
                any::<(i8, String)>().prop_map(|(number, text)| Choice::Pair(number, text)),
                any::<(u16, Vec<f32>)>().prop_map(|(at, bytes)| Choice::Named { at, bytes }),
            ];
            (inner, prop::collection::vec(choice, 0..20))
                .prop_map(|(everything, choices)| Everything { choices, ..everything })
        })
    }

    proptest! {
        #[test]
        fn what_rmp_serde_writes_is_read(
            everything in any_everything(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 100),
        ) {
            for bytes in [rmp_serde::to_vec_named(&everything), rmp_serde::to_vec(&everything)] {
                let bytes = bytes.unwrap();
                let same = |read: &Everything| rmp_serde::to_vec(read).unwrap() == rmp_serde::to_vec(&everything).unwrap();
                prop_assert!(same(&from_bytes(&bytes, DEPTH_MAX).unwrap()), "bit for bit, NaN included");
                for cut in cuts.iter().map(|cut| cut.index(bytes.len())) {
                    prop_assert!(from_bytes::<Everything>(&bytes[..cut], DEPTH_MAX).is_err());
                }
            }
        }

        #[test]
        fn what_is_read_is_what_rmp_serde_reads(
            everything in any_everything(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = rmp_serde::to_vec_named(&everything).unwrap();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            // This decoder refuses some values that `rmp_serde` accepts, such as numbers as names of
            // variants. If this decoder accepts a value, `rmp_serde` accepts it with the same result.
            if let Ok(read) = from_bytes::<Everything>(&bytes, DEPTH_MAX) {
                let theirs: Everything = rmp_serde::from_slice(&bytes).unwrap();
                prop_assert_eq!(rmp_serde::to_vec(&read).unwrap(), rmp_serde::to_vec(&theirs).unwrap());
            }
        }

        #[test]
        fn a_graph_of_a_session_is_read_again(
            graph in any_session_graph(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = rmp_serde::to_vec_named(&graph).unwrap();
            let read: GraphSpec = from_bytes(&bytes, DEPTH_MAX).unwrap();
            // The bytes are compared, because the constants may contain NaN.
            prop_assert_eq!(rmp_serde::to_vec_named(&read).unwrap(), bytes.clone());
            prop_assert!(read.validate_session().is_ok());
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(read) = from_bytes::<GraphSpec>(&bytes, DEPTH_MAX)
                && read.validate_session().is_ok()
            {
                let _ = read.infer_session(2, &vec![true; read.nodes.len()]);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = from_bytes::<Everything>(&bytes, DEPTH_MAX);
            let _ = from_bytes::<Vec<Choice>>(&bytes, DEPTH_MAX);
        }
    }

    #[test]
    fn nesting_and_lengths_are_bounded() {
        // Lists within lists, each of one element; the innermost is empty.
        let nested = |depth: usize| [vec![0x91; depth - 1], vec![0x90]].concat();
        assert!(from_bytes::<de::IgnoredAny>(&nested(DEPTH_MAX), DEPTH_MAX).is_ok());
        let error = from_bytes::<de::IgnoredAny>(&nested(DEPTH_MAX + 1), DEPTH_MAX).unwrap_err();
        assert_eq!(error.to_string(), "values are nested too deep");
        // A list that claims 4 billion elements in 5 bytes is refused before memory for them is allocated.
        let error = from_bytes::<Vec<u64>>(&[0xdd, 0xff, 0xff, 0xff, 0xff], DEPTH_MAX).unwrap_err();
        assert_eq!(error.to_string(), "the bytes end early: 1 expected, 0 left");
        let error = from_bytes::<(u8, u8)>(&[0x93, 1, 2, 3], DEPTH_MAX).unwrap_err();
        assert_eq!(error.to_string(), "the value has too many elements: 1 more than expected");
    }
}
