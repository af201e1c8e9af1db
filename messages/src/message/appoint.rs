//! Tells a shard which incarnation of a worker may be a member. Only the chief decides this.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::id::Incarnation;

/// The greatest number of an appointment. It is far below `u64::MAX`, so that the chief can give greater
/// numbers to later appointments.
const NUMBER_MAX: u64 = 1 << 62;

/// A message from the chief to a ps task: from now on, only this incarnation of the worker may join the
/// shard, because every other incarnation has ended. Sending the message twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appoint {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker that may join.
    pub incarnation: Incarnation,
    /// The number of the appointment. Of two appointments of a worker, the one with the greater number is the
    /// later one, even if it arrives first.
    pub number: u64,
}

/// Checks the number of an appointment.
pub(super) fn validate_number(number: u64) -> Result<(), Invalid> {
    if number > NUMBER_MAX {
        return Err(Invalid(format!(
            "an appointment has the number {number}, expected at most {NUMBER_MAX}"
        )));
    }
    Ok(())
}

impl Content for Appoint {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        validate_number(self.number)?;
        no_payload(segments)
    }
}

/// The reply of a ps task to [`Appoint`]: the shard lets only this incarnation join, or already knows a later
/// appointment of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appointed {}

impl Content for Appointed {}
