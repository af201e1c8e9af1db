//! How a worker tells the chief how far it is. Off the data path: nothing waits for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::id::{GlobalStep, LocalStep};
use crate::observe::{Micros, Phases, SPANS_MAX, SpanSpec, WorkerSnapshot};
use crate::placement::SHARDS_MAX;
use crate::summary::{SUMMARIES_MAX, SUMMARY_BYTES_MAX, SummarySpec};

/// A worker reports at least so often: a chief that hears nothing for longer takes it for silent.
pub const REPORT_EVERY_MAX: Duration = Duration::from_secs(2);
/// And no more often.
pub const REPORT_EVERY_MIN: Duration = Duration::from_millis(1);

/// Worker to chief, about once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The greatest number of updates that a shard has told of.
    pub global_step: GlobalStep,
    /// Which one it is of this life, from 1: the same where it is told again, since its answer was lost. 0 where that is not told.
    #[serde(default)]
    pub number: u64,
    /// Steps that this worker has taken.
    pub local_step: LocalStep,
    /// The mean loss over the steps since the last report; NaN if there were none.
    pub loss: f32,
    /// Batches that this worker has taken from its input, in all its lives.
    #[serde(default)]
    pub drawn: u64,
    /// The norm of its last gradients, where it was measured.
    #[serde(default)]
    pub gradient_norm: Option<f32>,
    /// What it wants to be plotted.
    #[serde(default)]
    pub summaries: Vec<SummarySpec>,
    /// Its state.
    #[serde(default)]
    pub snapshot: Option<Box<WorkerSnapshot>>,
    /// What took a while in the steps that are traced.
    #[serde(default)]
    pub spans: Vec<SpanSpec>,
    /// Spans that there was no room for, in all.
    #[serde(default)]
    pub spans_lost: u64,
}

impl Content for Report {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.summaries.len() > SUMMARIES_MAX {
            return Err(Invalid(format!(
                "at most {SUMMARIES_MAX} summaries, and got {}",
                self.summaries.len()
            )));
        }
        self.summaries
            .iter()
            .try_for_each(SummarySpec::validate)
            .map_err(|error| Invalid(error.to_string()))?;
        if self.spans.len() > SPANS_MAX {
            return Err(Invalid(format!("at most {SPANS_MAX} spans, and got {}", self.spans.len())));
        }
        self.spans.iter().try_for_each(SpanSpec::validate)?;
        let phase = self.snapshot.as_ref().and_then(|snapshot| snapshot.phase.as_ref());
        if let Some(phase) = phase.filter(|phase| phase.len() > Phases::NAME_BYTES_MAX) {
            return Err(Invalid(format!(
                "the name of a phase may have at most {} bytes, and got {}",
                Phases::NAME_BYTES_MAX,
                phase.len()
            )));
        }
        if let Some(snapshot) = &self.snapshot {
            let trips = &snapshot.round_trips;
            if trips.len() > SHARDS_MAX || trips.windows(2).any(|pair| pair[0].shard >= pair[1].shard) {
                let expected = format!(
                    "expected round trips of at most {SHARDS_MAX} shards, each once and in their order"
                );
                return Err(Invalid(format!("{expected}, and got {}", trips.len())));
            }
        }
        let bytes: usize = self.summaries.iter().map(SummarySpec::bytes).sum();
        if bytes > SUMMARY_BYTES_MAX {
            return Err(Invalid(format!("at most {SUMMARY_BYTES_MAX} bytes of summaries, and got {bytes}")));
        }
        no_payload(segments)
    }
}

/// Chief to worker: whether to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// Why the worker shall stop before the job's last step, if it shall.
    #[serde(default)]
    pub stop: Option<String>,
    /// When the report had come, on the chief's clock: by that the worker's can be aligned.
    #[serde(default)]
    pub clock_us: Micros,
}

impl Content for Reported {}
