//! The requests that wait while a shard waits for its learning rate. The shard serves them afterwards in the
//! order in which they arrived, so it decides as if it had not waited.
//!
//! Wanted properties: (A) a push waits once, however often it arrives; (B) a request that ends an
//! incarnation of a worker waits behind the pushes with gradients of that incarnation, so these pushes count
//! as if they had been served at once.

use std::collections::BTreeSet;

use super::answer::{Answer, Reader};
use super::state::Gradients;
use pushpull_messages::id::Incarnation;
use pushpull_messages::message::{Contribution, Leave, Pull, PullAt, Push, Refusal};

/// A request that waits.
pub(super) enum Deferred<R> {
    /// A worker's push.
    Push(DeferredPush<R>),
    /// The end of an incarnation, which waits behind a push of the incarnation. The chief's message that ends
    /// the incarnation has already been answered.
    Leave(Leave),
    /// A worker's request to join, which waits behind a push of another incarnation.
    Join(DeferredJoin<R>),
}

/// A push that waits. Its gradients still count against the limit on bytes in flight.
pub(super) struct DeferredPush<R> {
    pub push: Push,
    pub gradients: Gradients,
    pub connection: u64,
    pub reply: R,
}

/// A request to join that waits.
pub(super) struct DeferredJoin<R> {
    pub pull: Pull,
    pub reader: Reader,
    pub reply: R,
}

/// The requests that wait, in the order of their arrival. For each worker, the queue has any number of
/// pushes, at most one `Leave` for each incarnation that has pushed, and at most one request to join.
pub(super) struct DeferredQueue<R>(Vec<Deferred<R>>);

impl<R> Default for DeferredQueue<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R> DeferredQueue<R> {
    /// Adds a push. A push that arrives again keeps its place, and the copy on the later connection gets the
    /// answer. Returns the refusal of the other copy.
    pub(super) fn push(&mut self, new: DeferredPush<R>) -> Option<Answer<R>> {
        // Another sum of gradients is not a copy, even if it has the same sender.
        let is_copy = |push: &Push| push.id == new.push.id && push.with == new.push.with;
        let copy = self.0.iter_mut().find_map(|waiting| match waiting {
            Deferred::Push(waiting) if is_copy(&waiting.push) => Some(waiting),
            _ => None,
        });
        let other = match copy {
            Some(waiting) if waiting.connection > new.connection => new,
            Some(waiting) => std::mem::replace(waiting, new),
            None => {
                self.0.push(Deferred::Push(new));
                return None;
            }
        };
        Some(Answer::refused(other.reply, Refusal::superseded()))
    }

    /// Adds the end of an incarnation if one of its pushes waits. Returns whether the end now waits in the
    /// queue.
    pub(super) fn leave(&mut self, leave: &Leave) -> bool {
        let &Leave { worker, incarnation, .. } = leave;
        let ends = |waiting: &Deferred<R>| match waiting {
            Deferred::Push(waiting) => waiting
                .push
                .contributions()
                .any(|own| (own.id.worker, own.id.incarnation) == (worker, incarnation)),
            Deferred::Leave(_) | Deferred::Join(_) => false,
        };
        let Some(last) = self.0.iter().rposition(ends) else { return false };
        // The same message may have arrived before. It is not added twice.
        let known = |waiting: &Deferred<R>| match waiting {
            Deferred::Leave(earlier) => (earlier.worker, earlier.incarnation) == (worker, incarnation),
            Deferred::Push(_) | Deferred::Join(_) => false,
        };
        if !self.0[last..].iter().any(known) {
            self.0.push(Deferred::Leave(*leave));
        }
        true
    }

    /// Returns whether a pull of `worker` has to wait. It has to if `incarnation` joins with this pull while
    /// a push of another incarnation waits: the join ends all other incarnations.
    pub(super) fn delays(&self, pull: &Pull, worker: u32, incarnation: Incarnation) -> bool {
        let other = |own: Contribution| own.id.worker == worker && own.id.incarnation != incarnation;
        pull.at == PullAt::Join && self.pushes().any(|push| push.contributions().any(other))
    }

    /// Adds a request to join. If the worker already has such a request in the queue, only one of the two
    /// stays: the new one, unless the older one is of the same incarnation and came on a later connection.
    /// Returns the refusal of the request that does not stay.
    pub(super) fn join(&mut self, new: DeferredJoin<R>) -> Option<Answer<R>> {
        let waiting = self.0.iter_mut().find_map(|waiting| match waiting {
            Deferred::Join(waiting) if waiting.reader.worker == new.reader.worker => Some(waiting),
            _ => None,
        });
        let overtakes = |waiting: &DeferredJoin<R>| {
            waiting.reader.incarnation == new.reader.incarnation
                && waiting.reader.connection > new.reader.connection
        };
        let other = match waiting {
            Some(waiting) if overtakes(waiting) => new,
            Some(waiting) => std::mem::replace(waiting, new),
            None => {
                self.0.push(Deferred::Join(new));
                return None;
            }
        };
        Some(Answer::refused(other.reply, Refusal::superseded()))
    }

