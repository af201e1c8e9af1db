//! Reads values in the compact protocol of Thrift, as far as the headers of Parquet need it. This module must
//! not depend on Parquet.
//!
//! The documentation of Apache Thrift defines the protocol, under "Thrift compact protocol encoding".

/// The maximum depth of nesting in a value that is skipped.
const DEPTH_MAX: u32 = 32;

/// The type of a byte.
pub(super) const BYTE: u8 = 3;
/// The type of a 32-bit integer.
pub(super) const I32: u8 = 5;
/// The type of bytes or a string.
pub(super) const BINARY: u8 = 8;
/// The type of a list.
pub(super) const LIST: u8 = 9;
/// The type of a struct.
pub(super) const STRUCT: u8 = 12;

/// The expected type of a known field.
pub(super) enum Kind {
    /// A type, given by its number in the protocol.
    Plain(u8),
    Boolean,
    Struct(Known),
}

/// The known fields of a struct, with their numbers and types; at most 64.
pub(super) type Known = &'static [(i64, Kind)];

/// A reader of Thrift values from bytes. Its methods return `None` if the bytes end too early or are not
/// valid.
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Reads the number and the type of the next field of a struct; the type is 0 after the last field.
    /// `last` is the number of the previous field, or 0 for the first field. The field's number must fit
    /// into 16 bits, because the crate `parquet` cuts it to 16 bits.
    pub(super) fn field(&mut self, last: i64) -> Option<(i64, u8)> {
        let byte = self.byte()?;
        let (delta, kind) = (i64::from(byte >> 4), byte & 15);
        let field = match (kind, delta) {
            (0, _) => return Some((last, 0)),
            (_, 0) => self.integer()?,
            _ => last.checked_add(delta)?,
        };
        i16::try_from(field).is_ok().then_some((field, kind))
    }

    /// Reads a struct. Calls `found` with the field number and the value of each known 32-bit integer, but
    /// ignores integers in nested structs. Returns `None` if a known field has another type or occurs twice:
    /// the crate `parquet` looks only at the numbers of fields, and its result would then differ from this
    /// module's.
    pub(super) fn known(&mut self, known: Known, found: &mut dyn FnMut(i64, i64)) -> Option<()> {
        let (mut last, mut seen) = (0, 0u64);
        loop {
            let (field, kind) = self.field(last)?;
            if kind == 0 {
                return Some(());
            }
            match known.iter().position(|(number, _)| *number == field) {
                None => self.skip(kind)?,
                Some(place) if seen >> place & 1 == 1 => return None,
                Some(place) => {
                    seen |= 1 << place;
                    match &known[place].1 {
                        Kind::Plain(I32) if kind == I32 => found(field, self.integer()?),
                        Kind::Plain(expected) if kind == *expected => self.skip(kind)?,
                        Kind::Boolean if kind == 1 || kind == 2 => {}
                        Kind::Struct(inner) if kind == STRUCT => self.known(inner, &mut |_, _| {})?,
                        _ => return None,
                    }
                }
            }
            last = field;
        }
    }

    /// Returns the number of bytes that have not been read.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// Reads an integer of 16, 32 or 64 bits.
    pub(super) fn integer(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// Reads the head of a list: the count and the type of its elements.
    pub(super) fn list(&mut self) -> Option<(u64, u8)> {
        let byte = self.byte()?;
        let size = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        // Every element has at least one byte.
        (size <= self.bytes.len() as u64).then_some((size, byte & 15))
    }

    /// Skips the value of a field.
    pub(super) fn skip(&mut self, kind: u8) -> Option<()> {
        match kind {
            1 | 2 => Some(()), // a boolean field has no bytes, because its type contains its value
            other => self.skip_within(other, DEPTH_MAX),
        }
    }

    fn skip_within(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Lists of booleans are refused, because the crate `parquet` skips them as if they had no bytes.
            // No header has such a list.
            1 | 2 => None,
            BYTE => self.byte().map(|_| ()),
            4..=6 => self.varint().map(|_| ()),
            7 => self.take(8).map(|_| ()),
            BINARY => {
                let bytes = self.varint()?;
                self.take(bytes).map(|_| ())
            }
            9 | 10 => {
                let (size, kind) = self.list()?;
                (0..size).try_for_each(|_| self.skip_within(kind, depth))
            }
            11 => {
                let size = self.varint()?;
                let kinds = if size == 0 { 0 } else { self.byte()? };
                (0..size).try_for_each(|_| {
                    self.skip_within(kinds >> 4, depth)?;
                    self.skip_within(kinds & 15, depth)
                })
            }
            STRUCT => {
                let mut last = 0;
                loop {
                    let (field, kind) = self.field(last)?;
                    match kind {
                        0 => return Some(()),
                        1 | 2 => {}
                        _ => self.skip_within(kind, depth)?,
                    }
                    last = field;
                }
            }
            _ => None,
        }
    }

    /// Returns the next `bytes` bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    /// Reads an unsigned integer.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
