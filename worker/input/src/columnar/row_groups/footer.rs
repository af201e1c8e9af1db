//! Checks the headers of a Parquet file before the crate `parquet` decodes them, because it allocates as much
//! as they declare. This module must not depend on where the bytes are.
//!
//! The headers: `parquet.thrift` of the Parquet format, version 2.

use super::thrift::{I32, LIST, STRUCT, Thrift};

/// The maximum depth of a schema. The crate `parquet` descends recursively.
const DEPTH_MAX: usize = 64;

/// Checks the schema in a footer: its groups have no more children than there are elements, and are not
/// nested too deeply.
///
/// # Errors
/// A description of what is wrong.
pub(super) fn check_schema(footer: &[u8]) -> Result<(), String> {
    let children = children(footer).ok_or("the schema is damaged")?;
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
    Ok(())
}

/// Returns the number of children of each element of the schema.
fn children(footer: &[u8]) -> Option<Vec<i64>> {
    let mut thrift = Thrift::new(footer);
    let (mut field, mut kind) = thrift.field(0)?;
    while (field, kind) != (2, LIST) {
        if kind == 0 {
            return None;
        }
        thrift.skip(kind)?;
        (field, kind) = thrift.field(field)?;
    }
    let (size, STRUCT) = thrift.list()? else { return None };
    let mut all = Vec::new();
    for _ in 0..size {
        let (mut last, mut children) = (0, 0);
        loop {
            let (field, kind) = thrift.field(last)?;
            match (field, kind) {
                (_, 0) => break,
                (5, I32) => children = thrift.integer()?,
                _ => thrift.skip(kind)?,
            }
            last = field;
        }
        all.push(children);
    }
    Some(all)
}

/// Returns the number of bytes that a page has when it is unpacked; `None` if `header` is not the whole
/// header of a page.
pub(super) fn page_bytes(header: &[u8]) -> Option<i64> {
    let mut thrift = Thrift::new(header);
    let (mut last, mut bytes) = (0, None);
    loop {
        let (field, kind) = thrift.field(last)?;
        match (field, kind) {
            (_, 0) => return bytes,
            (2, I32) => bytes = bytes.max(Some(thrift.integer()?)),
            _ => thrift.skip(kind)?,
        }
        last = field;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a footer whose schema has these numbers of children.
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
        check_schema(&footer(&[2, 1, 0, 0])).unwrap();
        for bad in [&[2, 0][..], &[1 << 30, 0, 0], &[-1], &[1, 1]] {
            assert!(check_schema(&footer(bad)).unwrap_err().contains("children"), "{bad:?}");
        }
        let deep = |levels| [vec![1; levels], vec![0]].concat();
        check_schema(&footer(&deep(DEPTH_MAX))).unwrap();
        assert!(check_schema(&footer(&deep(1_000_000))).unwrap_err().contains("levels"));
        let whole = footer(&[1, 0]);
        for end in 0..whole.len() {
            assert!(check_schema(&whole[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn the_size_of_a_page_is_found() {
        let header = [0x15, 0, 0x15, 0x80, 1, 0x15, 40, 0x2c, 0x15, 6, 0, 0];
        assert_eq!(page_bytes(&header), Some(64));
        assert_eq!(page_bytes(&header[..11]), None);
        // The last of two fields with the same number may count.
        assert_eq!(page_bytes(&[0x25, 0x80, 1, 0x05, 4, 2, 0]), Some(64));
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (check_schema(&bytes), page_bytes(&bytes));
        }
    }
}
