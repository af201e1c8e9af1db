//! How a worker tells the chief how far it is. Off the data path: nothing waits for it.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::{GlobalStep, LocalStep};

/// Worker to chief, about once a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The greatest number of updates that a shard has told of.
    pub global_step: GlobalStep,
    /// Steps that this worker has taken.
    pub local_step: LocalStep,
    /// The mean loss over the steps since the last report; NaN if there were none.
    pub loss: f32,
}

impl Content for Report {}

/// Chief to worker: whether to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// Why the worker shall stop before the job's last step, if it shall.
    #[serde(default)]
    pub stop: Option<String>,
}

impl Content for Reported {}
