//! Checks the lengths of strings in a page before the crate `parquet` decodes them, because `parquet`
//! allocates memory for as many lengths as the page declares. This module must not depend on where the page
//! is.
//!
//! `Encodings.md` of the Parquet format defines the encodings as "Delta-length byte array" and "Delta
//! Strings".

use super::thrift::Thrift;

/// Checks the lists of lengths at the beginning of `bytes`. `lists` is the number of these lists: 1 for
/// delta lengths, and 2 for delta strings. `most` is the maximum number of lengths in each list. Returns
/// false if a list declares more lengths or is malformed, or if `bytes` ends too early.
pub(super) fn lengths_fit(bytes: &[u8], lists: usize, most: u64) -> bool {
    let mut numbers = Thrift::new(bytes);
    (0..lists).all(|_| skip_list(&mut numbers, most).is_some())
}

/// Skips a list of integers that are packed as differences. Returns `None` if the list declares more than
/// `most` integers, is malformed, or ends too early.
fn skip_list(numbers: &mut Thrift<'_>, most: u64) -> Option<()> {
    let (block, parts, count) = (numbers.varint()?, numbers.varint()?, numbers.varint()?);
    let first = numbers.integer();
    if count > most || parts == 0 {
        return None;
    }
    first?;
    let part = block / parts;
    let mut left = count.saturating_sub(1);
    while left > 0 && part > 0 {
        numbers.integer()?;
        for &bits in numbers.take(parts)? {
            if left == 0 {
                break;
            }
            numbers.take(part.checked_mul(bits.into())? / 8)?;
            left = left.saturating_sub(part);
        }
    }
    (left == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_would_exhaust_memory_are_refused() {
        // Blocks of 128 in 4 parts, 3 values, the first of them 5; differences of 0 bits.
        let list = [0x80, 1, 4, 3, 10, 0, 0, 0, 0, 0];
        assert!(lengths_fit(&list, 1, 3));
        assert!(!lengths_fit(&list, 1, 2));
        assert!(!lengths_fit(&list, 2, 3), "the second list is missing");
        assert!(lengths_fit(&[list, list].concat(), 2, 3));
        // The same number of bytes declares 2^49 values.
        let bomb = [&[0x80, 1, 4][..], &[0x80; 7], &[1, 10]].concat();
        assert!(!lengths_fit(&bomb, 1, 1 << 20));
        assert!(!lengths_fit(&[&list[..], &bomb].concat(), 2, 1 << 20));
        for end in 0..list.len() {
            assert!(!lengths_fit(&list[..end], 1, 3), "{end}");
        }
    }
}
