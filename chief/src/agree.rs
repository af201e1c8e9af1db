//! How all shards come to stop at the same step, while they train. Knows neither shards nor workers. Wanted properties: (A)
//! no shard is beyond the step that was agreed on when it hears of it; (B) there are few rounds, however fast they train.

use pushpull_messages::id::{GlobalStep, Version};

/// So many times what was seen to be made is left ahead of them.
const PACES: u64 = 4;

/// The step that the shards are asked to stop at next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    last_step: GlobalStep,
    margin: u64,
    step: GlobalStep,
}

impl Agreement {
    /// Of shards that are at most at that version, and have made so many updates while a few messages travel. Where nobody
    /// trains, they stop where they are.
    pub(crate) fn new(seen: Version, pace: Option<u64>, last_step: GlobalStep) -> Self {
        // One that is too late is mended by another round; but workers that are about to leave make no more steps.
        let margin = pace.map_or(0, |pace| 2 + pace.saturating_mul(PACES));
        let step = GlobalStep(seen.0.saturating_add(margin)).min(last_step);
        Self { last_step, margin, step }
    }

    /// What to ask them.
    pub(crate) const fn step(&self) -> GlobalStep {
        self.step
    }

    /// Where they are, as they answer. Whether they all stop there.
    pub(crate) fn told(&mut self, versions: &[Version]) -> bool {
        let seen = versions.iter().copied().max().unwrap_or_default();
        if seen.0 <= self.step.0 {
            return true;
        }
        self.margin = self.margin.saturating_mul(2).max(1);
        self.step = GlobalStep(seen.0.saturating_add(self.margin)).min(self.last_step);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shards_of_any_speed_agree(
            begun in prop::collection::vec(0u64..100, 1..5),
            speeds in prop::collection::vec(0u64..10_000, 5),
            last in 100u64..10_000_000,
            pace in 0u64..100,
        ) {
            let mut shards: Vec<Version> = begun.into_iter().map(Version).collect();
            let seen = *shards.iter().max().unwrap();
            let mut agreement = Agreement::new(seen, Some(pace), GlobalStep(last));
            let mut stops = vec![last; shards.len()];
            for _ in 0..20 {
                let step = agreement.step();
                let mut versions = Vec::new();
                for ((shard, speed), stop) in shards.iter_mut().zip(&speeds).zip(&mut stops) {
                    // On the way to it; it stops where it was told before.
                    shard.0 = (shard.0 + speed).min(*stop);
                    if shard.0 <= step.0 {
                        *stop = step.0;
                    }
                    versions.push(*shard);
                }
                if agreement.told(&versions) {
                    prop_assert!(shards.iter().all(|shard| shard.0 <= step.0), "(A)");
                    prop_assert!(stops.iter().all(|stop| *stop == step.0), "(A)");
                    return Ok(());
                }
            }
            prop_assert!(false, "(B)");
        }
    }

    #[test]
    fn where_nobody_trains_they_stop_where_they_are() {
        assert_eq!(Agreement::new(Version(7), None, GlobalStep(9)).step(), GlobalStep(7));
        assert_eq!(Agreement::new(Version(7), Some(0), GlobalStep(20)).step(), GlobalStep(9));
        assert_eq!(Agreement::new(Version(7), Some(2), GlobalStep(20)).step(), GlobalStep(17));
        assert_eq!(Agreement::new(Version(9), Some(5), GlobalStep(9)).step(), GlobalStep(9));
    }
}
