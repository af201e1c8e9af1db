//! Places the variables on shards that workers host. Each worker exchanges messages with each shard that owns
//! slices, so a small model is placed on few of them. On one host, a larger one is, too.

use std::collections::BTreeMap;

use pushpull_messages::graph::Stages;
use pushpull_messages::id::{PlacementEpoch, ShardId};
use pushpull_messages::optimizer::UpdateSpec;
use pushpull_messages::placement::{
    AUTO_SLICE_BYTES_MIN, PartitionerSpec, Placement, PlacementSpec, SHARDS_MAX,
};
use pushpull_messages::variable::VariableSpec;

use super::place::PlaceError;
use super::stages::place_stages;

/// The number of workers for which one task may own all slices. It adds up their gradients one after the
/// other.
const ONE_OWNER_WORKERS_MAX: u32 = 4;
/// The number of bytes of the variables that one task may own. A deterministic job holds the gradients of all
/// workers, of which a task takes 4 GiB.
const ONE_OWNER_BYTES_MAX: u64 = 512 << 20;

/// The shards that workers host.
#[derive(Clone, Copy, Debug)]
pub struct HostedShards<'a> {
    /// The shards that the tasks in the workers have announced.
    pub shards: &'a [ShardId],
    /// The largest number of workers that the job may have.
    pub workers_max: u32,
    /// Whether one task should own all slices, if there are at most 4 workers, and at most 512 MiB of
    /// variables. This suits synchronous jobs on one host: workers read the values of one task in its memory,
    /// but have to put together a variable that is split among several.
    pub prefers_one_owner: bool,
}

/// Decides how the variables are split into slices, and which shard owns each slice, as [`place_stages`]
/// does, but lets only the first 1, 2, 4 and so on of the tasks own slices, if that costs little: the task
/// with the most bytes has at most a quarter more than on all tasks, and at most [`AUTO_SLICE_BYTES_MIN`]
/// more. [`HostedShards::prefers_one_owner`] lets one task own more. The placement lists all shards
/// nevertheless.
///
/// If the partitioner is not `auto`, if a variable requests a device, or if the graph has stages,
/// [`place_stages`] decides alone.
///
/// # Errors
/// As [`place_stages`].
pub fn place_in_workers(
    spec: &PlacementSpec,
    update: &UpdateSpec,
    variables: &[VariableSpec],
    stages: &Stages,
    hosted: HostedShards<'_>,
    shard_bytes_max: u64,
    epoch: PlacementEpoch,
) -> Result<Placement, PlaceError> {
    let HostedShards { shards, workers_max, prefers_one_owner } = hosted;
    let on =
        |shards: &[ShardId]| place_stages(spec, update, variables, stages, shards, shard_bytes_max, epoch);
    let all = on(shards)?;
    let chosen = stages.count() > 1 || variables.iter().any(|variable| variable.device.is_some());
    if spec.partitioner != PartitionerSpec::Auto || chosen {
        return Ok(all);
    }
    let mut tasks: Vec<u32> = shards.iter().map(|shard| shard.ps).collect();
    tasks.sort_unstable();
    tasks.dedup();
    let fullest = fullest_task(&all, variables);
    let bytes_max = fullest + (fullest / 4).min(AUTO_SLICE_BYTES_MIN);
    let one_owner = prefers_one_owner && workers_max <= ONE_OWNER_WORKERS_MAX;
    let counts = std::iter::successors(Some(1usize), |count| count.checked_mul(2));
    for count in counts.take_while(|&count| count < tasks.len()) {
        let few: Vec<ShardId> =
            shards.iter().copied().filter(|shard| tasks[..count].contains(&shard.ps)).collect();
        // Fewer tasks may need more shards for all bytes, or more than they may have.
        let Ok(mut placement) = on(&few) else { continue };
        let fewer = placement.shards_with_slices().len() < all.shards_with_slices().len();
        placement.shards.extend(shards);
        placement.shards.sort_unstable();
        placement.shards.dedup();
        let fits = placement.shards.len() <= SHARDS_MAX;
        let bytes = fullest_task(&placement, variables);
        let has_one_owner = one_owner && count == 1 && bytes <= ONE_OWNER_BYTES_MAX;
        if fewer && fits && (bytes <= bytes_max || has_one_owner) {
            return Ok(placement);
        }
    }
    Ok(all)
}

