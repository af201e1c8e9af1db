//! When a traced push passed through its ps. Knows no span and no other clock.

use serde::{Deserialize, Serialize};

use super::clock::Micros;

/// When a push was where, on the clock of its ps task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushTimes {
    /// All of it had come.
    pub received_us: Micros,
    /// The shard took it up.
    pub taken_us: Micros,
    /// The shard was done with it: it was applied, held or left out.
    pub done_us: Micros,
    /// It was answered; much later where its worker's next step had to wait for others.
    pub answered_us: Micros,
}
