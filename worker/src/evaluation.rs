//! Evaluates the model: computes the loss and the metrics over all test examples at given values of the
//! variables. At the end of a job, the evaluation uses the values after the last step, or their moving
//! averages if the job maintains averages. This module must not depend on connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pushpull_input::{Batch, InputError, TestSet, check_ready_bytes};
use pushpull_messages::graph::{GraphSpec, MetricKind};
use pushpull_messages::id::{GlobalStep, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, MetricValue};
use tokio::sync::mpsc;

use crate::blocking::{blocking, spawn};
use crate::client::{ClientError, Exchange, Parameters, Values};
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::lease::Lease;
use crate::metric_totals::MetricTotals;

/// The maximum number of examples in a batch of an evaluation. A job with smaller batches uses its own batch
/// size for evaluations too.
pub(crate) const BATCH_MAX: usize = 250;

fn batch(job: &JobSpec) -> usize {
    (job.batch_size as usize).min(BATCH_MAX)
}

/// Returns the distinct batch sizes in an evaluation of `examples` examples: the size of the full batches,
/// and the size of the last batch if it is smaller.
pub(crate) fn batch_sizes(job: &JobSpec, examples: u64) -> Vec<usize> {
    let batch = batch(job);
    let (whole, rest) = (examples / batch as u64, (examples % batch as u64) as usize);
    let whole = (whole > 0).then_some(batch);
    whole.into_iter().chain((rest > 0).then_some(rest)).collect()
}

/// The number of batches in memory in addition to those that the devices work on: one that is ready, and one
/// that is being read.
pub(crate) const BATCHES_AHEAD: usize = 2;

/// Returns the number of batches of `size` examples that are computed at a time: one for each device, or
/// fewer if more would not fit into memory; at least one.
fn batches_at_once(columns: &[ColumnSpec], size: usize, devices: usize) -> usize {
    let fits = |&batches: &usize| check_ready_bytes(columns, size, batches + BATCHES_AHEAD).is_ok();
    (1..=devices).rev().find(fits).unwrap_or(1)
}

/// Pulls the values that the variables have after the job's last step, `step`, and evaluates the model at
/// these values.
///
/// # Errors
/// If a shard refuses the pull, cannot be reached or is not at version `step`; also the errors of
/// [`evaluate_values`].
pub(crate) async fn evaluate(
    parameters: &Parameters,
    devices: &Devices,
    test: &Arc<TestSet>,
    job: &JobSpec,
    step: GlobalStep,
    hung_after: Duration,
) -> Result<Evaluation, WorkerError> {
    let exchange = parameters.pull(job.average.is_some()).await?;
    check_versions(parameters, &exchange, step)?;
    evaluate_values(&exchange.values, devices, test, job, hung_after).await
}

/// Evaluates the model at the given values. If the devices have threads of their own, other threads read the
/// batches and compute the checksum of the values, and the calling thread only waits. The evaluation of a
/// batch counts as hung when it exceeds a time limit; `hung_after` is the lower bound of this limit, see
/// [`Lease`].
///
/// # Errors
/// If the test set cannot be read; if the model cannot be computed; [`WorkerError::Hung`] if the test set or
/// a device hangs.
pub(crate) async fn evaluate_values(
    values: &Arc<Values>,
    devices: &Devices,
    test: &Arc<TestSet>,
    job: &JobSpec,
    hung_after: Duration,
) -> Result<Evaluation, WorkerError> {
    let graph = &job.graph;
    let mut totals = EvaluationTotals::new(graph);
    let at_once = batches_at_once(test.columns(), batch(job), devices.count());
    let mut input = Lease::of_input("the test set", hung_after);
    let mut computation = Lease::of_computation("the evaluation of a batch", hung_after);
    let mut reading = Reading::start(test, batch(job), devices.own_threads())?;
    loop {
        let mut some: Vec<Batch> = Vec::with_capacity(at_once);
        while some.len() < at_once
            && let Some(batch) = input.hold(reading.next()).await??
        {
            some.push(batch);
        }
        if some.is_empty() {
            break;
        }
        let examples: Vec<usize> = some.iter().map(|batch| batch.examples).collect();
        let results = computation.hold(devices.evaluate(some, values)).await??;
        for (results, examples) in results.iter().zip(examples) {
            totals.add(results, examples);
        }
    }
    let elsewhere = match values.set() {
        None => BTreeMap::new(),
        Some(set) => set.digests().await.map_err(ClientError::from)?,
    };
    let bytes = |variable: VariableId| graph.variables[variable.index()].shape.elements() * 4;
    let elsewhere = elsewhere.into_iter().map(|(variable, crc32c)| (variable, (crc32c, bytes(variable))));
    let (order, values, elsewhere) = (by_name(graph), Arc::clone(values), elsewhere.collect());
    let checksum = move || Ok(checksum(&order, &values, &elsewhere));
    let crc32c = blocking(devices.own_threads(), "checksum", checksum).await?;
    Ok(totals.evaluation(graph, crc32c))
}

