//! Counts the versions of a shard's values from which replies are being written, and limits their number.
//!
//! Wanted properties: (A) at most `versions_max` versions are pinned; (B) replies on slow connections pin at
//! most half of this number, rounded down; (C) a reply waits only if other versions have reached the limit in
//! (A) or, on a slow connection, the limit in (B); (D) a reply on a fast connection waits only if fast
//! connections pin at least the other half.

use std::collections::BTreeMap;
use std::ops::Range;

use pushpull_messages::id::Version;

/// The versions from which replies are being written. Such a version stays in memory, even after updates have
/// replaced it.
#[derive(Debug)]
pub(crate) struct PinnedVersions {
    versions_max: usize,
    slow_max: usize,
    pins: BTreeMap<Version, Pins>,
}

/// The number of replies that are being written from one version.
#[derive(Debug, Default)]
struct Pins {
    fast: u32,
    slow: u32,
}

impl Pins {
    const fn of(&mut self, slow: bool) -> &mut u32 {
        if slow { &mut self.slow } else { &mut self.fast }
    }
}

impl PinnedVersions {
    /// Returns a count that allows as many versions of `bytes` bytes as fit into `bytes_max`, but at least
    /// two.
    pub(crate) fn new(bytes: u64, bytes_max: u64) -> Self {
        let versions_max = usize::try_from(bytes_max / bytes.max(1)).unwrap_or(usize::MAX).max(2);
        Self { versions_max, slow_max: versions_max / 2, pins: BTreeMap::new() }
    }

    /// Pins a version for a reply if the limits allow it, and returns whether they do. `slow` tells whether
    /// the reply's connection is slow.
    pub(crate) fn pin(&mut self, version: Version, slow: bool) -> bool {
        let known = self.pins.get(&version);
        let new = known.is_none() && self.pins.len() >= self.versions_max;
        let new_slow = slow && known.is_none_or(|pins| pins.slow == 0) && self.slow() >= self.slow_max;
        if !new && !new_slow {
            *self.pins.entry(version).or_default().of(slow) += 1;
        }
        !new && !new_slow
    }

    /// Returns whether a reply on a fast connection pins one of `versions`.
    pub(crate) fn has_fast(&self, versions: Range<Version>) -> bool {
        !versions.is_empty() && self.pins.range(versions).any(|(_, pins)| pins.fast > 0)
    }

    /// Returns the number of versions that replies on slow connections pin.
    fn slow(&self) -> usize {
        self.pins.values().filter(|pins| pins.slow > 0).count()
    }

    /// Ends the pin that [`pin`](Self::pin) made for one reply. `slow` has the same value as in that call.
    pub(crate) fn release(&mut self, version: Version, slow: bool) {
        let pins = self.pins.get_mut(&version).expect("a pinned version");
        *pins.of(slow) -= 1;
        if pins.fast + pins.slow == 0 {
            self.pins.remove(&version);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Replies begin at the newest version, which grows, and end in any order. Checks the properties
        /// against a plain list of the replies.
        #[test]
        fn replies_pin_few_versions_and_slow_ones_half(
            bytes in 0u64..4,
            events in prop::collection::vec((any::<bool>(), any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut pinned = PinnedVersions::new(bytes, 8);
            let most = if bytes == 0 { 8 } else { (8 / bytes as usize).max(2) };
            let mut replies: Vec<(Version, bool)> = Vec::new();
            let distinct = |replies: &[(Version, bool)], which: fn(bool) -> bool| {
                let of_kind = replies.iter().filter(|&&(_, slow)| which(slow));
                of_kind.map(|&(version, _)| version).collect::<std::collections::BTreeSet<_>>()
            };
            for (step, (ends, slow, which)) in events.into_iter().enumerate() {
                if ends && !replies.is_empty() {
                    let (version, slow) = replies.remove(which.index(replies.len()));
                    pinned.release(version, slow);
                    continue;
                }
                // Two replies in a row have the same version.
                let version = Version(step as u64 / 2);
                let (all, of_slow) = (distinct(&replies, |_| true), distinct(&replies, |slow| slow));
                if pinned.pin(version, slow) {
                    replies.push((version, slow));
                } else if slow {
                    prop_assert!(!of_slow.contains(&version), "(C)");
                    prop_assert!(of_slow.len() == most / 2 || all.len() == most, "(C)");
                } else {
                    prop_assert!(!all.contains(&version) && all.len() == most, "(C)");
                    prop_assert!(distinct(&replies, |slow| !slow).len() >= most - most / 2, "(D)");
                }
                prop_assert!(distinct(&replies, |_| true).len() <= most, "(A)");
                prop_assert!(distinct(&replies, |slow| slow).len() <= (most / 2).max(1), "(B)");
                let older = Version(which.index(step + 1) as u64 / 2)..version;
                let is_read = replies.iter().any(|(version, slow)| !slow && older.contains(version));
                prop_assert_eq!(pinned.has_fast(older), is_read);
            }
        }
    }
}
