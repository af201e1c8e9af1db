//! The placement: which shard owns each slice of each variable. The crate `pushpull-chief` computes
//! placements.
//!
//! Properties: (P1) the slices of a variable are disjoint and cover it; (P2) all tasks use the same
//! placement.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{PlacementEpoch, ShardId, SliceId, VariableId};
use crate::out_of_range::OutOfRange;
use crate::tensor::ALIGNMENT;
use crate::variable::VariableSpec;

/// The greatest epoch of a placement. It is far below `u64::MAX`, so that the chief can begin later ones.
const EPOCH_MAX: u64 = 1 << 62;
/// The maximum number of shards in one ps task.
pub const SHARDS_PER_TASK_MAX: u32 = 256;
/// The maximum number of shards in one placement.
pub const SHARDS_MAX: usize = 1 << 16;
/// The maximum number of slices in one placement.
pub const SLICES_MAX: usize = 1 << 20;

/// A range of rows (along axis 0) of one variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SliceSpec {
    /// The variable of which the slice is a part.
    pub variable: VariableId,
    /// The first row of the slice.
    pub row: u64,
    /// The number of rows in the slice; at least 1.
    pub rows: u64,
}

impl SliceSpec {
    /// Returns the slice that consists of all rows of a variable.
    pub fn whole(id: VariableId, variable: &VariableSpec) -> Self {
        Self { variable: id, row: 0, rows: variable.rows() as u64 }
    }

    /// Returns the index of the slice's first element within the variable, in row-major order.
    pub fn first_element(&self, variable: &VariableSpec) -> usize {
        self.row as usize * variable.row_elements()
    }

    /// Returns the number of elements in the slice.
    pub fn elements(&self, variable: &VariableSpec) -> usize {
        self.rows as usize * variable.row_elements()
    }

    /// Returns the number of bytes that the slice takes on the wire, including the padding that aligns the
    /// next slice to a cache line.
    pub fn wire_bytes(&self, variable: &VariableSpec) -> u64 {
        (self.elements(variable) as u64 * 4).next_multiple_of(ALIGNMENT as u64)
    }
}

/// A slice and the shard that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedSlice {
    /// The slice.
    pub slice: SliceSpec,
    /// The shard that owns the slice.
    pub shard: ShardId,
}

/// The placement of a job: every slice of every variable, each with the shard that owns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The epoch of the placement, which increases when slices move to other shards.
    pub epoch: PlacementEpoch,
    /// All shards of the job. Those that own no slices are included: they know the workers, and may get
    /// slices at a later epoch. They get no pushes and count no steps.
    pub shards: Vec<ShardId>,
    /// The slices, sorted by variable in the graph's order, and within a variable by row.
    pub slices: Vec<PlacedSlice>,
}

/// An error in a placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No epoch follows that of the placement.
    #[error("the placement has epoch {0}, expected at most {EPOCH_MAX}")]
    Epoch(PlacementEpoch),
    /// The placement has no shards.
    #[error("the placement has no shards, expected at least one")]
    NoShards,
    /// The placement has more slices than [`SLICES_MAX`]. The value is the number of slices.
    #[error("the placement has {0} slices, expected at most {SLICES_MAX}: split variables into fewer slices")]
    TooManySlices(usize),
    /// The placement has more shards than [`SHARDS_MAX`]. The value is the number of shards.
    #[error("the placement has {0} shards, expected at most {SHARDS_MAX}: use fewer shards")]
    TooManyShards(usize),
    /// A shard is listed twice.
    #[error("{0} is listed twice among the shards, expected each shard once")]
    DuplicateShard(ShardId),
    /// A slice is placed on a shard that is not in the placement's list.
    #[error("slice {slice} is on {shard}, expected one of the job's shards")]
    UnknownShard {
        /// The slice.
        slice: SliceId,
        /// The shard that is not listed.
        shard: ShardId,
    },
    /// A slice is not the expected next slice: there is a gap, an overlap, a wrong order or an unknown
    /// variable. Each element of each variable must be in exactly one slice (P1).
    #[error(
        "slice {slice} is out of order or too long, expected a slice that begins at row {expected_row} of variable {expected} and ends within it"
    )]
    NotCovering {
        /// The slice.
        slice: SliceId,
        /// The variable to which the slice was expected to belong.
        expected: VariableId,
        /// The row at which the slice was expected to begin.
        expected_row: u64,
    },
    /// The slices of a variable do not reach its last row, so they do not cover the variable (P1).
    #[error("the slices of variable {0} end before its last row, expected slices of all rows")]
    Incomplete(VariableId),
}

