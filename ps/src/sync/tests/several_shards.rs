//! Simulates several shards and workers that push to all of them, under the synchronous policies. Pushes to
//! different shards arrive in any order, a worker may die when only some of its pushes have arrived, and each
//! shard hears of the death at another time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use pushpull_messages::id::{GlobalStep, Incarnation, Version};
use pushpull_messages::sync::SyncSpec;

use super::super::{Admission, Candidate, Members, Policy, policy};

/// A simulated shard.
struct Shard {
    policy: Box<dyn Policy>,
    members: Members,
    version: u64,
    /// The workers whose gradients are held, in the order of arrival.
    held: Vec<u32>,
    /// For each update, the workers whose gradients it contains. A worker is listed once for each of its
    /// gradients.
    updates: Vec<Vec<u32>>,
    stale: u64,
    /// The lives that have ended, but of which the shard has not heard yet.
    ended: Vec<(u32, u64)>,
}

/// A worker that is a member.
struct Worker {
    life: u64,
    /// For each shard, the version of the values that the worker has; `None` while it waits for them.
    read: Vec<Option<u64>>,
    /// For each shard, the version from which a push that is on its way was computed; `None` if no push is
    /// on its way.
    sent: Vec<Option<u64>>,
}

struct Cluster {
    shards: Vec<Shard>,
    workers: BTreeMap<u32, Worker>,
    lives: u64,
    /// The number of times that a worker had values of different versions from different shards when it
    /// computed.
    mixed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The worker sends its gradients, if it has the values of all shards. If these differ in version, only
    /// the shards that are behind get a gradient.
    Compute(u32),
    /// The worker's push arrives at a shard, if one is on its way.
    Arrive(u32, usize),
    /// The worker dies. Its pushes that have not arrived are lost.
    Die(u32),
    /// A shard hears that workers have died.
    Hear(usize),
    Join(u32),
}

