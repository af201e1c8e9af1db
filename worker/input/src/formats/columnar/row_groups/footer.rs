//! Checks the headers of a Parquet file before the crate `parquet` decodes them, because `parquet` allocates
//! as much memory as the headers declare. This module must not depend on where the bytes are.
//!
//! The headers are defined in `parquet.thrift` of the Parquet format, version 2.

use std::ops::Range;

use super::thrift::Kind::{Boolean, Plain, Struct};
use super::thrift::{BINARY, BYTE, I32, Known, LIST, STRUCT, Thrift};

/// The maximum depth of a schema. The crate `parquet` descends recursively, so every level takes some of the
/// stack.
const DEPTH_MAX: usize = 64;

/// The fields of an element of the schema.
const ELEMENT: Known = &[
    (1, Plain(I32)),
    (2, Plain(I32)),
    (3, Plain(I32)),
    (4, Plain(BINARY)),
    (CHILDREN, Plain(I32)),
    (6, Plain(I32)),
    (7, Plain(I32)),
    (8, Plain(I32)),
    (9, Plain(I32)),
    (10, Struct(LOGICAL_TYPE)),
];
const LOGICAL_TYPE: Known = &[
    (1, Struct(&[])),
    (2, Struct(&[])),
    (3, Struct(&[])),
    (4, Struct(&[])),
    (5, Struct(&[(1, Plain(I32)), (2, Plain(I32))])),
    (6, Struct(&[])),
    (7, Struct(TIME)),
    (8, Struct(TIME)),
    (10, Struct(&[(1, Plain(BYTE)), (2, Boolean)])),
    (11, Struct(&[])),
    (12, Struct(&[])),
    (13, Struct(&[])),
    (14, Struct(&[])),
    (15, Struct(&[])),
    (16, Struct(&[(1, Plain(BYTE))])),
    (17, Struct(&[(1, Plain(BINARY))])),
    (18, Struct(&[(1, Plain(BINARY)), (2, Plain(I32))])),
    (19, Struct(&[])),
];
const TIME: Known = &[(1, Boolean), (2, Struct(&[(1, Struct(&[])), (2, Struct(&[])), (3, Struct(&[]))]))];
/// The Thrift id of the field that says how many children an element has.
const CHILDREN: i64 = 5;

/// The fields of a page's header, except for the statistics, which are skipped.
const PAGE: Known = &[
    (1, Plain(I32)),
    (UNPACKED, Plain(I32)),
    (PACKED, Plain(I32)),
    (4, Plain(I32)),
    (5, Struct(&[(1, Plain(I32)), (2, Plain(I32)), (3, Plain(I32)), (4, Plain(I32))])),
    (6, Struct(&[])),
    (7, Struct(&[(1, Plain(I32)), (2, Plain(I32)), (3, Boolean)])),
    (8, Struct(PAGE_2)),
];
const PAGE_2: Known = &[
    (1, Plain(I32)),
    (2, Plain(I32)),
    (3, Plain(I32)),
    (4, Plain(I32)),
    (5, Plain(I32)),
    (6, Plain(I32)),
    (7, Boolean),
];
/// The Thrift ids of the fields with the unpacked and the packed size of a page, in bytes.
const UNPACKED: i64 = 2;
const PACKED: i64 = 3;

/// Returns a footer that has only the schema of `footer`. Checks that no group of the schema has more
/// children than the schema has elements, and that groups are not nested too deeply.
///
/// # Errors
/// Returns a description of what is wrong.
pub(super) fn checked_schema(footer: &[u8]) -> Result<Vec<u8>, String> {
    let (children, place) = children(footer).ok_or("the schema is damaged")?;
    // For each open group, the number of its children that have not begun yet.
    let mut open: Vec<u64> = Vec::new();
    for (index, &count) in children.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let after = (children.len() - index - 1) as u64;
        let count = u64::try_from(count).ok().filter(|&count| count <= after);
        let count = count.ok_or("a group of the schema has more children than there are elements")?;
        if count > 0 {
            open.push(count);
        }
        if open.len() > DEPTH_MAX {
            return Err(format!("the schema has more than {DEPTH_MAX} levels"));
        }
    }
    Ok([&[SCHEMA << 4 | LIST], &footer[place], &[0]].concat())
}

/// The Thrift id of the field with the schema.
const SCHEMA: u8 = 2;

