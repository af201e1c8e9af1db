//! Reports a worker's progress to the chief. Training does not wait for reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Content, Evaluation, Invalid, StepEvaluation, WORKERS_MAX, no_payload};
use crate::graph::METRICS_MAX;
use crate::id::{GlobalStep, LocalStep};
use crate::observe::{Micros, Phases, SPANS_MAX, SpanSpec, WorkerSnapshot};
use crate::placement::SHARDS_MAX;
use crate::summary::{SUMMARIES_MAX, SUMMARY_BYTES_MAX, SummarySpec};

/// The longest allowed interval between two reports. The chief considers a worker silent after 3 s without a
/// report, so the interval must be shorter than that.
pub const REPORT_EVERY_MAX: Duration = Duration::from_secs(2);
/// The shortest interval between two reports.
pub const REPORT_EVERY_MIN: Duration = Duration::from_millis(1);

/// The maximum number of losses and metrics, counted together, in all evaluations of a report.
pub const REPORT_NUMBERS_MAX: usize = 1 << 12;

/// A request from a worker to the chief with the worker's progress, sent about once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The highest version that the worker has seen in a shard's reply.
    pub global_step: GlobalStep,
    /// The report's number in this incarnation of the worker, from 1; 0 if unknown. If a report is sent
    /// again because its reply was lost, it keeps its number.
    #[serde(default)]
    pub number: u64,
    /// The number of steps that the worker has taken.
    pub local_step: LocalStep,
    /// The mean loss over the steps since the last report; NaN if there were none.
    pub loss: f32,
    /// The number of batches that the worker has taken from its input, counted over all its incarnations.
    #[serde(default)]
    pub drawn: u64,
    /// The norm of the worker's last gradients, if it was measured.
    #[serde(default)]
    pub gradient_norm: Option<f32>,
    /// The values of the graph's metrics on the training batches since the last report, in the order of the
    /// graph; empty if they were not computed. A value that is not finite means that the metric is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<f32>,
    /// The summaries that the chief records for plotting.
    #[serde(default)]
    pub summaries: Vec<SummarySpec>,
    /// The state of the worker, if the report includes it.
    #[serde(default)]
    pub snapshot: Option<Box<WorkerSnapshot>>,
    /// The spans of the traced steps.
    #[serde(default)]
    pub spans: Vec<SpanSpec>,
    /// The number of spans dropped so far for lack of space.
    #[serde(default)]
    pub spans_lost: u64,
    /// The evaluations that the worker has made since the last report, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<StepEvaluation>,
}

impl Content for Report {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.metrics.len() > METRICS_MAX {
            let metrics = self.metrics.len();
            return Err(Invalid(format!("got {metrics} metrics, expected at most {METRICS_MAX}")));
        }
        if self.summaries.len() > SUMMARIES_MAX {
            return Err(Invalid(format!(
                "got {} summaries, expected at most {SUMMARIES_MAX}",
                self.summaries.len()
            )));
        }
        self.summaries
            .iter()
            .try_for_each(SummarySpec::validate)
            .map_err(|error| Invalid(error.to_string()))?;
        if self.spans.len() > SPANS_MAX {
            return Err(Invalid(format!("got {} spans, expected at most {SPANS_MAX}", self.spans.len())));
        }
        self.spans.iter().try_for_each(SpanSpec::validate)?;
        self.validate_evaluations()?;
        let phase = self.snapshot.as_ref().and_then(|snapshot| snapshot.phase.as_ref());
        if let Some(phase) = phase.filter(|phase| phase.len() > Phases::NAME_BYTES_MAX) {
            return Err(Invalid(format!(
                "the name of a phase has {} bytes, expected at most {}",
                phase.len(),
                Phases::NAME_BYTES_MAX
            )));
        }
        if let Some(snapshot) = &self.snapshot {
            let trips = &snapshot.round_trips;
            if trips.len() > SHARDS_MAX || trips.windows(2).any(|pair| pair[0].shard >= pair[1].shard) {
                return Err(Invalid(format!(
                    "got round-trip times of {} shards, expected at most {SHARDS_MAX}, each shard once and in ascending order",
                    trips.len()
                )));
            }
        }
        let bytes: usize = self.summaries.iter().map(SummarySpec::bytes).sum();
        if bytes > SUMMARY_BYTES_MAX {
            return Err(Invalid(format!(
                "got {bytes} bytes of summaries, expected at most {SUMMARY_BYTES_MAX}"
            )));
        }
        no_payload(segments)
    }
}

impl Report {
    fn validate_evaluations(&self) -> Result<(), Invalid> {
        let evaluations = || self.evaluations.iter().map(|own| &own.evaluation);
        let numbers: usize = evaluations().map(Evaluation::numbers).sum();
        if numbers > REPORT_NUMBERS_MAX {
            return Err(Invalid(format!(
                "got {numbers} numbers in evaluations, expected at most {REPORT_NUMBERS_MAX}"
            )));
        }
        evaluations().try_for_each(Evaluation::validate)
    }
}

/// The share of the examples that a worker reads, in a job that workers may join and leave. It changes when
/// another worker joins or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The position of the share among the shares of all workers, from 0.
    pub position: u32,
    /// The number of shares.
    pub shares: u32,
    /// The number of examples of this share that count as read, over all epochs: an equal part of all that
    /// the workers had read when the shares changed, and what this worker has read since.
    pub examples: u64,
}

impl Share {
    /// Checks that the share is one of the shares.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self.position < self.shares && self.shares <= WORKERS_MAX {
            true => Ok(()),
            false => Err(Invalid(format!(
                "share is {} of {}, expected a position below the number of shares, which is at most {WORKERS_MAX}",
                self.position, self.shares
            ))),
        }
    }
}

/// The chief's reply to [`Report`]: whether the worker must stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// The reason why the worker must stop before the job's last step; `None` if the worker continues.
    #[serde(default)]
    pub stop: Option<String>,
    /// The time on the chief's clock at which the report arrived. With this time, the worker aligns its own
    /// clock with the chief's.
    #[serde(default)]
    pub clock_us: Micros,
    /// The worker's share of the examples now; `None` if the shares of the job never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

impl Content for Reported {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.share.as_ref().map_or(Ok(()), Share::validate)?;
        no_payload(segments)
    }
}
