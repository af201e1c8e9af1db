//! Bounded staleness (SSP): each push is applied as it arrives, and a worker may begin step t only when
//! every member has pushed its gradient for step t − S − 1 (Ho et al., NIPS 2013). Wanted properties: (A)
//! every push is applied; (B) when a member's gradient for step t is applied, no other member's gradient for
//! a step after t + S has been applied (S2); (C) hence, as long as the job has the same n members, a
//! gradient is applied at most (n − 1)(2S + 1) versions after the version from which it was computed; (D)
//! the slowest member never waits; (E) no worker waits for a worker that has left.

use pushpull_messages::id::{GlobalStep, Version};

use super::{Admission, Candidate, Members, Policy};

/// The policy that applies every push, and lets a worker be at most S steps ahead of the slowest one.
#[derive(Debug)]
pub(super) struct Bounded {
    /// The bound S: the number of steps by which a worker may be ahead of the slowest one.
    pub staleness: u32,
}

impl Policy for Bounded {
    fn may_push(&self, worker: u32, version: Version, members: &Members) -> bool {
        self.may_begin(worker, members.next(worker), version, members)
    }

    fn is_late(&self, _: Candidate, _: Version) -> bool {
        false
    }

    fn admit(&mut self, push: Candidate, _: Version, members: &mut Members) -> Admission {
        members.pushed(push.worker, members.following(push.worker));
        Admission::Apply { learning_rate_factor: 1.0 }
    }

    fn is_due(&self, _: Version, _: &Members) -> bool {
        false
    }

    fn updated(&mut self) {}

    fn may_begin(&self, _: u32, step: GlobalStep, _: Version, members: &Members) -> bool {
        members.slowest().is_none_or(|slowest| step.0 <= slowest.0.saturating_add(u64::from(self.staleness)))
    }

    fn first_step(&self, _: u32, _: Version, members: &Members) -> GlobalStep {
        // If there is no other member, the worker begins at the greatest step that has been applied.
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
        fn no_worker_is_further_ahead_than_the_bound(
            staleness in 0u32..4,
            workers in 1u32..5,
            events in any_events(),
        ) {
            let mut simulation = Simulation::new(SyncSpec::Bounded { staleness }, workers);
            let all_stay = !events.iter().any(|event| event.is_leaving());
            for event in events {
                simulation.happen(event);
                let slowest = simulation.slowest();
                prop_assert!(
                    simulation.waiting().iter().all(|&(_, step)| Some(step) != slowest),
                    "(D), (E): {:?}", simulation
                );
            }
            prop_assert_eq!(simulation.applied.len() as u64, simulation.pushes, "(A)");
            for push in &simulation.applied {
                prop_assert!(push.behind <= u64::from(staleness), "(B): {push:?}");
                let versions = u64::from(workers - 1) * (2 * u64::from(staleness) + 1);
                prop_assert!(!all_stay || push.version - push.read <= versions, "(C): {push:?}");
            }
        }
    }
}
