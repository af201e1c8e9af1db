//! Everything between the word of the chief and the first step that takes a while and waits for nobody: reading the
//! data, compiling the graph for every device. Runs on a thread of its own; knows no connection.

use std::ops::Range;

use pushpull_messages::device::Device;
use pushpull_messages::id::TaskId;
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;

use crate::config::WorkerConfig;
use crate::devices::{parts, virtual_cpus};
use crate::error::WorkerError;
use crate::evaluate::batch_sizes;
use crate::operations;
use crate::replica::{Compute, Replica, ReplicaConfig};
use pushpull_input::{
    Description, FileShare, InputError, Mapped, Position, Sampler, check_ready_bytes, describe, load,
};

/// What is prepared.
pub(crate) struct Preparation {
    pub config: WorkerConfig,
    /// Its input as this host has it.
    pub job: JobSpec,
    pub task: TaskId,
    /// Of the job.
    pub workers: u32,
    /// Where it goes on in its share.
    pub resume: Resume,
}

/// What a worker begins with.
pub(crate) struct Prepared {
    pub train: Mapped,
    pub sampler: Sampler,
    pub replicas: Vec<Box<dyn Replica>>,
    /// Of a batch, for each replica.
    pub parts: Vec<Range<usize>>,
    /// Examples in this worker's share.
    pub examples: u32,
}

impl Preparation {
    /// Does it.
    pub(crate) fn run(self) -> Result<Prepared, WorkerError> {
        let Self { config, job, task, workers, resume } = &self;
        let own = FileShare::new(&job.input.train, job.input.shard, task.index, *workers)?;
        let train = load(&own.dataset, None)?;
        let share = own.examples(train.len())?;
        let train = Mapped::training(train, &job.input.map, job.seed)?;
        let parts = parts(job.batch_size as usize, config.devices)?;
        let mut replicas = self.replicas(train.columns(), &parts)?;
        self.prepare_evaluation(train.columns(), &mut replicas)?;
        let (batch, shuffle, repeat) = (job.batch_size as usize, job.input.shuffle, job.input.repeat);
        let mut sampler = Sampler::with(share, batch, job.seed, shuffle, repeat)?;
        sampler.restore(Position::after(resume.examples, share))?;
        Ok(Prepared { train, sampler, replicas, parts, examples: share.len() })
    }

    /// The test set, for the worker that evaluates.
    pub(crate) fn load_test(&self) -> Result<Mapped, WorkerError> {
        Ok(Mapped::testing(load(&self.job.input.test, None)?, &self.job.input.map)?)
    }

    /// The test set, and a clone of the graph for each device that is ready to evaluate it.
    pub(crate) fn evaluation(&self) -> Result<(Mapped, Vec<Box<dyn Replica>>), WorkerError> {
        let test = self.load_test()?;
        // Nothing is trained: the least batch takes the least memory.
        let mut replicas = self.replicas(test.columns(), &vec![0..1; self.config.devices])?;
        for batch in batch_sizes(&self.job, test.len() as u64) {
            check_ready_bytes(test.columns(), batch, self.config.devices)?;
            for replica in &mut replicas {
                replica.prepare(batch)?;
            }
        }
        Ok((test, replicas))
    }

    /// A clone of the graph for each device, for its part of a batch.
    fn replicas(
        &self,
        columns: &[ColumnSpec],
        parts: &[Range<usize>],
    ) -> Result<Vec<Box<dyn Replica>>, WorkerError> {
        let Self { config, job, task, .. } = self;
        let compute = Compute::new(config.threads, parts.len())?;
        let own: Vec<Device> = virtual_cpus(*task, parts.len()).collect();
        operations::check(&job.graph, &own, config.soft_placement)?;
        if config.log_placement {
            tracing::info!("operations:\n{}", operations::table(&job.graph, &own));
        }
        let replica = |(&device, part): (&Device, &Range<usize>)| {
            (config.replica)(ReplicaConfig {
                graph: &job.graph,
                examples: part.len(),
                columns,
                device,
                compute: compute.clone(),
            })
        };
        Ok(own.iter().zip(parts).map(replica).collect::<Result<_, _>>()?)
    }

    /// Better to hear of a test set that is missing or does not fit now than after hours of training.
    fn prepare_evaluation(
        &self,
        train: &[ColumnSpec],
        replicas: &mut [Box<dyn Replica>],
    ) -> Result<(), WorkerError> {
        let input = &self.job.input;
        let Description { examples, columns } = describe(&input.test, &input.map)?;
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

/// A model that was compiled for the training set is tested on the same columns.
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
    fn a_test_set_with_other_columns_is_refused_with_the_first_of_them_named() {
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
