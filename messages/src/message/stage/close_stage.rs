//! Ends a stage.

use serde::{Deserialize, Serialize};

use super::Content;

/// A message from the leader to a stage: the leader has left the job in good order, and the stage can end,
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseStage {}

impl Content for CloseStage {}

/// The reply to [`CloseStage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageClosed {}

impl Content for StageClosed {}
