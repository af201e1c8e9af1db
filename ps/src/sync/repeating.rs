//! The synchronous policy with more gradients per update than workers: the members share the K gradients of
//! an update evenly and compute them from the same version. Wanted properties: (A) an update's gradients
//! were computed at the version before it (S1); (B) an update has exactly K gradients; (C) while no member
//! joins or leaves, each gives its part, parts differ by at most 1, and no gradient is stale; (D) a member
//! whose part is incomplete never waits, so the update is made; (E) the others take over the part of a
//! member that leaves; (F) shards that saw a worker leave at different times reach the same version again.

use std::collections::BTreeMap;

use pushpull_messages::id::{GlobalStep, Incarnation, Version};

use super::{Admission, Candidate, Members, Policy};

/// The policy that collects several gradients of each worker into one update.
#[derive(Debug)]
pub(super) struct Repeating {
    /// The number K of gradients in an update.
    aggregate: u32,
    /// For each incarnation of a worker, the number of its gradients that are held for the next update.
    held: BTreeMap<(u32, Option<Incarnation>), u32>,
}

impl Repeating {
    pub(super) const fn new(aggregate: u32) -> Self {
        Self { aggregate, held: BTreeMap::new() }
    }

    /// Returns whether `worker` still has to give a gradient to the next update. Ended incarnations may have
    /// given some of the K gradients; the members share the rest evenly. If the rest cannot be divided
    /// evenly, each of the members with the smallest indices gives one gradient more.
    ///
    /// A later incarnation gets no credit for the gradients of an earlier one. With credit, two workers could
    /// wait for each other: suppose that each restarts after its pushes have reached only one shard, and that
    /// this shard is a different one for each of them. Each worker would then wait at the shard that already
    /// has its part, while the other shard still needs its gradients. Without credit, no such cycle arises:
    /// the shard that lacks the most gradients requests at least as many from each member as any other shard
    /// does.
    fn needs(&self, worker: u32, members: &Members) -> bool {
        let given = self.held.get(&(worker, members.incarnation(worker))).copied().unwrap_or(0);
        let (mut rest, mut count, mut rank) = (self.aggregate, 0, 0);
        for (&(other, incarnation), &gradients) in &self.held {
            if members.incarnation(other) != incarnation {
                rest = rest.saturating_sub(gradients);
            }
        }
        for member in members.indices() {
            count += 1;
            rank += u32::from(member < worker);
        }
        count > 0 && given < rest / count + u32::from(rank < rest % count)
    }
}

impl Policy for Repeating {
    fn may_push(&self, _: u32, _: Version, _: &Members) -> bool {
        // A worker may have begun its gradient before another one joined and took over a part of the update.
        true
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
        let incarnation = members.incarnation(push.worker);
        *self.held.entry((push.worker, incarnation)).or_insert(0) += 1;
        Admission::Hold
    }

    fn is_due(&self, _: Version, _: &Members) -> bool {
        self.held.values().sum::<u32>() >= self.aggregate
    }

    fn updated(&mut self) {
        self.held.clear();
    }

    fn may_begin(&self, worker: u32, _: GlobalStep, _: Version, members: &Members) -> bool {
        // The step does not matter: after a worker has left, a shard may be one update behind the others, and
        // needs the gradients of members whose step is beyond its version.
        self.needs(worker, members)
    }

    fn first_step(&self, _: u32, version: Version, _: &Members) -> GlobalStep {
        GlobalStep(version.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::sync::SyncSpec;

    use super::super::tests::simulation::{Simulation, any_events};

    fn simulation(more: u32, workers: u32) -> (Simulation, usize) {
        let aggregate = workers + more;
        (Simulation::new(SyncSpec::Sync { aggregate: Some(aggregate) }, workers), aggregate as usize)
    }

    proptest! {
        #[test]
        fn an_update_has_as_many_gradients_as_the_job_says(
            more in 1u32..9,
            workers in 1u32..5,
            events in any_events(),
        ) {
            let (mut simulation, aggregate) = simulation(more, workers);
            for event in events {
                let updates = simulation.updates.len();
                simulation.happen(event);
                for update in &simulation.updates[updates..] {
                    prop_assert!(update.gradients.iter().all(|push| push.read == update.version), "(A)");
                    prop_assert_eq!(update.gradients.len(), aggregate, "(B)");
                    let parts = (0..workers).map(|worker| {
                        update.gradients.iter().filter(|push| push.worker == worker).count()
                    });
                    let parts: Vec<usize> = parts.collect();
                    prop_assert!(simulation.has_left || parts.is_sorted_by(|one, next| one >= next), "(C)");
                    prop_assert!(simulation.has_left || parts[0] - parts[parts.len() - 1] <= 1, "(C)");
                }
                prop_assert!(simulation.has_left || simulation.stale.is_empty(), "(C)");
                for &(worker, _) in &simulation.waiting() {
                    prop_assert!(simulation.is_member(worker), "(E)");
                }
                let waiting = simulation.waiting().len();
                prop_assert!(simulation.members() == 0 || waiting < simulation.members(), "(D): {:?}", simulation);
            }
        }
    }

    #[test]
    fn the_others_take_over_the_part_of_a_lost_worker() {
        let (mut simulation, _) = simulation(3, 2);
        // Of five gradients, worker 0 gives three and worker 1 gives two.
        simulation.push(1);
        (0..9).for_each(|_| simulation.push(0));
        assert_eq!((simulation.updates.len(), simulation.waiting()), (0, vec![(0, 1)]));
        simulation.leave(1);
        assert!(simulation.waiting().is_empty(), "worker 0 has to give one more");
        simulation.push(0);
        let update = &simulation.updates[0];
        assert_eq!(update.gradients.iter().map(|push| push.worker).collect::<Vec<_>>(), [1, 0, 0, 0, 0]);
        (0..4).for_each(|_| simulation.push(0));
        simulation.join(1);
        simulation.push(0);
        assert_eq!(simulation.updates.len(), 2, "it was computing when worker 1 joined");
        assert!(simulation.stale.is_empty());
        simulation.push(1);
        assert_eq!(simulation.stale.len(), 1, "it began before the update");
    }
}
