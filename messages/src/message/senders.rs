//! Says which tasks may send each request. A task refuses the requests of all others before it looks at their
//! content.

use super::Message;
use crate::id::{JobName, TaskId};

/// A kind of peer that sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// The chief.
    Chief,
    /// A ps task.
    Ps,
    /// A worker.
    Worker,
    /// Any task of a cluster of servers, whose jobs may have any names.
    Server,
    /// A client program, which is not a task of the cluster.
    Client,
}

impl Sender {
    /// Returns whether a peer is of this kind. A `guest` is a client program.
    fn is(self, peer: TaskId, guest: bool) -> bool {
        guest == (self == Self::Client)
            && match self {
                Self::Chief => peer.job == JobName::Chief,
                Self::Ps => peer.job == JobName::Ps,
                Self::Worker => peer.job == JobName::Worker,
                Self::Server | Self::Client => true,
            }
    }
}

impl Message {
    /// Returns whether a peer may send this message as a request, after the handshake. `guest` says whether
    /// the peer is a client program. Replies are no requests, so no peer may send them.
    pub fn may_come_from(&self, peer: TaskId, guest: bool) -> bool {
        self.senders().iter().any(|sender| sender.is(peer, guest))
    }

    /// Returns the kinds of peers that may send this message as a request.
    const fn senders(&self) -> &'static [Sender] {
        use Sender::{Chief, Client, Ps, Server, Worker};
        match self {
            Self::Register(_)
            | Self::Report(_)
            | Self::Finish(_)
            | Self::Evaluated(_)
            | Self::Ready(_)
            | Self::Rejoin(_)
            | Self::Push(_)
            | Self::JoinRoute(_)
            | Self::RelayPush(_)
            | Self::OpenStage(_)
            | Self::PullStage(_)
            | Self::ComputeStage(_)
            | Self::PushStage(_)
            | Self::StageValue(_)
            | Self::FetchStageValue(_)
            | Self::CloseStage(_)
            | Self::DigestStage(_) => &[Worker],
            Self::Pull(_) | Self::Observe(_) => &[Worker, Chief],
            Self::CreateShard(_)
            | Self::Stop(_)
            | Self::Leave(_)
            | Self::Save(_)
            | Self::StopAt(_)
            | Self::HoldAt(_)
            | Self::SetLearningRate(_)
            | Self::Claim(_)
            | Self::Withdraw(_)
            | Self::Appoint(_)
            | Self::Inspect(_) => &[Chief],
            Self::AccessFiles(_) => &[Chief, Ps],
            Self::Describe(_) | Self::OpenGraph(_) | Self::CloseGraph(_) | Self::Reset(_) => {
                &[Client, Server]
            }
            Self::Run(_) | Self::Cancel(_) => &[Client],
            Self::RunPart(_) | Self::Transfer(_) | Self::Abort(_) => &[Server],
            // Replies, and messages of the connection itself. A new request is refused until it is listed.
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{LocalStep, PlacementEpoch};
    use crate::message::{Claim, Claimed, Describe, Finish, Pull, PullAt, Stop, StopReason, TrainingResult};

    #[test]
    fn a_request_comes_only_from_its_senders() {
        let [ps, worker] = [TaskId::ps(0), TaskId::worker(3)];
        let client = TaskId::new(JobName::CLIENT, 7);
        let stop = Message::from(Stop { reason: StopReason::Completed });
        let claim = Message::from(Claim { attempt: 1 });
        for order in [stop, claim] {
            assert!(order.may_come_from(TaskId::CHIEF, false), "{order:?}");
            for peer in [ps, worker] {
                assert!(!order.may_come_from(peer, false), "{order:?}");
            }
            assert!(!order.may_come_from(client, true), "{order:?}");
            assert!(!order.may_come_from(TaskId::CHIEF, true), "a guest is no chief");
        }
        let result = TrainingResult::Completed;
        let finish = Message::from(Finish { result, local_step: LocalStep(1), loss: 0.0, skipped: 0 });
        assert!(finish.may_come_from(worker, false) && !finish.may_come_from(TaskId::CHIEF, false));
        let (epoch, at) = (PlacementEpoch(1), PullAt::Latest);
        let pull = Message::from(Pull { shard: 0, epoch, placement_digest: 0, at, averages: false });
        assert!(pull.may_come_from(worker, false) && !pull.may_come_from(ps, false));
        let describe = Message::from(Describe { own: true, variables: false });
        assert!(describe.may_come_from(client, true) && describe.may_come_from(worker, false));
        let reply = Message::from(Claimed {});
        assert!(!reply.may_come_from(TaskId::CHIEF, false) && !reply.may_come_from(client, true));
    }
}
