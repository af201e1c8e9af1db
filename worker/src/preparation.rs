//! The slow part of a worker's start: reads the data, and compiles the graph for every device. Runs on its
//! own thread, and needs no other task. This module must not depend on connections.

use std::ops::Range;
use std::sync::Arc;

use pushpull_input::{
    Description, InputError, Pipeline, PipelineWorker, Reading, TestSet, check_ready_bytes,
};
use pushpull_messages::device::{Device, DeviceKind};
use pushpull_messages::distribution::DistributionSpec;
use pushpull_messages::id::TaskId;
use pushpull_messages::input::{ColumnSpec, FilesDigest};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;

use crate::config::WorkerConfig;
use crate::devices::{
    Compute, Replica, ReplicaConfig, ReplicaError, check_operations, check_stages, parts,
    table_of_operations, table_of_stages,
};
use crate::error::WorkerError;
use crate::evaluation::{BATCHES_AHEAD, batch_sizes};
use crate::fetches::FetchPlan;
use crate::stages::{Group, StagedReplica};

/// The inputs of a worker's preparation.
pub(crate) struct Preparation {
    pub config: WorkerConfig,
    /// The job. The paths of its input are paths on this host.
    pub job: JobSpec,
    pub task: TaskId,
    /// The part of the examples that the worker reads.
    pub part: PipelineWorker,
    /// The progress of earlier runs of this worker. The worker continues after the examples that those runs
    /// used.
    pub resume: Resume,
    /// The tensors that training steps fetch.
    pub fetches: FetchPlan,
    /// The other stages of this worker's replica; `None` if the replica has one stage.
    pub group: Option<Arc<Group>>,
}

/// The results of a worker's preparation. The training starts from them.
pub(crate) struct Prepared {
    /// The training set, at the place where the worker continues.
    pub input: Pipeline,
    /// The digest of the files that the worker reads; `None` if it reads no files.
    pub files: Option<FilesDigest>,
    pub replicas: Vec<Box<dyn Replica>>,
    /// For each replica, the range of a batch's examples that the replica processes.
    pub parts: Vec<Range<usize>>,
    /// The test set, if this worker evaluates the model while the job trains.
    pub test: Option<TestSet>,
}

/// The results of the preparation of a task that only evaluates.
pub(crate) struct PreparedEvaluation {
    pub test: TestSet,
    /// The number of test examples.
    pub examples: u64,
    pub replicas: Vec<Box<dyn Replica>>,
}

impl Preparation {
    /// Reads the data and compiles the graph.
    ///
    /// # Errors
    /// If the data cannot be used; if the model cannot be computed.
    pub(crate) fn run(self) -> Result<Prepared, WorkerError> {
        let Self { config, job, part, resume, .. } = &self;
        let batch = job.batch_size as usize;
        let mut input = Pipeline::open(&job.input, &config.datasets, batch, job.seed, *part)?;
        let parts = parts(batch, config.devices.len())?;
        let mut replicas = self.replicas(input.columns(), &parts)?;
        replicas.iter_mut().try_for_each(|replica| replica.prepare_training())?;
        self.prepare_evaluation(input.columns(), &mut replicas)?;
        check_files(resume, input.files(), job.input.accept_changed_files)?;
        input.restore(resume.examples)?;
        let files = input.files();
        let test = if self.validates() { Some(self.open_test()?) } else { None };
        Ok(Prepared { input, files, replicas, parts, test })
    }

    /// Returns true if the worker evaluates the model while the job trains. Worker 0 does this: every job
    /// has a worker 0, and the tasks need no message to agree on it.
    fn validates(&self) -> bool {
        self.job.eval_every.is_some() && self.task.index == 0
    }

    /// Opens the test set, for a worker that evaluates the model. Reads the examples now if the set is held
    /// in memory.
    ///
    /// # Errors
    /// If the test set cannot be used.
    pub(crate) fn open_test(&self) -> Result<TestSet, WorkerError> {
        let (input, reading) = (&self.job.input, Reading::plain(&self.config.datasets));
        Ok(TestSet::open(&input.test, &input.map, input.stream, &reading)?)
    }

    /// Opens the test set, and creates for each device a clone of the graph that can be evaluated on this
    /// set.
    ///
    /// # Errors
    /// If the data cannot be used; if the model cannot be computed.
    pub(crate) fn evaluation(&self) -> Result<PreparedEvaluation, WorkerError> {
        let Description { examples, columns } = self.describe_test()?;
        // These replicas never train. Their training program is compiled for one example, which takes the
        // least memory.
        let mut replicas = self.replicas(&columns, &vec![0..1; self.config.devices.len()])?;
        self.prepare_batches(examples, &columns, &mut replicas)?;
        Ok(PreparedEvaluation { test: self.open_test()?, examples, replicas })
    }