    /// Iterates over the pushes that wait, in the order of their arrival.
    fn pushes(&self) -> impl Iterator<Item = &Push> + '_ {
        self.0.iter().filter_map(|waiting| match waiting {
            Deferred::Push(waiting) => Some(&waiting.push),
            Deferred::Leave(_) | Deferred::Join(_) => None,
        })
    }

    /// Returns whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all requests, in the order of their arrival.
    pub(super) fn take(&mut self) -> Vec<Deferred<R>> {
        std::mem::take(&mut self.0)
    }

    /// Returns the workers that wait for the answer to one of these requests.
    pub(super) fn workers(&self) -> BTreeSet<u32> {
        let worker = |waiting: &Deferred<R>| match waiting {
            Deferred::Push(waiting) => Some(waiting.push.id.worker),
            Deferred::Join(waiting) => Some(waiting.reader.worker),
            Deferred::Leave(_) => None,
        };
        self.0.iter().filter_map(worker).collect()
    }

    /// Returns the number of bytes of the gradients that wait.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |waiting: &Deferred<R>| match waiting {
            Deferred::Push(waiting) => waiting.gradients.bytes(),
            Deferred::Leave(_) | Deferred::Join(_) => 0,
        };
        self.0.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{Incarnation, LocalStep, PlacementEpoch, Sequence, Version};
    use pushpull_messages::message::PushId;
    use pushpull_transport::buffer::Payload;

    use super::*;

    fn push(incarnation: u64) -> DeferredPush<()> {
        let id = PushId { worker: 3, incarnation: Incarnation(incarnation), sequence: Sequence(1) };
        let push = Push {
            shard: 0,
            id,
            local_step: LocalStep(0),
            epoch: PlacementEpoch(1),
            placement_digest: 0,
            version: Version(0),
            slices: Vec::new(),
            drawn: 0,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        DeferredPush { push, gradients: Payload::EMPTY.into(), connection: 1, reply: () }
    }

    /// Checks that a sum counts as a push of each of its workers (B), and is no copy of another sum (A).
    #[test]
    fn a_sum_waits_for_all_its_workers() {
        let mut queue = DeferredQueue::default();
        let other = PushId { worker: 4, incarnation: Incarnation(9), sequence: Sequence(1) };
        let with = vec![Contribution { id: other, local_step: LocalStep(0), drawn: 0 }];
        let sum = || {
            let one = push(1);
            DeferredPush { push: Push { with: with.clone(), ..one.push.clone() }, ..one }
        };
        assert!(queue.push(sum()).is_none() && queue.push(push(1)).is_none());
        assert!(queue.push(sum()).is_some() && queue.push(push(1)).is_some(), "each waits once");
        let leave = |worker, incarnation| Leave {
            shard: 0,
            worker,
            incarnation: Incarnation(incarnation),
            epoch: PlacementEpoch(1),
        };
        assert!(queue.leave(&leave(4, 9)) && !queue.leave(&leave(4, 8)));
        let join = Pull {
            shard: 0,
            epoch: PlacementEpoch(1),
            placement_digest: 0,
            at: PullAt::Join,
            averages: false,
        };
        assert!(queue.delays(&join, 4, Incarnation(10)) && !queue.delays(&join, 4, Incarnation(9)));
    }

    /// Checks that the end of an incarnation waits behind the pushes of that incarnation (B). The worker
    /// pushes, leaves, comes back as a new incarnation, and pushes and leaves again.
    #[test]
    fn an_incarnation_ends_behind_its_last_push() {
        let mut queue = DeferredQueue::default();
        let leave = |incarnation| {
            let (incarnation, epoch) = (Incarnation(incarnation), PlacementEpoch(1));
            Leave { shard: 0, worker: 3, incarnation, epoch }
        };
        assert!(!queue.leave(&leave(1)), "no push waits");
        for incarnation in [1, 2] {
            assert!(queue.push(push(incarnation)).is_none());
            // Each end waits once, however often the message arrives.
            for ended in [1, incarnation, 1] {
                assert!(queue.leave(&leave(ended)));
            }
            assert!(!queue.leave(&leave(3)), "no push of it waits");
        }
        let order: Vec<(&str, u64)> = queue
            .take()
            .iter()
            .map(|waiting| match waiting {
                Deferred::Push(waiting) => ("push", waiting.push.id.incarnation.0),
                Deferred::Leave(leave) => ("leave", leave.incarnation.0),
                Deferred::Join(_) => panic!("nobody joins"),
            })
            .collect();
        assert_eq!(order, [("push", 1), ("leave", 1), ("push", 2), ("leave", 2)]);
    }
}
