//! Rolls the shard of a running job back: the chief creates it again from a checkpoint, because another ps
//! task has lost its variables. The request has a later placement epoch, so that the shard can refuse
//! everything that was sent before.
//!
//! Wanted properties: (A) every request that waits is answered; (B) nothing that was sent before the rollback
//! changes the shard after it; (C) the counts begin again at 0.

use pushpull_messages::id::PlacementEpoch;
use pushpull_messages::message::{CreateShard, Refusal, RefusalCode};

use super::ShardState;
use super::create::Creating;
use crate::shard::answer::{Answer, rolled_back};
use crate::shard::deferred::{Deferred, DeferredJoin, DeferredPush};

impl<R> ShardState<R> {
    /// Returns whether `create` rolls back the job that the shard serves, or the job for which the shard is
    /// being created.
    pub(super) fn rolls_back(&self, create: &CreateShard) -> bool {
        let is_earlier = |known: &CreateShard| {
            known.job == create.job && known.job != 0 && known.placement.epoch < create.placement.epoch
        };
        let serves = self.contents.as_ref().is_some_and(|own| is_earlier(&own.created));
        serves || self.creating.as_ref().is_some_and(|creating| is_earlier(&creating.create))
    }

    /// Returns whether `create` is a late copy of a request that was sent before a rollback.
    pub(super) fn has_rolled_back_beyond(&self, create: &CreateShard) -> bool {
        let is_later = |known: &CreateShard| {
            known.job == create.job && known.job != 0 && known.placement.epoch > create.placement.epoch
        };
        self.contents.as_ref().is_some_and(|own| is_later(&own.created))
            || self.creating.as_ref().is_some_and(|creating| is_later(&creating.create))
    }

    /// Forgets everything of the job's earlier epochs. Returns the refusals of all requests that wait.
    pub(super) fn roll_back(&mut self, to: PlacementEpoch) -> Vec<Answer<R>> {
        let refused = |reply| Answer::refused(reply, rolled_back(to));
        let mut answers: Vec<_> = self.waiting.take().map(refused).collect();
        for deferred in self.deferred.take() {
            match deferred {
                Deferred::Push(DeferredPush { reply, .. }) | Deferred::Join(DeferredJoin { reply, .. }) => {
                    answers.push(refused(reply));
                }
                Deferred::Leave(_) => {}
            }
        }
        if let Some(Creating { asker, requested, .. }) = self.creating.take() {
            self.discards_read |= requested;
            answers.push(Answer::refused(asker.reply, Refusal::superseded()));
        }
        // The chief tells the restored shard again which workers have left. A worker that left before may be
        // expected again.
        self.over.clear();
        (self.counters, self.pulls, self.not_finite) = Default::default();
        (self.staleness, self.steps_behind) = Default::default();
        answers
    }

    /// Checks that a worker did not send its request before the job rolled back.
    ///
    /// # Errors
    /// Returns the refusal that tells the worker to register again.
    pub(super) fn check_epoch(&self, epoch: PlacementEpoch) -> Result<(), Refusal> {
        if epoch < self.epoch { Err(rolled_back(self.epoch)) } else { Ok(()) }
    }

    /// Returns whether the chief gave the order that arrived on `connection` before its last request to
    /// create the shard. Such an order comes on an earlier connection than that request.
    pub(crate) const fn predates(&self, connection: u64) -> bool {
        connection < self.created_on
    }

    /// Returns the refusal of a late copy of an order that was given before a rollback.
    pub(crate) fn too_early(&self) -> Refusal {
        let Self { id, epoch, .. } = self;
        let reason = format!("{id} was created at placement epoch {epoch} since the order was given");
        Refusal::new(RefusalCode::RolledBack, reason)
    }
}
