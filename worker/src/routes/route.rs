//! The tree on which the gradients of all workers travel to a shard. Wanted properties: (A) every worker
//! reaches the root, in at most n - 1 steps in a chain, and in at most ⌈log2 n⌉ steps in a binomial tree; (B)
//! `children` is the inverse of `parent`; (C) over the trees of all roots, each worker has equally many
//! children, and it passes equally many gradients on; (D) a worker has at most ⌈log2 n⌉ different parents.

use pushpull_messages::communication::CommunicationSpec;
use pushpull_messages::id::ShardId;

/// The trees of a job: one for each worker as the root.
///
/// The workers of a tree have ranks: the root has rank 0, the worker with the next index rank 1, and so on,
/// with worker 0 after the last worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteSpec {
    communication: CommunicationSpec,
    workers: u32,
}

impl RouteSpec {
    /// Returns the trees of a job; `None` if every worker pushes to the shards itself.
    pub fn new(communication: CommunicationSpec, workers: u32) -> Option<Self> {
        (communication.has_routes() && workers > 1).then_some(Self { communication, workers })
    }

    /// Returns the worker that pushes the sum of all gradients to a shard: the one with the index of the
    /// shard's ps task, so that ps tasks with different indices have different workers.
    pub const fn root(self, shard: ShardId) -> u32 {
        shard.ps % self.workers
    }

    const fn rank(self, worker: u32, root: u32) -> u32 {
        (worker + self.workers - root) % self.workers
    }

    const fn worker(self, rank: u32, root: u32) -> u32 {
        (rank + root) % self.workers
    }

    /// Returns the worker to which `worker` passes gradients on; `None` for the root.
    pub fn parent(self, worker: u32, root: u32) -> Option<u32> {
        let rank = self.rank(worker, root);
        let highest = rank.checked_ilog2()?;
        let next = match self.communication {
            // In the order of ranks 1, 2, ..., n - 1, 0.
            CommunicationSpec::Ring => (rank + 1) % self.workers,
            // In recursive halving, the workers of the upper half hand over to those of the lower half.
            _ => rank - (1 << highest),
        };
        Some(self.worker(next, root))
    }

    /// Returns the workers that pass gradients on to `worker`, in the order of their indices.
    pub fn children(self, worker: u32, root: u32) -> Vec<u32> {
        let rank = self.rank(worker, root);
        let ranks: Vec<u32> = match self.communication {
            CommunicationSpec::Ring if rank == 1 => Vec::new(),
            CommunicationSpec::Ring => vec![(rank + self.workers - 1) % self.workers],
            _ => {
                let first = rank.checked_ilog2().map_or(0, |highest| highest + 1);
                let above = (first..u32::BITS).map(|bit| u64::from(rank) + (1 << bit));
                above.take_while(|&child| child < u64::from(self.workers)).map(|child| child as u32).collect()
            }
        };
        let mut workers: Vec<u32> = ranks.into_iter().map(|rank| self.worker(rank, root)).collect();
        workers.sort_unstable();
        workers
    }

    /// Returns whether the gradients of `worker` pass through `other` on their way to the root.
    pub fn passes(self, worker: u32, other: u32, root: u32) -> bool {
        let mut at = worker % self.workers;
        while let Some(next) = self.parent(at, root) {
            if next == other {
                return true;
            }
            at = next;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn any_routes() -> impl Strategy<Value = RouteSpec> {
        let kinds = [CommunicationSpec::Ring, CommunicationSpec::HalvingDoubling];
        (prop::sample::select(kinds.to_vec()), 2u32..70)
            .prop_map(|(communication, workers)| RouteSpec::new(communication, workers).unwrap())
    }

    proptest! {
        #[test]
        fn every_worker_reaches_the_root(routes in any_routes()) {
            let workers = routes.workers;
            let log = workers.next_power_of_two().ilog2();
            let depth_max = if routes.communication == CommunicationSpec::Ring { workers - 1 } else { log };
            let mut depths = BTreeSet::new();
            for root in 0..workers {
                for worker in 0..workers {
                    let path = std::iter::successors(Some(worker), |&at| routes.parent(at, root));
                    let path: Vec<u32> = path.take(workers as usize + 1).collect();
                    prop_assert_eq!(path.last(), Some(&root), "(A)");
                    prop_assert!(path.len() as u32 - 1 <= depth_max, "(A): {:?}", path);
                    depths.insert(path.len() as u32 - 1);
                    for other in 0..workers {
                        prop_assert_eq!(routes.passes(worker, other, root), path[1..].contains(&other));
                    }
                }
            }
            prop_assert!(routes.communication != CommunicationSpec::Ring || depths.contains(&depth_max));
        }

        #[test]
        fn children_are_the_inverse_of_the_parent(routes in any_routes()) {
            let workers = routes.workers;
            let (mut children, mut passed) = (vec![0; workers as usize], vec![0; workers as usize]);
            let mut parents = vec![BTreeSet::new(); workers as usize];
            for root in 0..workers {
                for worker in 0..workers {
                    let own = routes.children(worker, root);
                    let inverse: Vec<u32> =
                        (0..workers).filter(|&other| routes.parent(other, root) == Some(worker)).collect();
                    prop_assert_eq!(&own, &inverse, "(B)");
                    children[worker as usize] += own.len();
                    passed[worker as usize] +=
                        (0..workers).filter(|&other| routes.passes(other, worker, root)).count();
                    parents[worker as usize].extend(routes.parent(worker, root));
                }
            }
            for worker in 1..workers as usize {
                prop_assert_eq!((children[worker], passed[worker]), (children[0], passed[0]), "(C)");
            }
            let log = workers.next_power_of_two().ilog2() as usize;
            prop_assert!(parents.iter().all(|parents| parents.len() <= log.max(1)), "(D)");
        }
    }

    #[test]
    fn four_workers_form_a_chain_or_a_tree() {
        let of = |communication| RouteSpec::new(communication, 4).unwrap();
        let parents = |routes: RouteSpec| [0, 1, 2, 3].map(|worker| routes.parent(worker, 1));
        assert_eq!(parents(of(CommunicationSpec::Ring)), [Some(1), None, Some(3), Some(0)]);
        assert_eq!(parents(of(CommunicationSpec::HalvingDoubling)), [Some(2), None, Some(1), Some(1)]);
        let roots = [0, 1, 5].map(|ps| of(CommunicationSpec::Ring).root(ShardId::new(ps, 3)));
        assert_eq!(roots, [0, 1, 1]);
    }

    #[test]
    fn one_worker_has_no_routes() {
        assert_eq!(RouteSpec::new(CommunicationSpec::Ring, 1), None);
        for direct in [CommunicationSpec::Auto, CommunicationSpec::Direct] {
            assert_eq!(RouteSpec::new(direct, 4), None);
        }
    }
}
