//! The snapshot of a worker, which it also reports to the chief. Sums are those of the current incarnation.

use serde::{Deserialize, Serialize};

use super::ps::Traffic;
use super::times::TimeHistogram;
use crate::id::{GlobalStep, LocalStep, ShardId};
use crate::message::{StalenessHistogram, Verdict};

/// The state of a worker task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// The steps taken.
    pub local_step: LocalStep,
    /// The highest version that a shard has replied.
    pub global_step: GlobalStep,
    /// The batches taken from its input, in all incarnations.
    pub drawn: u64,
    /// The examples for which it has computed gradients.
    pub examples: u64,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// The times of the phases of its steps.
    pub phases: Phases,
    /// The current phase of its trainer, by the names of [`Phases`]; `None` if it does not train.
    #[serde(default)]
    pub phase: Option<String>,
    /// The time since the current phase began, in microseconds.
    #[serde(default)]
    pub phase_us: u64,
    /// Its pushes by verdict, over all shards.
    pub verdicts: VerdictCounters,
    /// The staleness of its applied pushes, in versions of their shard.
    pub staleness: StalenessHistogram,
    /// The round trips of its pushes, by shard.
    pub round_trips: Vec<RoundTrip>,
    /// The bytes of gradients in flight.
    pub in_flight_bytes: u64,
    /// The bytes in flight at which a push must wait.
    pub in_flight_bytes_max: u64,
    /// The traffic sent to the ps tasks.
    pub sent: Traffic,
    /// The traffic received from the ps tasks.
    pub received: Traffic,
    /// The connections to ps tasks that were re-established.
    pub reconnections: u64,
    /// The requests to ps tasks that were sent again.
    pub resends: u64,
    /// True if the connection to the chief stands, false if it is broken or lost; `None` before it was dialled, and in
    /// reports to the chief.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chief_connected: Option<bool>,
}

/// The times of the phases of a step, which follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// The wait for the next batch.
    pub input: TimeHistogram,
    /// The forward and backward passes on all devices, and the reduction among them.
    pub compute: TimeHistogram,
    /// The checks and clipping of the gradients.
    pub filter: TimeHistogram,
    /// The exchange with the shards until they have sent the values for the next step: wire, queue, apply,
    /// and waiting for others.
    pub exchange: TimeHistogram,
    /// The hooks.
    pub hooks: TimeHistogram,
}

impl Phases {
    /// The maximum number of bytes in the name of a phase.
    pub const NAME_BYTES_MAX: usize = 16;

    /// Returns the phases by name, in the order of a step.
    pub const fn iter(&self) -> [(&'static str, &TimeHistogram); 5] {
        [
            ("input", &self.input),
            ("compute", &self.compute),
            ("filter", &self.filter),
            ("exchange", &self.exchange),
            ("hooks", &self.hooks),
        ]
    }

    /// Returns the times counted since `earlier`, a previous snapshot.
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

/// The pushes of a worker by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictCounters {
    /// The pushes applied as an update each.
    pub applied: u64,
    /// The pushes aggregated with others into an update.
    pub held: u64,
    /// The pushes that arrived after the update for which they were meant.
    pub stale: u64,
    /// The pushes that arrived after the last step.
    pub stopped: u64,
}

impl VerdictCounters {
    /// Counts a verdict.
    pub const fn record(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Applied => &mut self.applied,
            Verdict::Held => &mut self.held,
            Verdict::Stale { .. } => &mut self.stale,
            Verdict::Stopped => &mut self.stopped,
        };
        *counter += 1;
    }

    /// Returns the counts by the name of the verdict.
    pub const fn iter(&self) -> [(&'static str, u64); 4] {
        [("applied", self.applied), ("held", self.held), ("stale", self.stale), ("stopped", self.stopped)]
    }
}

/// The round trips of pushes to one shard: wire, queue, apply, and waiting for others if the policy requires
/// it. A push may begin while gradients are computed, so a round trip starts when all of it could be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The shard.
    pub shard: ShardId,
    /// The times from when all of a push could be sent to its reply.
    pub times: TimeHistogram,
}