/// Returns the number of children of each element of the schema, and the range of bytes that the schema
/// occupies.
fn children(footer: &[u8]) -> Option<(Vec<i64>, Range<usize>)> {
    let mut thrift = Thrift::new(footer);
    let (mut field, mut kind) = thrift.field(0)?;
    while (field, kind) != (SCHEMA.into(), LIST) {
        if kind == 0 {
            return None;
        }
        thrift.skip(kind)?;
        (field, kind) = thrift.field(field)?;
    }
    let begin = footer.len() - thrift.left();
    let (size, STRUCT) = thrift.list()? else { return None };
    let mut all = Vec::new();
    for _ in 0..size {
        let mut children = 0;
        thrift.known(ELEMENT, &mut |field, value| {
            if field == CHILDREN {
                children = value;
            }
        })?;
        all.push(children);
    }
    Some((all, begin..footer.len() - thrift.left()))
}

/// Returns the larger of the packed and the unpacked size of a page, in bytes; `None` if `header` does not
/// begin with the whole header of a page.
pub(super) fn page_bytes(header: &[u8]) -> Option<u64> {
    let mut bytes = None;
    Thrift::new(header).known(PAGE, &mut |field, value| {
        if field == UNPACKED || field == PACKED {
            bytes = bytes.max(Some(u64::try_from(value).unwrap_or(u64::MAX)));
        }
    })?;
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a footer whose schema has `children.len()` elements. Element `i` claims to have `children[i]`
    /// children.
    fn footer(children: &[i32]) -> Vec<u8> {
        let mut bytes = vec![0x15, 2, 0x19]; // version 1, then a list
        let mut size = children.len();
        bytes.push(0xfc);
        while size >= 0x80 {
            bytes.push(size as u8 | 0x80);
            size >>= 7;
        }
        bytes.push(size as u8);
        for &count in children {
            bytes.extend([0x35, 0, 0x18, 1, b'a', 0x15]); // repetition 0, name "a", then the children
            let mut zigzag = ((count << 1) ^ (count >> 31)) as u32;
            while zigzag >= 0x80 {
                bytes.push(zigzag as u8 | 0x80);
                zigzag >>= 7;
            }
            bytes.extend([zigzag as u8, 0]);
        }
        bytes
    }

    #[test]
    fn schemas_that_would_exhaust_memory_are_refused() {
        checked_schema(&footer(&[2, 1, 0, 0])).unwrap();
        for bad in [&[2, 0][..], &[1 << 30, 0, 0], &[-1], &[1, 1]] {
            assert!(checked_schema(&footer(bad)).unwrap_err().contains("children"), "{bad:?}");
        }
        let deep = |levels| [vec![1; levels], vec![0]].concat();
        checked_schema(&footer(&deep(DEPTH_MAX))).unwrap();
        assert!(checked_schema(&footer(&deep(1_000_000))).unwrap_err().contains("levels"));
        let whole = footer(&[1, 0]);
        for end in 0..whole.len() {
            assert!(checked_schema(&whole[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn the_size_of_a_page_is_found() {
        let header = [0x15, 0, 0x15, 0x80, 1, 0x15, 40, 0x2c, 0x15, 6, 0, 0];
        assert_eq!(page_bytes(&header), Some(64));
        assert_eq!(page_bytes(&header[..11]), None);
        // The packed bytes are more than the unpacked ones.
        assert_eq!(page_bytes(&[0x25, 4, 0x15, 0x80, 1, 0]), Some(64));
        assert_eq!(page_bytes(&[0x25, 1, 0]), Some(u64::MAX), "a negative number");
    }

    #[test]
    fn fields_that_could_be_read_in_two_ways_are_refused() {
        for (what, header) in [
            ("twice", &[0x25, 4, 0x05, 4, 4, 0][..]),
            ("another type", &[0x26, 4, 0]),
            ("the number 2 + 2^16", &[0x25, 4, 0x05, 0x84, 0x80, 8, 4, 0]),
            ("another type within a struct", &[0x25, 4, 0x3c, 0x18, 0, 0, 0]),
            ("a list of booleans", &[0x25, 4, 0x09, 40, 0x21, 1, 1, 0]),
        ] {
            assert_eq!(page_bytes(header), None, "{what}");
        }
        assert_eq!(page_bytes(&[0x25, 4, 0x09, 40, 0x25, 1, 1, 0]), Some(2), "an unknown field");
        let whole = footer(&[1, 0]);
        // The children of the first element, as bytes instead of an integer.
        let at = whole.windows(2).position(|pair| pair == [0x15, 2]).unwrap();
        let at = at + 2 + whole[at + 2..].windows(2).position(|pair| pair == [0x15, 2]).unwrap();
        let mut other = whole.clone();
        other[at] = 0x18;
        assert_eq!(checked_schema(&other).unwrap_err(), "the schema is damaged");
        // What is decoded is the schema alone.
        let alone = checked_schema(&[&whole[..], &[0x16, 0, 0]].concat()).unwrap();
        assert_eq!(alone, [&[0x29], &whole[3..], &[0]].concat());
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (checked_schema(&bytes), page_bytes(&bytes));
        }
    }
}