/// The source of the next batch of a test set: another thread or the calling thread.
enum Reading<'a> {
    /// Another thread reads the batches. It sends `None` after the last one.
    Beside(mpsc::Receiver<Result<Option<Batch>, InputError>>),
    /// The other thread has read all batches, and all have been returned.
    Ended,
    /// The calling thread reads the batches.
    Here(Box<dyn Iterator<Item = Result<Batch, InputError>> + 'a>),
}

impl<'a> Reading<'a> {
    /// Begins to read batches of `size` examples, on another thread if `own_threads` is true.
    fn start(test: &'a Arc<TestSet>, size: usize, own_threads: bool) -> Result<Self, WorkerError> {
        if !own_threads {
            return Ok(Self::Here(Box::new(test.batches(size)?)));
        }
        let (sender, ready) = mpsc::channel(1);
        let set = Arc::clone(test);
        spawn("test set", move || {
            // An error of `blocking_send` means that the evaluation has failed or was aborted.
            let read = |batch: Result<Batch, InputError>| sender.blocking_send(batch.map(Some)).is_ok();
            let end = match set.batches(size) {
                Ok(mut batches) => batches.all(read).then_some(Ok(None)),
                Err(error) => Some(Err(error)),
            };
            end.map(|end| sender.blocking_send(end));
        })?;
        Ok(Self::Beside(ready))
    }

    /// Waits for the next batch; returns `None` after the last one.
    async fn next(&mut self) -> Result<Option<Batch>, WorkerError> {
        match self {
            Self::Here(batches) => Ok(batches.next().transpose()?),
            Self::Beside(ready) => {
                // A thread that ends without `None` or an error has panicked.
                let batch = ready.recv().await.ok_or(WorkerError::PreparationPanicked)??;
                if batch.is_none() {
                    *self = Self::Ended;
                }
                Ok(batch)
            }
            Self::Ended => Ok(None),
        }
    }
}

/// The loss and the metrics over the batches that have been evaluated.
#[derive(Clone, Debug)]
pub struct EvaluationTotals(MetricTotals);

impl EvaluationTotals {
    /// Makes the totals for a valid graph, without any batch.
    pub fn new(graph: &GraphSpec) -> Self {
        Self(MetricTotals::new(std::iter::once(MetricKind::Mean).chain(MetricTotals::kinds(graph))))
    }

    /// Adds the results of a batch of `examples` examples. `results` holds the loss, followed by the
    /// elements of each metric.
    ///
    /// # Panics
    /// If `results` has too few elements.
    pub fn add(&mut self, results: &[f32], examples: usize) {
        self.0.add(results, examples);
    }

    /// Returns the evaluation of all batches so far. `variables_crc32c` is the CRC-32C of the values at which
    /// the model was evaluated, with the variables in the order of their names.
    pub fn evaluation(&self, graph: &GraphSpec, variables_crc32c: u32) -> Evaluation {
        let mut numbers = self.0.values().into_iter();
        let loss = numbers.next().expect("the loss is the first metric");
        let metric = |(name, value): (&String, f32)| MetricValue { name: name.clone(), value };
        let metrics = graph.metrics.iter().map(|metric| &metric.name).zip(numbers).map(metric).collect();
        Evaluation { loss, metrics, examples: self.0.examples(), variables_crc32c }
    }
}

/// Checks that every shard has applied exactly `last_step` updates.
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

/// Returns all variables in the order of their names.
pub(crate) fn by_name(graph: &GraphSpec) -> Vec<VariableId> {
    let mut order: Vec<VariableId> = (0..graph.variables.len() as u32).map(VariableId).collect();
    order.sort_unstable_by_key(|id| graph.variables[id.index()].name.as_str());
    order
}

/// Returns the CRC-32C of the bytes of the values, with the variables in the order `order`. `elsewhere` has
/// the checksum and the size in bytes of each variable whose values are on another stage.
pub(crate) fn checksum(
    order: &[VariableId],
    values: &Values,
    elsewhere: &BTreeMap<VariableId, (u32, usize)>,
) -> u32 {
    order.iter().fold(0, |crc, id| match elsewhere.get(id) {
        Some(&(other, bytes)) => crc32c::crc32c_combine(crc, other, bytes),
        None => crc32c::crc32c_append(crc, values.bytes(*id)),
    })
}

#[cfg(test)]
mod tests {
    use pushpull_messages::tensor::TensorSpec;

    use super::*;

    #[test]
    fn large_batches_are_evaluated_by_fewer_devices() {
        // A batch of 250 of these examples takes 150.5 MB, and 1 GiB is the limit.
        let columns = [ColumnSpec { name: "features".into(), example: TensorSpec::f32([224, 224, 3]) }];
        let at_once = |devices| batches_at_once(&columns, 250, devices);
        assert_eq!([1, 4, 5, 6, 64].map(at_once), [1, 4, 5, 5, 5]);
        assert_eq!(batches_at_once(&columns, 25_000, 4), 1);
    }
}
