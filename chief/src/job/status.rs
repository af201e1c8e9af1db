//! The status of a job for observers: its phase, and the state of each worker. Decides nothing, and reads no
//! clock.

use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::observe::{JobPhase, WorkerState};
use pushpull_transport::Peer;

use super::member::{Member, MemberState};
use super::{JobState, Phase};

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobStatus {
    pub phase: JobPhase,
    /// The reason why the job stops early or has failed.
    pub reason: Option<String>,
    /// Whether the job is stopping early, is failing or has ended.
    pub stops: bool,
    /// The number of updates that had been applied when this run of the chief began or continued the job, or
    /// when the job last rolled back.
    pub began: GlobalStep,
    /// The number of times that the job has rolled back.
    pub rollbacks: u64,
    pub workers: Vec<MemberStatus>,
}

/// The status of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberStatus {
    pub worker: u32,
    pub state: WorkerState,
    /// The latest incarnation of the worker.
    pub life: Option<Incarnation>,
    /// The number of the worker's incarnations that have registered.
    pub lives: u64,
    /// The address of the worker's HTTP endpoint, if it has one.
    pub http: Option<String>,
}

/// The part of the status that is published without delay when it changes: the phase, whether the job stops
/// early, and each worker's state and number of incarnations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headline {
    pub phase: JobPhase,
    pub stopping: bool,
    pub workers: Vec<(WorkerState, u64)>,
}

impl<R> JobState<R> {
    /// Returns the status of the job.
    pub(crate) fn status(&self) -> JobStatus {
        let phase = self.phase();
        let reason = match &self.phase {
            Phase::Failing(error) => Some(error.to_string()),
            Phase::Ended(Some(reason)) => Some(reason.clone()),
            _ => self.stopping.as_ref().map(|stopping| stopping.reason.clone()),
        };
        let status = |(&index, member): (&u32, &Member<R>)| MemberStatus {
            worker: index,
            state: member.observed(),
            life: member.incarnation,
            lives: member.lives,
            http: member.http.clone(),
        };
        JobStatus {
            phase,
            reason,
            stops: self.stopping.is_some() || matches!(phase, JobPhase::Failing | JobPhase::Ended),
            began: self.began,
            rollbacks: self.rollbacks,
            workers: self.members.iter().filter(|(_, member)| member.is_known()).map(status).collect(),
        }
    }

    /// Returns the headline of the job.
    pub(crate) fn headline(&self) -> Headline {
        let known = self.members.values().filter(|member| member.is_known());
        let workers = known.map(|member| (member.observed(), member.lives)).collect();
        Headline { phase: self.phase(), stopping: self.stopping.is_some(), workers }
    }

    /// Returns whether `peer` is the current incarnation of a worker on its latest connection, and has not
    /// been told to register again.
    pub(crate) fn is_latest(&self, peer: &Peer) -> bool {
        self.members.get(&peer.task.index).is_some_and(|member| {
            member.incarnation == Some(peer.incarnation)
                && member.connection <= peer.connection
                && !matches!(member.state, MemberState::Restarting)
        })
    }

    fn phase(&self) -> JobPhase {
        match self.phase {
            Phase::Starting => JobPhase::Starting,
            Phase::Training => JobPhase::Training,
            Phase::Evaluating(_) | Phase::Settling(_) => JobPhase::Evaluating,
            Phase::Failing(_) => JobPhase::Failing,
            Phase::Concluding | Phase::Ended(_) => JobPhase::Ended,
        }
    }
}

impl<R> Member<R> {
    fn observed(&self) -> WorkerState {
        match self.state {
            MemberState::Absent => WorkerState::Absent,
            MemberState::Left => WorkerState::Left,
            MemberState::Lost => WorkerState::Lost,
            _ if self.away => WorkerState::Away,
            MemberState::Registered(_)
            | MemberState::Preparing
            | MemberState::Ready(_)
            | MemberState::Restarting => WorkerState::Preparing,
            MemberState::Training => WorkerState::Training,
            MemberState::Finished(_) => WorkerState::Finished,
            MemberState::Evaluating => WorkerState::Evaluating,
        }
    }
}
