//! Spans of a job's timeline: the path of the pushes of some steps, from the backward pass to the reply.
//! Headers carry the push of a span; times are on the chief's clock. Does not know how the timeline is
//! written.

use serde::{Deserialize, Serialize};

use super::clock::Micros;
use crate::id::TaskId;
use crate::message::{Invalid, PushId};

/// The maximum number of spans in one report; further ones are dropped and counted.
pub const SPANS_MAX: usize = 4096;
/// The maximum number of bytes in the name of a lane or of a span.
pub const LANE_BYTES_MAX: usize = 128;

/// The selection of steps to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpec {
    /// The interval: of each worker, the first of every `every` steps is traced. At least 1.
    pub every: u64,
}

impl TraceSpec {
    /// Returns true if a worker's step of this number, counted from 0, is traced.
    pub const fn is_traced(&self, local_step: u64) -> bool {
        local_step.is_multiple_of(self.every)
    }
}

/// A span of the timeline: an activity with a start and a duration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanSpec {
    /// The task.
    pub task: TaskId,
    /// The lane of the task, such as `trainer`, `device/0`, `shard/1`, `to ps/0/shard/1`.
    pub lane: String,
    /// The activity.
    pub name: String,
    /// The push to which it belongs, and the push's shard.
    pub push: Option<(PushId, crate::id::ShardId)>,
    /// The worker's step of which it is a part.
    pub local_step: Option<u64>,
    /// The start, on the chief's clock.
    pub start_us: Micros,
    /// The duration.
    pub took_us: Micros,
}

impl SpanSpec {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        for text in [&self.lane, &self.name] {
            if text.len() > LANE_BYTES_MAX {
                let bytes = text.len();
                return Err(Invalid(format!(
                    "the name or lane of a span has {bytes} bytes, expected at most {LANE_BYTES_MAX}"
                )));
            }
        }
        Ok(())
    }
}
