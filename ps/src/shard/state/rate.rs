//! How a shard changes its learning rate at the same version as all others. It first promises not to pass a
//! version, and continues when it knows the factor. Pushes that arrive in between wait.

use pushpull_messages::message::{HoldAt, Holding, LearningRateSet, Push, Refusal, SetLearningRate};
use pushpull_transport::buffer::Payload;

use super::{ShardState, created};
use crate::shard::answer::Answer;

/// A push that arrived while the shard waited for its learning rate.
pub(super) struct Deferred<R> {
    push: Push,
    gradients: Payload,
    connection: u64,
    reply: R,
}

impl<R> ShardState<R> {
    /// Makes the shard apply no update beyond a version until its learning rate is set. A shard that has
    /// passed the version does not hold, and no longer holds at an earlier one.
    pub fn hold_at(&mut self, hold: &HoldAt, reply: R) -> Vec<Answer<R>> {
        let contents = match created(&mut self.contents, self.id) {
            Ok(contents) => contents,
            Err(refusal) => return vec![Answer::refused(reply, refusal)],
        };
        contents.hold_at(hold.version);
        let mut answers = vec![Answer::message(reply, Holding { version: contents.version })];
        answers.extend(self.resume());
        answers
    }

    /// Sets the factor of the learning rate from a version on, and lets the shard continue.
    pub fn set_learning_rate(&mut self, set: &SetLearningRate, reply: R) -> Vec<Answer<R>> {
        let contents = match created(&mut self.contents, self.id) {
            Ok(contents) => contents,
            Err(refusal) => return vec![Answer::refused(reply, refusal)],
        };
        contents.set_rate(set.change);
        let mut answers = vec![Answer::message(reply, LearningRateSet {})];
        answers.extend(self.resume());
        answers
    }

    /// Keeps a push for later if the shard holds; returns it as an error otherwise. A push that arrives again
    /// keeps its place, and the copy on the later connection gets the answer. So at most one push waits for
    /// each push of a worker that has no answer yet. Returns the refusal of the other copy.
    pub(super) fn defer(
        &mut self,
        push: &Push,
        gradients: Payload,
        connection: u64,
        reply: R,
    ) -> Result<Option<Answer<R>>, (Payload, R)> {
        if !self.contents.as_ref().is_some_and(|contents| contents.is_held()) {
            return Err((gradients, reply));
        }
        let deferred = Deferred { push: push.clone(), gradients, connection, reply };
        let other = match self.deferred.iter_mut().find(|waiting| waiting.push.id == push.id) {
            Some(waiting) if waiting.connection > connection => Some(deferred),
            Some(waiting) => Some(std::mem::replace(waiting, deferred)),
            None => {
                self.deferred.push(deferred);
                None
            }
        };
        Ok(other.map(|other| Answer::refused(other.reply, Refusal::superseded())))
    }

    /// Accepts the pushes that have waited, in the order of their arrival, unless the shard still holds.
    pub(super) fn resume(&mut self) -> Vec<Answer<R>> {
        let Some(contents) = self.contents.as_mut().filter(|contents| !contents.is_held()) else {
            return Vec::new();
        };
        contents.update_if_due(&mut self.timer, &self.pool);
        let mut answers = self.release();
        self.cut_if_due();
        for Deferred { push, gradients, connection, reply } in std::mem::take(&mut self.deferred) {
            answers.extend(self.push(&push, gradients, connection, reply));
        }
        answers
    }
}
