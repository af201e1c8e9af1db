//! Combines the partitioner, the explicit devices and the strategy into one placement, both at the start of
//! a job and after its shards have changed.

use std::collections::BTreeMap;

use pushpull_messages::id::{PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::optimizer::UpdateSpec;
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_messages::placement::{
    PartitionerSpec, PlacedSlice, Placement, PlacementSpec, SHARDS_MAX, SHARDS_PER_TASK_MAX, SLICES_MAX,
    StrategySpec,
};
use pushpull_messages::variable::{DeviceSpec, VariableError, VariableSpec};

use super::greedy::Greedy;
use super::overflow::{Overflow, slice_bytes_max};
use super::partitioner;
use super::round_robin::RoundRobin;

/// The largest number of devices that an error lists.
const LISTED_MAX: usize = 8;

/// The reason why variables cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The list of shards is empty.
    #[error("there is no shard to place variables on: expected at least one ps task with one shard")]
    NoShards,
    /// A shard is listed twice.
    #[error("{0} is listed twice among the shards: expected each shard once")]
    DuplicateShard(ShardId),
    /// A setting of the partitioner is invalid.
    #[error(transparent)]
    Partitioner(#[from] OutOfRange),
    /// The description of a variable is invalid.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The partitioner makes more slices than [`SLICES_MAX`].
    #[error(
        "the variables are split into {slices} slices, expected at most {SLICES_MAX}: let the partitioner make fewer and larger slices"
    )]
    TooManySlices {
        /// The number of slices that the partitioner makes.
        slices: u64,
    },
    /// The values of one ps task do not fit on as many shards as it may have.
    #[error(
        "the values of {task} do not fit on {SHARDS_PER_TASK_MAX} shards of at most {shard_bytes_max} bytes each: use more ps tasks"
    )]
    TaskTooLarge {
        /// The ps task.
        task: TaskId,
        /// The number of bytes that fit on one shard.
        shard_bytes_max: u64,
    },
    /// A ps task would have more shards than [`SHARDS_PER_TASK_MAX`], because each stage of the graph has
    /// shards of its own.
    #[error(
        "{task} cannot have shards of its own for each of {stages} stages, because {SHARDS_PER_TASK_MAX} is the most: use fewer shards per ps task"
    )]
    TooManyStages {
        /// The ps task.
        task: TaskId,
        /// The number of stages.
        stages: u32,
    },
    /// The placement has more shards than [`SHARDS_MAX`].
    #[error(
        "the variables need {shards} shards, expected at most {SHARDS_MAX}: use fewer ps tasks or shards"
    )]
    TooManyShards {
        /// The number of shards.
        shards: usize,
    },
    /// A variable requests a device that is not a shard of the cluster.
    #[error(
        "variable '{variable}' requests device '{device}', which is not in the cluster: expected one of {valid}"
    )]
    Device {
        /// The name of the variable.
        variable: String,
        /// The device that the variable requests.
        device: DeviceSpec,
        /// The existing devices. If there are more than 8, the first 8 are listed, and the others are only
        /// counted.
        valid: String,
    },
}

// Wanted properties, each of which has a property test:
// (A) the placement is deterministic, and independent of the order in which the shards are listed;
// (B) every slice is placed exactly once, so that `Placement::validate` holds (P1);
// (C) greedy load balancing: the heaviest shard exceeds the mean by at most the size of the largest slice, in
// bytes;
// (D) adding a variable at the end does not move the slices of other variables;
// (E) round robin: the numbers of slices on the shards differ by at most one;
// (F) explicit devices are obeyed, except that slices which do not fit on the shard go to others of its task;
// (G) no slice is larger than `max_slice_bytes`, except slices of a single row and variables of (H);
// (H) a variable whose optimizer needs it whole has one slice;
// (I) greedy load balancing with the partitioner `auto`: the heaviest shard exceeds the mean by at most the
// largest part that is not split further, in bytes. A variable with one slice for each shard counts with one
// row, any other variable with its largest slice;
// (J) no shard has more bytes than fit on it, except a shard that has a single row of one variable, or a
// single variable of (H).
// (C), (E) and (I) describe the strategies alone. They hold only if no variable has an explicit device, and
// if all slices fit on the shards that the tasks have announced.

