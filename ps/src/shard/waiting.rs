//! Pulls that wait until their worker's step may begin. A pull is a request of its own or part of a push. At
//! most one pull waits per worker.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_messages::id::{GlobalStep, SliceId, Version};
use pushpull_messages::message::{Pulled, Pushed, Refusal, Verdict};
use pushpull_transport::buffer::Payload;

use super::answer::{Answer, Reader, unavailable};
use super::newest::ValuesKind;

/// The values of all slices of a shard at one version.
pub(super) struct Values {
    pub slices: Vec<SliceId>,
    pub payload: Payload,
    pub kind: ValuesKind,
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
}

impl Values {
    /// Returns the answer to a pull.
    pub(super) fn pulled<R>(self, reply: R, step: GlobalStep) -> Answer<R> {
        let Self { slices, payload, kind, version, last_step } = self;
        let pulled = Pulled { version, step, last_step, slices };
        Answer { reply, result: Ok((pulled.into(), payload)), values: Some(kind), drafted: None }
    }
}

/// The verdict on a push, and its staleness.
#[derive(Clone, Copy, Debug)]
pub(super) struct PushOutcome {
    pub verdict: Verdict,
    /// The shard's version minus the version of the values from which the gradient was computed; 0 for a
    /// duplicate.
    pub staleness: u64,
    /// The version that the draft of the push has become, if it was drafted.
    pub drafted: Option<Version>,
}

/// A worker that waits for values.
#[derive(Debug)]
pub(super) struct Wait<R> {
    pub reply: R,
    pub reader: Reader,
    /// The outcome of the push that this pull is part of; `None` if the pull is a request of its own.
    pub push: Option<PushOutcome>,
    /// The step for which the worker needs the values.
    pub step: GlobalStep,
    pub averages: bool,
}

impl<R> Wait<R> {
    /// Returns which of the shard's tensors the answer carries.
    pub(super) const fn kind(&self) -> ValuesKind {
        match (&self.push, self.averages) {
            (Some(_), _) => ValuesKind::Sent,
            (None, true) => ValuesKind::Averages,
            (None, false) => ValuesKind::Current,
        }
    }

    /// Returns the answer to the waiting worker, with these values.
    pub(super) fn answer(self, values: Values) -> Answer<R> {
        let Some(PushOutcome { verdict, staleness, drafted }) = self.push else {
            return values.pulled(self.reply, self.step);
        };
        let Values { slices, payload, kind, version, last_step } = values;
        let pushed = Pushed { verdict, version, last_step, staleness, times: None, slices };
        Answer { reply: self.reply, result: Ok((pushed.into(), payload)), values: Some(kind), drafted }
    }
}

/// The pulls that wait, by worker.
#[derive(Debug)]
pub(super) struct Waiting<R>(BTreeMap<u32, Wait<R>>);

impl<R> Default for Waiting<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R> Waiting<R> {
    /// Returns the number of workers that have a waiting pull or are among `others`.
    pub(super) fn count(&self, mut others: BTreeSet<u32>) -> usize {
        others.extend(self.0.keys());
        others.len()
    }

    /// Adds a pull. If a pull of the same worker already waits, keeps only the pull on the later connection,
    /// and returns the refusal of the other pull, with the code `Superseded`.
    pub(super) fn add(&mut self, wait: Wait<R>) -> Option<Answer<R>> {
        let worker = wait.reader.worker;
        let overtaken = |waiting: &Wait<R>| waiting.reader.connection > wait.reader.connection;
        let earlier =
            if self.0.get(&worker).is_some_and(overtaken) { Some(wait) } else { self.0.insert(worker, wait) };
        earlier.map(|earlier| Answer::refused(earlier.reply, Refusal::superseded()))
    }

    /// Removes the pull of a worker that has left, and returns the refusal of that pull.
    pub(super) fn leave(&mut self, worker: u32) -> Option<Answer<R>> {
        let Wait { reply, reader, .. } = self.0.remove(&worker)?;
        let Reader { worker, incarnation, .. } = reader;
        let reason =
            format!("worker/{worker} is no longer a member: its incarnation {incarnation} has ended");
        Some(Answer::refused(reply, unavailable(reason)))
    }

    /// Removes and returns the reply handles of all waiting pulls.
    pub(super) fn take(&mut self) -> impl Iterator<Item = R> + use<R> {
        std::mem::take(&mut self.0).into_values().map(|wait| wait.reply)
    }

    /// Removes the pull with which another incarnation of `reader`'s worker waits, and returns the refusal of
    /// that pull; `None` if there is no such pull. `reader` has just joined, so the other incarnation has
    /// ended.
    pub(super) fn outlive(&mut self, reader: Reader) -> Option<Answer<R>> {
        let earlier = |wait: &Wait<R>| wait.reader.incarnation != reader.incarnation;
        if self.0.get(&reader.worker).is_some_and(earlier) { self.leave(reader.worker) } else { None }
    }

    /// Removes and returns the pulls whose step may begin.
    pub(super) fn release(&mut self, may_begin: impl Fn(u32, GlobalStep) -> bool) -> Vec<Wait<R>> {
        self.0.extract_if(.., |&worker, wait| may_begin(worker, wait.step)).map(|(_, wait)| wait).collect()
    }
}