impl Placement {
    /// Checks that, for each of the job's variables, the slices are disjoint and cover the variable (P1).
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self, variables: &[VariableSpec]) -> Result<(), PlacementError> {
        if self.epoch.0 > EPOCH_MAX {
            return Err(PlacementError::Epoch(self.epoch));
        }
        if self.shards.is_empty() {
            return Err(PlacementError::NoShards);
        }
        if self.shards.len() > SHARDS_MAX {
            return Err(PlacementError::TooManyShards(self.shards.len()));
        }
        if self.slices.len() > SLICES_MAX {
            return Err(PlacementError::TooManySlices(self.slices.len()));
        }
        let mut shards = self.shards.clone();
        shards.sort_unstable();
        if let Some(twice) = shards.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlacementError::DuplicateShard(twice[0]));
        }
        let (mut variable, mut row) = (0usize, 0u64);
        for (position, placed) in self.slices.iter().enumerate() {
            let slice = SliceId(position as u32);
            if shards.binary_search(&placed.shard).is_err() {
                return Err(PlacementError::UnknownShard { slice, shard: placed.shard });
            }
            let expected = VariableId(variable as u32);
            let rows = variables.get(variable).map_or(0, |spec| spec.rows() as u64);
            let fits = placed.slice.rows >= 1 && placed.slice.rows <= rows.saturating_sub(row);
            if placed.slice.variable != expected || placed.slice.row != row || !fits {
                return Err(PlacementError::NotCovering { slice, expected, expected_row: row });
            }
            row += placed.slice.rows;
            if row == rows {
                (variable, row) = (variable + 1, 0);
            }
        }
        if variable < variables.len() {
            return Err(PlacementError::Incomplete(VariableId(variable as u32)));
        }
        Ok(())
    }

    /// Returns the slices that one shard owns, in the placement's order.
    pub fn on_shard(&self, shard: ShardId) -> impl Iterator<Item = (SliceId, SliceSpec)> + '_ {
        self.slices
            .iter()
            .enumerate()
            .filter(move |(_, placed)| placed.shard == shard)
            .map(|(position, placed)| (SliceId(position as u32), placed.slice))
    }

    /// Returns the shards that own slices, in ascending order; all shards if there are no slices. Workers
    /// push to these shards and pull from them, so these count the job's steps.
    pub fn shards_with_slices(&self) -> BTreeSet<ShardId> {
        match self.slices.is_empty() {
            true => self.shards.iter().copied().collect(),
            false => self.slices.iter().map(|placed| placed.shard).collect(),
        }
    }

    /// Returns the digest by which tasks check that their placements are equal (P2): the crc32c of the
    /// placement's MessagePack bytes.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(&rmp_serde::to_vec(self).expect("plain data encodes"))
    }
}

/// The job's settings for the placement of variables on shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementSpec {
    /// How the shard of each slice is chosen.
    #[serde(default)]
    pub strategy: StrategySpec,
    /// How variables are split into slices before they are placed.
    #[serde(default)]
    pub partitioner: PartitionerSpec,
}

/// A strategy that chooses the shard for the next slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategySpec {
    /// Assigns the slices to the shards in round-robin order. The slices are taken in the order in which
    /// their variables were created.
    #[default]
    RoundRobin,
    /// Chooses the shard to which the fewest bytes have been assigned so far.
    GreedyLoadBalancing,
}

/// The size, in bytes, of the smallest slices that [`PartitionerSpec::Auto`] makes. A worker copies the
/// values of each slice to put the variable together, and a smaller slice saves little time elsewhere.
pub const AUTO_SLICE_BYTES_MIN: u64 = 1 << 20;