/// Decides how the variables are split into slices, and which shard owns each slice.
///
/// `shards` are the shards that the ps tasks have announced. At most `shard_bytes_max` bytes of values fit on
/// one of them, with their padding. Slices that do not fit go to further shards of the same task, which the
/// placement lists. A variable is split into as many slices as it takes to fit, whatever the partitioner
/// says.
///
/// A variable is never split if its optimizer, such as LAMB, needs the whole variable.
///
/// If a variable has an explicit device, all its slices go to that shard, whatever the strategy. Round robin
/// does not count these slices as turns; greedy load balancing counts their bytes as load of the shard. Both
/// strategies consider shard 0 of every ps task first, then shard 1 of every task and so on, so that a model
/// with few variables is spread over the hosts.
///
/// # Errors
/// Returns an error if a setting, a variable or a device is invalid, if there is no shard, if a shard is
/// listed twice, if there would be more than [`SLICES_MAX`] slices or [`SHARDS_MAX`] shards, or if a task
/// would have more than [`SHARDS_PER_TASK_MAX`] shards.
pub fn place(
    spec: &PlacementSpec,
    update: &UpdateSpec,
    variables: &[VariableSpec],
    shards: &[ShardId],
    shard_bytes_max: u64,
    epoch: PlacementEpoch,
) -> Result<Placement, PlaceError> {
    spec.partitioner.validate()?;
    let shards = sorted(shards)?;
    let counts = counts(spec, update, variables, &shards, shard_bytes_max)?;
    let mut dealing = shards.clone();
    dealing.sort_unstable_by_key(|shard| (shard.shard, shard.ps));
    let positions: BTreeMap<ShardId, usize> =
        dealing.iter().enumerate().map(|(position, &shard)| (shard, position)).collect();

    let mut strategy = match spec.strategy {
        StrategySpec::RoundRobin => Strategy::RoundRobin(RoundRobin::new(shards.len())),
        StrategySpec::GreedyLoadBalancing => Strategy::Greedy(Greedy::new(shards.len())),
    };
    let mut overflow = Overflow::new(shard_bytes_max, &shards);
    let mut slices = Vec::with_capacity(counts.iter().sum::<u64>() as usize);
    for ((id, variable), count) in (0u32..).zip(variables).zip(counts) {
        let fixed =
            variable.device.map(|device| position(&positions, &shards, variable, device)).transpose()?;
        for slice in partitioner::split(VariableId(id), variable, count) {
            let position = strategy.take(fixed, slice.elements(variable) as u64 * 4);
            let (chosen, bytes) = (dealing[position], slice.wire_bytes(variable));
            let too_large = PlaceError::TaskTooLarge { task: chosen.task(), shard_bytes_max };
            slices.push(PlacedSlice { slice, shard: overflow.seat(chosen, bytes).ok_or(too_large)? });
        }
    }
    let shards = overflow.shards(&shards);
    if shards.len() > SHARDS_MAX {
        return Err(PlaceError::TooManyShards { shards: shards.len() });
    }
    let placement = Placement { epoch, shards, slices };
    debug_assert_eq!(placement.validate(variables), Ok(()), "P1");
    Ok(placement)
}

enum Strategy {
    RoundRobin(RoundRobin),
    Greedy(Greedy),
}

impl Strategy {
    /// Returns the position of the shard that gets the next slice; `fixed` is the position of the shard that
    /// the variable's explicit device names, if it has one.
    fn take(&mut self, fixed: Option<usize>, bytes: u64) -> usize {
        match (self, fixed) {
            (Self::RoundRobin(_), Some(position)) => position,
            (Self::RoundRobin(turn), None) => turn.take(),
            (Self::Greedy(load), Some(position)) => {
                load.add(position, bytes);
                position
            }
            (Self::Greedy(load), None) => load.take(bytes),
        }
    }
}

/// Sorts the shards, because property (A) requires that the order in which tasks register does not matter.
fn sorted(shards: &[ShardId]) -> Result<Vec<ShardId>, PlaceError> {
    let mut shards = shards.to_vec();
    shards.sort_unstable();
    if shards.is_empty() {
        return Err(PlaceError::NoShards);
    }
    match shards.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(PlaceError::DuplicateShard(twice[0])),
        None => Ok(shards),
    }
}

/// Returns the number of slices of each variable. The sum is checked before any slice is allocated.
fn counts(
    spec: &PlacementSpec,
    update: &UpdateSpec,
    variables: &[VariableSpec],
    shards: &[ShardId],
    shard_bytes_max: u64,
) -> Result<Vec<u64>, PlaceError> {
    let fitting = PartitionerSpec::MaxSliceBytes { bytes: slice_bytes_max(shard_bytes_max) };
    if variables.len() > SLICES_MAX {
        return Err(PlaceError::TooManySlices { slices: variables.len() as u64 });
    }
    let mut counts = Vec::with_capacity(variables.len());
    for variable in variables {
        variable.validate()?;
        let count = |partitioner| partitioner::slices(partitioner, variable, shards);
        let whole = update.needs_whole(variable);
        counts.push(if whole { 1 } else { count(spec.partitioner).max(count(fitting)) });
    }
    // The sum cannot overflow: there are at most 2^20 variables of at most 2^40 rows each.
    let slices = counts.iter().sum();
    if slices > SLICES_MAX as u64 { Err(PlaceError::TooManySlices { slices }) } else { Ok(counts) }
}

fn position(
    positions: &BTreeMap<ShardId, usize>,
    shards: &[ShardId],
    variable: &VariableSpec,
    device: DeviceSpec,
) -> Result<usize, PlaceError> {
    positions.get(&device.shard).copied().ok_or_else(|| {
        let listed: Vec<String> =
            shards.iter().take(LISTED_MAX).map(|&shard| DeviceSpec { shard }.to_string()).collect();
        let mut valid = listed.join(", ");
        if shards.len() > LISTED_MAX {
            valid.push_str(&format!(" and {} more", shards.len() - LISTED_MAX));
        }
        PlaceError::Device { variable: variable.name.clone(), device, valid }
    })
}
