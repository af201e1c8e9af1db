//! Places the variables of a graph that has stages: each stage has shards of its own on every ps task, so
//! that a worker uses only the shards of the variables that it owns.

use std::collections::BTreeMap;

use pushpull_messages::graph::Stages;
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId};
use pushpull_messages::optimizer::UpdateSpec;
use pushpull_messages::placement::{Placement, PlacementSpec, SHARDS_MAX, SHARDS_PER_TASK_MAX};
use pushpull_messages::variable::{DeviceSpec, VariableSpec};

use super::place::{PlaceError, place};

/// Decides how the variables are split into slices, and which shard owns each slice, as [`place`] does, so
/// that no shard has variables of two stages. The first stage that owns a variable gets the announced
/// `shards`, and each further one as many shards on each task, after those of the stages before it.
///
/// # Errors
/// As [`place`].
pub fn place_stages(
    spec: &PlacementSpec,
    update: &UpdateSpec,
    variables: &[VariableSpec],
    stages: &Stages,
    shards: &[ShardId],
    shard_bytes_max: u64,
    epoch: PlacementEpoch,
) -> Result<Placement, PlaceError> {
    if stages.count() == 1 || variables.is_empty() {
        return place(spec, update, variables, shards, shard_bytes_max, epoch);
    }
    let mut whole = Placement { epoch, shards: Vec::new(), slices: Vec::new() };
    // For each task, the index of its next shard.
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for stage in 0..stages.count() {
        let owned: Vec<VariableId> = (0..variables.len() as u32)
            .map(VariableId)
            .filter(|&variable| stages.owner(variable) == stage)
            .collect();
        if owned.is_empty() {
            continue;
        }
        let seat = |shard: ShardId| {
            let first = next.get(&shard.ps).copied().unwrap_or_default();
            let index = first.saturating_add(shard.shard);
            let full = PlaceError::TooManyStages { task: shard.task(), stages: stages.count() };
            if index < SHARDS_PER_TASK_MAX { Ok(ShardId::new(shard.ps, index)) } else { Err(full) }
        };
        let own_shards = shards.iter().map(|&shard| seat(shard)).collect::<Result<Vec<_>, _>>()?;
        let own_variable = |variable: &VariableId| {
            let mut own = variables[variable.index()].clone();
            if let Some(device) = own.device.filter(|device| shards.contains(&device.shard)) {
                own.device = Some(DeviceSpec { shard: seat(device.shard)? });
            }
            Ok(own)
        };
        let own = owned.iter().map(own_variable).collect::<Result<Vec<_>, PlaceError>>()?;
        let placed = place(spec, update, &own, &own_shards, shard_bytes_max, epoch)?;
        for shard in &placed.shards {
            let next = next.entry(shard.ps).or_default();
            *next = (shard.shard + 1).max(*next);
        }
        // The first stage has the announced shards, also those without slices, as a graph without stages has.
        let is_used = |shard: &ShardId| whole.shards.is_empty() || placed.on_shard(*shard).next().is_some();
        let used: Vec<ShardId> = placed.shards.iter().copied().filter(is_used).collect();
        whole.shards.extend(used);
        whole.slices.extend(placed.slices.into_iter().map(|mut slice| {
            slice.slice.variable = owned[slice.slice.variable.index()];
            slice
        }));
    }
    whole.shards.sort_unstable();
    whole.slices.sort_by_key(|placed| (placed.slice.variable, placed.slice.row));
    if whole.shards.len() > SHARDS_MAX {
        return Err(PlaceError::TooManyShards { shards: whole.shards.len() });
    }
    debug_assert_eq!(whole.validate(variables), Ok(()), "P1");
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::graph::{GraphBuilder, GraphSpec};
    use pushpull_messages::optimizer::OptimizerSpec;
    use pushpull_messages::placement::{PartitionerSpec, StrategySpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    /// Returns a graph with a variable of `rows` rows in each of these stages. Variable 0 requests a shard.
    fn graph(variables: &[(u32, usize)]) -> GraphSpec {
        let mut g = GraphBuilder::new("g");
        let mut x = g.input("x", [1]);
        for (index, &(stage, rows)) in variables.iter().enumerate() {
            x = g.device(&format!("/job:worker/task:{stage}"), |g| {
                let kernel = g.variable(&format!("v{index}"), [rows, 2], InitializerSpec::Zeros);
                let sum = g.l2_loss(kernel);
                g.add(x, sum)
            });
        }
        let loss = g.l2_loss(x);
        let mut graph = g.finish(loss, &[]).unwrap();
        graph.variables[0].device = Some("/job:ps/task:0".parse().unwrap());
        graph
    }

    fn placed(graph: &GraphSpec, shards: &[ShardId], bytes_max: u64) -> Result<Placement, PlaceError> {
        let partitioner = PartitionerSpec::Fixed { slices: 3 };
        let spec = PlacementSpec { strategy: StrategySpec::GreedyLoadBalancing, partitioner };
        let update = OptimizerSpec::sgd(0.1).into();
        place_stages(&spec, &update, &graph.variables, &graph.stages(), shards, bytes_max, PlacementEpoch(1))
    }

    proptest! {
        #[test]
        fn no_shard_has_variables_of_two_stages(
            variables in prop::collection::vec((0u32..4, 1usize..40), 1..9),
            tasks in 1u32..4,
            each in 1u32..4,
            bytes_max in prop::sample::select(&[64u64, 256, 1 << 20][..]),
        ) {
            let graph = graph(&variables);
            let shards: Vec<ShardId> =
                (0..tasks).flat_map(|ps| (0..each).map(move |shard| ShardId::new(ps, shard))).collect();
            let placement = placed(&graph, &shards, bytes_max).unwrap();
            placement.validate(&graph.variables).unwrap();
            let stages = graph.stages();
            let mut owners = BTreeMap::new();
            for slice in &placement.slices {
                let owner = stages.owner(slice.slice.variable);
                prop_assert_eq!(*owners.entry(slice.shard).or_insert(owner), owner, "{}", slice.shard);
            }
            // Every stage with variables has shards on every task, and a requested task is obeyed.
            prop_assert!(placement.shards.iter().all(|shard| shard.ps < tasks));
            prop_assert!(placement.on_shard(ShardId::new(0, 0)).count() <= placement.slices.len());
            let requested = placement.slices.iter().filter(|slice| slice.slice.variable.0 == 0);
            prop_assert!(requested.clone().count() > 0);
            for slice in requested {
                prop_assert_eq!(slice.shard.ps, 0);
            }
        }
    }

    #[test]
    fn a_graph_without_stages_is_placed_as_before() {
        let (graph, shards) = (graph(&[(0, 5), (0, 7)]), [ShardId::new(0, 0), ShardId::new(1, 0)]);
        let spec = PlacementSpec::default();
        let (update, epoch) = (OptimizerSpec::sgd(0.1).into(), PlacementEpoch(1));
        let expected = place(&spec, &update, &graph.variables, &shards, u64::MAX, epoch).unwrap();
        let stages = graph.stages();
        let placement = place_stages(&spec, &update, &graph.variables, &stages, &shards, u64::MAX, epoch);
        assert_eq!(placement.unwrap(), expected);
    }

    #[test]
    fn stages_beyond_the_shards_of_a_task_are_refused() {
        let variables: Vec<(u32, usize)> = (0..3).map(|stage| (stage, 1)).collect();
        let shards: Vec<ShardId> = (0..100).map(|shard| ShardId::new(0, shard)).collect();
        let error = placed(&graph(&variables), &shards, u64::MAX).unwrap_err();
        assert!(matches!(error, PlaceError::TooManyStages { stages: 3, .. }), "{error}");
    }
}
