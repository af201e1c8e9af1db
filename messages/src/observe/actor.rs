//! One actor as it is seen from outside.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;

/// What can be told of any actor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSnapshot {
    /// Such as `ps/0/shard/1`, `worker/2/device/0`, `chief/0/desk`.
    pub name: String,
    /// In a word or a few: what it does.
    pub state: String,
    /// Messages that wait in its mailbox.
    pub queue: u64,
    /// How long messages waited there.
    pub waited: TimeHistogram,
    /// How long they took to be handled.
    pub handling: TimeHistogram,
    /// For how long it has been at the message that it handles now, in microseconds, if it handles one.
    pub busy_us: Option<u64>,
}
