//! The slow part of a worker's start: reads the data, and compiles the graph for every device. Runs on its
//! own thread, and needs no other task. This module must not depend on connections.

use std::ops::Range;

use pushpull_input::{
    Description, InputError, Mapped, Pipeline, PipelineWorker, Reading, check_ready_bytes, describe,
    load_from,
};
use pushpull_messages::device::Device;
use pushpull_messages::id::TaskId;
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;

use crate::config::WorkerConfig;
use crate::devices::{
    Compute, Replica, ReplicaConfig, check_operations, parts, table_of_operations, virtual_cpus,
};
use crate::error::WorkerError;
use crate::evaluation::batch_sizes;
use crate::fetches::FetchPlan;

/// The inputs of a worker's preparation.
pub(crate) struct Preparation {
    pub config: WorkerConfig,
    /// The job. The paths of its input are paths on this host.
    pub job: JobSpec,
    pub task: TaskId,
    /// The number of workers of the job.
    pub workers: u32,
    /// The progress of earlier runs of this worker. The worker continues after the examples that those runs
    /// used.
    pub resume: Resume,
    /// The tensors that training steps fetch.
    pub fetches: FetchPlan,
}

/// The results of a worker's preparation. The training starts from them.
pub(crate) struct Prepared {
    /// The training set, at the place where the worker continues.
    pub input: Pipeline,
    pub replicas: Vec<Box<dyn Replica>>,
    /// For each replica, the range of a batch's examples that the replica computes.
    pub parts: Vec<Range<usize>>,
    /// The test set, if this worker evaluates the model while the job trains.
    pub test: Option<Mapped>,
}

impl Preparation {
    /// Reads the data and compiles the graph.
    ///
    /// # Errors
    /// If the data cannot be used; if the model cannot be computed.
    pub(crate) fn run(self) -> Result<Prepared, WorkerError> {
        let Self { config, job, task, workers, resume, .. } = &self;
        let worker = PipelineWorker { index: task.index, workers: *workers };
        let batch = job.batch_size as usize;
        let mut input = Pipeline::open(&job.input, &config.datasets, batch, job.seed, worker)?;
        let parts = parts(batch, config.devices)?;
        let mut replicas = self.replicas(input.columns(), &parts)?;
        self.prepare_evaluation(input.columns(), &mut replicas)?;
        input.restore(resume.examples)?;
        let test = if self.validates() { Some(self.load_test()?) } else { None };
        Ok(Prepared { input, replicas, parts, test })
    }

    /// Returns true if the worker evaluates the model while the job trains. It is worker 0, because every job
    /// has one, and because no message is then needed to agree on it.
    fn validates(&self) -> bool {
        self.job.eval_every.is_some() && self.task.index == 0
    }

    /// Loads the test set, for a worker that evaluates the model.
    ///
    /// # Errors
    /// If the test set cannot be used.
    pub(crate) fn load_test(&self) -> Result<Mapped, WorkerError> {
        let test = load_from(&self.job.input.test, &Reading::plain(&self.config.datasets))?;
        Ok(Mapped::testing(test, &self.job.input.map)?)
    }

    /// Loads the test set, and creates for each device a clone of the graph that can be evaluated on this
    /// set.
    ///
    /// # Errors
    /// If the data cannot be used; if the model cannot be computed.
    pub(crate) fn evaluation(&self) -> Result<(Mapped, Vec<Box<dyn Replica>>), WorkerError> {
        let test = self.load_test()?;
        // These replicas never train. Their training program is compiled for one example, which takes the
        // least memory.
        let mut replicas = self.replicas(test.columns(), &vec![0..1; self.config.devices])?;
        for batch in batch_sizes(&self.job, test.len() as u64) {
            check_ready_bytes(test.columns(), batch, self.config.devices)?;
            for replica in &mut replicas {
                replica.prepare(batch)?;
            }
        }
        Ok((test, replicas))
    }

    /// Creates a replica for each device, compiled for the device's part of a batch.
    fn replicas(
        &self,
        columns: &[ColumnSpec],
        parts: &[Range<usize>],
    ) -> Result<Vec<Box<dyn Replica>>, WorkerError> {
        let Self { config, job, task, .. } = self;
        let compute = Compute::new(config.threads, parts.len())?;
        let own: Vec<Device> = virtual_cpus(*task, parts.len()).collect();
        check_operations(&job.graph, &own, config.soft_placement)?;
        if config.log_placement {
            tracing::info!("operations:\n{}", table_of_operations(&job.graph, &own));
        }
        let replica = |(&device, part): (&Device, &Range<usize>)| {
            (config.replica)(ReplicaConfig {
                graph: &job.graph,
                examples: part.len(),
                columns,
                fetches: self.fetches.fetches(),
                device,
                compute: compute.clone(),
            })
        };
        Ok(own.iter().zip(parts).map(replica).collect::<Result<_, _>>()?)
    }

    /// Prepares the evaluation before the training. Otherwise, a missing or unsuitable test set would be
    /// reported only after hours of training.
    fn prepare_evaluation(
        &self,
        train: &[ColumnSpec],
        replicas: &mut [Box<dyn Replica>],
    ) -> Result<(), WorkerError> {
        let input = &self.job.input;
        let Description { examples, columns } =
            describe(&input.test, &input.map, &Reading::plain(&self.config.datasets))?;
        check_test_columns(train, &columns)?;
        for batch in batch_sizes(&self.job, examples) {
            check_ready_bytes(&columns, batch, self.config.devices)?;
            for replica in &mut *replicas {
                replica.prepare(batch)?;
            }
        }
        Ok(())
    }
}

/// Checks that the test set has the same columns as the training set, which the model was compiled for.
fn check_test_columns(train: &[ColumnSpec], test: &[ColumnSpec]) -> Result<(), InputError> {
    for position in 0..train.len().max(test.len()) {
        let (expected, got) = (train.get(position), test.get(position));
        if expected != got {
            let words = |column: Option<&ColumnSpec>| column.map_or("missing".into(), ColumnSpec::to_string);
            return Err(InputError::TestColumn { position, expected: words(expected), got: words(got) });
        }
    }
    Ok(())
}

/// Runs slow work on a separate thread, which leaves this thread free for heartbeats and signals. Without
/// `own_threads`, runs the work on this thread.
///
/// # Errors
/// If the work fails or panics.
pub(crate) async fn blocking<T: Send + 'static>(
    own_threads: bool,
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    if !own_threads {
        return work();
    }
    // The task is never aborted, so only a panic can prevent it from returning.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(WorkerError::PreparationPanicked))
}

#[cfg(test)]
mod tests {
    use pushpull_messages::tensor::TensorSpec;

    use super::*;

    #[test]
    fn the_first_other_column_of_a_test_set_is_named() {
        let column =
            |name: &str, extent| ColumnSpec { name: name.into(), example: TensorSpec::f32([extent]) };
        let train = [column("features", 4), column("labels", 1)];
        assert!(check_test_columns(&train, &train).is_ok());
        for (test, words) in [
            (vec![column("features", 4)], "column 1 of the test set is missing, expected 'labels' f32[1]"),
            (
                vec![column("features", 5), column("labels", 1)],
                "is 'features' f32[5], expected 'features' f32[4]",
            ),
            (vec![column("labels", 1), column("features", 4)], "column 0 of the test set is 'labels' f32[1]"),
            (
                vec![train[0].clone(), train[1].clone(), column("more", 1)],
                "is 'more' f32[1], expected missing",
            ),
        ] {
            let error = check_test_columns(&train, &test).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
