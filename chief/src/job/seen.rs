//! A job as it can be seen from outside: its phase, and what each worker is at. Decides nothing, and knows no clock.

use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::observe::{JobPhase, WorkerState};
use pushpull_transport::Peer;

use super::worker::{State, Worker};
use super::{JobState, Phase};

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobSeen {
    pub phase: JobPhase,
    /// Why it stops or has failed.
    pub reason: Option<String>,
    /// Whether it ends before its last step.
    pub stops: bool,
    /// The updates that it began with.
    pub began: GlobalStep,
    pub workers: Vec<WorkerSeen>,
}

/// A worker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSeen {
    pub worker: u32,
    pub state: WorkerState,
    /// Its latest life.
    pub life: Option<Incarnation>,
    /// Lives of it that have come.
    pub lives: u64,
    /// Where it says that it can be observed.
    pub http: Option<String>,
}

impl<R> JobState<R> {
    /// As it is now.
    pub(crate) fn seen(&self) -> JobSeen {
        let phase = self.phase();
        let reason = match &self.phase {
            Phase::Failing(error) => Some(error.to_string()),
            Phase::Ended(Some(reason)) => Some(reason.clone()),
            _ => self.stopping.as_ref().map(|stopping| stopping.reason.clone()),
        };
        let seen = |(&index, worker): (&u32, &Worker<R>)| WorkerSeen {
            worker: index,
            state: worker.seen(),
            life: worker.incarnation,
            lives: worker.lives,
            http: worker.http.clone(),
        };
        JobSeen {
            phase,
            reason,
            stops: self.stopping.is_some() || matches!(phase, JobPhase::Failing | JobPhase::Ended),
            began: self.began,
            workers: self.workers.iter().map(seen).collect(),
        }
    }

    /// What is worth to be seen at once when it has changed: the phase, whether the job stops, and of each worker its state and
    /// its lives.
    pub(crate) fn glance(&self) -> (JobPhase, bool, Vec<(WorkerState, u64)>) {
        let workers = self.workers.values().map(|worker| (worker.seen(), worker.lives)).collect();
        (self.phase(), self.stopping.is_some(), workers)
    }

    /// Whether that life of a worker is the one that is known, and speaks over its latest connection.
    pub(crate) fn is_latest(&self, peer: &Peer) -> bool {
        self.workers.get(&peer.task.index).is_some_and(|worker| {
            worker.incarnation == Some(peer.incarnation) && worker.connection <= peer.connection
        })
    }

    fn phase(&self) -> JobPhase {
        match self.phase {
            Phase::Starting => JobPhase::Starting,
            Phase::Training => JobPhase::Training,
            Phase::Evaluating(_) => JobPhase::Evaluating,
            Phase::Failing(_) => JobPhase::Failing,
            Phase::Ended(_) => JobPhase::Ended,
        }
    }
}

impl<R> Worker<R> {
    fn seen(&self) -> WorkerState {
        match self.state {
            State::Absent => WorkerState::Absent,
            State::Left => WorkerState::Left,
            State::Lost => WorkerState::Lost,
            _ if self.away => WorkerState::Away,
            State::Registered(_) | State::Preparing | State::Ready(_) => WorkerState::Preparing,
            State::Training => WorkerState::Training,
            State::Finished(_) => WorkerState::Finished,
            State::Evaluating => WorkerState::Evaluating,
        }
    }
}
