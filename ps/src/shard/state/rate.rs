//! How a shard changes its learning rate at the same version as all other shards. The shard first promises
//! not to pass a version, and continues when it knows the new factor of its learning rate. Pushes that
//! arrive in between wait. While a push waits, every request that would end the incarnation of its worker
//! waits, too.

use super::{Gradients, ShardState, created};
use crate::shard::answer::Answer;
use crate::shard::contents::Contents;
use crate::shard::deferred::{Deferred, DeferredJoin, DeferredPush};
use pushpull_messages::message::{HoldAt, Holding, LearningRateSet, Push, SetLearningRate};

impl<R> ShardState<R> {
    /// Makes the shard stay at a version until its learning rate is set. A shard that is already beyond the
    /// version does not wait there. If an earlier request named a later version, this request is a late copy
    /// and changes nothing.
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

    /// Sets the factor of the learning rate for the version that `set` names and for all later versions.
    /// Then lets the shard continue.
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

    /// Keeps a push for later if the shard waits for its learning rate or for a draft. If another copy of the
    /// push already waits, keeps only the copy on the later connection, and returns the refusal of the other
    /// copy.
    ///
    /// # Errors
    /// Returns `gradients` and `reply` unused if the shard does not wait, or if the push was sent before a
    /// rollback and so will be refused.
    pub(super) fn defer(
        &mut self,
        push: &Push,
        gradients: Gradients,
        connection: u64,
        reply: R,
    ) -> Result<Option<Answer<R>>, (Gradients, R)> {
        let drafting = self.drafting && matches!(gradients, Gradients::Arrived(_));
        let waits = self.contents.as_ref().is_some_and(|contents| drafting || contents.is_held());
        if !waits || self.check_epoch(push.epoch).is_err() {
            return Err((gradients, reply));
        }
        Ok(self.deferred.push(DeferredPush { push: push.clone(), gradients, connection, reply }))
    }

    /// Serves the requests that have waited, in the order of their arrival, unless the shard still waits for
    /// its learning rate.
    pub(crate) fn resume(&mut self) -> Vec<Answer<R>> {
        let drafting = self.drafting;
        let ready = |contents: &Contents| !drafting && !contents.is_held();
        if self.contents.as_ref().is_none_or(|contents| !ready(contents)) {
            return Vec::new();
        }
        self.update_if_due();
        let mut answers = self.release();
        self.cut_if_due();
        // If the shard has to wait for another learning rate meanwhile, the remaining requests wait again, in
        // order.
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
