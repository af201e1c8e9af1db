//! Decides which checkpoints to delete after a new one has been made. Accesses no store. Wanted properties:
//! (A) the newest `keep` checkpoints stay; (B) of all checkpoints ever made, one in every interval of
//! `keep_every` is never deleted; (C) a second call without a new checkpoint deletes nothing.

use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;

/// Returns the names of the checkpoints to delete. `committed` lists the committed checkpoints, each with
/// the time of its save in milliseconds since 1970.
pub(super) fn to_delete(
    committed: impl IntoIterator<Item = (CheckpointName, u64)>,
    keep: usize,
    keep_every: Option<Duration>,
) -> Vec<CheckpointName> {
    let mut oldest_first: Vec<_> = committed.into_iter().collect();
    oldest_first.sort_unstable_by_key(|(name, _)| (name.life, name.step));
    let old = oldest_first.len().saturating_sub(keep.max(1));
    let every_ms = keep_every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
    let mut last = None;
    let mut is_kept = |saved_ms: u64| {
        // If the clock was set back, the checkpoint is kept, because the time since the last kept checkpoint
        // is unknown.
        let far = |last: u64, every: u64| saved_ms < last || saved_ms - last >= every;
        let kept = every_ms.is_some_and(|every| last.is_none_or(|last| far(last, every)));
        if kept {
            last = Some(saved_ms);
        }
        kept
    };
    oldest_first.truncate(old);
    oldest_first.retain(|&(_, saved_ms)| !is_kept(saved_ms));
    oldest_first.into_iter().map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::tests::named;

    proptest! {
        /// Checks after each of many checkpoints that the newest stay (A), that one of every interval stays
        /// (B), and that a second call deletes nothing (C). Sometimes the job restarts from an earlier step.
        #[test]
        fn the_newest_stay_and_one_of_every_interval(
            pauses in prop::collection::vec(0u64..100, 1..60),
            restarts in prop::collection::vec(0usize..60, 0..4),
            keep in 1usize..6,
            every in prop::option::of(1u64..200),
        ) {
            let keep_every = every.map(Duration::from_millis);
            let (mut there, mut ever) = (BTreeMap::new(), Vec::new());
            let (mut life, mut step, mut now) = (1, 0, 1000);
            for (turn, pause) in pauses.into_iter().enumerate() {
                if restarts.contains(&turn) {
                    // The job continues from an earlier checkpoint.
                    (life, step) = (life + 1, step / 2);
                }
                (step, now) = (step + 1, now + pause);
                there.insert(named(step, life), now);
                ever.push((named(step, life), now));
                for name in to_delete(there.clone(), keep, keep_every) {
                    prop_assert!(there.remove(&name).is_some(), "it was there");
                }
                let newest = ever.iter().rev().take(keep);
                prop_assert!(newest.clone().all(|(name, _)| there.contains_key(name)), "(A)");
                if let Some(every) = every {
                    for (name, saved) in &ever {
                        let near = |kept: &u64| *kept <= *saved && saved - kept < every;
                        prop_assert!(there.values().any(near), "(B) {name} of {saved}: {there:?}");
                    }
                } else {
                    prop_assert_eq!(there.len(), ever.len().min(keep));
                }
                prop_assert_eq!(to_delete(there.clone(), keep, keep_every), vec![], "(C)");
            }
        }

        #[test]
        fn the_newest_stay_whatever_the_clock_says(
            saved in prop::collection::vec(0u64..1000, 1..30), keep in 0usize..6, every in prop::option::of(1u64..200),
        ) {
            let keep_every = every.map(Duration::from_millis);
            let mut there: BTreeMap<_, _> = saved.iter().enumerate().map(|(at, &saved)| (named(at as u64, 1), saved)).collect();
            let newest: Vec<_> = there.keys().rev().take(keep.max(1)).copied().collect();
            for name in to_delete(there.clone(), keep, keep_every) {
                there.remove(&name);
            }
            prop_assert!(newest.iter().all(|name| there.contains_key(name)), "(A)");
            prop_assert_eq!(to_delete(there, keep, keep_every), vec![], "(C)");
        }
    }
}
