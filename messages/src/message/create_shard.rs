//! How the chief hands a shard its part of the variables.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::checkpoint::StartSpec;
use crate::id::{GlobalStep, ShardId, Version};
use crate::optimizer::UpdateSpec;
use crate::placement::{Placement, SliceSpec};
use crate::sync::SyncSpec;
use crate::tensor::ALIGNMENT;
use crate::variable::VariableSpec;

/// Most workers of a job.
pub const WORKERS_MAX: u32 = 1 << 16;

/// Chief to ps: own these slices, fill them, and begin to count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateShard {
    /// Which shard of this task.
    pub shard: ShardId,
    /// The whole placement: the shard finds its own slices in it (P2).
    pub placement: Placement,
    /// All variables of the job.
    pub variables: Vec<VariableSpec>,
    /// How a gradient becomes an update.
    pub update: UpdateSpec,
    /// How gradients of several workers meet.
    pub sync: SyncSpec,
    /// Whether gradients that meet are added up in the order of their workers, and not of their arrival.
    pub deterministic: bool,
    /// The job's workers: all of them count until they leave, also before they have come.
    pub workers: u32,
    /// So many updates are applied, not one more.
    pub last_step: GlobalStep,
    /// What initial values are drawn from.
    pub seed: u64,
    /// What the variables begin with.
    #[serde(default)]
    pub start: StartSpec,
}

impl CreateShard {
    /// The bytes of the shard's values as they travel, each slice on a cache line.
    pub fn bytes(&self) -> u64 {
        let slice_bytes = |slice: SliceSpec| {
            let bytes = slice.elements(&self.variables[slice.variable.index()]) as u64 * 4;
            bytes.next_multiple_of(ALIGNMENT as u64)
        };
        self.placement.on_shard(self.shard).map(|(_, slice)| slice_bytes(slice)).sum()
    }
}

impl Content for CreateShard {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        let invalid = |error: &dyn std::fmt::Display| Invalid(error.to_string());
        for variable in &self.variables {
            variable.validate().map_err(|error| invalid(&error))?;
        }
        self.placement.validate(&self.variables).map_err(|error| invalid(&error))?;
        self.update.validate().map_err(|error| invalid(&error))?;
        if !self.placement.shards.contains(&self.shard) {
            return Err(Invalid(format!("{} is not in the placement", self.shard)));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(Invalid(format!(
                "workers must be from 1 to {WORKERS_MAX}, and are {}",
                self.workers
            )));
        }
        if let StartSpec::Resume { workers, .. } = &self.start
            && !workers.is_empty()
            && !workers.iter().map(|record| record.worker).eq(0..self.workers)
        {
            return Err(Invalid(format!("expected one record of each of {} workers", self.workers)));
        }
        if let StartSpec::WarmStart { variables, .. } = &self.start {
            let mut named: Vec<_> = variables.iter().map(|source| source.variable).collect();
            named.sort_unstable();
            if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Invalid(format!("variable {} has two sources", twice[0])));
            }
            if let Some(odd) = named.last().filter(|last| last.index() >= self.variables.len()) {
                return Err(Invalid(format!("variable {odd} has a source, and is not there")));
            }
        }
        if self.last_step.0 == 0 {
            return Err(Invalid("last_step must be at least 1".into()));
        }
        no_payload(segments)
    }
}

/// Ps to chief: the shard has the values that it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCreated {
    /// How many slices it owns.
    pub slices: u64,
    /// Their bytes, without slots.
    pub bytes: u64,
    /// The updates that are in them.
    #[serde(default)]
    pub version: Version,
}

impl Content for ShardCreated {}
