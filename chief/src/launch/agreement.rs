//! Finds a step at which all shards can stop, or change their learning rate, while they train. Sends no
//! messages. Wanted properties: (A) no shard has passed the agreed step when it receives that step; (B) the
//! number of rounds of messages is small, even if the shards train fast.

use pushpull_messages::id::{GlobalStep, Version};

/// The distance from the shards' newest known version to the requested step, in multiples of the pace that
/// [`StepAgreement::new`] describes.
const PACES: u64 = 4;

/// The search for a step at which all shards can stop or change their learning rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepAgreement {
    last_step: GlobalStep,
    margin: u64,
    step: GlobalStep,
}

impl StepAgreement {
    /// Begins the search. `seen` is the greatest version that any shard had when the shards were last
    /// observed. `pace` is the number of updates that a shard applies in about the time that a few messages
    /// take. If `pace` is `None`, no worker trains, and the shards stop at `seen`.
    pub(crate) fn new(seen: Version, pace: Option<u64>, last_step: GlobalStep) -> Self {
        // A step that is too early is corrected by another round. A step that is too late would never be
        // reached, because workers that are about to leave take no more steps.
        let margin = pace.map_or(0, |pace| 2 + pace.saturating_mul(PACES));
        let step = GlobalStep(seen.0.saturating_add(margin)).min(last_step);
        Self { last_step, margin, step }
    }

    /// Returns the step to request: the shards are to stop there, or to change their learning rate.
    pub(crate) const fn step(&self) -> GlobalStep {
        self.step
    }

    /// Records the versions that the shards have replied with. Returns true if no shard has passed the
    /// requested step. Otherwise [`step`](Self::step) returns a later step, and the caller must request that
    /// step.
    pub(crate) fn update(&mut self, versions: &[Version]) -> bool {
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
            let mut agreement = StepAgreement::new(seen, Some(pace), GlobalStep(last));
            let mut stops = vec![last; shards.len()];
            for _ in 0..20 {
                let step = agreement.step();
                let mut versions = Vec::new();
                for ((shard, speed), stop) in shards.iter_mut().zip(&speeds).zip(&mut stops) {
                    // The shard continues until it receives the step, but not beyond a step that it has
                    // agreed to.
                    shard.0 = (shard.0 + speed).min(*stop);
                    if shard.0 <= step.0 {
                        *stop = step.0;
                    }
                    versions.push(*shard);
                }
                if agreement.update(&versions) {
                    prop_assert!(shards.iter().all(|shard| shard.0 <= step.0), "(A)");
                    prop_assert!(stops.iter().all(|stop| *stop == step.0), "(A)");
                    return Ok(());
                }
            }
            prop_assert!(false, "(B)");
        }
    }

    #[test]
    fn idle_shards_stop_where_they_are() {
        assert_eq!(StepAgreement::new(Version(7), None, GlobalStep(9)).step(), GlobalStep(7));
        assert_eq!(StepAgreement::new(Version(7), Some(0), GlobalStep(20)).step(), GlobalStep(9));
        assert_eq!(StepAgreement::new(Version(7), Some(2), GlobalStep(20)).step(), GlobalStep(17));
        assert_eq!(StepAgreement::new(Version(9), Some(5), GlobalStep(9)).step(), GlobalStep(9));
    }
}
