//! The snapshot of an actor: its mailbox and its handling times.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;

/// The state of an actor of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSnapshot {
    /// The actor's name, such as `ps/0/shard/1`, `worker/2/device/0` or `chief/0/desk`.
    pub name: String,
    /// What the actor is doing, in a few words.
    pub state: String,
    /// The number of messages that wait in the actor's mailbox.
    pub queue: u64,
    /// How long messages waited in the mailbox.
    pub waited: TimeHistogram,
    /// How long the actor took to handle messages.
    pub handling: TimeHistogram,
    /// How long the actor has been handling the current message, in microseconds; `None` if it handles none.
    pub busy_us: Option<u64>,
}
