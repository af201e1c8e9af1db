//! The times at which a ps task received, handled and answered a traced push.

use serde::{Deserialize, Serialize};

use super::clock::Micros;

/// The times of a push, on the clock of the ps task that received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushTimes {
    /// The time at which the whole push had been received.
    pub received_us: Micros,
    /// The time at which the shard took the push from its mailbox.
    pub taken_us: Micros,
    /// The time at which the shard had applied, held or rejected the push.
    pub done_us: Micros,
    /// The time at which the shard replied. It is much later than `done_us` if the worker's next step had to
    /// wait for other workers.
    pub answered_us: Micros,
}
