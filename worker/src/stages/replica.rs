//! The leader's part of a staged replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_engine::Feed;
use pushpull_input::Batch;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::TaskId;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::message::ComputeStage;

use super::compiled::StageSource;
use super::error::{StageError, StageErrorKind};
use super::group::Group;
use super::pipeline::{BatchRun, BeforePass, Pipeline};
use crate::client::{Gradients, Values};
use crate::devices::{Complete, Compute, Replica, ReplicaConfig, ReplicaError};

/// The leader's part of a staged replica: stage 0, which has the other stages compute theirs.
pub(crate) struct StagedReplica {
    group: Arc<Group>,
    task: TaskId,
    graph: GraphSpec,
    columns: Vec<ColumnSpec>,
    compute: Compute,
    training: Pipeline,
    /// The compiled evaluation for each batch size.
    evaluation: BTreeMap<usize, Pipeline>,
}

impl StagedReplica {
    /// Compiles stage 0 of the graph.
    ///
    /// # Errors
    /// If the graph cannot be compiled.
    pub(crate) fn new(
        config: ReplicaConfig<'_>,
        group: Arc<Group>,
        micro_batches: u32,
        before_pass: Option<BeforePass>,
    ) -> Result<Self, ReplicaError> {
        let ReplicaConfig { graph, examples, columns, device, compute, .. } = config;
        let source = StageSource { graph, columns, number: 0, threads: compute.threads() };
        let training = source.training(examples / micro_batches as usize)?;
        let task = device.task;
        Ok(Self {
            group,
            task,
            graph: graph.clone(),
            columns: columns.to_vec(),
            compute,
            training: Pipeline::new(training, task, micro_batches, before_pass),
            evaluation: BTreeMap::new(),
        })
    }

    /// Runs a batch on all stages, and returns the results.
    fn run(
        &mut self,
        columns: &[Column],
        random: u64,
        values: &Values,
        evaluates: Option<usize>,
        gradients: Option<&mut Gradients>,
    ) -> Result<Vec<f32>, ReplicaError> {
        let Self { group, task, compute, training, evaluation, .. } = self;
        let Some(set) = values.set() else {
            let reason = "the values are not those of all stages".to_owned();
            return Err(StageError { task: *task, kind: StageErrorKind::Failed, reason }.into());
        };
        let pipeline = match evaluates {
            Some(examples) => evaluation.get_mut(&examples).expect("the evaluation is prepared"),
            None => training,
        };
        let run = group.begin(ComputeStage {
            run: 0,
            random,
            values: set.number(),
            keep: Vec::new(),
            evaluates: evaluates.map(|examples| examples as u32),
        })?;
        let (arrivals, pool) = (run.arrivals(), group.pool());
        let batch = BatchRun { columns, random, values, arrivals, transfers: &run, pool };
        let results = compute.run(|| pipeline.run(&batch, gradients))?;
        arrivals.wait_for_stages()?;
        Ok(results)
    }
}

impl Replica for StagedReplica {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        _: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        Ok(self.run(feed.columns, feed.random, values, None, Some(gradients))?[0])
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        if !self.evaluation.contains_key(&examples) {
            let Self { graph, columns, compute, .. } = self;
            let source = StageSource { graph, columns, number: 0, threads: compute.threads() };
            let pipeline = Pipeline::new(source.evaluation(examples)?, self.task, 1, None);
            self.evaluation.insert(examples, pipeline);
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.prepare(batch.examples)?;
        self.run(&batch.columns, 0, values, Some(batch.examples), None)
    }
}
