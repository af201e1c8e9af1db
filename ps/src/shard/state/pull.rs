//! Answers the pulls that a shard receives: immediately, or when the worker may begin its step.

use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::{Pull, PullAt, Refusal};

use super::{ShardState, not_created};
use crate::shard::answer::{Answer, Reader, misfit, unavailable, variables_lost};
use crate::shard::deferred::DeferredJoin;
use crate::shard::newest::ValuesKind;
use crate::shard::waiting::Wait;
use crate::sync::Members;

impl<R> ShardState<R> {
    /// Accepts a pull of all slices at one version. `reader` is the worker that sends the pull; `None` for
    /// other peers.
    pub fn pull(&mut self, pull: &Pull, reader: Option<Reader>, reply: R) -> Vec<Answer<R>> {
        if let Some(reader) = reader.filter(|&reader| self.delays(pull, reader)) {
            let join = DeferredJoin { pull: pull.clone(), reader, reply };
            return self.deferred.join(join).into_iter().collect();
        }
        let answers = self.answer_pull(pull, reader, reply);
        self.cut_if_due();
        answers
    }

    /// Returns whether a request to join has to wait until its worker's earlier incarnation has ended. A
    /// request that will be refused does not wait.
    fn delays(&self, pull: &Pull, Reader { worker, incarnation, .. }: Reader) -> bool {
        self.deferred.delays(pull, worker, incarnation)
            && self.contents.as_ref().is_some_and(|own| own.members.is_appointed(worker, incarnation))
    }

    fn answer_pull(&mut self, pull: &Pull, reader: Option<Reader>, reply: R) -> Vec<Answer<R>> {
        match self.begin_pull(pull, reader) {
            Err(refusal) => vec![Answer::refused(reply, refusal)],
            Ok((Some((reader, step)), PullAt::Step(_))) => {
                let wait = Wait { reply, reader, push: None, step, averages: pull.averages };
                let mut answers: Vec<_> = self.waiting.add(wait).into_iter().collect();
                answers.extend(self.release());
                answers
            }
            Ok((member, _)) => {
                let contents = self.contents.as_ref().expect("a pull has begun");
                let step = member.map_or(GlobalStep(contents.version.0), |(_, step)| step);
                self.pulls += 1;
                let kind = if pull.averages { ValuesKind::Averages } else { ValuesKind::Current };
                let mut answers = vec![contents.values(kind, &self.pool, &self.threads).pulled(reply, step)];
                // A new incarnation of a worker ends the earlier one, which may let other workers continue.
                answers.extend(member.and_then(|(reader, _)| self.waiting.outlive(reader)));
                answers.extend(self.release());
                answers
            }
        }
    }

    /// Checks a pull. If the pull is for joining the job or for a step, updates the membership of its
    /// worker, and returns the worker with its next step. If the pull only reads the latest values, returns
    /// `None` instead.
    fn begin_pull(
        &mut self,
        pull: &Pull,
        reader: Option<Reader>,
    ) -> Result<(Option<(Reader, GlobalStep)>, PullAt), Refusal> {
        self.check_epoch(pull.epoch)?;
        let empty = || match reader {
            Some(_) => variables_lost(self.id),
            None => not_created(self.id),
        };
        let contents = self.contents.as_mut().ok_or_else(empty)?;
        contents.check_placement(pull.epoch, pull.placement_digest)?;
        let Some(reader @ Reader { worker, incarnation, .. }) = reader else {
            return match pull.at {
                PullAt::Latest => Ok((None, pull.at)),
                PullAt::Join | PullAt::Step(_) => {
                    Err(misfit("only workers may join or wait for a step".into()))
                }
            };
        };
        let step = match pull.at {
            PullAt::Latest => return Ok((None, pull.at)),
            PullAt::Join => {
                let (policy, version) = (&contents.policy, contents.version);
                let first = |members: &Members| policy.first_step(worker, version, members);
                let step = contents.members.join(worker, incarnation, first).map_err(unavailable)?;
                contents.touched = true;
                self.update_if_due();
                step
            }
            // The step is compared with the job's last step instead of the shard's own end, because the end
            // may still move and another shard may already be past it.
            PullAt::Step(step) if step > contents.created.last_step => {
                let last_step = contents.created.last_step;
                return Err(misfit(format!("step {step} is beyond the job's last step, {last_step}")));
            }
            PullAt::Step(step) => {
                contents.members.admit(worker, incarnation).map_err(unavailable)?;
                contents.touched = true;
                contents.members.raise(worker, step);
                self.update_if_due();
                let contents = self.contents.as_ref().ok_or_else(|| variables_lost(self.id))?;
                contents.members.next(worker)
            }
        };
        Ok((Some((reader, step)), pull.at))
    }
}