impl Cluster {
    fn new(aggregate: Option<u32>, workers: u32, shards: usize) -> Self {
        let shard = |_| Shard {
            policy: policy(SyncSpec::Sync { aggregate }, workers),
            members: Members::new(workers),
            version: 0,
            held: Vec::new(),
            updates: Vec::new(),
            stale: 0,
            ended: Vec::new(),
        };
        let shards = (0..shards).map(shard).collect();
        let mut cluster = Self { shards, workers: BTreeMap::new(), lives: 0, mixed: 0 };
        (0..workers).for_each(|worker| cluster.join(worker));
        cluster
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Compute(worker) => self.compute(worker),
            Event::Arrive(worker, shard) => self.arrive(worker, shard % self.shards.len()),
            Event::Die(worker) => self.die(worker),
            Event::Hear(shard) => self.hear(shard % self.shards.len()),
            Event::Join(worker) => self.join(worker),
        }
    }

    /// Lets a worker push as the client does: to all shards if their values have the same version, and
    /// otherwise only to the shards that are behind.
    fn compute(&mut self, worker: u32) {
        let Some(Worker { read, sent, .. }) = self.workers.get_mut(&worker) else { return };
        let Some(versions) = read.iter().copied().collect::<Option<Vec<u64>>>() else { return };
        let newest = *versions.iter().max().expect("a shard");
        let behind = versions.iter().any(|&version| version < newest);
        self.mixed += u64::from(behind);
        for (shard, version) in versions.into_iter().enumerate() {
            if behind && version == newest {
                // The worker pulls the latest values, which it gets at once.
                read[shard] = Some(self.shards[shard].version);
            } else {
                (read[shard], sent[shard]) = (None, Some(version));
            }
        }
    }

    fn arrive(&mut self, worker: u32, shard: usize) {
        let Some(sent) = self.workers.get_mut(&worker).and_then(|entry| entry.sent[shard].take()) else {
            return;
        };
        let Shard { policy, members, version, held, stale, .. } = &mut self.shards[shard];
        assert!(policy.may_push(worker, Version(*version), members));
        let candidate = Candidate { worker, read: Version(sent) };
        match policy.admit(candidate, Version(*version), members) {
            Admission::Hold => held.push(worker),
            Admission::Stale { .. } => *stale += 1,
            Admission::Apply { .. } => panic!("nothing is applied alone"),
        }
        self.settle(shard);
    }

    fn die(&mut self, worker: u32) {
        let Some(Worker { life, .. }) = self.workers.remove(&worker) else { return };
        for shard in &mut self.shards {
            shard.ended.push((worker, life));
        }
    }

    fn hear(&mut self, shard: usize) {
        for (worker, life) in std::mem::take(&mut self.shards[shard].ended) {
            self.shards[shard].members.leave(worker, Incarnation(life));
        }
        self.settle(shard);
    }

    /// Lets a new incarnation of a worker join. Each shard hears first that the earlier one has ended.
    fn join(&mut self, worker: u32) {
        self.die(worker);
        (0..self.shards.len()).for_each(|shard| self.hear(shard));
        self.lives += 1;
        let mut first = 0;
        for Shard { policy, members, version, .. } in &mut self.shards {
            let appointed = members.appoint(worker, Incarnation(self.lives), self.lives);
            assert_eq!(appointed, Ok(None));
            let joined = members.join(worker, Incarnation(self.lives), |members| {
                policy.first_step(worker, Version(*version), members)
            });
            first = first.max(joined.expect("an appointed incarnation").0);
        }
        let count = self.shards.len();
        let entry = Worker { life: self.lives, read: vec![None; count], sent: vec![None; count] };
        self.workers.insert(worker, entry);
        for shard in 0..count {
            self.shards[shard].members.raise(worker, GlobalStep(first));
            self.settle(shard);
        }
    }

    /// Makes all updates of a shard that are due, and gives its values to every waiting worker whose next
    /// step may begin.
    fn settle(&mut self, shard: usize) {
        let Shard { policy, members, version, held, updates, .. } = &mut self.shards[shard];
        while policy.is_due(Version(*version), members) {
            policy.updated();
            updates.push(std::mem::take(held));
            *version += 1;
        }
        for (&worker, entry) in &mut self.workers {
            let waits = entry.read[shard].is_none() && entry.sent[shard].is_none();
            if waits && policy.may_begin(worker, members.next(worker), Version(*version), members) {
                entry.read[shard] = Some(*version);
            }
        }
    }

    /// Lets every worker compute once, and then lets all pushes arrive.
    fn round(&mut self, workers: u32) {
        (0..workers).for_each(|worker| self.compute(worker));
        for shard in 0..self.shards.len() {
            (0..workers).for_each(|worker| self.arrive(worker, shard));
        }
    }

    fn versions(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.version).collect()
    }
}

fn calm_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0u32..5).prop_map(Event::Compute),
        2 => (0u32..5, 0usize..3).prop_map(|(worker, shard)| Event::Arrive(worker, shard)),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => calm_event(),
        1 => (0u32..5).prop_map(Event::Die),
        2 => (0usize..3).prop_map(Event::Hear),
        1 => (0u32..5).prop_map(Event::Join),
    ]
}

/// Lets these events happen, then lets the shards hear of all deaths, and trains on. Returns the cluster.
fn trained_on(aggregate: Option<u32>, workers: u32, shards: usize, events: Vec<Event>) -> Cluster {
    let mut cluster = Cluster::new(aggregate, workers, shards);
    for event in events {
        cluster.happen(match event {
            Event::Compute(worker) => Event::Compute(worker % workers),
            Event::Arrive(worker, shard) => Event::Arrive(worker % workers, shard),
            Event::Die(worker) => Event::Die(worker % workers),
            Event::Hear(shard) => Event::Hear(shard),
            Event::Join(worker) => Event::Join(worker % workers),
        });
    }
    if cluster.workers.is_empty() {
        cluster.join(0);
    }
    (0..shards).for_each(|shard| cluster.hear(shard));
    // A single worker may have to make all updates.
    let rounds = 3 * aggregate.unwrap_or(workers).max(workers) as usize;
    (0..rounds).for_each(|_| cluster.round(workers));
    let (before, mixed) = (cluster.versions(), cluster.mixed);
    (0..rounds).for_each(|_| cluster.round(workers));
    let after = cluster.versions();
    assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
    let backups = aggregate.is_some_and(|aggregate| aggregate < workers);
    let apart = after.iter().max().expect("a shard") - after.iter().min().expect("a shard");
    assert!(apart <= u64::from(backups), "{after:?}");
    assert!(backups || cluster.mixed == mixed, "all gradients are of one version");
    cluster
}

