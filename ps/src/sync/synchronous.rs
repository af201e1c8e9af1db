//! Synchronous: the gradients computed at one version are applied together, either those of all members or
//! the first K that arrive. With K, the other members are backup workers (Chen et al., 2016). Wanted
//! properties: (A) all gradients of an update were computed at the version before it (S1); (B) an update has
//! one gradient of each member or, with K, one gradient of each of K members; (C) a push is stale exactly if
//! it arrives after its update; (D) a step begins after the update before it, or when no other member is
//! left to make that update; (E) no worker waits for a worker that has left.

use std::collections::BTreeSet;

use pushpull_messages::id::{GlobalStep, Version};

use super::{Admission, Candidate, Members, Policy};

/// The policy that collects gradients of one version into one update.
#[derive(Debug)]
pub(super) struct Synchronous {
    /// The number K of gradients in an update; `None` for one gradient of every member.
    aggregate: Option<u32>,
    /// The workers whose gradients are held for the next update.
    held: BTreeSet<u32>,
}

impl Synchronous {
    pub(super) const fn new(aggregate: Option<u32>) -> Self {
        Self { aggregate, held: BTreeSet::new() }
    }
}

impl Policy for Synchronous {
    fn may_push(&self, worker: u32, _: Version, _: &Members) -> bool {
        !self.held.contains(&worker)
    }

    fn is_late(&self, push: Candidate, version: Version) -> bool {
        push.read < version
    }

    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission {
        if self.is_late(push, version) {
            members.raise(push.worker, GlobalStep(version.0));
            return Admission::Stale { by: version.0 - push.read.0 };
        }
        members.pushed(push.worker, GlobalStep(version.0 + 1));
        let is_first = self.held.insert(push.worker);
        debug_assert!(is_first, "(B): two gradients of worker/{} in one update", push.worker);
        Admission::Hold
    }

    fn is_due(&self, version: Version, members: &Members) -> bool {
        let held = self.held.len();
        let missing = members.not_beyond(GlobalStep(version.0), |worker| self.held.contains(&worker));
        held > 0 && (missing == 0 || self.aggregate.is_some_and(|enough| held >= enough as usize))
    }

    fn updated(&mut self) {
        self.held.clear();
    }

    fn may_begin(&self, _: u32, step: GlobalStep, version: Version, members: &Members) -> bool {
        // If every member that could have made the earlier versions has left, the slowest member makes them,
        // so it must be able to begin.
        let is_the_slowest = || self.held.is_empty() && members.slowest() == Some(step);
        step.0 <= version.0 || is_the_slowest()
    }

    fn first_step(&self, worker: u32, version: Version, _: &Members) -> GlobalStep {
        // An earlier incarnation of the worker may already have pushed a gradient for this update. In that
        // case, the worker begins with the next step.
        GlobalStep(version.0 + u64::from(self.held.contains(&worker)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::sync::SyncSpec;

    use super::super::tests::simulation::{Simulation, any_events};

    proptest! {
        #[test]
        fn an_update_has_gradients_of_one_version_only(
            aggregate in prop::option::of(1u32..5),
            workers in 1u32..5,
            events in any_events(),
        ) {
            // With more gradients than workers, another policy is used.
            let aggregate = aggregate.map(|k| k.min(workers));
            let mut simulation = Simulation::new(SyncSpec::Sync { aggregate }, workers);
            for event in events {
                let members = simulation.members();
                let leaving = event.is_leaving();
                let updates = simulation.updates.len();
                simulation.happen(event);
                for update in &simulation.updates[updates..] {
                    prop_assert!(update.gradients.iter().all(|push| push.read == update.version), "(A)");
                    let mut pushers: Vec<u32> = update.gradients.iter().map(|push| push.worker).collect();
                    pushers.sort_unstable();
                    pushers.dedup();
                    let enough = aggregate.map_or(members, |k| members.min(k as usize));
                    // A worker that pushed and left is no longer a member, so there may be more pushes than
                    // members.
                    prop_assert!(pushers.len() == enough || (simulation.has_left && pushers.len() >= enough - usize::from(leaving)), "(B): {update:?}");
                    prop_assert_eq!(pushers.len(), update.gradients.len(), "(B): one of each");
                }
                for &(worker, step) in &simulation.waiting() {
                    prop_assert!(step > simulation.version(), "(D)");
                    prop_assert!(simulation.is_member(worker), "(E)");
                }
                // At least one member can always continue: the members never all wait at the same time.
                let waiting = simulation.waiting().len();
                prop_assert!(simulation.members() == 0 || waiting < simulation.members(), "(E): {:?}", simulation);
            }
            for push in &simulation.stale {
                prop_assert!(push.read < push.version, "(C)");
            }
        }
    }

    #[test]
    fn with_all_workers_no_push_is_ever_stale() {
        let mut simulation = Simulation::new(SyncSpec::SYNC, 3);
        for _ in 0..10 {
            (0..3).for_each(|worker| simulation.push(worker));
        }
        assert_eq!((simulation.updates.len(), simulation.stale.len()), (10, 0));
    }

    #[test]
    fn a_late_backup_worker_continues_with_the_newest_values() {
        let mut simulation = Simulation::new("sync:2".parse().unwrap(), 3);
        for _ in 0..4 {
            (0..2).for_each(|worker| simulation.push(worker));
        }
        simulation.push(2);
        assert_eq!(simulation.updates.len(), 4);
        assert_eq!(simulation.stale.iter().map(|push| push.version - push.read).collect::<Vec<_>>(), [4]);
        simulation.push(2);
        simulation.push(0);
        assert_eq!(simulation.updates.len(), 5, "now it is among the first two");
    }
}