/// A partitioner that splits a variable along axis 0 before it is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PartitionerSpec {
    /// Splits a large variable into as many slices as there are shards, if there are several ps tasks. If the
    /// slices would be smaller than [`AUTO_SLICE_BYTES_MIN`], makes fewer slices. A variable that requests a
    /// device is not split.
    #[default]
    Auto,
    /// Makes one slice of each variable.
    None,
    /// Splits a variable into a fixed number of slices, or into one slice per row if the variable has fewer
    /// than `slices` rows.
    Fixed {
        /// The number of slices; at least 1.
        slices: u32,
    },
    /// Splits a variable into slices of at most `bytes` bytes. A single row is never split, even if it is
    /// larger.
    MaxSliceBytes {
        /// The maximum size of a slice, in bytes; at least 1.
        bytes: u64,
    },
    /// Splits a variable into as many slices as there are shards. If the slices would be smaller than
    /// `bytes_min`, makes fewer slices.
    MinMax {
        /// The minimum size of a slice, in bytes; at least 1.
        bytes_min: u64,
    },
}

impl PartitionerSpec {
    /// Checks that the partitioner's number, if it has one, is at least 1.
    ///
    /// # Errors
    /// If the number is 0; the error names the setting.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let key = match self {
            Self::Fixed { slices: 0 } => "partitioner.fixed.slices",
            Self::MaxSliceBytes { bytes: 0 } => "partitioner.max_slice_bytes.bytes",
            Self::MinMax { bytes_min: 0 } => "partitioner.min_max.bytes_min",
            _ => return Ok(()),
        };
        Err(OutOfRange::new(key, "at least 1", 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variable::InitializerSpec;

    fn variable(name: &str, shape: &[usize]) -> VariableSpec {
        VariableSpec {
            name: name.into(),
            shape: crate::tensor::Shape(shape.to_vec()),
            dtype: crate::tensor::DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        }
    }

    fn placed(variable: u32, row: u64, rows: u64, ps: u32) -> PlacedSlice {
        let slice = SliceSpec { variable: VariableId(variable), row, rows };
        PlacedSlice { slice, shard: ShardId::new(ps, 0) }
    }

    #[test]
    fn covering_slices_pass_and_faults_are_refused() {
        let variables = [variable("a", &[4, 2]), variable("b", &[])];
        let good = Placement {
            epoch: PlacementEpoch(1),
            shards: vec![ShardId::new(0, 0), ShardId::new(1, 0)],
            slices: vec![placed(0, 0, 3, 0), placed(0, 3, 1, 1), placed(1, 0, 1, 0)],
        };
        good.validate(&variables).unwrap();
        assert_eq!(good.on_shard(ShardId::new(0, 0)).map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 2]);
        let with = |change: fn(&mut Placement)| {
            let mut placement = good.clone();
            change(&mut placement);
            assert_ne!(placement.digest(), good.digest());
            placement.validate(&variables).unwrap_err()
        };
        assert_eq!(with(|p| p.shards.clear()), PlacementError::NoShards);
        // The chief could not begin a later epoch.
        let last = PlacementEpoch(u64::MAX);
        assert_eq!(with(|p| p.epoch = PlacementEpoch(u64::MAX)), PlacementError::Epoch(last));
        assert!(matches!(with(|p| p.shards[1] = p.shards[0]), PlacementError::DuplicateShard(_)));
        assert!(matches!(with(|p| p.slices[0].shard.ps = 9), PlacementError::UnknownShard { .. }));
        assert!(matches!(with(|p| p.slices[1].slice.row = 2), PlacementError::NotCovering { .. }));
        assert!(matches!(with(|p| p.slices[1].slice.rows = u64::MAX), PlacementError::NotCovering { .. }));
        assert!(matches!(with(|p| p.slices[0].slice.rows = 0), PlacementError::NotCovering { .. }));
        assert!(matches!(with(|p| p.slices.push(placed(2, 0, 1, 0))), PlacementError::NotCovering { .. }));
        assert_eq!(with(|p| p.slices.truncate(2)), PlacementError::Incomplete(VariableId(1)));
    }
}
