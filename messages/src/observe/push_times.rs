//! The times of a traced push at its ps task. Knows no span and no other clock.

use serde::{Deserialize, Serialize};

use super::clock::Micros;

/// The times of a push on the clock of its ps task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushTimes {
    /// The time at which all of it had been received.
    pub received_us: Micros,
    /// The time at which the shard took it up.
    pub taken_us: Micros,
    /// The time at which the shard had applied, held or rejected it.
    pub done_us: Micros,
    /// The time of the reply; much later if the worker's next step had to wait for others.
    pub answered_us: Micros,
}
