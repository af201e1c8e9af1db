//! One timeline of a whole job: what some steps' pushes went through, from the backward pass to the answer. Which push a
//! span belongs to travels in headers; moments are told on the chief's clock.

use serde::{Deserialize, Serialize};

use super::clock::Micros;
use crate::id::TaskId;
use crate::message::{Invalid, PushId};

/// Most spans in one report; what comes beside that is left out, and counted.
pub const SPANS_MAX: usize = 4096;
/// Most bytes in the name of a lane or of a span.
pub const LANE_BYTES_MAX: usize = 128;

/// Which steps are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpec {
    /// Of each worker every so many steps one, the first among them. At least 1.
    pub every: u64,
}

impl TraceSpec {
    /// Whether a worker's step of that number, from 0, is traced.
    pub const fn is_traced(&self, local_step: u64) -> bool {
        local_step.is_multiple_of(self.every)
    }
}

/// Something that took a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanSpec {
    /// Where it happened.
    pub task: TaskId,
    /// In which of its lanes, such as `trainer`, `device/0`, `shard/1`, `to ps/0/shard/1`.
    pub lane: String,
    /// What.
    pub name: String,
    /// The push that it belongs to, and the shard of which task it is for.
    pub push: Option<(PushId, crate::id::ShardId)>,
    /// Of which of its worker's steps it is a part.
    pub local_step: Option<u64>,
    /// When it began, on the chief's clock.
    pub start_us: Micros,
    /// How long it took.
    pub took_us: Micros,
}

impl SpanSpec {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        for text in [&self.lane, &self.name] {
            if text.len() > LANE_BYTES_MAX {
                return Err(Invalid(format!(
                    "a span's names may have at most {LANE_BYTES_MAX} bytes, and one has {}",
                    text.len()
                )));
            }
        }
        Ok(())
    }
}
