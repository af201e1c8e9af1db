//! Simulates several shards. The chief changes their learning rate while workers push, die and join again.
//! Messages of different senders arrive in any order.

use std::collections::VecDeque;

use proptest::prelude::*;
use pushpull_messages::id::Version;
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::sync::SyncSpec;

use super::rates::{Trial, WORKERS};

/// A message that the chief has sent to a shard, and that has not arrived there yet.
#[derive(Clone, Copy)]
enum FromChief {
    Hold(u64),
    Set(f32),
    Leave(u32),
}

/// What the chief waits for while it changes the learning rate.
enum Chief {
    Idle,
    /// The chief has asked all shards to hold at `version`, and waits for their replies. Each reply contains
    /// the version that the shard had reached.
    Holding {
        version: u64,
        factor: f32,
        replies: Vec<u64>,
    },
    /// The chief has sent the new learning rate to all shards, and waits until every shard has passed the
    /// version at which the change begins: the value of this field.
    Setting(u64),
}

struct Cluster {
    shards: Vec<Trial>,
    /// For each shard, the chief's messages to it that have not arrived yet.
    mail: Vec<VecDeque<FromChief>>,
    /// For each shard and each worker, whether a push of the worker is on its way to the shard.
    sent: Vec<[bool; WORKERS as usize]>,
    /// For each worker, whether it has pulled the values for its first step.
    began: [bool; WORKERS as usize],
    chief: Chief,
    changes: Vec<RateChange>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The worker sends its gradients to all shards, if it has the values of all shards and none of its
    /// earlier pushes is on its way.
    Compute(u32),
    /// The worker's push arrives at a shard, if one is on its way.
    Arrive(u32, usize),
    /// The next message of the chief arrives at a shard.
    Deliver(usize),
    /// The worker dies, unless it is the last one alive. Its pushes that have not arrived are lost.
    Kill(u32),
    /// The worker starts again if it is dead. Has no effect while a message of the chief is on its way,
    /// because a shard may then not know yet that the worker has died.
    Join(u32),
    /// A hook asks for another factor of the learning rate: a quarter of this field's value.
    Change(u8),
}

impl Cluster {
    fn new(sync: SyncSpec, shards: usize) -> Self {
        let mut cluster = Self {
            shards: (0..shards).map(|_| Trial::without_workers(sync)).collect(),
            mail: vec![VecDeque::new(); shards],
            sent: vec![[false; WORKERS as usize]; shards],
            began: [false; WORKERS as usize],
            chief: Chief::Idle,
            changes: Vec::new(),
        };
        (0..WORKERS).for_each(|worker| cluster.join(worker));
        cluster
    }

    fn happen(&mut self, event: Event) {
        let count = self.shards.len();
        match event {
            Event::Compute(worker) => self.compute(worker),
            Event::Arrive(worker, shard) => self.arrive(worker, shard % count),
            Event::Deliver(shard) => self.deliver(shard % count),
            Event::Kill(worker) => self.kill(worker),
            Event::Join(worker) if self.is_gone(worker) && self.mail.iter().all(VecDeque::is_empty) => {
                self.join(worker);
            }
            Event::Join(_) => {}
            Event::Change(number) => self.change(f32::from(number) / 4.0),
        }
        self.settle();
    }

    fn is_gone(&self, worker: u32) -> bool {
        self.shards[0].workers[worker as usize].gone
    }

    fn compute(&mut self, worker: u32) {
        let worker = worker as usize;
        let sends = self.sent.iter().any(|sent| sent[worker]);
        if !sends && self.shards.iter().all(|shard| shard.workers[worker].read.is_some()) {
            self.sent.iter_mut().for_each(|sent| sent[worker] = true);
        }
    }

    fn arrive(&mut self, worker: u32, shard: usize) {
        if std::mem::take(&mut self.sent[shard][worker as usize]) {
            self.shards[shard].push(worker);
        }
    }

    fn deliver(&mut self, shard: usize) {
        match self.mail[shard].pop_front() {
            Some(FromChief::Leave(worker)) => self.shards[shard].leave(worker),
            Some(FromChief::Hold(version)) => {
                let seen = self.shards[shard].version();
                self.shards[shard].hold(version);
                let Chief::Holding { replies, .. } = &mut self.chief else { panic!("it waits") };
                replies.push(seen);
            }
            Some(FromChief::Set(factor)) => {
                let made = self.shards[shard].set(factor);
                assert_eq!(made, self.changes.last().copied(), "every shard holds at the same version");
            }
            None => {}
        }
    }

