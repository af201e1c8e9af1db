//! Continues the job of an earlier run of the chief: takes over the workers of the job, and lets them rejoin.

use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Message, Rejoin, Rejoined};
use pushpull_messages::placement::Placement;
use pushpull_transport::Peer;
use tracing::info;

use super::member::MemberState;
use super::order::MembershipOrder;
use super::{Effect, JobStart, JobState, Phase, refuse, restart, superseded, too_late};
use crate::launch::HeldWorker;

impl<R> JobState<R> {
    /// Takes over the workers that the shards know. A worker that takes part counts as disconnected until it
    /// rejoins or registers again.
    pub(crate) fn continued(
        &mut self,
        placement: Placement,
        start: JobStart,
        workers: &[HeldWorker],
    ) -> Vec<Effect<R>> {
        self.continued = true;
        let (mut effects, mut begun) = (Vec::new(), false);
        for (index, held) in (0..).zip(workers) {
            begun |= matches!(held, HeldWorker::Here { joined: true, .. } | HeldWorker::Gone(_));
            let Some(member) = self.members.get_mut(&index) else { continue };
            match *held {
                HeldWorker::Here { incarnation, .. } if member.incarnation.is_none() => {
                    member.replace(incarnation);
                    (member.state, member.away, member.unknown) = (MemberState::Training, true, true);
                    // Some shards may not know this appointment.
                    effects.push(Effect::Order(MembershipOrder::Appoint(index, incarnation)));
                }
                HeldWorker::Gone(incarnation) if member.incarnation.is_none() => {
                    member.replace(incarnation);
                    member.state = MemberState::Lost;
                }
                // The worker has registered with this chief already. Its new appointment ends all earlier
                // incarnations on the shards. A shard that no earlier incarnation has joined still counts the
                // worker as a member.
                HeldWorker::Here { incarnation, .. } => {
                    member.expected = true;
                    if member.incarnation != Some(incarnation) {
                        member.replaced.push_back(incarnation);
                        member.ended.push(incarnation);
                    }
                }
                HeldWorker::Gone(incarnation) => {
                    if member.incarnation != Some(incarnation) {
                        member.replaced.push_back(incarnation);
                    }
                }
                HeldWorker::Absent => member.expected = member.incarnation.is_some(),
            }
        }
        if begun {
            effects.extend(self.begin());
        }
        effects.extend(self.created(placement, start));
        effects.extend(self.proceed());
        effects
    }

    /// Handles the message `Rejoin` of a worker that has begun to train under an earlier run of the chief. A
    /// worker that counts as left or lost may rejoin, too, in order to finish or to evaluate. If it must
    /// stop, the reply to its next report says so.
    pub(super) fn rejoin(&mut self, peer: &Peer, rejoin: &Rejoin, reply: R) -> Vec<Effect<R>> {
        let index = peer.task.index;
        let is_own_job = rejoin.job == self.job.digest();
        // A chief that does not lead the job tells no worker to stop.
        if self.placement.is_none() || self.abandoned {
            let member = self.member(index);
            if is_own_job && member.incarnation.is_none() {
                member.early = Some((peer.incarnation, peer.connection));
            }
            return vec![Effect::Reply(reply, Rejoined { leads: false }.into())];
        }
        if let Some(reason) = self.over() {
            return vec![refuse(reply, reason)];
        }
        let member = self.member(index);
        let is_own = member.incarnation == Some(peer.incarnation);
        if is_own && peer.connection < member.connection {
            return vec![superseded(reply)];
        }
        let restarts = matches!(member.state, MemberState::Restarting);
        if is_own_job && (member.incarnation.is_none() || (is_own && restarts)) {
            // The job has rolled back, or has begun again from a checkpoint, since the worker registered.
            return vec![restart(reply)];
        }
        if !is_own_job || (!is_own && !self.continued) {
            let reason =
                format!("the chief leads another job than worker/{index} trains: start the worker again");
            return vec![refuse(reply, reason)];
        }
        if !is_own && !self.member(index).is_present() {
            // Another incarnation of the worker has registered, but is disconnected or has left.
            return vec![restart(reply)];
        }
        if !is_own {
            return vec![refuse(reply, too_late(index))];
        }
        self.reconnected(peer);
        let member = self.member(index);
        let mut effects = Vec::new();
        if std::mem::take(&mut member.unknown) {
            self.reads(index, rejoin.files);
            info!(worker = %TaskId::worker(index), "worker rejoined");
            effects = self.begin();
        }
        effects.push(Effect::Reply(reply, Rejoined { leads: true }.into()));
        effects
    }

    /// Handles the request `Register` of a worker that had registered with an earlier run of the chief, but
    /// had not begun to train when that run ended. The worker registers again as the same incarnation. One
    /// that has finished or evaluates has begun.
    ///
    /// # Errors
    /// Returns any other request and its reply handle.
    pub(super) fn register_again(
        &mut self,
        index: u32,
        message: Message,
        reply: R,
    ) -> Result<Vec<Effect<R>>, (Message, R)> {
        let member = self.member(index);
        let may = member.unknown && matches!(member.state, MemberState::Training);
        if !may || !matches!(message, Message::Register(_)) {
            return Err((message, reply));
        }
        (member.unknown, member.expected) = (false, true);
        member.state = MemberState::Registered(reply);
        info!(worker = %TaskId::worker(index), "worker registered again");
        Ok(self.take_on(index))
    }

    /// Begins the training if the job is still starting. Does not wait for workers, because an earlier run of
    /// the chief has let all workers begin.
    fn begin(&mut self) -> Vec<Effect<R>> {
        if !matches!(self.phase, Phase::Starting) {
            return Vec::new();
        }
        self.phase = Phase::Training;
        let mut effects = vec![Effect::Started];
        let mut gone = Vec::new();
        for (&index, member) in &mut self.members {
            match member.state {
                // The job has rolled back, and the worker has not registered since.
                MemberState::Absent => {
                    (member.state, member.away, member.expected) = (MemberState::Restarting, true, true);
                }
                MemberState::Left | MemberState::Lost if member.is_counted() => gone.push(index),
                _ => {}
            }
        }
        for index in gone {
            effects.extend(self.leave(index, "it left before it began"));
        }
        effects
    }
}
