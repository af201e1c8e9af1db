//! Workers that the cluster does not list, which join and leave while the job trains, and the shares of the
//! examples, which follow the workers that are there. Wanted properties: (A) the job neither waits for such a
//! worker to start nor for one that has left; (B) the shares of the workers that are there are disjoint, and
//! cover all examples; (C) when the shares change, the examples that count as read stay the same in all,
//! except for a remainder smaller than the number of shares.

use std::collections::BTreeSet;

use pushpull_messages::id::TaskId;
use pushpull_messages::input::FilesDigest;
use pushpull_messages::message::Share;
use tracing::info;

use super::member::{Member, MemberState};
use super::order::MembershipOrder;
use super::{Effect, JobState};

/// The workers that may join the job, and those among which the examples are divided.
#[derive(Debug)]
pub(super) struct Elastic {
    /// The number of workers that the job waits for before it begins.
    listed: u32,
    /// The workers that have a share, in the order of the shares.
    sharers: BTreeSet<u32>,
}

impl<R> Member<R> {
    /// Returns a worker that the cluster does not list. It counts as one that has left.
    fn unlisted() -> Self {
        Self { is_listed: false, state: MemberState::Left, ..Self::absent() }
    }

    /// Returns whether the cluster lists the worker, or it has come all the same.
    pub(super) const fn is_known(&self) -> bool {
        self.is_listed || self.incarnation.is_some()
    }

    /// Returns whether the worker has a share of the examples. A worker that joins has none before it is
    /// ready: it may fail to prepare.
    pub(super) const fn has_share(&self) -> bool {
        let prepares = matches!(self.state, MemberState::Registered(_) | MemberState::Preparing);
        match self.is_listed {
            true => !self.is_over(),
            false => self.is_here() && !prepares,
        }
    }
}

impl<R> JobState<R> {
    /// Lets workers join until the job has `workers_max` workers, and divides the examples among those that
    /// are there. With `None`, the workers are fixed, and each keeps its share.
    pub(crate) fn up_to(mut self, workers_max: Option<u32>) -> Self {
        if let Some(max) = workers_max {
            let listed = self.members.len() as u32;
            self.members.extend((listed..max).map(|index| (index, Member::unlisted())));
            self.elastic = Some(Elastic { listed, sharers: (0..listed).collect() });
        }
        self
    }

    /// Returns the number of workers whose gradients may be in an update: those that have a share in an
    /// elastic job, and otherwise all.
    pub(super) fn gradient_workers(&self) -> u32 {
        let all = self.members.len();
        self.elastic.as_ref().map_or(all, |elastic| elastic.sharers.len()) as u32
    }

    /// Returns the share of a worker; `None` if shares do not change. A worker that has none yet gets the one
    /// that it has when it begins.
    pub(super) fn share(&self, index: u32) -> Option<Share> {
        let sharers = &self.elastic.as_ref()?.sharers;
        let joins = !sharers.contains(&index);
        let shares = sharers.len() as u32 + u32::from(joins);
        let position = sharers.range(..index).count() as u32;
        let examples =
            if joins { self.read() / u64::from(shares) } else { self.members[&index].resume.examples };
        Some(Share { position, shares, examples })
    }

    /// Returns the number of examples that all workers together have read.
    fn read(&self) -> u64 {
        self.members.values().fold(0, |sum, member| sum.saturating_add(member.resume.examples))
    }

    /// Divides the examples again if a worker has come or gone, or if a worker without a share has read some.
    /// The workers learn of it from the replies to their reports.
    pub(super) fn divide(&mut self) {
        if self.elastic.is_none() || self.placement.is_none() {
            return;
        }
        let now: BTreeSet<u32> =
            self.members.iter().filter(|(_, member)| member.has_share()).map(|(&index, _)| index).collect();
        let strays = |(index, member): (&u32, &Member<R>)| !now.contains(index) && member.resume.examples > 0;
        let strays = self.members.iter().any(strays);
        let read = self.read();
        let Some(elastic) = &mut self.elastic else { return };
        if now.is_empty() || (now == elastic.sharers && !strays) {
            return;
        }
        let each = read / now.len() as u64;
        for (index, member) in &mut self.members {
            member.resume.examples = if now.contains(index) { each } else { 0 };
            // A worker may read other files from now on.
            member.resume.files = None;
        }
        info!(
            workers = now.len(),
            examples = read,
            "the examples are divided among the workers that are there"
        );
        elastic.sharers = now;
    }

    /// Records which files a worker reads. They are not known for long if shares change, and are then not
    /// recorded.
    pub(super) fn reads(&mut self, index: u32, files: Option<FilesDigest>) {
        let fixed = self.elastic.is_none();
        self.member(index).resume.files = files.filter(|_| fixed);
    }

    /// Tells the shards, which were just created and count all workers, not to wait for those that the
    /// cluster does not list and that are not there.
    pub(super) fn excuse_unlisted(&mut self) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        for (&index, member) in self.members.iter_mut().filter(|(_, member)| !member.is_listed) {
            if member.is_over() {
                effects.push(Effect::Order(MembershipOrder::Leave(index, member.last_life())));
            } else if !matches!(member.state, MemberState::Training) {
                member.expected = true;
            }
        }
        effects
    }

    /// Returns why the job takes no worker with this index.
    pub(super) fn no_such_worker(&self, index: u32) -> String {
        let worker = TaskId::worker(index);
        let needed = u64::from(index) + 1;
        match &self.elastic {
            None => format!(
                "{worker} is not in the cluster, which lists {} worker(s): to let it join, start the chief with --workers-max {needed}",
                self.members.len()
            ),
            Some(elastic) => format!(
                "{worker} is not in the cluster, which lists {} worker(s), and --workers-max is {}: to let it join, start the chief with --workers-max {needed}",
                elastic.listed,
                self.members.len()
            ),
        }
    }
}
