//! The description of a job: graph, input, optimizer and number of steps. A job file contains it as JSON. The
//! tasks that run the job are in the cluster spec.

use serde::{Deserialize, Serialize};

use crate::cadence::{Epochs, EvalEverySpec};
use crate::cluster::ClusterSpec;
use crate::communication::{CommunicationError, CommunicationSpec};
use crate::compression::{CompressionError, CompressionSpec, SentAs};
use crate::distribution::{DistributionError, DistributionSpec};
use crate::gradient::GradientSpec;
use crate::graph::{GraphError, GraphSpec};
use crate::id::{GlobalStep, JobName};
use crate::input::{InputSpec, InputSpecError};
use crate::optimizer::{
    DecaySpec, GroupError, GroupSpec, OptimizerError, OptimizerSpec, ScheduleSpec, UpdateSpec,
};
use crate::out_of_range::OutOfRange;
use crate::placement::PlacementSpec;
use crate::sync::{LeaveSpec, SyncSpec};

/// The maximum number of examples in one worker's batch.
pub const BATCH_SIZE_MAX: u32 = 1 << 20;
/// The maximum number of batches in one step of a worker. The worker pushes the mean of their gradients.
pub const ACCUMULATE_MAX: u32 = 1 << 16;
/// The maximum number of stages of a graph, each on a worker task of its own.
pub const STAGES_MAX: u32 = 256;
/// The maximum number of micro-batches of a batch.
pub const MICRO_BATCHES_MAX: u32 = 1024;
/// The maximum number of steps that a worker may have in flight.
pub const PIPELINE_MAX: u32 = 16;
/// The maximum number of bytes in a job file.
pub const JOB_FILE_BYTES_MAX: u64 = 16 << 20;

/// The description of a job: everything that its tasks need in order to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The graph to train.
    pub graph: GraphSpec,
    /// The data sets and how they are read.
    pub input: InputSpec,
    /// The number of examples in one worker's batch.
    pub batch_size: u32,
    /// The number of batches in one step of a worker, 1 to [`ACCUMULATE_MAX`]. The worker computes the
    /// gradients of all these batches from the same values of the variables, and pushes the mean of the
    /// gradients.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub accumulate: u32,
    /// The optimizer that turns gradients into updates.
    pub optimizer: OptimizerSpec,
    /// The schedule of the learning rate over the global step.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// The number of steps at the start of the job over which the learning rate rises linearly to the
    /// schedule's value.
    #[serde(default)]
    pub warm_up: u64,
    /// The weight decay: each variable's value, multiplied by this factor, is added to its gradient.
    #[serde(default)]
    pub weight_decay: f32,
    /// The decay of the exponential moving averages of trained variables; `None` disables averages. If
    /// averages are enabled, evaluations use them instead of the values.
    #[serde(default)]
    pub average: Option<f32>,
    /// The variables to which weight decay applies if no group says otherwise. This setting applies to the
    /// job's weight decay and to an optimizer's own weight decay, such as AdamW's.
    #[serde(default, skip_serializing_if = "DecaySpec::is_all")]
    pub weight_decay_on: DecaySpec,
    /// Groups of variables with rules of their own. Only the first group that matches a variable applies to
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSpec>,
    /// The patterns that select, by name, the trained variables that have averages; if there are no
    /// patterns, all trained variables have averages. Patterns require that `average` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub average_variables: Vec<String>,
    /// The interval, in a worker's steps, at which the worker computes the graph's metrics on its batch; 0
    /// for never. `None` leaves the choice to the worker, which computes cheap metrics in every step, and
    /// others in every tenth step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_every: Option<u64>,
    /// How workers check and clip gradients before they push them.
    #[serde(default)]
    pub gradient: GradientSpec,
    /// The encodings in which gradients and values are sent between workers and shards. The first entry whose
    /// pattern matches a variable decides about it. Without entries, everything is sent exactly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compression: Vec<CompressionSpec>,
    /// The strategy: which tasks store the variables, and how many tasks compute. `None` leaves it to the
    /// cluster: ps tasks store the variables if there are any, and otherwise the workers do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DistributionSpec>,
    /// The synchronisation policy.
    #[serde(default)]
    pub sync: SyncSpec,
    /// How gradients travel from workers to shards, and values back.
    #[serde(default, skip_serializing_if = "CommunicationSpec::is_auto")]
    pub communication: CommunicationSpec,
    /// The number of steps that a worker may have in flight, 1 to [`PIPELINE_MAX`]. A step is in flight from
    /// its beginning until every shard has answered its push. With more than 1, a worker begins a step from
    /// the newest values that have arrived while the pushes of earlier steps are unanswered; this requires
    /// the policy `async`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pipeline: u32,
    /// The number of equal parts of a batch that pass through the stages of a replica one after another, 1 to
    /// [`MICRO_BATCHES_MAX`]. The stages compute different micro-batches at the same time. More than 1
    /// requires that the graph has stages: operations on different worker tasks.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub micro_batches: u32,
    /// Whether two runs of the job must end with bit-identical variables; requires the policy `sync`, or
    /// `sync:K` with K of at least the number of workers.
    #[serde(default)]
    pub deterministic: bool,
    /// What happens if a worker leaves before the last step.
    #[serde(default)]
    pub when_worker_leaves: LeaveSpec,
    /// How variables are placed on shards.
    #[serde(default)]
    pub placement: PlacementSpec,
    /// The step at which the job ends: exactly this many updates are applied.
    pub last_step: GlobalStep,
    /// The seed of all random choices, such as initial values and the order of examples.
    #[serde(default)]
    pub seed: u64,
    /// How often a worker evaluates the model while the job trains; `None` if a worker evaluates the model
    /// only at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_every: Option<EvalEverySpec>,
    /// The number of examples in one pass of all workers together over the training set, if it is known.
    /// Training does not depend on this number, which only says where an epoch ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_examples: Option<u64>,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

