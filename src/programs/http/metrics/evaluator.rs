//! The Prometheus samples of an evaluator: the number of its evaluations, and the results of the last
//! evaluation. The chief's own evaluations become samples through the same code.

use pushpull_messages::message::MetricValue;
use pushpull_messages::observe::EvaluatorSnapshot;

use super::exposition::Samples;

/// The maximum number of metrics that are shown, including the loss. A graph may have any number of metrics.
const METRICS_MAX: usize = 64;

pub(super) fn samples(evaluator: &EvaluatorSnapshot, out: &mut Samples<'_>) {
    out.counter("pushpull_evaluations_total", &[], evaluator.evaluated);
    out.counter("pushpull_evaluation_failures_total", &[], evaluator.failed);
    out.times("pushpull_evaluation_seconds", &[], &evaluator.took);
    if let Some(step) = evaluator.step {
        out.gauge("pushpull_evaluation_step", &[], step.0 as f64);
    }
    results("pushpull_evaluation", evaluator.loss, &evaluator.metrics, out);
}

/// Adds a sample to `family` for the loss and for each metric. The sample's label is the name of the metric.
pub(super) fn results(
    family: &'static str,
    loss: Option<f32>,
    metrics: &[MetricValue],
    out: &mut Samples<'_>,
) {
    let loss = loss.map(|loss| ("loss", loss));
    let mut told = std::collections::BTreeSet::new();
    let metrics = metrics.iter().map(|metric| (&*metric.name, metric.value));
    for (name, value) in loss.into_iter().chain(metrics).take(METRICS_MAX) {
        if told.insert(name) {
            out.gauge(family, &[("metric", name)], f64::from(value));
        }
    }
}