/// Returns the number of bytes of the task that has the most.
fn fullest_task(placement: &Placement, variables: &[VariableSpec]) -> u64 {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for placed in &placement.slices {
        let variable = &variables[placed.slice.variable.index()];
        *bytes.entry(placed.shard.ps).or_default() += placed.slice.elements(variable) as u64 * 4;
    }
    bytes.into_values().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::optimizer::OptimizerSpec;
    use pushpull_messages::placement::StrategySpec;
    use pushpull_messages::tensor::{DType, Shape};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    const GREEDY: PlacementSpec =
        PlacementSpec { strategy: StrategySpec::GreedyLoadBalancing, partitioner: PartitionerSpec::Auto };

    fn variables(shapes: &[[usize; 2]]) -> Vec<VariableSpec> {
        let variable = |(position, shape): (usize, &[usize; 2])| VariableSpec {
            name: format!("v{position}"),
            shape: Shape(shape.to_vec()),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        };
        shapes.iter().enumerate().map(variable).collect()
    }

    fn shards(tasks: u32, each: u32) -> Vec<ShardId> {
        (0..tasks).flat_map(|ps| (0..each).map(move |shard| ShardId::new(ps, shard))).collect()
    }

    /// Returns the graph's stages; there is one.
    fn one_stage() -> Stages {
        let mut g = GraphBuilder::new("g");
        let kernel = g.variable("kernel", [1], InitializerSpec::Zeros);
        let loss = g.l2_loss(kernel);
        g.finish(loss, &[]).unwrap().stages()
    }

    fn placed(spec: &PlacementSpec, shapes: &[[usize; 2]], hosted: HostedShards<'_>) -> Placement {
        let (update, variables) = (OptimizerSpec::sgd(0.1).into(), variables(shapes));
        let epoch = PlacementEpoch(1);
        place_in_workers(spec, &update, &variables, &one_stage(), hosted, u64::MAX, epoch).unwrap()
    }

    /// Returns the number of shards that own slices, without and with a preference for one owner.
    fn owners(shapes: &[[usize; 2]], tasks: u32) -> [usize; 2] {
        owners_up_to(shapes, tasks, tasks)
    }

    /// Returns the same for a job that more workers may join.
    fn owners_up_to(shapes: &[[usize; 2]], tasks: u32, workers_max: u32) -> [usize; 2] {
        let shards = shards(tasks, 1);
        [false, true].map(|prefers_one_owner| {
            let hosted = HostedShards { shards: &shards, workers_max, prefers_one_owner };
            let placement = placed(&GREEDY, shapes, hosted);
            assert_eq!(placement.shards, shards);
            placement.shards_with_slices().len()
        })
    }

    proptest! {
        #[test]
        fn few_tasks_have_little_more_than_all(
            shapes in prop::collection::vec((1usize..700, 1usize..700).prop_map(|(rows, columns)| [rows, columns]), 1..9),
            tasks in 1u32..9,
            more in 0u32..3,
            each in 1u32..3,
            round_robin: bool,
            prefers_one_owner: bool,
            shard_bytes_max in prop::sample::select(&[4096u64, 1 << 18, 1 << 40][..]),
        ) {
            let strategy =
                if round_robin { StrategySpec::RoundRobin } else { StrategySpec::GreedyLoadBalancing };
            let (spec, shards) = (PlacementSpec { strategy, ..GREEDY }, shards(tasks, each));
            let (update, variables) = (OptimizerSpec::sgd(0.1).into(), variables(&shapes));
            let (stages, epoch) = (one_stage(), PlacementEpoch(1));
            let hosted = HostedShards { shards: &shards, workers_max: tasks + more, prefers_one_owner };
            let on_all = place_stages(&spec, &update, &variables, &stages, &shards, shard_bytes_max, epoch);
            let placement =
                place_in_workers(&spec, &update, &variables, &stages, hosted, shard_bytes_max, epoch);
            prop_assert_eq!(placement.as_ref().err(), on_all.as_ref().err());
            let (Ok(placement), Ok(on_all)) = (placement, on_all) else { return Ok(()) };
            placement.validate(&variables).unwrap();
            prop_assert!(shards.iter().all(|shard| placement.shards.contains(shard)));
            prop_assert!(placement.shards.is_sorted());
            let (few, all) = (fullest_task(&placement, &variables), fullest_task(&on_all, &variables));
            let little_more = few <= all + (all / 4).min(AUTO_SLICE_BYTES_MIN);
            let has_one_owner = placement.shards_with_slices().iter().all(|shard| shard.ps == 0);
            let may_have = prefers_one_owner && tasks + more <= 4;
            prop_assert!(little_more || may_have && has_one_owner, "{few} and {all} bytes");
            prop_assert!(placement.shards_with_slices().len() <= on_all.shards_with_slices().len());
        }
    }

    #[test]
    fn a_small_model_is_on_one_task() {
        let shapes = [[784, 128], [128, 1], [128, 10], [10, 1]];
        assert_eq!(owners(&shapes, 4), [1, 1]);
        let (every, shards) = (PlacementSpec { partitioner: PartitionerSpec::None, ..GREEDY }, shards(4, 1));
        let hosted = HostedShards { shards: &shards, workers_max: 4, prefers_one_owner: true };
        let placement = placed(&every, &shapes, hosted);
        assert_eq!(placement.shards_with_slices().len(), 4);
    }

    #[test]
    fn a_large_model_is_on_all_tasks() {
        assert_eq!(owners(&[[4096, 1024], [1024, 1]], 4)[0], 4);
    }

    #[test]
    fn two_tasks_are_enough_for_two_large_variables() {
        // 1.5 MiB each are too few to split.
        assert_eq!(owners(&[[512, 768], [512, 768], [64, 1]], 4), [2, 1]);
    }

    #[test]
    fn one_owner_serves_few_workers_and_no_huge_model() {
        let large = [[4096, 1024], [1024, 1]];
        assert_eq!(
            [2, 3, 4, 5, 8].map(|tasks| owners(&large, tasks)),
            [[2, 1], [3, 1], [4, 1], [4, 4], [8, 8]]
        );
        assert_eq!([4, 5, 16].map(|max| owners_up_to(&large, 2, max)), [[2, 1], [2, 2], [2, 2]]);
        // 512 MiB, and a row more.
        let huge = [1 << 17, (1 << 17) + 1].map(|rows| owners(&[[rows, 1024]], 4));
        assert_eq!(huge, [[4, 1], [4, 4]]);
    }
}