/// An error in the description of a job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The text is not valid JSON, or the JSON does not describe a job.
    #[error("not a job file: {0}")]
    Json(String),
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A setting of the optimizer, the schedule or another part of the update is out of range.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A group of variables is invalid, or applies to no variable.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The compression is invalid, or an entry of it decides about no variable.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// The input spec is invalid.
    #[error(transparent)]
    Input(#[from] InputSpecError),
    /// Another setting is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The job is `deterministic`, but under its policy the result depends on the order in which pushes
    /// arrive.
    #[error(
        "deterministic needs the policy sync, or sync:K with K of at least the number of workers, but the policy is {0}: use sync, because the result of other policies depends on timing"
    )]
    NotDeterministic(SyncSpec),
    /// The strategy does not suit the job or its cluster.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
    /// Gradients cannot travel as the job says.
    #[error(transparent)]
    Communication(#[from] CommunicationError),
    /// No worker can join a job with this setting.
    #[error("workers cannot join a job with {0}: leave --workers-max out")]
    NotElastic(&'static str),
    /// A setting of the job needs a graph without stages, or with stages.
    #[error("{0}")]
    Stages(StagesError),
    /// The job has a pipeline, but under its policy a worker waits for the reply to its push.
    #[error(
        "pipeline is {pipeline}, which needs the policy async or async:staleness-lr, but the policy is {sync}: under it, a worker must not begin a step before its push is answered; use async, or a pipeline of 1"
    )]
    PipelineWaits {
        /// The number of steps that a worker may have in flight.
        pipeline: u32,
        /// The synchronisation policy.
        sync: SyncSpec,
    },
}

/// A setting that does not suit the stages of the job's graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagesError {
    /// The workers cannot be divided into replicas.
    #[error(
        "the graph has operations on {stages} worker tasks, so each replica takes {stages} workers, but the cluster has {workers}: use a multiple of {stages}"
    )]
    Workers {
        /// The number of stages.
        stages: u32,
        /// The number of workers in the cluster.
        workers: u32,
    },
    /// A graph without stages has micro-batches.
    #[error(
        "micro_batches is {0}, which needs operations on at least two worker tasks, but all operations are on one: use devices such as '/job:worker/task:1', or a micro_batches of 1"
    )]
    MicroBatches(u32),
    /// The batch cannot be divided into micro-batches.
    #[error(
        "a batch of {batch} cannot be divided into {micro_batches} equal micro-batches: use a multiple of {micro_batches}"
    )]
    Batch {
        /// The number of examples in a batch.
        batch: u32,
        /// The number of micro-batches.
        micro_batches: u32,
    },
    /// A setting is not supported with stages.
    #[error("the graph has operations on {stages} worker tasks, which do not support {setting}: {instead}")]
    Setting {
        /// The number of stages.
        stages: u32,
        /// The setting.
        setting: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
}

