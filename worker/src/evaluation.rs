//! Evaluates the model: computes the loss and the metrics over all test examples at given values of the
//! variables. At the end of a job, these are the values after the last step, or their moving averages if the
//! job maintains averages. This module must not depend on connections.

use std::sync::Arc;

use pushpull_input::{Batch, Mapped, in_order};
use pushpull_messages::graph::{GraphSpec, MetricKind};
use pushpull_messages::id::{GlobalStep, VariableId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, MetricValue};

use crate::client::{Exchange, Parameters, Values};
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::metric_totals::MetricTotals;

/// The maximum number of examples in a batch of an evaluation. A job with smaller batches uses its own batch
/// size for evaluations too.
pub(crate) const BATCH_MAX: usize = 250;

fn batch(job: &JobSpec) -> usize {
    (job.batch_size as usize).min(BATCH_MAX)
}

/// Returns the distinct batch sizes in an evaluation of `examples` examples: that of the full batches, and
/// that of the last batch if it is smaller.
pub(crate) fn batch_sizes(job: &JobSpec, examples: u64) -> Vec<usize> {
    let batch = batch(job);
    let (whole, rest) = (examples / batch as u64, (examples % batch as u64) as usize);
    let whole = (whole > 0).then_some(batch);
    whole.into_iter().chain((rest > 0).then_some(rest)).collect()
}

/// Pulls the values of the variables after the job's last step, `step`, and evaluates the model at these
/// values.
///
/// # Errors
/// If a shard refuses the pull, cannot be reached or is not at version `step`; if the model cannot
/// be computed.
pub(crate) async fn evaluate(
    parameters: &Parameters,
    devices: &Devices,
    test: &Mapped,
    job: &JobSpec,
    step: GlobalStep,
) -> Result<Evaluation, WorkerError> {
    let exchange = parameters.pull(job.average.is_some()).await?;
    check_versions(parameters, &exchange, step)?;
    evaluate_values(&exchange.values, devices, test, job).await
}

/// Evaluates the model at the given values.
///
/// # Errors
/// If the model cannot be computed.
pub(crate) async fn evaluate_values(
    values: &Arc<Values>,
    devices: &Devices,
    test: &Mapped,
    job: &JobSpec,
) -> Result<Evaluation, WorkerError> {
    let graph = &job.graph;
    let mut totals = EvaluationTotals::new(graph);
    let mut batches = in_order(test, batch(job))?.peekable();
    while batches.peek().is_some() {
        let some: Vec<Batch> = batches.by_ref().take(devices.count()).collect();
        let examples: Vec<usize> = some.iter().map(|batch| batch.examples).collect();
        let results = devices.evaluate(some, values).await?;
        for (results, examples) in results.iter().zip(examples) {
            totals.add(results, examples);
        }
    }
    Ok(totals.evaluation(graph, values))
}

/// The loss and the metrics over the batches that have been evaluated.
pub(crate) struct EvaluationTotals(MetricTotals);

impl EvaluationTotals {
    pub(crate) fn new(graph: &GraphSpec) -> Self {
        Self(MetricTotals::new(std::iter::once(MetricKind::Mean).chain(MetricTotals::kinds(graph))))
    }

    /// Adds the results of a batch of `examples` examples. `results` holds the loss, followed by the
    /// elements of each metric.
    pub(crate) fn add(&mut self, results: &[f32], examples: usize) {
        self.0.add(results, examples);
    }

    /// Returns the evaluation of all batches so far, which were computed at `values`.
    pub(crate) fn evaluation(&self, graph: &GraphSpec, values: &Values) -> Evaluation {
        let mut numbers = self.0.values().into_iter();
        let loss = numbers.next().expect("the loss is the first metric");
        let metric = |(name, value): (&String, f32)| MetricValue { name: name.clone(), value };
        let metrics = graph.metrics.iter().map(|metric| &metric.name).zip(numbers).map(metric).collect();
        Evaluation { loss, metrics, examples: self.0.examples(), variables_crc32c: checksum(graph, values) }
    }
}

/// Checks that every shard has applied exactly `last_step` updates (V3).
fn check_versions(
    parameters: &Parameters,
    exchange: &Exchange,
    last_step: GlobalStep,
) -> Result<(), WorkerError> {
    for (shard, &version) in parameters.shards().zip(&exchange.versions) {
        if version.0 != last_step.0 {
            return Err(WorkerError::WrongVersion { shard, version, last_step });
        }
    }
    Ok(())
}

/// Returns the CRC-32C of the bytes of all variables, in the order of their names.
fn checksum(graph: &GraphSpec, values: &Values) -> u32 {
    let mut order: Vec<(&str, VariableId)> = graph
        .variables
        .iter()
        .enumerate()
        .map(|(id, variable)| (variable.name.as_str(), VariableId(id as u32)))
        .collect();
    order.sort_unstable();
    order.into_iter().fold(0, |crc, (_, id)| crc32c::crc32c_append(crc, values.bytes(id)))
}