    fn kill(&mut self, worker: u32) {
        let alive = (0..WORKERS).filter(|&other| !self.is_gone(other)).count();
        if alive == 1 || self.is_gone(worker) {
            return;
        }
        for ((shard, mail), sent) in self.shards.iter_mut().zip(&mut self.mail).zip(&mut self.sent) {
            let entry = &mut shard.workers[worker as usize];
            (entry.gone, entry.read, sent[worker as usize]) = (true, None, false);
            mail.push_back(FromChief::Leave(worker));
        }
    }

    fn join(&mut self, worker: u32) {
        self.began[worker as usize] = false;
        self.shards.iter_mut().for_each(|shard| shard.join(worker));
        self.settle();
    }

    /// Begins to change the learning rate as the chief's launcher does, unless another change is in
    /// progress.
    fn change(&mut self, factor: f32) {
        if matches!(self.chief, Chief::Idle) {
            let furthest = self.shards.iter().map(Trial::version).max().expect("a shard");
            self.ask_to_hold(furthest + 1, factor);
        }
    }

    fn ask_to_hold(&mut self, version: u64, factor: f32) {
        self.chief = Chief::Holding { version, factor, replies: Vec::new() };
        self.mail.iter_mut().for_each(|mail| mail.push_back(FromChief::Hold(version)));
    }

    /// Lets the chief go on with a change of the learning rate, if the shards have done what it waits for.
    /// Lets each worker that has joined all shards pull the values for its first step.
    fn settle(&mut self) {
        match self.chief {
            Chief::Holding { version, factor, ref replies } if replies.len() == self.shards.len() => {
                let furthest = replies.iter().copied().max().expect("a shard");
                if furthest > version {
                    self.ask_to_hold(furthest + 1, factor);
                } else {
                    self.changes.push(RateChange { from: Version(version), factor });
                    self.mail.iter_mut().for_each(|mail| mail.push_back(FromChief::Set(factor)));
                    self.chief = Chief::Setting(version);
                }
            }
            Chief::Setting(from) if self.shards.iter().all(|shard| shard.version() > from) => {
                self.chief = Chief::Idle;
            }
            _ => {}
        }
        for worker in 0..WORKERS {
            let index = worker as usize;
            let joined: Option<Vec<_>> =
                self.shards.iter().map(|shard| shard.workers[index].joined).collect();
            let first = joined.and_then(|steps| steps.into_iter().max());
            if let Some(step) = first.filter(|_| !self.began[index] && !self.is_gone(worker)) {
                self.began[index] = true;
                self.shards.iter_mut().for_each(|shard| shard.begin(worker, step));
            }
        }
    }

    /// Lets every worker compute once, and then lets all pushes and all messages of the chief arrive.
    fn round(&mut self) {
        let shards = self.shards.len();
        (0..WORKERS).for_each(|worker| self.happen(Event::Compute(worker)));
        for shard in 0..shards {
            while !self.mail[shard].is_empty() {
                self.happen(Event::Deliver(shard));
            }
            (0..WORKERS).for_each(|worker| self.happen(Event::Arrive(worker, shard)));
        }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..WORKERS).prop_map(Event::Compute),
        16 => (0..WORKERS, 0usize..3).prop_map(|(worker, shard)| Event::Arrive(worker, shard)),
        8 => (0usize..3).prop_map(Event::Deliver),
        1 => (0..WORKERS).prop_map(Event::Kill),
        1 => (0..WORKERS).prop_map(Event::Join),
        2 => (1u8..5).prop_map(Event::Change),
    ]
}

proptest! {
    /// Checks that every change of the learning rate begins at the same version on all shards, and that all
    /// shards complete the change, even if workers die meanwhile. Every push that arrives is counted, and
    /// none is refused.
    #[test]
    fn shards_change_their_rate_together_while_workers_die(
        sync in prop::sample::select(vec!["async", "bounded:1", "sync"]),
        shards in 1usize..4,
        events in prop::collection::vec(any_event(), 0..300),
    ) {
        let mut cluster = Cluster::new(sync.parse().unwrap(), shards);
        events.into_iter().for_each(|event| cluster.happen(event));
        (0..5).for_each(|_| cluster.round());
        let before: Vec<u64> = cluster.shards.iter().map(Trial::version).collect();
        (0..5).for_each(|_| cluster.round());
        prop_assert!(matches!(cluster.chief, Chief::Idle), "the change is made");
        for (shard, before) in cluster.shards.iter_mut().zip(before) {
            let seen = shard.state.observe();
            prop_assert!(seen.version.0 > before, "the training continues");
            prop_assert_eq!((seen.pushes.received, seen.pushes.refused), (shard.pushes, 0));
            let factor = |version| {
                let last = cluster.changes.iter().rev().find(|change| change.from.0 <= version);
                last.map_or(1.0, |change| change.factor)
            };
            let expected: f32 = -(0..seen.version.0).map(factor).sum::<f32>();
            prop_assert!((shard.value() - expected).abs() < 1e-3);
        }
    }
}
