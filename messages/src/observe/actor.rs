//! The snapshot of an actor.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;

/// The state of any actor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSnapshot {
    /// The name, such as `ps/0/shard/1`, `worker/2/device/0`, `chief/0/desk`.
    pub name: String,
    /// The actor's activity, in a few words.
    pub state: String,
    /// The messages that wait in its mailbox.
    pub queue: u64,
    /// The times that messages waited in the mailbox.
    pub waited: TimeHistogram,
    /// The times that messages took to be handled.
    pub handling: TimeHistogram,
    /// The time so far spent on the current message, in microseconds; `None` if it handles none.
    pub busy_us: Option<u64>,
}
