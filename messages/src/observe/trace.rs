//! Spans of a job's timeline. The timeline shows the pushes of the traced steps, from the backward pass to
//! the reply. Each span that belongs to a push names the push, so the spans of one push on different tasks
//! can be joined. All times are on the chief's clock.

use serde::{Deserialize, Serialize};

use super::clock::Micros;
use crate::id::TaskId;
use crate::message::{Invalid, PushId};

/// The maximum number of spans in one report. Further spans are dropped and counted.
pub const SPANS_MAX: usize = 4096;
/// The maximum number of bytes in the name of a lane or of a span.
pub const LANE_BYTES_MAX: usize = 128;

/// Which steps of a job are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpec {
    /// The interval between traced steps, in steps; at least 1. In each sequence of this many steps, a
    /// worker traces the first step.
    pub every: u64,
    /// The number of traced steps in which a worker also records the time of every operation. The worker uses
    /// its first traced steps for this, but leaves out steps for which its next report has too little space.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ops: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl TraceSpec {
    /// Returns the spec of traces at an interval of `every` steps, without the times of operations.
    pub const fn every(every: u64) -> Self {
        Self { every, ops: 0 }
    }

    /// Returns true if a worker traces its step `local_step`. Steps are counted from 0.
    pub const fn is_traced(&self, local_step: u64) -> bool {
        local_step.is_multiple_of(self.every)
    }
}

/// A span of the timeline: an activity of a task with a start and a duration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanSpec {
    /// The task that performed the activity.
    pub task: TaskId,
    /// The row of the timeline in which the span appears. Each task has its own rows, such as `trainer`,
    /// `device/0`, `shard/1` or `to ps/0/shard/1`.
    pub lane: String,
    /// The name of the activity.
    pub name: String,
    /// The push to which the activity belongs, if any, and the shard that receives the push.
    pub push: Option<(PushId, crate::id::ShardId)>,
    /// The worker's step to which the activity belongs, if any.
    pub local_step: Option<u64>,
    /// The start of the activity, in microseconds on the chief's clock.
    pub start_us: Micros,
    /// The duration of the activity, in microseconds.
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
