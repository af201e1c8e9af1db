//! Creates a shard on a ps task.

use serde::{Deserialize, Serialize};

use super::appoint::validate_number;
use super::{Content, Invalid, is_zero, no_payload};
use crate::checkpoint::StartSpec;
use crate::compression::{CompressionSpec, SentAs};
use crate::id::{GlobalStep, ShardId, Version};
use crate::job::PIPELINE_MAX;
use crate::optimizer::UpdateSpec;
use crate::placement::{Placement, SliceSpec};
use crate::sync::SyncSpec;
use crate::variable::VariableSpec;

/// The maximum number of workers of a job.
pub const WORKERS_MAX: u32 = 1 << 16;

/// A request from the chief to a ps task: create a shard, give its slices their initial values, and accept
/// pushes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateShard {
    /// The id of the shard to create.
    pub shard: ShardId,
    /// The whole placement, which includes the slices that the shard owns. All tasks of the job use the same
    /// placement.
    pub placement: Placement,
    /// All variables of the job.
    pub variables: Vec<VariableSpec>,
    /// The settings with which gradients become updates.
    pub update: UpdateSpec,
    /// The encodings in which gradients arrive, and in which values are sent in the replies to pushes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compression: Vec<CompressionSpec>,
    /// The synchronisation policy.
    pub sync: SyncSpec,
    /// The number of pushes that a worker may have in flight to the shard, 1 to [`PIPELINE_MAX`]. The shard
    /// remembers the verdicts of as many pushes of each worker. More than 1 requires the policy `async`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pipeline: u32,
    /// Whether the gradients of an update are added in the order of the workers' indices, so that the sum
    /// does not depend on the order in which the gradients arrive.
    pub deterministic: bool,
    /// The number of workers in the job. Each worker counts as a member until it leaves, even if it has not
    /// joined yet.
    pub workers: u32,
    /// The step at which the shard stops: exactly this many updates are applied.
    pub last_step: GlobalStep,
    /// The seed of the initial values.
    pub seed: u64,
    /// The digest of the job's spec, with which a chief recognises a shard of its job; 0 if unknown.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub job: u32,
    /// The source of the initial values.
    #[serde(default)]
    pub start: StartSpec,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

/// Returns true if a job's digest is unknown.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
const fn is_unknown(digest: &u32) -> bool {
    *digest == 0
}

impl CreateShard {
    /// Returns the number of bytes that the shard's values take on the wire, including the padding that
    /// aligns each slice to a cache line.
    pub fn bytes(&self) -> u64 {
        self.placement.on_shard(self.shard).map(|(_, slice)| self.slice_bytes(&slice)).sum()
    }

    /// Returns the number of bytes that the values of all shards of this shard's ps task take on the wire.
    pub fn task_bytes(&self) -> u64 {
        let slices = self.placement.slices.iter().filter(|placed| placed.shard.ps == self.shard.ps);
        slices.map(|placed| self.slice_bytes(&placed.slice)).sum()
    }

    fn slice_bytes(&self, slice: &SliceSpec) -> u64 {
        slice.wire_bytes(&self.variables[slice.variable.index()])
    }
}

impl CreateShard {
    /// Returns how a slice is sent between workers and the shard.
    pub fn sent_as(&self, slice: SliceSpec) -> SentAs {
        CompressionSpec::sent_as(&self.compression, &self.update, &self.variables[slice.variable.index()])
    }

    /// Checks that no variable is split into slices if its optimizer needs the whole variable.
    fn validate_slices(&self) -> Result<(), Invalid> {
        let parts =
            self.placement.slices.windows(2).map(|pair| [pair[0].slice.variable, pair[1].slice.variable]);
        let mut split = parts.filter(|[one, next]| one == next).map(|[one, _]| &self.variables[one.index()]);
        split.find(|variable| self.update.needs_whole(variable)).map_or(Ok(()), |variable| {
            let (name, optimizer) = (&variable.name, self.update.rule(variable).optimizer.name());
            Err(Invalid(format!("variable '{name}' is split, but {optimizer} needs it in one slice")))
        })
    }
}

impl Content for CreateShard {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        let invalid = |error: &dyn std::fmt::Display| Invalid(error.to_string());
        for variable in &self.variables {
            variable.validate_for_job().map_err(|error| invalid(&error))?;
        }
        self.placement.validate(&self.variables).map_err(|error| invalid(&error))?;
        self.update.validate().map_err(|error| invalid(&error))?;
        self.update.validate_groups(&self.variables).map_err(|error| invalid(&error))?;
        CompressionSpec::validate(&self.compression, &self.update, &self.variables)
            .map_err(|error| invalid(&error))?;
        self.validate_slices()?;
        if !self.placement.shards.contains(&self.shard) {
            return Err(Invalid(format!(
                "{} is not in the placement, expected one of its shards",
                self.shard
            )));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(Invalid(format!(
                "workers must be from 1 to {WORKERS_MAX}, but are {}",
                self.workers
            )));
        }
        if self.deterministic && !self.sync.is_ordered(self.workers) {
            let (sync, workers) = (self.sync, self.workers);
            return Err(Invalid(format!("{sync} with {workers} workers is not deterministic")));
        }
        let Self { pipeline, sync, .. } = *self;
        if !(1..=PIPELINE_MAX).contains(&pipeline) {
            return Err(Invalid(format!("pipeline must be from 1 to {PIPELINE_MAX}, but is {pipeline}")));
        }
        if !sync.allows_pipeline(pipeline) {
            return Err(Invalid(format!("a pipeline of {pipeline} needs async, but the policy is {sync}")));
        }
        if let StartSpec::Resume { workers, .. } = &self.start
            && !workers.is_empty()
            && !workers.iter().map(|record| record.worker).eq(0..self.workers)
        {
            return Err(Invalid(format!(
                "got {} worker records, expected one for each of the {} workers, ordered by index",
                workers.len(),
                self.workers
            )));
        }
        if let StartSpec::WarmStart { variables, .. } = &self.start {
            let mut named: Vec<_> = variables.iter().map(|source| source.variable).collect();
            named.sort_unstable();
            if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Invalid(format!("variable {} has two sources, expected one", twice[0])));
            }
            if let Some(unknown) = named.last().filter(|last| last.index() >= self.variables.len()) {
                let variables = self.variables.len();
                return Err(Invalid(format!(
                    "variable {unknown} has a source, but the job has {variables} variables, numbered from 0"
                )));
            }
        }
        if self.last_step.0 == 0 {
            return Err(Invalid("last_step must be at least 1, but is 0".into()));
        }
        no_payload(segments)
    }
}

/// The reply of a ps task to [`CreateShard`], sent when the shard has its initial values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCreated {
    /// The number of slices that the shard owns.
    pub slices: u64,
    /// The size of the slices in bytes, without optimizer slots.
    pub bytes: u64,
    /// The number of updates that the initial values already contain: 0, or the step of the checkpoint from
    /// which the shard resumed.
    #[serde(default)]
    pub version: Version,
    /// The greatest number among the [`Appoint`](super::Appoint) messages that the shard knows; 0 if it knows
    /// none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub appointed: u64,
}

impl Content for ShardCreated {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        validate_number(self.appointed)?;
        no_payload(segments)
    }
}