/// Checks that two workers do not wait for each other, each at another shard. Worker 2 has died, and its last
/// push has reached one shard only. The push of worker 1 is late, so its values are of different versions.
#[test]
fn no_worker_waits_at_one_shard_for_another_one() {
    let (compute, arrive) = (Event::Compute, Event::Arrive);
    let events = vec![
        compute(2),
        compute(0),
        arrive(2, 0),
        arrive(0, 1),
        arrive(0, 0),
        arrive(2, 1),
        compute(1),
        arrive(1, 0),
        compute(0),
        arrive(0, 0),
        compute(2),
        arrive(2, 1),
        arrive(2, 0),
        arrive(0, 1),
        compute(2),
        arrive(2, 1),
        Event::Die(2),
    ];
    let cluster = trained_on(Some(2), 3, 2, events);
    assert!(cluster.shards.iter().flat_map(|shard| &shard.updates).all(|update| update.len() == 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Checks that, whatever happens, the training goes on when workers no longer die or join, and that all
    /// shards come to the same version again. Every gradient is then computed from values of one version.
    /// With backup workers, one of them may get values of successive versions, and shards may be one version
    /// apart. An update of K gradients has exactly K if there are fewer workers.
    #[test]
    fn shards_come_to_the_same_version_again(
        aggregate in prop::option::of(1u32..10),
        workers in 1u32..6,
        shards in 1usize..4,
        events in prop::collection::vec(any_event(), 0..300),
    ) {
        let cluster = trained_on(aggregate, workers, shards, events);
        for update in cluster.shards.iter().flat_map(|shard| &shard.updates) {
            match aggregate {
                Some(aggregate) if aggregate > workers => prop_assert_eq!(update.len(), aggregate as usize),
                Some(aggregate) => prop_assert!((1..=aggregate as usize).contains(&update.len())),
                None => prop_assert!((1..=workers as usize).contains(&update.len())),
            }
        }
    }

    /// Checks that, while no worker joins or leaves, each worker contributes its fixed number of gradients
    /// to every update of every shard. The order of arrival does not matter, and no gradient is stale.
    #[test]
    fn the_parts_of_an_update_do_not_depend_on_the_order(
        more in 1u32..7,
        workers in 1u32..5,
        events in prop::collection::vec(calm_event(), 0..400),
    ) {
        let mut cluster = Cluster::new(Some(workers + more), workers, 3);
        for event in events {
            match event {
                Event::Compute(worker) => cluster.compute(worker % workers),
                Event::Arrive(worker, shard) => cluster.arrive(worker % workers, shard),
                other => panic!("{other:?}"),
            }
        }
        let aggregate = workers + more;
        let expected: Vec<u32> = (0..workers)
            .flat_map(|worker| {
                let part = aggregate / workers + u32::from(worker < aggregate % workers);
                std::iter::repeat_n(worker, part as usize)
            })
            .collect();
        prop_assert_eq!(cluster.mixed, 0);
        for shard in &mut cluster.shards {
            prop_assert_eq!(shard.stale, 0);
            for update in &mut shard.updates {
                update.sort_unstable();
                prop_assert_eq!(&*update, &expected);
            }
        }
    }
}
