//! Lets the chief decide which incarnation of a worker may join the shard.

use pushpull_messages::message::{Appoint, Appointed, Leave};

use super::{ShardState, created};
use crate::shard::answer::{Answer, misfit};

impl<R> ShardState<R> {
    /// Lets an incarnation of a worker join, and ends the one that had joined before, if there is one. If a
    /// push of the earlier incarnation waits for the shard's learning rate, it ends after the push. An
    /// appointment whose number is not greater than that of the last one changes nothing.
    pub fn appoint(&mut self, appoint: &Appoint, reply: R) -> Vec<Answer<R>> {
        let &Appoint { shard, worker, incarnation, number } = appoint;
        let ended = match created(&mut self.contents, self.id) {
            Ok(contents) => contents.members.appoint(worker, incarnation, number).map_err(misfit),
            Err(refusal) => Err(refusal),
        };
        match ended {
            Err(refusal) => vec![Answer::refused(reply, refusal)],
            Ok(ended) => {
                let mut answers = vec![Answer::message(reply, Appointed {})];
                if let Some(incarnation) = ended {
                    answers.extend(self.end(&Leave { shard, worker, incarnation, epoch: self.epoch }));
                }
                answers
            }
        }
    }
}
