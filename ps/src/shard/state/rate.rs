//! How a shard changes its learning rate at the same version as all others. It first promises not to pass a
//! version, and continues when it knows the factor. Pushes that arrive in between wait, and so does whatever
//! would end the incarnation that sent them.

use pushpull_messages::message::{HoldAt, Holding, LearningRateSet, Push, SetLearningRate};
use pushpull_transport::buffer::Payload;

use super::{ShardState, created};
use crate::shard::answer::Answer;
use crate::shard::deferred::{Deferred, DeferredJoin, DeferredPush};

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

    /// Keeps a push for later if the shard holds, and returns the refusal of another copy of it.
    ///
    /// # Errors
    /// Returns the gradients and the handle if the shard does not hold.
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
        Ok(self.deferred.push(DeferredPush { push: push.clone(), gradients, connection, reply }))
    }

    /// Serves the requests that have waited, in the order of their arrival, unless the shard still holds.
    pub(super) fn resume(&mut self) -> Vec<Answer<R>> {
        let Some(contents) = self.contents.as_mut().filter(|contents| !contents.is_held()) else {
            return Vec::new();
        };
        contents.update_if_due(&mut self.timer, &self.pool);
        let mut answers = self.release();
        self.cut_if_due();
        // If the shard holds again meanwhile, the rest waits again, in the same order.
        for deferred in self.deferred.take() {
            answers.extend(match deferred {
                Deferred::Push(DeferredPush { push, gradients, connection, reply }) => {
                    self.push(&push, gradients, connection, reply)
                }
                Deferred::Leave(leave) => self.end(&leave),
                Deferred::Join(DeferredJoin { pull, reader, reply }) => self.pull(&pull, Some(reader), reply),
            });
        }
        answers
    }
}
