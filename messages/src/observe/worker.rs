//! The snapshot of a worker, which the worker also sends to the chief in its reports. Counts begin at 0 in
//! each incarnation of the worker, unless their documentation says otherwise.

use serde::{Deserialize, Serialize};

use super::ps::Traffic;
use super::times::TimeHistogram;
use crate::id::{GlobalStep, LocalStep, ShardId};
use crate::message::{StalenessHistogram, Verdict};

/// The state of a worker task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// The number of steps taken.
    pub local_step: LocalStep,
    /// The highest version that the worker has seen in a shard's reply.
    pub global_step: GlobalStep,
    /// The number of batches that the worker has taken from its input, counted over all its incarnations.
    pub drawn: u64,
    /// The number of examples for which the worker has computed gradients.
    pub examples: u64,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The number of steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// The number of damaged records that the worker has skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub records_skipped: u64,
    /// The durations of the phases of the worker's steps.
    pub phases: Phases,
    /// The name of the current phase, one of those in [`Phases`]; `None` if the worker does not train.
    #[serde(default)]
    pub phase: Option<String>,
    /// The time since the current phase began, in microseconds.
    #[serde(default)]
    pub phase_us: u64,
    /// The number of the worker's pushes by verdict, over all shards.
    pub verdicts: VerdictCounters,
    /// The staleness of the worker's pushes that were applied or held, in versions of the shard that received
    /// them.
    pub staleness: StalenessHistogram,
    /// The round-trip times of the worker's pushes, by shard.
    pub round_trips: Vec<RoundTrip>,
    /// The size, in bytes, of gradients that have been sent but not yet answered.
    pub in_flight_bytes: u64,
    /// The number of bytes in flight at which a further push must wait.
    pub in_flight_bytes_max: u64,
    /// The traffic sent to the ps tasks.
    pub sent: Traffic,
    /// The traffic received from the ps tasks.
    pub received: Traffic,
    /// The number of times that a broken connection to a ps task was re-established.
    pub reconnections: u64,
    /// The number of requests to ps tasks that were sent again.
    pub resends: u64,
    /// Whether the connection to the chief is open. `None` before the worker first dials the chief, and in
    /// reports to the chief.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chief_connected: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The durations of the phases of a step. The phases follow each other in the order of the fields, except
/// that some hooks run before the computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// The wait for the next batch.
    pub input: TimeHistogram,
    /// The forward and backward passes on all devices, and the reduction of the gradients across devices.
    pub compute: TimeHistogram,
    /// The checks and clipping of the gradients.
    pub filter: TimeHistogram,
    /// The exchange with the shards, until the values for the next step have arrived. This includes the time
    /// in the network and in the shards' queues, the time to apply the update, and the wait for other
    /// workers.
    pub exchange: TimeHistogram,
    /// All hooks of the step: those before the computation and those after the exchange.
    pub hooks: TimeHistogram,
}

impl Phases {
    /// The maximum number of bytes in the name of a phase.
    pub const NAME_BYTES_MAX: usize = 16;

    /// Returns the name and the durations of each phase, in the order of a step.
    pub const fn iter(&self) -> [(&'static str, &TimeHistogram); 5] {
        [
            ("input", &self.input),
            ("compute", &self.compute),
            ("filter", &self.filter),
            ("exchange", &self.exchange),
            ("hooks", &self.hooks),
        ]
    }

    /// Returns the durations recorded since `earlier`, a previous snapshot of the same worker.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            input: self.input.since(&earlier.input),
            compute: self.compute.since(&earlier.compute),
            filter: self.filter.since(&earlier.filter),
            exchange: self.exchange.since(&earlier.exchange),
            hooks: self.hooks.since(&earlier.hooks),
        }
    }
}

/// The number of a worker's pushes by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictCounters {
    /// The number of pushes that were applied, each as an update of its own.
    pub applied: u64,
    /// The number of pushes that were held to be aggregated with others into one update.
    pub held: u64,
    /// The number of pushes that arrived after the update for which they were meant.
    pub stale: u64,
    /// The number of pushes that arrived after the last step.
    pub stopped: u64,
}

impl VerdictCounters {
    /// Counts one push with this verdict.
    pub const fn record(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Applied => &mut self.applied,
            Verdict::Held => &mut self.held,
            Verdict::Stale { .. } => &mut self.stale,
            Verdict::Stopped => &mut self.stopped,
        };
        *counter += 1;
    }

    /// Returns the name of each verdict and its count.
    pub const fn iter(&self) -> [(&'static str, u64); 4] {
        [("applied", self.applied), ("held", self.held), ("stale", self.stale), ("stopped", self.stopped)]
    }
}

/// The round-trip times of pushes to one shard. They include the time in the network and in the shard's
/// queue, the time to apply the update, and the wait for other workers if the policy requires it. A worker
/// may begin to send a push before all of its gradients are computed. The round trip does not include the
/// time before all gradients of the push are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The shard that receives the pushes.
    pub shard: ShardId,
    /// The times from the moment at which all gradients of a push are ready until the reply arrives.
    pub times: TimeHistogram,
}
