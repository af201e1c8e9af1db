//! A worker task as it is seen from outside; also what it reports to the chief. Sums are of this life of it.

use serde::{Deserialize, Serialize};

use super::ps::Traffic;
use super::times::TimeHistogram;
use crate::id::{GlobalStep, LocalStep, ShardId};
use crate::message::{StalenessHistogram, Verdict};

/// The state of a worker task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// Steps that it has taken.
    pub local_step: LocalStep,
    /// The greatest number of updates that a shard has told of.
    pub global_step: GlobalStep,
    /// Batches that it has taken from its input, in all its lives.
    pub drawn: u64,
    /// Examples that it has computed gradients of.
    pub examples: u64,
    /// Of the last step.
    pub loss: Option<f32>,
    /// Steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// Where its time goes.
    pub phases: Phases,
    /// What its trainer is at, by the names of [`Phases`]; `None` where it does not train.
    #[serde(default)]
    pub phase: Option<String>,
    /// For how long it has been at that, in microseconds.
    #[serde(default)]
    pub phase_us: u64,
    /// What became of its pushes, all shards together.
    pub verdicts: VerdictCounters,
    /// Of the pushes that are in the variables, in versions of their shard.
    pub staleness: StalenessHistogram,
    /// From when all of a push could be sent to its answer, by shard.
    pub round_trips: Vec<RoundTrip>,
    /// Gradient bytes that are on their way.
    pub in_flight_bytes: u64,
    /// Where a push has to wait.
    pub in_flight_bytes_max: u64,
    /// What it has sent to the ps tasks.
    pub sent: Traffic,
    /// What they have answered.
    pub received: Traffic,
    /// Connections to ps tasks that were found again.
    pub reconnections: u64,
    /// Requests to ps tasks that were made again.
    pub resends: u64,
}

/// Where the time of a step goes: one phase after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Waiting for the next batch.
    pub input: TimeHistogram,
    /// The graph, forward and backward, on all devices, and what is reduced among them.
    pub compute: TimeHistogram,
    /// Looking at the gradients: whether they are finite, their norm, clipping.
    pub filter: TimeHistogram,
    /// From then until the shards have answered with the values for the next step: wire, queue, apply, and waiting for others.
    pub exchange: TimeHistogram,
    /// What hooks take.
    pub hooks: TimeHistogram,
}

impl Phases {
    /// Most bytes in the name of one.
    pub const NAME_BYTES_MAX: usize = 16;

    /// All of them, by name, in the order of a step.
    pub const fn iter(&self) -> [(&'static str, &TimeHistogram); 5] {
        [
            ("input", &self.input),
            ("compute", &self.compute),
            ("filter", &self.filter),
            ("exchange", &self.exchange),
            ("hooks", &self.hooks),
        ]
    }

    /// What was counted since it was like that.
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

/// What became of pushes, as their worker was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictCounters {
    /// An update each.
    pub applied: u64,
    /// Counted towards an update of several.
    pub held: u64,
    /// Came after the update that they were meant for.
    pub stale: u64,
    /// Came after the last step.
    pub stopped: u64,
}

impl VerdictCounters {
    /// Counts one.
    pub const fn record(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Applied => &mut self.applied,
            Verdict::Held => &mut self.held,
            Verdict::Stale { .. } => &mut self.stale,
            Verdict::Stopped => &mut self.stopped,
        };
        *counter += 1;
    }

    /// All of them, by name.
    pub const fn iter(&self) -> [(&'static str, u64); 4] {
        [("applied", self.applied), ("held", self.held), ("stale", self.stale), ("stopped", self.stopped)]
    }
}

/// From when all of a push could be sent, as it may begin while gradients are computed, to its answer, at one shard: wire, queue, apply, and where the policy says so waiting for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// Which shard.
    pub shard: ShardId,
    /// How long.
    pub times: TimeHistogram,
}
