//! How a shard gets its variables: with initial values, or with those of a checkpoint, which the caller
//! reads.

use std::sync::Arc;

use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::message::{CreateShard, Refusal};

use super::ShardState;
use crate::shard::answer::{Answer, Asker, misfit, unavailable};
use crate::shard::contents::Contents;
use crate::shard::cut::Restored;

/// A creation whose values are read from a checkpoint.
pub(super) struct Creating<R> {
    pub(super) create: Arc<CreateShard>,
    asker: Asker<R>,
    /// Whether the read has been requested.
    pub(super) requested: bool,
}

impl<R> ShardState<R> {
    /// Creates the shard's slices with their initial values, or requests that their values be read from a
    /// checkpoint. The same request once more changes nothing; a different one replaces the shard as long as
    /// no worker has used it. Refuses if the shard serves another job, would hold too much, or is not the one
    /// named.
    pub fn create(&mut self, create: CreateShard, connection: u64, reply: R) -> Vec<Answer<R>> {
        if let Some(creating) = self.creating.as_mut().filter(|creating| *creating.create == create) {
            return vec![creating.asker.supersede(Asker { reply, connection })];
        }
        if let Some(contents) = self.contents.as_ref().filter(|contents| *contents.created == create) {
            return vec![Answer::message(reply, contents.created())];
        }
        if let Err(refusal) = self.check_create(&create) {
            return vec![Answer::refused(reply, refusal)];
        }
        // Before anything new is allocated: both may not fit.
        self.contents = None;
        let mut answers: Vec<_> = self.saves.abandon().into_iter().collect();
        let create = Arc::new(create);
        if create.start == StartSpec::Initialise {
            answers.push(self.begin(create, Restored::default(), reply));
        } else {
            let asker = Asker { reply, connection };
            self.creating = Some(Creating { create, asker, requested: false });
        }
        answers
    }

    fn check_create(&self, create: &CreateShard) -> Result<(), Refusal> {
        if create.shard != self.id {
            return Err(misfit(format!("this is {}, not {}", self.id, create.shard)));
        }
        if self.creating.is_some() {
            return Err(unavailable(format!("{} is being created with other variables", self.id)));
        }
        if self.contents.as_ref().is_some_and(|contents| contents.touched) {
            let reason = format!("{} already serves another job; restart it for a new one", self.id);
            return Err(misfit(reason));
        }
        self.limits.check(create)
    }

    /// Continues a creation with what was read from the checkpoint, or refuses it.
    ///
    /// # Panics
    /// If no read was requested.
    pub fn restored(&mut self, result: Result<Restored, Refusal>) -> Vec<Answer<R>> {
        let Creating { create, asker, .. } = self.creating.take().expect("a read was requested");
        let answer = match result {
            Ok(restored) => self.begin(create, restored, asker.reply),
            Err(refusal) => Answer::refused(asker.reply, refusal),
        };
        vec![answer]
    }

    fn begin(&mut self, create: Arc<CreateShard>, restored: Restored, reply: R) -> Answer<R> {
        let mut contents = Contents::new(create, restored, &self.pool);
        for (&worker, &incarnation) in &self.over {
            contents.members.leave(worker, incarnation);
        }
        Answer::message(reply, self.contents.insert(contents).created())
    }
}
