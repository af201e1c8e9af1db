//! Synchronous: gradients computed at one version are applied together. Without a number those of all members; with a
//! number K the first K, and the others are backup workers (Chen et al., 2016). Wanted: (A) all gradients of an update are
//! of the version before it (S1); (B) they are one of each member, or K; (C) what comes later is stale, and nothing else;
//! (D) a step begins when the update before it is made, or nobody is left to make it; (E) nobody waits for one that has left.

use std::collections::BTreeSet;

use pushpull_messages::id::{GlobalStep, Version};

use super::{Admission, Candidate, Members, Policy};

/// Collects gradients of one version.
#[derive(Debug)]
pub(super) struct Synchronous {
    /// K.
    aggregate: Option<u32>,
    /// Whose gradients are held for the next update.
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
        members.took(push.worker, GlobalStep(version.0 + 1));
        self.held.insert(push.worker);
        Admission::Hold
    }

    fn is_due(&self, version: Version, members: &Members) -> bool {
        let held = self.held.len();
        let to_come = members.not_beyond(GlobalStep(version.0), |worker| self.held.contains(&worker));
        held > 0 && (to_come == 0 || self.aggregate.is_some_and(|enough| held >= enough as usize))
    }

    fn updated(&mut self) {
        self.held.clear();
    }

    fn may_begin(&self, step: GlobalStep, version: Version, members: &Members) -> bool {
        // Where all that would have made the versions before it are gone, who begins with it makes them.
        let nobody_else = || self.held.is_empty() && members.slowest() == Some(step);
        step.0 <= version.0 || nobody_else()
    }

    fn first_step(&self, worker: u32, version: Version, _: &Members) -> GlobalStep {
        // An earlier life of it may have given its gradient for this update already.
        GlobalStep(version.0 + u64::from(self.held.contains(&worker)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::sync::SyncSpec;

    use super::super::simulation::{Simulation, any_events};

    proptest! {
        #[test]
        fn an_update_is_made_of_gradients_of_one_version(
            aggregate in prop::option::of(1u32..5),
            workers in 1u32..5,
            events in any_events(),
        ) {
            let mut simulation = Simulation::new(SyncSpec::Sync { aggregate }, workers);
            for event in events {
                let members = simulation.members();
                let leaving = event.is_leaving();
                let updates = simulation.updates.len();
                simulation.happen(event);
                for update in &simulation.updates[updates..] {
                    prop_assert!(update.gradients.iter().all(|push| push.read == update.version), "(A)");
                    let mut givers: Vec<u32> = update.gradients.iter().map(|push| push.worker).collect();
                    givers.sort_unstable();
                    givers.dedup();
                    let enough = aggregate.map_or(members, |k| members.min(k as usize));
                    // Whoever has given and left is no member any more, so there may be more than members.
                    prop_assert!(givers.len() == enough || (simulation.has_left && givers.len() >= enough - usize::from(leaving)), "(B): {update:?}");
                    prop_assert_eq!(givers.len(), update.gradients.len(), "(B): one of each");
                }
                for &(worker, step) in &simulation.waiting() {
                    prop_assert!(step > simulation.version(), "(D)");
                    prop_assert!(simulation.is_member(worker), "(E)");
                }
                // Somebody can always go on: not all members wait.
                let waiting = simulation.waiting().len();
                prop_assert!(simulation.members() == 0 || waiting < simulation.members(), "(E): {:?}", simulation);
            }
            for push in &simulation.stale {
                prop_assert!(push.read < push.version, "(C)");
            }
        }
    }

    #[test]
    fn with_all_workers_nothing_is_ever_stale() {
        let mut simulation = Simulation::new(SyncSpec::SYNC, 3);
        for _ in 0..10 {
            (0..3).for_each(|worker| simulation.push(worker));
        }
        assert_eq!((simulation.updates.len(), simulation.stale.len()), (10, 0));
    }

    #[test]
    fn a_backup_worker_is_stale_and_goes_on_with_the_newest() {
        let mut simulation = Simulation::new("sync:2".parse().unwrap(), 3);
        for _ in 0..4 {
            (0..2).for_each(|worker| simulation.push(worker));
        }
        simulation.push(2);
        assert_eq!(simulation.updates.len(), 4);
        assert_eq!(simulation.stale.iter().map(|push| push.version - push.read).collect::<Vec<_>>(), [4]);
        simulation.push(2);
        simulation.push(0);
        assert_eq!(simulation.updates.len(), 5, "now it is among the first");
    }
}
