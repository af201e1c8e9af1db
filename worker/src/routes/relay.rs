//! The pushes that a worker collects from its children for each shard, before it pushes the sum. Wanted
//! properties: (A) a push of a child is taken into exactly one sum, of its own version, or its reply handle
//! is given back; (B) at most one push of each child and shard is kept; (C) a sum waits for exactly the
//! children that are connected and have been told to push this version here; (D) so it never waits for a
//! child whose push of this version went elsewhere, or that has gone.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_messages::id::{Incarnation, Version};
use pushpull_messages::message::{Contribution, Push};
use pushpull_transport::buffer::Payload;

/// The pushes that a worker collects. `R` is the type of the handle with which a request is answered.
#[derive(Debug)]
pub(super) struct Relay<R> {
    rounds: Vec<Round<R>>,
    children: BTreeMap<u32, Child<R>>,
    /// The version from which this worker itself takes its first step; `None` until it has joined the job.
    first: Option<Version>,
    /// Whether this worker pushes no more.
    closed: bool,
}

/// A child that is connected.
#[derive(Debug)]
struct Child<R> {
    connection: u64,
    incarnation: Incarnation,
    announced: Announced<R>,
}

#[derive(Debug)]
enum Announced<R> {
    /// The child has not joined the job yet.
    No,
    /// The child has joined, and waits until this worker has joined, too.
    Waits { first: Version, reply: R },
    /// The child pushes to this worker from this version on.
    From(Version),
}

/// The pushes to one shard.
#[derive(Debug)]
struct Round<R> {
    /// The workers whose pushes to the shard may pass through this worker.
    children: BTreeSet<u32>,
    turn: Turn,
    held: BTreeMap<u32, ChildPush<R>>,
}

/// How far this worker's own push to a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// This worker has not joined the job yet.
    Unknown,
    /// The next push is of this version.
    Next(Version),
    /// The push of this version has begun, and waits for those of the children.
    Collecting(Version),
    /// The sum of this version was taken, and its reply is still to come.
    Taken(Version),
}

/// A push of a child.
#[derive(Debug)]
pub(super) struct ChildPush<R> {
    pub push: Push,
    pub gradients: Payload,
    pub reply: R,
}

/// A peer that sends a request: a child on one of its connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub worker: u32,
    pub incarnation: Incarnation,
    pub connection: u64,
}

/// Why a push of a child is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotKept {
    /// The sum of its version does not wait for it. The child has to push to the shard itself.
    Alone,
    /// The child is not connected, or this worker pushes no more.
    Closed,
    /// The child's push is not one that a correct child sends.
    Misfit(&'static str),
}

/// The announcement of a child that is answered now: its handle, and the version from which it is waited for.
pub(super) type Joined<R> = (R, Version);

impl<R> Relay<R> {
    /// Returns the relay of a worker that has not joined the job. `children` contains, for each shard, the
    /// workers whose pushes may pass through this worker.
    pub fn new(children: impl IntoIterator<Item = BTreeSet<u32>>) -> Self {
        let round = |children| Round { children, turn: Turn::Unknown, held: BTreeMap::new() };
        let rounds = children.into_iter().map(round).collect();
        Self { rounds, children: BTreeMap::new(), first: None, closed: false }
    }

    /// Returns whether a worker is a child for some shard.
    pub fn is_child(&self, worker: u32) -> bool {
        self.rounds.iter().any(|round| round.children.contains(&worker))
    }

    /// Records that a child has connected. Returns the pushes that came on an earlier connection.
    pub fn connect(&mut self, sender: Sender) -> Vec<ChildPush<R>> {
        let Sender { worker, incarnation, connection } = sender;
        if self.children.get(&worker).is_some_and(|child| child.connection > connection) {
            return Vec::new();
        }
        let child = Child { connection, incarnation, announced: Announced::No };
        self.children.insert(worker, child);
        self.drop_held(worker)
    }

    /// Records that a connection of a child has ended. Returns the pushes that came on it.
    pub fn disconnect(&mut self, worker: u32, connection: u64) -> Vec<ChildPush<R>> {
        match self.children.get(&worker) {
            Some(child) if child.connection == connection => {
                self.children.remove(&worker);
                self.drop_held(worker)
            }
            _ => Vec::new(),
        }
    }

    fn drop_held(&mut self, worker: u32) -> Vec<ChildPush<R>> {
        self.rounds.iter_mut().filter_map(|round| round.held.remove(&worker)).collect()
    }

    /// Returns the child that has sent a request, if this is its current connection.
    fn child(&mut self, sender: Sender) -> Option<&mut Child<R>> {
        let Sender { worker, incarnation, connection } = sender;
        let is_current =
            |child: &&mut Child<R>| (child.incarnation, child.connection) == (incarnation, connection);
        self.children.get_mut(&worker).filter(is_current)
    }

