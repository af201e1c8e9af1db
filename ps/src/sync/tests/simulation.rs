//! Simulates a shard and its workers without computing gradients. The simulated shard carries out the
//! decisions of a policy, and records them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use pushpull_messages::id::{GlobalStep, Incarnation, Version};
use pushpull_messages::sync::SyncSpec;

use super::super::{Admission, Candidate, Members, Policy, policy};

/// An action of a worker. It has no effect if it is impossible; for example, a worker that waits cannot
/// push.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Push(u32),
    Leave(u32),
    /// The worker joins as a new incarnation.
    Join(u32),
}

impl Event {
    pub(crate) fn is_leaving(self) -> bool {
        !matches!(self, Self::Push(_))
    }
}

/// Generates events, most of them pushes.
pub(crate) fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => (0u32..5).prop_map(Event::Push),
        1 => (0u32..5).prop_map(Event::Leave),
        1 => (0u32..5).prop_map(Event::Join),
    ];
    prop_oneof![
        prop::collection::vec(event, 0..150),
        prop::collection::vec((0u32..5).prop_map(Event::Push), 0..150),
    ]
}

/// A push on which the policy has decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub worker: u32,
    pub read: u64,
    /// The shard's version when the push arrived.
    pub version: u64,
    pub learning_rate_factor: f32,
    /// The number of steps by which the furthest other member was ahead of this push.
    pub behind: u64,
}

/// The pushes that became one update.
#[derive(Debug)]
pub(crate) struct Update {
    /// The shard's version before the update.
    pub version: u64,
    pub gradients: Vec<Taken>,
}

/// A worker that is a member.
#[derive(Clone, Copy, Debug)]
struct Worker {
    life: u64,
    /// The version of the values with which the worker computes; `None` while it waits for values.
    read: Option<u64>,
    /// The last step for which a gradient of the worker was applied or held.
    pushed: Option<u64>,
}

/// A simulated shard with its policy and members, and the workers that push to it.
pub(crate) struct Simulation {
    policy: Box<dyn Policy>,
    members: Members,
    workers: BTreeMap<u32, Worker>,
    version: u64,
    lives: u64,
    count: u32,
    held: Vec<Taken>,
    pub pushes: u64,
    pub applied: Vec<Taken>,
    pub stale: Vec<Taken>,
    pub updates: Vec<Update>,
    pub has_left: bool,
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("version", &self.version)
            .field("members", &self.members)
            .field("workers", &self.workers)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl Simulation {
    /// Returns a simulation in which every worker has joined and pulled.
    pub(crate) fn new(sync: SyncSpec, workers: u32) -> Self {
        let mut simulation = Self {
            policy: policy(sync, workers),
            members: Members::new(workers),
            workers: BTreeMap::new(),
            version: 0,
            lives: 0,
            count: workers,
            held: Vec::new(),
            pushes: 0,
            applied: Vec::new(),
            stale: Vec::new(),
            updates: Vec::new(),
            has_left: false,
        };
        (0..workers).for_each(|worker| simulation.join(worker));
        simulation
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Push(worker) => self.push(worker % self.count),
            Event::Leave(worker) => self.leave(worker % self.count),
            Event::Join(worker) => self.join(worker % self.count),
        }
    }

    /// Lets a worker push, if it has values from which to compute a gradient.
    pub(crate) fn push(&mut self, worker: u32) {
        let Some(Worker { read: Some(read), .. }) = self.workers.get(&worker).copied() else { return };
        assert!(self.policy.may_push(worker, Version(self.version), &self.members), "{self:?}");
        self.pushes += 1;
        let step = self.members.next(worker).0;
        let furthest = self.workers.values().filter_map(|worker| worker.pushed).max().unwrap_or(0);
        let mut taken = Taken {
            worker,
            read,
            version: self.version,
            learning_rate_factor: 1.0,
            behind: furthest.saturating_sub(step),
        };
        let candidate = Candidate { worker, read: Version(read) };
        let pushed = match self.policy.admit(candidate, Version(self.version), &mut self.members) {
            Admission::Apply { learning_rate_factor } => {
                taken.learning_rate_factor = learning_rate_factor;
                self.applied.push(taken);
                self.version += 1;
                Some(step)
            }
            Admission::Hold => {
                self.held.push(taken);
                Some(step)
            }
            Admission::Stale { by } => {
                assert_eq!(by, self.version - read);
                self.stale.push(taken);
                None
            }
        };
        let entry = self.workers.get_mut(&worker).expect("it has just pushed");
        entry.read = None;
        entry.pushed = pushed.or(entry.pushed);
        self.settle();
    }

    pub(crate) fn leave(&mut self, worker: u32) {
        let Some(Worker { life, .. }) = self.workers.remove(&worker) else { return };
        assert!(self.members.leave(worker, Incarnation(life)));
        self.has_left = true;
        self.settle();
    }

    /// Lets a worker join as a new incarnation, which replaces the worker's earlier incarnation.
    pub(crate) fn join(&mut self, worker: u32) {
        self.has_left |= self.workers.contains_key(&worker);
        self.lives += 1;
        let life = Incarnation(self.lives);
        self.members.appoint(worker, life, self.lives).expect("a worker of the job");
        let (policy, version) = (&self.policy, Version(self.version));
        let joined = self.members.join(worker, life, |members| policy.first_step(worker, version, members));
        joined.expect("an appointed incarnation may join");
        self.workers.insert(worker, Worker { life: self.lives, read: None, pushed: None });
        self.settle();
    }

    /// Makes all updates that are due, and gives values to every waiting worker whose next step may begin.
    fn settle(&mut self) {
        while self.policy.is_due(Version(self.version), &self.members) {
            self.policy.updated();
            self.updates.push(Update { version: self.version, gradients: std::mem::take(&mut self.held) });
            self.version += 1;
        }
        for (&worker, entry) in &mut self.workers {
            let step = self.members.next(worker);
            if entry.read.is_none()
                && self.policy.may_begin(worker, step, Version(self.version), &self.members)
            {
                entry.read = Some(self.version);
            }
        }
    }

    /// Returns the workers that are waiting, each with the step for which it waits.
    pub(crate) fn waiting(&self) -> Vec<(u32, u64)> {
        let waits = self.workers.iter().filter(|(_, worker)| worker.read.is_none());
        waits.map(|(&worker, _)| (worker, self.members.next(worker).0)).collect()
    }

    pub(crate) fn slowest(&self) -> Option<u64> {
        self.members.slowest().map(|GlobalStep(step)| step)
    }

    pub(crate) fn members(&self) -> usize {
        self.members.count()
    }

    pub(crate) fn is_member(&self, worker: u32) -> bool {
        self.workers.contains_key(&worker)
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }
}