    /// Creates a replica for each device, compiled for the device's part of a batch.
    fn replicas(
        &self,
        columns: &[ColumnSpec],
        parts: &[Range<usize>],
    ) -> Result<Vec<Box<dyn Replica>>, WorkerError> {
        let Self { config, job, task, .. } = self;
        let compute = Compute::new(config.threads, config.devices.cpu_count())?;
        let own: Vec<Device> = config.devices.of(*task).collect();
        if job.strategy == Some(DistributionSpec::OneDevice) && own.len() > 1 {
            return Err(ReplicaError::OneDevice(names(&own)).into());
        }
        if let Some(group) = &self.group {
            return self.staged_replica(columns, &own, compute, group);
        }
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

    /// Creates the leader's part of a replica with stages.
    fn staged_replica(
        &self,
        columns: &[ColumnSpec],
        own: &[Device],
        compute: Compute,
        group: &Arc<Group>,
    ) -> Result<Vec<Box<dyn Replica>>, WorkerError> {
        let Self { config, job, .. } = self;
        let &[device @ Device { kind: DeviceKind::Cpu, .. }] = own else {
            return Err(ReplicaError::StageDevices(names(own)).into());
        };
        check_stages(&job.graph, config.soft_placement)?;
        if config.log_placement {
            tracing::info!("operations:\n{}", table_of_stages(&job.graph));
        }
        let examples = job.batch_size as usize;
        let (graph, fetches) = (&job.graph, &[][..]);
        let replica = ReplicaConfig { graph, examples, columns, fetches, device, compute };
        Ok(vec![Box::new(StagedReplica::new(
            replica,
            Arc::clone(group),
            job.micro_batches,
            config.before_pass.clone(),
        )?)])
    }

    /// Prepares the evaluation before the training begins. Otherwise, a missing or unsuitable test set would
    /// be reported only after hours of training.
    fn prepare_evaluation(
        &self,
        train: &[ColumnSpec],
        replicas: &mut [Box<dyn Replica>],
    ) -> Result<(), WorkerError> {
        let Description { examples, columns } = self.describe_test()?;
        check_test_columns(train, &columns)?;
        self.prepare_batches(examples, &columns, replicas)
    }

    fn describe_test(&self) -> Result<Description, WorkerError> {
        let (input, reading) = (&self.job.input, Reading::plain(&self.config.datasets));
        Ok(TestSet::describe(&input.test, &input.map, input.stream, &reading)?)
    }

    /// Compiles the evaluation for all batch sizes of a test set with this number of examples.
    fn prepare_batches(
        &self,
        examples: u64,
        columns: &[ColumnSpec],
        replicas: &mut [Box<dyn Replica>],
    ) -> Result<(), WorkerError> {
        for batch in batch_sizes(&self.job, examples) {
            check_ready_bytes(columns, batch, 1 + BATCHES_AHEAD)?;
            for replica in &mut *replicas {
                replica.prepare(batch)?;
            }
        }
        Ok(())
    }
}

/// Returns the names of devices, for an error.
fn names(devices: &[Device]) -> String {
    devices.iter().map(Device::to_string).collect::<Vec<_>>().join(", ")
}

/// Checks that a worker that continues earlier training reads the same files as before. With other files,
/// the worker would skip examples that it has not used.
fn check_files(resume: &Resume, found: Option<FilesDigest>, accept: bool) -> Result<(), InputError> {
    match (resume.files, found) {
        (Some(expected), Some(found)) if expected != found && resume.examples > 0 => {
            if !accept {
                return Err(InputError::FilesChanged { found, expected });
            }
            tracing::warn!(%found, %expected, "the training files have changed since the checkpoint");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks that the test set has the same columns as the training set, because the model was compiled for
/// those columns.
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

#[cfg(test)]
mod tests {
    use pushpull_messages::tensor::TensorSpec;

    use super::*;

    #[test]
    fn changed_files_are_refused_unless_they_are_accepted() {
        let [one, other] = [1, 2].map(|crc32c| FilesDigest { files: 2, bytes: 30, crc32c });
        let resume = |examples, files| Resume { drawn: 1, examples, files };
        let error = check_files(&resume(5, Some(one)), Some(other), false).unwrap_err().to_string();
        let words =
            "found 2 file(s) of 30 bytes in all (00000002), expected 2 file(s) of 30 bytes in all (00000001)";
        assert!(error.contains(words) && error.contains("--accept-changed-files"), "{error}");
        for (resume, found, accept) in [
            (resume(5, Some(one)), Some(other), true),
            (resume(5, Some(one)), Some(one), false),
            (resume(5, Some(one)), None, false),
            (resume(5, None), Some(other), false),
            (resume(0, Some(one)), Some(other), false),
        ] {
            assert!(check_files(&resume, found, accept).is_ok(), "{resume:?}");
        }
    }

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
