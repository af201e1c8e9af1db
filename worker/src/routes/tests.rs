//! Compares a relay with a plain model, while children connect, join, push and leave in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use pushpull_messages::id::{Incarnation, LocalStep, PlacementEpoch, Sequence, Version};
use pushpull_messages::message::{Contribution, Push, PushId};
use pushpull_transport::buffer::Payload;

use super::relay::{ChildPush, NotKept, Relay, Sender, contributions};

/// The number of shards.
const SHARDS: usize = 2;
/// The children of each shard. Worker 2 pushes only to the second shard here.
const CHILDREN: [&[u32]; SHARDS] = [&[0, 1], &[1, 2]];

fn relay() -> Relay<usize> {
    Relay::new(CHILDREN.map(|children| children.iter().copied().collect::<BTreeSet<u32>>()))
}

fn sender(worker: u32, connection: u64) -> Sender {
    Sender { worker, incarnation: Incarnation(connection), connection }
}

fn push(worker: u32, version: u64, with: &[u32]) -> Push {
    let id = |worker| PushId { worker, incarnation: Incarnation(1), sequence: Sequence(1) };
    let other = |&worker: &u32| Contribution { id: id(worker), local_step: LocalStep(0), drawn: 0 };
    Push {
        shard: 0,
        id: id(worker),
        local_step: LocalStep(0),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(version),
        slices: Vec::new(),
        drawn: 0,
        pull: true,
        traced: false,
        with: with.iter().map(other).collect(),
    }
}

/// What the test knows of a child.
#[derive(Clone, Copy, Debug, Default)]
struct Child {
    connection: u64,
    announced: bool,
    from: Option<u64>,
}

/// A relay and its model.
struct Trial {
    relay: Relay<usize>,
    children: BTreeMap<u32, Child>,
    /// The pushes that are kept, by shard and child: their handles and versions.
    kept: BTreeMap<(usize, u32), (usize, u64)>,
    /// The version of this worker's next push to each shard, and whether it has begun; `None` until this
    /// worker has joined.
    own: Option<[(u64, bool); SHARDS]>,
    handles: usize,
    connections: u64,
    /// The handles that are neither kept nor given back, of announcements.
    waiting: BTreeMap<usize, u32>,
}

impl Trial {
    fn new() -> Self {
        Self {
            relay: relay(),
            children: BTreeMap::new(),
            kept: BTreeMap::new(),
            own: None,
            handles: 0,
            connections: 0,
            waiting: BTreeMap::new(),
        }
    }

    fn handle(&mut self) -> usize {
        self.handles += 1;
        self.handles
    }

    /// Checks that exactly the expected pushes were given back, and forgets them.
    fn given_back(&mut self, got: Vec<ChildPush<usize>>, expected: impl Fn(usize, u32, u64) -> bool) {
        let got: BTreeSet<usize> = got.into_iter().map(|child| child.reply).collect();
        let leaves = |(&(shard, worker), &(handle, version)): (&(usize, u32), &(usize, u64))| {
            expected(shard, worker, version).then_some(handle)
        };
        let wanted: BTreeSet<usize> = self.kept.iter().filter_map(leaves).collect();
        assert_eq!(got, wanted, "(A)");
        self.kept.retain(|_, (handle, _)| !wanted.contains(handle));
    }

    fn connect(&mut self, worker: u32) {
        self.connections += 1;
        let earlier = self.relay.connect(sender(worker, self.connections));
        self.given_back(earlier, |_, other, _| other == worker);
        self.waiting.retain(|_, other| *other != worker);
        self.children.insert(worker, Child { connection: self.connections, ..Child::default() });
    }

    fn disconnect(&mut self, worker: u32, current: bool) {
        let Some(child) = self.children.get(&worker).copied() else { return };
        let connection = child.connection - u64::from(!current);
        let lost = self.relay.disconnect(worker, connection);
        self.given_back(lost, |_, other, _| current && other == worker);
        if current {
            self.children.remove(&worker);
            self.waiting.retain(|_, other| *other != worker);
        }
    }

    fn announce(&mut self, worker: u32, first: u64) {
        let handle = self.handle();
        let connection = self.children.get(&worker).map_or(0, |child| child.connection);
        let got = self.relay.announce(sender(worker, connection), Version(first), handle);
        let Some(child) = self.children.get_mut(&worker).filter(|child| !child.announced) else {
            assert_eq!(got, Err(handle));
            return;
        };
        child.announced = true;
        match self.own {
            None => {
                assert_eq!(got, Ok(None));
                self.waiting.insert(handle, worker);
                child.from = Some(first);
            }
            Some(own) => {
                let next = own.map(|(next, begun)| next + u64::from(begun)).into_iter().max().unwrap();
                let from = first.max(next);
                assert_eq!(got, Ok(Some((handle, Version(from)))));
                child.from = Some(from);
            }
        }
    }

    fn join(&mut self, first: u64) {
        if self.own.is_some() {
            return;
        }
        let joined = self.relay.join(Version(first));
        let got: BTreeMap<usize, u64> = joined.into_iter().map(|(handle, from)| (handle, from.0)).collect();
        let mut expected = BTreeMap::new();
        for (handle, worker) in std::mem::take(&mut self.waiting) {
            let from = self.children.get_mut(&worker).unwrap().from.as_mut().unwrap();
            *from = first.max(*from);
            expected.insert(handle, *from);
        }
        assert_eq!(got, expected);
        for position in 0..SHARDS {
            let late = self.relay.read(position, Version(first));
            self.given_back(late, |shard, _, version| shard == position && version < first);
        }
        self.own = Some([(first, false); SHARDS]);
    }

