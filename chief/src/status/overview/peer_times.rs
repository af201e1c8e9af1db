//! Compares the times that several peers take for the same action, to find a peer that takes much longer
//! than the others.
//!
//! Wanted property: (A) a peer's time is compared with the median of all times except its own.

/// The known times of all peers, in microseconds and in ascending order.
#[derive(Debug, Default)]
pub(super) struct PeerTimes(Vec<u64>);

impl FromIterator<u64> for PeerTimes {
    fn from_iter<I: IntoIterator<Item = u64>>(times: I) -> Self {
        let mut sorted: Vec<u64> = times.into_iter().collect();
        sorted.sort_unstable();
        Self(sorted)
    }
}

impl PeerTimes {
    /// Returns the median of the other peers' times, that is, of all times except one that equals `own`;
    /// `None` if there is no other time.
    pub(super) fn median(&self, own: Option<u64>) -> Option<u64> {
        let own = own.and_then(|own| self.0.binary_search(&own).ok());
        let len = self.0.len() - usize::from(own.is_some());
        let at = |index: usize| self.0[index + usize::from(own.is_some_and(|own| own <= index))];
        match (len, len / 2) {
            (0, _) => None,
            (len, half) if len % 2 == 1 => Some(at(half)),
            (_, half) => Some(at(half - 1).midpoint(at(half))),
        }
    }

    /// Compares a peer's time `own` with the median of the other peers' times. Returns `own` and the median
    /// if `own` is at least `relation` times the median, and exceeds it by at least `least` microseconds;
    /// `None` otherwise.
    pub(super) fn beyond(&self, own: Option<u64>, (relation, least): (f64, u64)) -> Option<(u64, u64)> {
        let usual = self.median(own)?;
        own.filter(|&own| own as f64 >= relation * usual as f64 && own >= usual.saturating_add(least))
            .map(|own| (own, usual))
    }
}

/// Formats a time in microseconds as text, such as `84 ms`.
pub(super) fn shown(us: u64) -> String {
    match us as f64 / 1000.0 {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that a time is compared with the median of all other times (A).
        #[test]
        fn the_median_is_that_of_the_others(times in prop::collection::vec(0u64..9, 1..20), at in 0usize..20) {
            let at = at % times.len();
            let mut others = times.clone();
            let own = others.swap_remove(at);
            others.sort_unstable();
            let half = others.len() / 2;
            let wanted = match others.len() {
                0 => None,
                len if len % 2 == 1 => Some(others[half]),
                _ => Some(others[half - 1].midpoint(others[half])),
            };
            prop_assert_eq!(times.into_iter().collect::<PeerTimes>().median(Some(own)), wanted, "(A)");
            prop_assert_eq!(others.into_iter().collect::<PeerTimes>().median(None), wanted, "(A)");
        }
    }
}
