//! Counts the levels at the beginning of a page before the crate `parquet` decodes them. If a page has fewer
//! levels of lists than values, `parquet` skips its rows forever. This module must not depend on where the
//! page is.
//!
//! `Encodings.md` of the Parquet format defines the encoding as "Run Length Encoding / Bit-Packing Hybrid".

use super::thrift::Thrift;

/// Returns true if `bytes`, which are runs of levels up to `max`, have at least `least` levels.
pub(super) fn has_levels(bytes: &[u8], max: u16, least: u64) -> bool {
    let bits = u64::from(u16::BITS - max.leading_zeros());
    let mut runs = Thrift::new(bytes);
    let mut found = 0u64;
    while found < least {
        let Some(header) = runs.varint() else { return false };
        let count = header >> 1;
        if header & 1 == 0 {
            if runs.take(bits.div_ceil(8)).is_none() {
                return false;
            }
            found = found.saturating_add(count);
        } else if runs.take(count.saturating_mul(bits)).is_some() {
            found = found.saturating_add(count.saturating_mul(8));
        } else {
            // Some writers cut the last run after the levels that are needed.
            return found.saturating_add(8 * runs.left() as u64 / bits) >= least;
        }
    }
    true
}

/// Returns true if `bytes`, which are levels up to `max` without runs, have at least `least` levels.
pub(super) fn has_packed_levels(bytes: &[u8], max: u16, least: u64) -> bool {
    let bits = u64::from(u16::BITS - max.leading_zeros());
    least.saturating_mul(bits) <= 8 * bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn levels_are_counted_over_all_runs() {
        // Ten times 1, then sixteen levels of one bit, then three times 0.
        let runs = [20, 1, 5, 0xff, 0x0f, 6, 0];
        assert!(has_levels(&runs, 1, 29));
        assert!(!has_levels(&runs, 1, 30));
        assert!(!has_levels(&runs[..6], 1, 27), "the last run has no value");
        assert!(has_levels(&runs[..4], 1, 18), "a run that is cut");
        assert!(!has_levels(&runs[..4], 1, 19));
        assert!(has_levels(&[], 1, 0) && !has_levels(&[], 1, 1));
        // Levels up to 4 have three bits, and the value of a run has one byte.
        assert!(has_levels(&[3, 1, 2, 3, 4, 4], 4, 10));
        assert!(!has_levels(&[3, 1, 2, 3, 4, 4], 4, 11));
        assert!(has_packed_levels(&[0; 3], 4, 8) && !has_packed_levels(&[0; 3], 4, 9));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_to_an_end(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            max in 1u16..100,
            least in any::<u64>(),
        ) {
            // Fewer levels are there if more are.
            prop_assert!(!has_levels(&bytes, max, least) || has_levels(&bytes, max, least / 2));
        }
    }
}
