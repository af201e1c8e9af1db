//! The final evaluation: the test examples once, in order, at the variables that the last step left.

use actix::Addr;
use messages::id::{GlobalStep, VariableId};
use messages::job::JobSpec;
use messages::message::{Evaluation, MetricValue};

use crate::device::{Device, Evaluate};
use crate::error::WorkerError;
use crate::input::{Dataset, in_order};
use crate::parameters::{Exchange, Parameters};
use crate::values::Values;

/// Examples that are evaluated at a time.
const BATCH: usize = 250;

/// The sizes of the batches that so many examples are evaluated in.
pub(crate) fn batch_sizes(examples: u64) -> Vec<usize> {
    let (whole, rest) = (examples / BATCH as u64, (examples % BATCH as u64) as usize);
    let whole = (whole > 0).then_some(BATCH);
    whole.into_iter().chain((rest > 0).then_some(rest)).collect()
}

/// Pulls the final variables, and evaluates them.
pub(crate) async fn evaluate(
    parameters: &Parameters,
    device: &Addr<Device>,
    test: &Dataset,
    job: &JobSpec,
) -> Result<Evaluation, WorkerError> {
    let exchange = parameters.pull().await?;
    check_versions(parameters, &exchange, job.last_step)?;
    let mut sums = vec![0.0f64; 1 + job.graph.metrics.len()];
    let mut examples = 0;
    for batch in in_order(test, BATCH)? {
        let weight = batch.examples as f64;
        examples += batch.examples as u64;
        let scalars = device.send(Evaluate { batch, values: exchange.values.clone() }).await??;
        for (sum, scalar) in sums.iter_mut().zip(scalars) {
            *sum += f64::from(scalar) * weight;
        }
    }
    let mut means = sums.into_iter().map(|sum| (sum / examples as f64) as f32);
    let loss = means.next().expect("the loss is the first scalar");
    let metric = |(metric, value): (&messages::graph::MetricSpec, f32)| MetricValue {
        name: metric.name.clone(),
        value,
    };
    let metrics = job.graph.metrics.iter().zip(means).map(metric).collect();
    let variables_crc32c = checksum(job, &exchange.values);
    Ok(Evaluation { loss, metrics, examples, variables_crc32c })
}

/// V3: every shard has applied exactly the job's steps.
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

/// crc32c over all variables' bytes, in order of their names.
fn checksum(job: &JobSpec, values: &Values) -> u32 {
    let mut order: Vec<(&str, VariableId)> = job
        .graph
        .variables
        .iter()
        .enumerate()
        .map(|(id, variable)| (variable.name.as_str(), VariableId(id as u32)))
        .collect();
    order.sort_unstable();
    order.into_iter().fold(0, |crc, (_, id)| crc32c::crc32c_append(crc, values.bytes(id)))
}