    /// Records that a child has joined the job and takes its first step from the version `first`. Returns the
    /// answer if it is due now.
    ///
    /// # Errors
    /// Returns the handle if the child is not connected, has announced itself before, or cannot be served.
    pub fn announce(&mut self, sender: Sender, first: Version, reply: R) -> Result<Option<Joined<R>>, R> {
        let (own, closed, begun) = (self.first, self.closed, self.not_begun());
        let Some(child) = self.child(sender).filter(|child| matches!(child.announced, Announced::No)) else {
            return Err(reply);
        };
        if closed {
            return Err(reply);
        }
        match own {
            None => {
                child.announced = Announced::Waits { first, reply };
                Ok(None)
            }
            Some(own) => {
                let from = first.max(own).max(begun);
                child.announced = Announced::From(from);
                Ok(Some((reply, from)))
            }
        }
    }

    /// Returns a version whose push has not begun on any shard.
    fn not_begun(&self) -> Version {
        let versions = self.rounds.iter().map(|round| match round.turn {
            Turn::Unknown => Version(0),
            Turn::Next(version) => version,
            Turn::Collecting(version) | Turn::Taken(version) => version.next(),
        });
        versions.max().unwrap_or_default()
    }

    /// Records that this worker has joined the job and takes its first step from the version `first`. Returns
    /// the announcements that are answered now.
    pub fn join(&mut self, first: Version) -> Vec<Joined<R>> {
        self.first = Some(first);
        let mut joined = Vec::new();
        for child in self.children.values_mut() {
            child.announced = match std::mem::replace(&mut child.announced, Announced::No) {
                Announced::Waits { first: own, reply } => {
                    let from = own.max(first);
                    joined.push((reply, from));
                    Announced::From(from)
                }
                other => other,
            };
        }
        joined
    }

    /// Returns whether all children that are connected have joined the job, too.
    pub fn all_announced(&self) -> bool {
        self.children.values().all(|child| matches!(child.announced, Announced::From(_)))
    }

    /// Records that this worker has the values of a shard at this version, so that it will push from them.
    /// Returns the pushes of children that come too late for it.
    pub fn read(&mut self, position: usize, version: Version) -> Vec<ChildPush<R>> {
        let round = &mut self.rounds[position];
        round.turn = Turn::Next(version);
        round.held.extract_if(.., |_, held| held.push.version < version).map(|(_, held)| held).collect()
    }

    /// Keeps the push of a child to a shard.
    ///
    /// # Errors
    /// Returns the handle of a push that is not kept, with the reason.
    pub fn keep(
        &mut self,
        sender: Sender,
        position: usize,
        (push, gradients, reply): (Push, Payload, R),
    ) -> Result<(), (R, NotKept)> {
        let version = push.version;
        let closed = self.closed;
        let from = match self.child(sender).map(|child| &child.announced) {
            _ if closed => return Err((reply, NotKept::Closed)),
            None => return Err((reply, NotKept::Closed)),
            Some(&Announced::From(from)) => from,
            Some(_) => return Err((reply, NotKept::Misfit("a child pushes before it has joined the route"))),
        };
        let round = &mut self.rounds[position];
        if !round.children.contains(&sender.worker) {
            return Err((
                reply,
                NotKept::Misfit("the gradients of the worker take another way to this shard"),
            ));
        }
        if round.held.contains_key(&sender.worker) {
            return Err((reply, NotKept::Misfit("a child pushes twice before it has a reply")));
        }
        let in_time = match round.turn {
            Turn::Unknown => true,
            Turn::Next(next) | Turn::Collecting(next) => version >= next,
            Turn::Taken(taken) => version > taken,
        };
        if version < from || !in_time {
            return Err((reply, NotKept::Alone));
        }
        round.held.insert(sender.worker, ChildPush { push, gradients, reply });
        Ok(())
    }

    /// Begins this worker's own push to a shard. Returns the pushes of children that come too late for it.
    pub fn begin(&mut self, position: usize, version: Version) -> Vec<ChildPush<R>> {
        let late = self.read(position, version);
        self.rounds[position].turn = Turn::Collecting(version);
        late
    }

    /// Returns whether the push that has begun has to wait for a child.
    pub fn waits(&self, position: usize, version: Version) -> bool {
        let round = &self.rounds[position];
        round.children.iter().any(|worker| {
            let is_expected = self.children.get(worker).is_some_and(|child| match child.announced {
                Announced::From(from) => from <= version,
                Announced::No | Announced::Waits { .. } => false,
            });
            is_expected && !round.held.contains_key(worker)
        })
    }

    /// Takes the pushes of the children that belong to the sum of this version, in the order of the workers.
    pub fn take(&mut self, position: usize, version: Version) -> Vec<ChildPush<R>> {
        let round = &mut self.rounds[position];
        round.turn = Turn::Taken(version);
        round.held.extract_if(.., |_, held| held.push.version == version).map(|(_, held)| held).collect()
    }

    /// Ends the relay, because this worker pushes no more. Returns all pushes of children.
    pub fn close(&mut self) -> Vec<ChildPush<R>> {
        self.closed = true;
        let children: Vec<u32> = self.children.keys().copied().collect();
        // Announcements that wait are dropped with their children.
        self.children.clear();
        children.into_iter().flat_map(|worker| self.drop_held(worker)).collect()
    }
}

/// Returns the contributions of the children's pushes, in the order of the workers.
pub(super) fn contributions<R>(children: &[ChildPush<R>]) -> Vec<Contribution> {
    let mut all: Vec<Contribution> = children.iter().flat_map(|child| child.push.contributions()).collect();
    all.sort_unstable_by_key(|own| own.id.worker);
    all
}