    fn push(&mut self, worker: u32, position: usize, ahead: u64) {
        let handle = self.handle();
        let child = self.children.get(&worker).copied();
        let version = self.own.map_or(0, |own| own[position].0) + ahead;
        let connection = child.map_or(0, |child| child.connection);
        let request = (push(worker, version, &[]), Payload::EMPTY, handle);
        let got = self.relay.keep(sender(worker, connection), position, request);
        let waits = child.is_some_and(|child| child.announced) && self.own.is_none();
        let from = child.and_then(|child| child.from).filter(|_| !waits);
        let expected = match (child, from) {
            (None, _) => Err("closed"),
            (_, None) => Err("misfit"),
            _ if !CHILDREN[position].contains(&worker) => Err("misfit"),
            _ if self.kept.contains_key(&(position, worker)) => Err("misfit"),
            (_, Some(from)) if version < from => Err("alone"),
            _ => Ok(()),
        };
        match (got, expected) {
            (Ok(()), Ok(())) => {
                self.kept.insert((position, worker), (handle, version));
            }
            (Err((back, reason)), Err(expected)) => {
                assert_eq!(back, handle, "(A)");
                let reason = match reason {
                    NotKept::Alone => "alone",
                    NotKept::Closed => "closed",
                    NotKept::Misfit(_) => "misfit",
                };
                assert_eq!(reason, expected);
            }
            (got, expected) => panic!("{got:?}, expected {expected:?}"),
        }
        assert!(self.kept.len() <= CHILDREN.iter().map(|all| all.len()).sum(), "(B)");
    }

    /// Takes a step of this worker's own push to a shard.
    fn advance(&mut self, position: usize) {
        let Some(own) = &mut self.own else { return };
        let (version, begun) = &mut own[position];
        let now = *version;
        if !*begun {
            *begun = true;
            let late = self.relay.begin(position, Version(now));
            assert!(late.is_empty(), "late pushes went back when the values came");
        }
        let expected = CHILDREN[position].iter().any(|worker| {
            let told = self.children.get(worker).filter(|child| child.from.is_some_and(|from| from <= now));
            told.is_some() && !self.kept.contains_key(&(position, *worker))
        });
        assert_eq!(self.relay.waits(position, Version(now)), expected, "(C) and (D)");
        if expected {
            return;
        }
        let taken = self.relay.take(position, Version(now));
        let order: Vec<u32> = taken.iter().map(|child| child.push.id.worker).collect();
        assert!(order.is_sorted());
        self.given_back(taken, |shard, _, version| shard == position && version == now);
        let late = push(CHILDREN[position][0], now, &[]);
        let connection = self.children.get(&late.id.worker).map_or(0, |child| child.connection);
        let handle = self.handle();
        let late =
            self.relay.keep(sender(late.id.worker, connection), position, (late, Payload::EMPTY, handle));
        assert!(late.is_err(), "a push of a version that was taken is not kept");
        let left = self.relay.read(position, Version(now + 1));
        assert!(left.is_empty(), "later pushes stay");
        self.own.as_mut().unwrap()[position] = (now + 1, false);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Connect(u32),
    Disconnect(u32, bool),
    Announce(u32, u64),
    Join(u64),
    Push(u32, usize, u64),
    Advance(usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    let worker = 0u32..3;
    prop_oneof![
        2 => worker.clone().prop_map(Event::Connect),
        1 => (worker.clone(), any::<bool>()).prop_map(|(worker, current)| Event::Disconnect(worker, current)),
        3 => (worker.clone(), 0u64..6).prop_map(|(worker, first)| Event::Announce(worker, first)),
        1 => (0u64..4).prop_map(Event::Join),
        9 => (worker, 0..SHARDS, 0u64..3).prop_map(|(worker, shard, ahead)| Event::Push(worker, shard, ahead)),
        9 => (0..SHARDS).prop_map(Event::Advance),
    ]
}

proptest! {
    #[test]
    fn a_push_of_a_child_is_in_one_sum_or_given_back(events in prop::collection::vec(any_event(), 0..150)) {
        let mut trial = Trial::new();
        for event in events {
            match event {
                Event::Connect(worker) => trial.connect(worker),
                Event::Disconnect(worker, current) => trial.disconnect(worker, current),
                Event::Announce(worker, first) => trial.announce(worker, first),
                Event::Join(first) => trial.join(first),
                Event::Push(worker, position, ahead) => trial.push(worker, position, ahead),
                Event::Advance(position) => trial.advance(position),
            }
            let told = |child: &Child| child.announced && trial.own.is_some();
            prop_assert_eq!(trial.relay.all_announced(), trial.children.values().all(told));
        }
        let left = trial.relay.close();
        trial.given_back(left, |_, _, _| true);
        let handle = trial.handle();
        let closed = trial.relay.keep(sender(0, 0), 0, (push(0, 0, &[]), Payload::EMPTY, handle));
        prop_assert!(matches!(closed, Err((_, NotKept::Closed))));
    }
}

#[test]
fn contributions_are_in_the_order_of_workers() {
    let child = |worker, with: &[u32]| ChildPush {
        push: push(worker, 0, with),
        gradients: Payload::EMPTY,
        reply: (),
    };
    let all = contributions(&[child(1, &[4, 6]), child(3, &[]), child(5, &[0, 2])]);
    assert_eq!(all.iter().map(|own| own.id.worker).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
}