/// Returns the text of a JSON error on one line. Long texts are shortened, because the error may quote a
/// large file.
pub fn told(error: &serde_json::Error) -> String {
    /// The number of characters that are kept on each side of the omitted part.
    const SIDE: usize = 200;
    let text: Vec<char> = error.to_string().chars().collect();
    let plain = |letter: &char| if letter.is_control() { '\u{fffd}' } else { *letter };
    let shown = |part: &[char]| part.iter().map(plain).collect::<String>();
    match text.len() {
        length if length <= 2 * SIDE => shown(&text),
        length => format!("{} … {}", shown(&text[..SIDE]), shown(&text[length - SIDE..])),
    }
}

/// Returns the text of a JSON error, and up to 40 characters of `text` before the place of the error. A job
/// file may be one long line, so a column alone does not help.
fn told_with_place(error: &serde_json::Error, text: &str) -> String {
    const SHOWN: usize = 40;
    /// More bytes than the shown characters have, with the white space between them.
    const BYTES: usize = 1000;
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
    // A column counts bytes. That of a syntax error may be in the middle of a character.
    let end = text.floor_char_boundary((lines + error.column()).min(text.len()));
    let begin = text.floor_char_boundary(end.saturating_sub(BYTES));
    let words = text[begin..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = words.chars().count().saturating_sub(SHOWN);
    let near: String = words.chars().skip(skipped).filter(|letter| !letter.is_control()).collect();
    match &*near {
        "" => told(error),
        near => format!("{}, near {near}", told(error)),
    }
}

impl JobSpec {
    /// Returns the digest by which tasks check that their jobs are the same; never 0.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(&rmp_serde::to_vec_named(self).expect("plain data encodes")).max(1)
    }

    /// Makes a job with the default settings: batches of 64, plain gradient descent, asynchronous.
    pub fn new(graph: GraphSpec, input: InputSpec, last_step: u64) -> Self {
        Self {
            graph,
            input,
            batch_size: 64,
            accumulate: 1,
            optimizer: OptimizerSpec::sgd(0.1),
            schedule: ScheduleSpec::default(),
            warm_up: 0,
            weight_decay: 0.0,
            average: None,
            weight_decay_on: DecaySpec::All,
            groups: Vec::new(),
            average_variables: Vec::new(),
            metrics_every: None,
            gradient: GradientSpec::default(),
            compression: Vec::new(),
            strategy: None,
            sync: SyncSpec::default(),
            communication: CommunicationSpec::default(),
            pipeline: 1,
            micro_batches: 1,
            deterministic: false,
            when_worker_leaves: LeaveSpec::default(),
            placement: PlacementSpec::default(),
            last_step: GlobalStep(last_step),
            seed: 0,
            eval_every: None,
            epoch_examples: None,
        }
    }

    /// Returns the number of replicas of the graph that `workers` workers form: one for each worker, or, if
    /// the graph has stages, one for as many workers as it has stages. Worker r leads replica r, and stage s
    /// of the replica is worker s · replicas + r.
    pub fn replicas(&self, workers: u32) -> u32 {
        workers / self.graph.stages().count()
    }

    /// Returns the number of examples in one step of a worker.
    pub fn step_examples(&self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.accumulate)
    }

    /// Returns the part of the settings that ps tasks need to turn gradients into updates.
    pub fn update(&self) -> UpdateSpec {
        UpdateSpec {
            optimizer: self.optimizer.clone(),
            schedule: self.schedule,
            warm_up: self.warm_up,
            weight_decay: self.weight_decay,
            average: self.average,
            weight_decay_on: self.weight_decay_on,
            groups: self.groups.clone(),
            average_variables: self.average_variables.clone(),
        }
    }

    /// Returns how each variable is sent between workers and shards.
    pub fn sent_as(&self) -> Vec<SentAs> {
        let (update, variables) = (self.update(), &self.graph.variables);
        variables
            .iter()
            .map(|variable| CompressionSpec::sent_as(&self.compression, &update, variable))
            .collect()
    }

    /// Sets `trainable` to false for every variable that a group freezes. Workers compute no gradients for
    /// such variables, and the backward pass ends at them.
    pub fn freeze(&mut self) {
        if self.groups.iter().any(|group| group.frozen) {
            let update = self.update();
            for variable in &mut self.graph.variables {
                variable.trainable &= !update.freezes(variable);
            }
        }
    }

    /// Returns the epochs of the job on `workers` workers; `None` if the job does not say how many examples
    /// an epoch has.
    pub fn epochs(&self, workers: u32) -> Option<Epochs> {
        let examples = self.epoch_examples.filter(|&examples| examples > 0)?;
        let gradients = u64::from(self.sync.gradients_per_update(workers));
        Some(Epochs::new(examples, self.step_examples().saturating_mul(gradients).max(1)))
    }

    /// Returns how many evaluations fall due in the first `step` updates on `workers` workers; 0 if the
    /// model is evaluated only at the end.
    pub fn evaluations_due(&self, workers: u32, step: GlobalStep) -> u64 {
        match (self.eval_every, self.epochs(workers)) {
            (Some(EvalEverySpec::Steps(steps)), _) => step.0 / steps.max(1),
            (Some(EvalEverySpec::Epoch), Some(epochs)) => epochs.ended(step),
            (Some(EvalEverySpec::Epoch) | None, _) => 0,
        }
    }

    /// Checks the cadence of evaluations and the size of an epoch.
    fn validate_cadence(&self) -> Result<(), OutOfRange> {
        if self.epoch_examples == Some(0) {
            return Err(OutOfRange::new("epoch_examples", "at least 1", 0));
        }
        match (self.eval_every, self.epoch_examples) {
            (Some(EvalEverySpec::Steps(0)), _) => {
                Err(OutOfRange::new("eval_every", "epoch, or at least 1 update", 0))
            }
            (Some(EvalEverySpec::Epoch), None) => Err(OutOfRange::new(
                "eval_every",
                "a number of updates if epoch_examples is missing",
                "epoch",
            )),
            _ => Ok(()),
        }
    }

    /// Parses and checks the text of a job file.
    ///
    /// # Errors
    /// If the text is not JSON; if the JSON has unknown keys; if it describes an invalid job.
    pub fn from_json(text: &str) -> Result<Self, JobError> {
        let job = Self::parse_json(text).map_err(|error| JobError::Json(told_with_place(&error, text)))?;
        job.validate()?;
        Ok(job)
    }

    /// Parses the text of a job file without checking the job. Use this function if the job is checked later,
    /// for example as a part of a checkpoint's manifest.
    ///
    /// # Errors
    /// If the text is not JSON; if the JSON has unknown keys.
    pub fn parse_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the job as the text of a job file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data encodes")
    }

    /// Returns the job as JSON on one line.
    pub fn to_json_line(&self) -> String {
        serde_json::to_string(self).expect("plain data encodes")
    }

    /// Returns the content of the job file as a JSON tree with the same keys.
    pub fn to_value(&self) -> serde_json::Value {
        // The tree is parsed from the text, because the serializer to text is compiled anyway. A direct
        // conversion would compile a second serializer for all specs.
        serde_json::from_str(&self.to_json()).expect("it was just written")
    }

    /// Checks what [`validate`](Self::validate) does not: that the job can start on a cluster. A job that is
    /// read from a checkpoint may be valid without passing these checks.
    ///
    /// # Errors
    /// If the cluster does not have the tasks of the job's strategy; for the reasons of
    /// [`validate_start`](Self::validate_start).
    pub fn validate_on(&self, cluster: &ClusterSpec) -> Result<(), JobError> {
        self.strategy.map_or(Ok(()), |strategy| strategy.check_cluster(cluster))?;
        self.validate_start(cluster.addresses(JobName::Worker).len() as u32)
    }

    /// Checks that the job can start on `workers` workers.
    ///
    /// # Errors
    /// If the workers cannot be divided into replicas with a worker for each stage of the graph; if
    /// `deterministic` is set, but the result would depend on the order in which pushes arrive; if the
    /// tensors of the job's summaries are too large.
    pub fn validate_start(&self, workers: u32) -> Result<(), JobError> {
        let stages = self.graph.stages().count();
        if stages > 1 && (workers == 0 || !workers.is_multiple_of(stages)) {
            return Err(JobError::Stages(StagesError::Workers { stages, workers }));
        }
        if self.deterministic && !self.sync.is_ordered(workers / stages) {
            return Err(JobError::NotDeterministic(self.sync));
        }
        Ok(self.graph.validate_summary_sizes(self.batch_size as usize)?)
    }

    /// Checks that workers may join and leave the job until it has `workers_max` workers.
    ///
    /// # Errors
    /// If the graph has stages, because the workers of a replica are fixed; if the strategy has one worker;
    /// if `deterministic` is set, but the result would depend on the order in which pushes arrive.
    pub fn validate_elastic(&self, workers_max: u32) -> Result<(), JobError> {
        if self.graph.stages().count() > 1 {
            return Err(JobError::NotElastic("a graph with stages"));
        }
        if self.strategy.is_some_and(DistributionSpec::has_one_worker) {
            return Err(JobError::NotElastic("a strategy that has one worker"));
        }
        self.validate_start(workers_max)
    }

    /// Checks that the settings suit the stages of the graph.
    fn validate_stages(&self) -> Result<(), JobError> {
        let Self { micro_batches, batch_size: batch, .. } = *self;
        if !(1..=MICRO_BATCHES_MAX).contains(&micro_batches) {
            let expected = format!("from 1 to {MICRO_BATCHES_MAX}");
            return Err(OutOfRange::new("micro_batches", expected, micro_batches).into());
        }
        let stages = self.graph.stages().count();
        if stages > STAGES_MAX {
            return Err(
                OutOfRange::new("the number of stages", format!("at most {STAGES_MAX}"), stages).into()
            );
        }
        if stages == 1 {
            return match micro_batches {
                1 => Ok(()),
                more => Err(JobError::Stages(StagesError::MicroBatches(more))),
            };
        }
        if !batch.is_multiple_of(micro_batches) {
            return Err(JobError::Stages(StagesError::Batch { batch, micro_batches }));
        }
        let unsupported = [
            (self.accumulate > 1, "accumulate", "use larger batches with more micro_batches"),
            (self.pipeline > 1, "a pipeline", "use a pipeline of 1, and micro_batches"),
            (
                self.gradient != GradientSpec::default(),
                "checks and clipping of gradients on workers",
                "leave clip_value, clip_global_norm and not_finite out",
            ),
        ];
        match unsupported.into_iter().find(|&(set, ..)| set) {
            Some((_, setting, instead)) => {
                Err(JobError::Stages(StagesError::Setting { stages, setting, instead }))
            }
            None => Ok(()),
        }
    }

    /// Checks everything about the job that can be checked before it runs, and before its number of workers
    /// is known.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), JobError> {
        if !(1..=BATCH_SIZE_MAX).contains(&self.batch_size) {
            let expected = format!("from 1 to {BATCH_SIZE_MAX}");
            return Err(OutOfRange::new("batch_size", expected, self.batch_size).into());
        }
        if !(1..=ACCUMULATE_MAX).contains(&self.accumulate) {
            let expected = format!("from 1 to {ACCUMULATE_MAX}");
            return Err(OutOfRange::new("accumulate", expected, self.accumulate).into());
        }
        if self.last_step.0 == 0 {
            return Err(OutOfRange::new("last_step", "at least 1", 0).into());
        }
        self.validate_cadence()?;
        self.strategy.map_or(Ok(()), |strategy| strategy.check_sync(self.sync))?;
        self.update().validate()?;
        self.gradient.validate()?;
        if self.deterministic && !matches!(self.sync, SyncSpec::Sync { .. }) {
            return Err(JobError::NotDeterministic(self.sync));
        }
        let Self { pipeline, sync, .. } = *self;
        if !(1..=PIPELINE_MAX).contains(&pipeline) {
            return Err(OutOfRange::new("pipeline", format!("from 1 to {PIPELINE_MAX}"), pipeline).into());
        }
        if !sync.allows_pipeline(pipeline) {
            return Err(JobError::PipelineWaits { pipeline, sync });
        }
        if self.sync == (SyncSpec::Sync { aggregate: Some(0) }) {
            // This policy would be written as `sync:0`, which no task could parse.
            return Err(OutOfRange::new("sync", "sync, or sync:K with K of at least 1", self.sync).into());
        }
        self.input.validate()?;
        self.placement.partitioner.validate()?;
        self.graph.validate(self.batch_size as usize)?;
        self.graph.validate_training_devices()?;
        self.validate_stages()?;
        let (stages, compresses) = (self.graph.stages().count(), !self.compression.is_empty());
        self.communication.validate(self.sync, stages, compresses)?;
        self.update().validate_groups(&self.graph.variables)?;
        Ok(CompressionSpec::validate(&self.compression, &self.update(), &self.graph.variables)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn freezing_ends_the_training_of_frozen_variables_only() {
        let job = fixtures::job(1, 1);
        let frozen = |groups: &[GroupSpec]| {
            let mut job = JobSpec { groups: groups.to_vec(), ..job.clone() };
            job.validate().unwrap();
            job.freeze();
            !job.graph.variables[0].trainable
        };
        assert!(frozen(&[GroupSpec::new("ker*").frozen()]));
        assert!(!frozen(&[]));
        assert!(!frozen(&[GroupSpec::new("kernel")]));
        let shadowed = [GroupSpec::new("kernel"), GroupSpec::new("*").frozen()];
        let error = JobSpec { groups: shadowed.to_vec(), ..job.clone() }.validate().unwrap_err().to_string();
        assert!(error.contains("'*' selects no variable"), "{error}");
    }

    #[test]
    fn a_fraction_is_read_as_it_was_written() {
        // Each digit of this number counts.
        for fraction in [6.766_534_111_825_513_6e-245, 0.1, f64::MIN_POSITIVE] {
            let text = serde_json::to_string(&fraction).unwrap();
            assert_eq!(serde_json::from_str::<f64>(&text).unwrap().to_bits(), fraction.to_bits(), "{text}");
        }
    }

    #[test]
    fn deterministic_updates_take_a_gradient_of_every_worker() {
        let job =
            |sync: &str| JobSpec { sync: sync.parse().unwrap(), deterministic: true, ..fixtures::job(1, 1) };
        for sync in ["async", "bounded:0"] {
            let error = job(sync).validate().unwrap_err().to_string();
            assert!(error.starts_with("deterministic needs the policy sync, or sync:K"), "{error}");
        }
        for (sync, workers, runs) in
            [("sync", 9, true), ("sync:4", 4, true), ("sync:9", 4, true), ("sync:3", 4, false)]
        {
            job(sync).validate().unwrap();
            assert_eq!(job(sync).validate_start(workers).is_ok(), runs, "{sync}");
        }
    }

    #[test]
    fn a_job_without_accumulate_takes_one_batch_per_step() {
        let job = fixtures::job(1, 1);
        let text = job.to_json();
        assert!(!text.contains("accumulate"), "{text}");
        assert_eq!(JobSpec::from_json(&text).unwrap().accumulate, 1);
        let four = JobSpec { accumulate: 4, ..job.clone() };
        assert_eq!(JobSpec::from_json(&four.to_json()).unwrap(), four);
        assert_eq!(four.step_examples(), 4 * job.step_examples());
        for accumulate in [0, ACCUMULATE_MAX + 1] {
            let error = JobSpec { accumulate, ..job.clone() }.validate().unwrap_err().to_string();
            assert_eq!(error, format!("accumulate must be from 1 to 65536, but is {accumulate}"));
        }
    }

    #[test]
    fn a_pipeline_needs_a_policy_without_waits() {
        let job = fixtures::job(1, 1);
        let text = job.to_json();
        assert!(!text.contains("pipeline"), "{text}");
        assert_eq!(JobSpec::from_json(&text).unwrap().pipeline, 1);
        let with = |sync: &str, pipeline| JobSpec { sync: sync.parse().unwrap(), pipeline, ..job.clone() };
        for sync in ["async", "async:staleness-lr"] {
            let most = with(sync, PIPELINE_MAX);
            assert_eq!(JobSpec::from_json(&most.to_json()).unwrap(), most);
            for pipeline in [0, PIPELINE_MAX + 1] {
                let error = with(sync, pipeline).validate().unwrap_err().to_string();
                assert_eq!(error, format!("pipeline must be from 1 to 16, but is {pipeline}"));
            }
        }
        for sync in ["bounded:3", "sync", "sync:2"] {
            with(sync, 1).validate().unwrap();
            let error = with(sync, 2).validate().unwrap_err().to_string();
            let expected = format!(
                "pipeline is 2, which needs the policy async or async:staleness-lr, but the policy is {sync}"
            );
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn gradients_travel_only_where_sums_are_gradients() {
        let plain = fixtures::job(1, 1);
        assert!(!plain.to_json().contains("communication"));
        let ring =
            JobSpec { communication: CommunicationSpec::Ring, sync: SyncSpec::SYNC, accumulate: 2, ..plain };
        assert_eq!(JobSpec::from_json(&ring.to_json()).unwrap(), ring);
        let with = |sync, compression| JobSpec { sync, compression, ..ring.clone() };
        let sent = CompressionSpec::new("kernel").gradients(crate::compression::EncodingSpec::Bf16);
        for (bad, expected) in [
            (with(SyncSpec::ASYNC, Vec::new()), "communication is ring, which needs the policy sync"),
            (with(SyncSpec::SYNC, vec![sent]), "communication is ring, but the job compresses"),
            (
                JobSpec {
                    communication: CommunicationSpec::Ring,
                    sync: SyncSpec::SYNC,
                    ..fixtures::any_stage::staged_job(1)
                },
                "communication is ring, but the graph has operations on 2 worker tasks",
            ),
        ] {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn workers_join_only_where_their_number_may_change() {
        let plain = fixtures::job(4, 1);
        plain.validate_elastic(9).unwrap();
        let ordered = |workers| JobSpec {
            sync: format!("sync:{workers}").parse().unwrap(),
            deterministic: true,
            ..plain.clone()
        };
        ordered(9).validate_elastic(9).unwrap();
        let one = JobSpec { strategy: Some(DistributionSpec::Mirrored), ..plain.clone() };
        for (job, expected) in [
            (fixtures::any_stage::staged_job(1), "a graph with stages: leave --workers-max out"),
            (one, "a strategy that has one worker: leave --workers-max out"),
            (ordered(8), "deterministic needs the policy sync"),
        ] {
            let error = job.validate_elastic(9).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn stages_take_workers_and_micro_batches() {
        let staged = fixtures::any_stage::staged_job(1);
        assert_eq!((staged.replicas(6), fixtures::job(4, 1).replicas(6)), (3, 6));
        assert_eq!(JobSpec::from_json(&staged.to_json()).unwrap(), staged);
        assert!(staged.validate_start(4).is_ok());
        for workers in [0, 1, 3] {
            let error = staged.validate_start(workers).unwrap_err().to_string();
            assert!(error.contains("each replica takes 2 workers"), "{error}");
        }
        let three = JobSpec { sync: "sync:3".parse().unwrap(), deterministic: true, ..staged.clone() };
        assert!(three.validate_start(6).is_ok() && three.validate_start(8).is_err());
        let plain = fixtures::job(4, 1);
        assert!(!plain.to_json().contains("micro_batches"));
        let clipped = GradientSpec { clip_value: Some(1.0), ..GradientSpec::default() };
        for (job, expected) in [
            (
                JobSpec { micro_batches: 2, ..plain },
                "micro_batches is 2, which needs operations on at least two",
            ),
            (
                JobSpec { micro_batches: 0, ..staged.clone() },
                "micro_batches must be from 1 to 1024, but is 0",
            ),
            (JobSpec { micro_batches: 3, ..staged.clone() }, "a batch of 4 cannot be divided into 3 equal"),
            (JobSpec { accumulate: 2, ..staged.clone() }, "do not support accumulate: use larger batches"),
            (JobSpec { pipeline: 2, sync: SyncSpec::ASYNC, ..staged.clone() }, "do not support a pipeline"),
            (JobSpec { gradient: clipped, ..staged.clone() }, "do not support checks and clipping"),
        ] {
            let error = job.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let mut many = staged;
        many.graph.nodes.last_mut().unwrap().device = Some("/task:256".parse().unwrap());
        let error = many.validate().unwrap_err().to_string();
        assert!(error.contains("at most 256, but is 257"), "{error}");
    }

    #[test]
    fn evaluations_are_due_at_each_multiple() {
        let job = |eval_every, epoch_examples| JobSpec { eval_every, epoch_examples, ..fixtures::job(4, 1) };
        let due =
            |job: &JobSpec| (0..7).map(|step| job.evaluations_due(2, GlobalStep(step))).collect::<Vec<_>>();
        assert_eq!(due(&job(None, Some(6))), [0; 7]);
        assert_eq!(due(&job(Some(EvalEverySpec::Steps(3)), None)), [0, 0, 0, 1, 1, 1, 2]);
        let by_epoch = job(Some(EvalEverySpec::Epoch), Some(6));
        assert_eq!(due(&by_epoch), [0, 0, 1, 2, 2, 3, 4]);
        // An update of two gradients uses twice as many examples.
        assert_eq!(due(&JobSpec { sync: SyncSpec::SYNC, ..by_epoch }), [0, 1, 2, 4, 5, 6, 8]);
    }

    #[test]
    fn an_impossible_cadence_is_refused() {
        let job = |eval_every, epoch_examples| JobSpec { eval_every, epoch_examples, ..fixtures::job(1, 1) };
        let (steps, epoch) = (|steps| Some(EvalEverySpec::Steps(steps)), Some(EvalEverySpec::Epoch));
        for good in [job(None, None), job(steps(1), None), job(epoch, Some(1))] {
            assert!(good.validate().is_ok());
            assert_eq!(JobSpec::from_json(&good.to_json()).unwrap(), good);
        }
        for (bad, name) in [
            (job(steps(0), None), "eval_every must be"),
            (job(epoch, None), "eval_every must be a number of updates"),
            (job(None, Some(0)), "epoch_examples must be"),
        ] {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn an_update_of_no_gradients_is_refused() {
        use crate::graph::GraphBuilder;
        use crate::input::DatasetSpec;

        let mut g = GraphBuilder::new("none");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let points =
            || DatasetSpec::Linear { seed: 0, examples: 9, weights: vec![1.0], bias: 0.0, noise: 0.0 };
        let job = JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(points(), points()), 10);
        job.validate().unwrap();
        let none = JobSpec { sync: SyncSpec::Sync { aggregate: Some(0) }, ..job.clone() };
        let error = none.validate().unwrap_err().to_string();
        assert_eq!(error, "sync must be sync, or sync:K with K of at least 1, but is sync:0");
        assert!(JobSpec { sync: SyncSpec::Sync { aggregate: Some(1) }, ..job }.validate().is_ok());
    }

    #[test]
    fn a_training_job_runs_operations_only_on_workers() {
        let on = |device: &str| {
            let mut job = fixtures::job(1, 1);
            job.graph.nodes[2].device = Some(device.parse().unwrap());
            job
        };
        for good in ["/job:worker/task:1/cpu:0", "/gpu:0", "/task:2"] {
            on(good).validate().unwrap();
        }
        let bad = on("/job:ps/task:0");
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.contains("'kernel'") && error.contains("the device '/job:ps/task:0'"), "{error}");
        assert_eq!(JobSpec::from_json(&bad.to_json()).unwrap_err().to_string(), error);
    }

    #[test]
    fn an_error_in_a_large_file_is_one_short_line() {
        let long = format!("\"\u{1b}[31m\\n{}\"", "x".repeat(1 << 20)).replace('\u{1b}', "\\u001b");
        let error = JobSpec::from_json(&long).unwrap_err().to_string();
        assert!(error.len() < 1000 && !error.chars().any(char::is_control), "{error}");
        let place = format!("column {}, near {}\"", long.len(), "x".repeat(39));
        assert!(error.starts_with("not a job file: ") && error.ends_with(&place), "{error}");
        let job = fixtures::job(1, 1);
        let number = format!("\"batch_size\": {}", job.batch_size);
        let text = job.to_json().replace(&number, "\"batch_size\": \"many\"");
        let error = JobSpec::from_json(&text).unwrap_err().to_string();
        assert!(error.ends_with(", \"batch_size\": \"many\""), "{error}");
        for (text, near) in
            [("", ""), ("\n", ""), ("{\n  \"a\"\n", ", near { \"a\""), ("{\"sync\": é}", ", near {\"sync\":")]
        {
            let error = JobSpec::from_json(text).unwrap_err().to_string();
            let place = error.split_once(" column ").unwrap().1;
            assert_eq!(place.trim_start_matches(|digit: char| digit.is_ascii_digit()), near, "{error}");
        }
    }
}
