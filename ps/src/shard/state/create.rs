//! Creates the variables of a shard with initial values or with values from a checkpoint. The caller of the
//! state machine reads the checkpoint.

use std::sync::Arc;

use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::message::{CreateShard, Refusal};

use super::ShardState;
use crate::shard::answer::{Answer, Asker, misfit, unavailable};
use crate::shard::contents::Contents;
use crate::shard::cut::Restored;

/// A pending request to create the shard. It waits until the values have been read from a checkpoint.
pub(super) struct Creating<R> {
    pub(super) create: Arc<CreateShard>,
    pub(super) asker: Asker<R>,
    /// Whether the caller has already been given the request to read the values from the checkpoint.
    pub(super) requested: bool,
}

impl<R> ShardState<R> {
    /// Creates the shard's slices with their initial values, or first requests a read of their values from a
    /// checkpoint. A repetition of the request changes nothing. A different request replaces the contents if
    /// no worker has used the shard yet. A worker uses the shard when it joins, pushes, or pulls the values
    /// for a step. A different request is refused if a worker has used the shard, if the values for an
    /// earlier request are still being read, if the shard would exceed its limits, if the request names
    /// another shard, or if the job has rolled back since the request was sent. A request for the same job
    /// with a later placement epoch rolls the job back, even if workers have used the shard.
    pub fn create(&mut self, create: CreateShard, connection: u64, reply: R) -> Vec<Answer<R>> {
        if let Some(creating) = self.creating.as_mut().filter(|creating| *creating.create == create) {
            return vec![creating.asker.supersede(Asker { reply, connection })];
        }
        if let Some(contents) = self.contents.as_ref().filter(|contents| *contents.created == create) {
            return vec![Answer::message(reply, contents.created())];
        }
        if self.has_rolled_back_beyond(&create) {
            return vec![Answer::refused(reply, self.too_early())];
        }
        let rolls_back = self.rolls_back(&create);
        if let Err(refusal) = self.check_create(&create, rolls_back) {
            return vec![Answer::refused(reply, refusal)];
        }
        (self.created_on, self.epoch) = (self.created_on.max(connection), create.placement.epoch);
        // The old contents are freed before the new ones are allocated, because there may not be enough
        // memory for both.
        self.contents = None;
        let mut answers: Vec<_> = self.saves.abandon();
        if rolls_back {
            answers.extend(self.roll_back(create.placement.epoch));
        }
        let create = Arc::new(create);
        if create.start == StartSpec::Initialise {
            answers.push(self.begin(create, Restored::default(), reply));
        } else {
            let asker = Asker { reply, connection };
            self.creating = Some(Creating { create, asker, requested: false });
        }
        answers
    }

    fn check_create(&self, create: &CreateShard, rolls_back: bool) -> Result<(), Refusal> {
        if create.shard != self.id {
            return Err(misfit(format!(
                "this shard is {}, but the request is for {}",
                self.id, create.shard
            )));
        }
        if rolls_back {
            return self.limits.check(create);
        }
        if self.creating.is_some() {
            return Err(unavailable(format!("{} is still being created for a different request", self.id)));
        }
        if self.contents.as_ref().is_some_and(|contents| contents.touched) {
            let reason = format!("{} already serves another job; restart its ps task for a new job", self.id);
            return Err(misfit(reason));
        }
        self.limits.check(create)
    }

    /// Completes a creation with the values that were read from the checkpoint, or refuses it if the read
    /// failed. Ignores the values if the job has rolled back since the read was requested.
    ///
    /// # Panics
    /// If no read was requested.
    pub fn restored(&mut self, result: Result<Restored, Refusal>) -> Vec<Answer<R>> {
        if std::mem::take(&mut self.discards_read) {
            return Vec::new();
        }
        let Creating { create, asker, .. } = self.creating.take().expect("a read was requested");
        let answer = match result {
            Ok(restored) => self.begin(create, restored, asker.reply),
            Err(refusal) => Answer::refused(asker.reply, refusal),
        };
        vec![answer]
    }

    fn begin(&mut self, create: Arc<CreateShard>, restored: Restored, reply: R) -> Answer<R> {
        let keeps_last = self.limits.keeps_last(&create);
        let contents = Contents::new(create, restored, &self.pool, keeps_last, self.device.as_ref());
        let mut contents = match contents {
            Ok(contents) => contents,
            Err(error) => {
                // Not `Unavailable`: the chief would believe that the checkpoint is damaged.
                return Answer::refused(reply, misfit(format!("{} cannot use its device: {error}", self.id)));
            }
        };
        for (&worker, &incarnation) in &self.over {
            contents.members.leave(worker, incarnation);
        }
        self.creations += 1;
        Answer::message(reply, self.contents.insert(contents).created())
    }
}
