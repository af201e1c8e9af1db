//! Answers that are not due yet: pulls, alone or within a push, that wait for their step to begin. One for each worker
//! at most, so there are no more than workers.

use std::collections::BTreeMap;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::{Message, Pulled, Pushed, Refusal, RefusalCode, Verdict};
use pushpull_transport::buffer::Payload;

use super::held::Values;
use super::state::Reader;

/// An answer that is due, and where it goes.
#[derive(Debug)]
pub struct Answer<R> {
    /// Whatever a reply is sent by.
    pub reply: R,
    /// What is answered.
    pub result: Result<(Message, Payload), Refusal>,
}

/// Who waits for something that takes its time.
#[derive(Debug)]
pub(super) struct Asker<R> {
    pub reply: R,
    /// On which of the task's connections; later ones have greater numbers.
    pub connection: u64,
}

impl<R> Asker<R> {
    /// The same was asked again: gives the answer to the older question.
    pub(super) fn again(&mut self, newer: Self) -> Answer<R> {
        let overtaken = self.connection > newer.connection;
        let older = if overtaken { newer } else { std::mem::replace(self, newer) };
        Answer { reply: older.reply, result: Err(Refusal::superseded()) }
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub verdict: Verdict,
    /// By how many versions what it was computed from was older than what it met; 0 where it had come before.
    pub staleness: u64,
}

/// A worker that waits for values.
#[derive(Debug)]
pub(super) struct Wait<R> {
    pub reply: R,
    pub reader: Reader,
    /// What became of the push that the pull came with.
    pub push: Option<Outcome>,
    /// For this step of the worker.
    pub step: GlobalStep,
    pub averages: bool,
}

/// Everybody who waits, by worker.
#[derive(Debug)]
pub(super) struct Waiting<R>(BTreeMap<u32, Wait<R>>);

impl<R> Default for Waiting<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R> Waiting<R> {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// A worker waits. What it has asked before it asks no more: gives the answer to that. A question that has been
    /// overtaken by one on a later connection is the earlier one.
    pub(super) fn wait(&mut self, wait: Wait<R>) -> Option<Answer<R>> {
        let worker = wait.reader.worker;
        let overtaken = |waiting: &Wait<R>| waiting.reader.connection > wait.reader.connection;
        let earlier =
            if self.0.get(&worker).is_some_and(overtaken) { Some(wait) } else { self.0.insert(worker, wait) };
        earlier.map(|earlier| Answer { reply: earlier.reply, result: Err(Refusal::superseded()) })
    }

    /// A worker has left: gives the answer to what it has asked.
    pub(super) fn leave(&mut self, worker: u32) -> Option<Answer<R>> {
        let Wait { reply, reader, .. } = self.0.remove(&worker)?;
        let Reader { worker, incarnation, .. } = reader;
        let reason = format!("worker/{worker} counts as gone: incarnation {incarnation} is over");
        Some(Answer { reply, result: Err(Refusal::new(RefusalCode::Unavailable, reason)) })
    }

    /// This life of a worker takes part: gives the answer to what an earlier one has asked.
    pub(super) fn outlive(&mut self, reader: Reader) -> Option<Answer<R>> {
        let earlier = |wait: &Wait<R>| wait.reader.incarnation < reader.incarnation;
        if self.0.get(&reader.worker).is_some_and(earlier) { self.leave(reader.worker) } else { None }
    }

    /// Takes out all whose step may begin.
    pub(super) fn release(&mut self, may_begin: impl Fn(GlobalStep) -> bool) -> Vec<Wait<R>> {
        self.0.extract_if(.., |_, wait| may_begin(wait.step)).map(|(_, wait)| wait).collect()
    }
}

/// The answer to a pull.
pub(super) fn pulled<R>(reply: R, step: GlobalStep, values: Values) -> Answer<R> {
    let Values { slices, payload, version, last_step } = values;
    Answer { reply, result: Ok((Pulled { version, step, last_step, slices }.into(), payload)) }
}

impl<R> Wait<R> {
    /// The answer with these values.
    pub(super) fn answer(self, values: Values) -> Answer<R> {
        let Some(Outcome { verdict, staleness }) = self.push else {
            return pulled(self.reply, self.step, values);
        };
        let Values { slices, payload, version, last_step } = values;
        let pushed = Pushed { verdict, version, last_step, staleness, times: None, slices };
        Answer { reply: self.reply, result: Ok((pushed.into(), payload)) }
    }
}
