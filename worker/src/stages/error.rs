//! The reason why a stage of a replica fails. This module must not depend on connections.

use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Refusal, RefusalCode};
use pushpull_transport::{CallError, DialError};

/// The reason why a stage of a replica fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task}, a stage of this replica: {reason}")]
pub struct StageError {
    /// The task that has failed.
    pub task: TaskId,
    /// The kind of the failure, which decides what the leader does.
    pub kind: StageErrorKind,
    /// What has happened.
    pub reason: String,
}

/// The kind of a stage's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageErrorKind {
    /// The stage, or a ps task that it needs, is lost. The leader begins again.
    Lost,
    /// The stage could not be reached in time. The leader leaves the job.
    Missing,
    /// The job has rolled back. The leader begins again.
    RolledBack,
    /// A shard has refused gradients that are not finite.
    NotFinite,
    /// The stage cannot compute. Beginning again would not help.
    Failed,
}

impl StageError {
    /// Makes the error of a call to `task`.
    pub(crate) fn of_call(task: TaskId, error: &CallError) -> Self {
        match error {
            CallError::Refused { refusal, .. } => Self::of_refusal(task, refusal),
            CallError::Lost { reason, .. } => {
                Self { task, kind: StageErrorKind::Lost, reason: format!("the connection is lost: {reason}") }
            }
            other => Self { task, kind: StageErrorKind::Failed, reason: other.to_string() },
        }
    }

    /// Makes the error of a dial of `task`.
    pub(crate) fn of_dial(task: TaskId, error: &DialError) -> Self {
        let kind = match error {
            DialError::Refused { refusal, .. } => kind_of(refusal.code),
            DialError::Missing { .. } => StageErrorKind::Missing,
            _ => StageErrorKind::Lost,
        };
        Self { task, kind, reason: error.to_string() }
    }

    fn of_refusal(task: TaskId, refusal: &Refusal) -> Self {
        Self { task, kind: kind_of(refusal.code), reason: refusal.reason.clone() }
    }

    /// Returns the text with which the stage `own` tells its leader of this failure.
    pub(crate) fn told_by(&self, own: TaskId) -> String {
        if self.task == own { self.reason.clone() } else { self.to_string() }
    }

    /// Returns the code with which a stage tells its leader of this failure.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self.kind {
            StageErrorKind::Lost | StageErrorKind::Missing => RefusalCode::Unavailable,
            StageErrorKind::RolledBack => RefusalCode::RolledBack,
            StageErrorKind::NotFinite => RefusalCode::NotFinite,
            StageErrorKind::Failed => RefusalCode::Failed,
        }
    }
}

const fn kind_of(code: RefusalCode) -> StageErrorKind {
    match code {
        RefusalCode::Unavailable | RefusalCode::Overloaded => StageErrorKind::Lost,
        RefusalCode::RolledBack => StageErrorKind::RolledBack,
        RefusalCode::NotFinite => StageErrorKind::NotFinite,
        _ => StageErrorKind::Failed,
    }
}
