//! Asynchronous: each push is applied as it arrives, and no worker waits for another.
//!
//! Wanted properties: (A) every push is applied; (B) no step has to wait before it begins; (C) if
//! `staleness_lr` is true, the learning rate for a push with staleness s is divided by 1 + s (Zhang et al.,
//! IJCAI 2016); otherwise, every push gets the full learning rate.

use pushpull_messages::id::{GlobalStep, Version};

use super::{Admission, Candidate, Members, Policy};

/// The policy that applies every push at once.
#[derive(Debug)]
pub(super) struct Asynchronous {
    /// Whether the learning rate is divided by 1 + staleness.
    pub staleness_lr: bool,
}

/// Returns the factor of the learning rate for a push with this staleness.
pub(super) fn factor(staleness_lr: bool, staleness: u64) -> f32 {
    if staleness_lr { 1.0 / (1.0 + staleness as f32) } else { 1.0 }
}

impl Policy for Asynchronous {
    fn may_push(&self, _: u32, _: Version, _: &Members) -> bool {
        true
    }

    fn is_late(&self, _: Candidate, _: Version) -> bool {
        false
    }

    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission {
        members.pushed(push.worker, members.following(push.worker));
        let learning_rate_factor = factor(self.staleness_lr, version.0 - push.read.0);
        Admission::Apply { learning_rate_factor }
    }

    fn is_due(&self, _: Version, _: &Members) -> bool {
        false
    }

    fn updated(&mut self) {}

    fn may_begin(&self, _: u32, _: GlobalStep, _: Version, _: &Members) -> bool {
        true
    }

    fn first_step(&self, _: u32, _: Version, members: &Members) -> GlobalStep {
        members.slowest().unwrap_or(members.furthest())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::sync::SyncSpec;

    use super::super::tests::simulation::{Simulation, any_events};

    proptest! {
        #[test]
        fn every_push_is_applied_and_no_worker_waits(workers in 1u32..5, events in any_events()) {
            let mut simulation = Simulation::new(SyncSpec::ASYNC, workers);
            for event in events {
                simulation.happen(event);
                prop_assert!(simulation.waiting().is_empty(), "(B)");
            }
            prop_assert_eq!(simulation.applied.len() as u64, simulation.pushes, "(A)");
            prop_assert!(simulation.applied.iter().all(|push| push.learning_rate_factor == 1.0), "(C)");
        }

        #[test]
        fn a_stale_push_has_a_smaller_learning_rate(workers in 1u32..5, events in any_events()) {
            let mut simulation = Simulation::new(SyncSpec::Async { staleness_lr: true }, workers);
            events.into_iter().for_each(|event| simulation.happen(event));
            for push in &simulation.applied {
                prop_assert_eq!(push.learning_rate_factor, 1.0 / (1.0 + (push.version - push.read) as f32), "(C)");
            }
        }
    }
}
