//! The telemetry of a worker: counters, spans and summaries, and the reports that send them to the chief.
//! This module must not depend on graphs, and must not delay a step.

mod alignment;
mod evaluations;
mod gauge;
mod histogram;
mod journal;
mod life;
mod moments;
mod plots;
mod reporter;
mod spans;
mod tracer;
mod view;

pub(crate) use evaluations::Evaluations;
pub(crate) use gauge::Gauge;
pub(crate) use histogram::histogram;
pub(crate) use journal::{Journal, StepRecord};
pub(crate) use life::{EndOfLife, Life};
pub(crate) use moments::Moments;
pub use plots::Plots;
pub(crate) use reporter::{ReportSources, Reporter, StopCause};
pub(crate) use spans::Spans;
#[cfg(test)]
pub(crate) use tracer::tests::nest;
pub(crate) use tracer::{TracedStep, Tracer};
pub(crate) use view::ShownIncarnation;
pub use view::WorkerView;
