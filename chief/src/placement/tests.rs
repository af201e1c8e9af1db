//! Tests of placement: one property test for each of the properties (A) to (J) in `place.rs`, and a test of
//! every error. The tests use only the exported functions.

use proptest::prelude::*;
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId};
use pushpull_messages::optimizer::{GroupSpec, OptimizerSpec, UpdateSpec};
use pushpull_messages::placement::{
    PartitionerSpec, PlacedSlice, Placement, PlacementSpec, SLICES_MAX, SliceSpec, StrategySpec,
};
use pushpull_messages::tensor::{DType, Shape};
use pushpull_messages::variable::{DeviceSpec, InitializerSpec, VariableSpec};

use super::*;

const ROUND_ROBIN: StrategySpec = StrategySpec::RoundRobin;
const GREEDY: StrategySpec = StrategySpec::GreedyLoadBalancing;

fn variable(name: &str, shape: &[usize]) -> VariableSpec {
    VariableSpec {
        name: name.into(),
        shape: Shape(shape.to_vec()),
        dtype: DType::F32,
        initializer: InitializerSpec::Zeros,
        trainable: true,
        device: None,
    }
}

fn on(device: &str, variable: VariableSpec) -> VariableSpec {
    VariableSpec { device: Some(device.parse().unwrap()), ..variable }
}

fn one_shard_each(tasks: u32) -> Vec<ShardId> {
    (0..tasks).map(|ps| ShardId::new(ps, 0)).collect()
}

fn placed(
    strategy: StrategySpec,
    partitioner: PartitionerSpec,
    variables: &[VariableSpec],
    shards: &[ShardId],
) -> Result<Placement, PlaceError> {
    let update = OptimizerSpec::sgd(0.1).into();
    place(&PlacementSpec { strategy, partitioner }, &update, variables, shards, u64::MAX, PlacementEpoch(1))
}

/// Places one variable with the shape `shape` on `shards` ps tasks. Returns the number of rows of each
/// slice.
fn rows(partitioner: PartitionerSpec, shape: &[usize], shards: u32) -> Vec<u64> {
    let placement =
        placed(ROUND_ROBIN, partitioner, &[variable("v", shape)], &one_shard_each(shards)).unwrap();
    placement.slices.iter().map(|placed| placed.slice.rows).collect()
}

/// Returns, for each slice, the index of the ps task that owns it.
fn tasks(placement: &Placement) -> Vec<u32> {
    placement.slices.iter().map(|placed| placed.shard.ps).collect()
}

fn loads(placement: &Placement, variables: &[VariableSpec]) -> Vec<u64> {
    let bytes =
        |placed: &PlacedSlice| placed.slice.elements(&variables[placed.slice.variable.index()]) as u64 * 4;
    let load = |&shard| placement.slices.iter().filter(|placed| placed.shard == shard).map(bytes).sum();
    placement.shards.iter().map(load).collect()
}

#[test]
fn partitioners_split_as_documented() {
    assert_eq!(rows(PartitionerSpec::None, &[10, 3], 4), [10]);
    assert_eq!(rows(PartitionerSpec::Fixed { slices: 4 }, &[10, 3], 2), [3, 3, 2, 2]);
    assert_eq!(rows(PartitionerSpec::Fixed { slices: 4 }, &[3], 2), [1, 1, 1]);
    assert_eq!(rows(PartitionerSpec::Fixed { slices: 4 }, &[], 2), [1]);
    // A row has 12 bytes.
    assert_eq!(rows(PartitionerSpec::MaxSliceBytes { bytes: 48 }, &[10, 3], 2), [4, 3, 3]);
    assert_eq!(rows(PartitionerSpec::MaxSliceBytes { bytes: 47 }, &[10, 3], 2), [3, 3, 2, 2]);
    assert_eq!(rows(PartitionerSpec::MaxSliceBytes { bytes: 120 }, &[10, 3], 2), [10]);
    assert_eq!(rows(PartitionerSpec::MaxSliceBytes { bytes: 1 }, &[3, 3], 2), [1, 1, 1]);
    assert_eq!(rows(PartitionerSpec::MinMax { bytes_min: 1 }, &[10, 3], 4), [3, 3, 2, 2]);
    assert_eq!(rows(PartitionerSpec::MinMax { bytes_min: 24 }, &[10, 3], 4), [3, 3, 2, 2]);
    assert_eq!(rows(PartitionerSpec::MinMax { bytes_min: 25 }, &[10, 3], 4), [4, 3, 3]);
    assert_eq!(rows(PartitionerSpec::MinMax { bytes_min: 121 }, &[10, 3], 4), [10]);
}

#[test]
fn auto_splits_large_variables_over_the_tasks() {
    const AUTO: PartitionerSpec = PartitionerSpec::Auto;
    assert_eq!(PlacementSpec::default().partitioner, AUTO);
    // A row has 4 KiB, so 256 rows have 1 MiB.
    assert_eq!(rows(AUTO, &[2048, 1024], 4), [512; 4]);
    assert_eq!(rows(AUTO, &[1023, 1024], 4), [341; 3], "no slice has less than 1 MiB");
    assert_eq!(rows(AUTO, &[511, 1024], 4), [511]);
    assert_eq!(rows(AUTO, &[3, 1 << 20], 4), [1; 3], "there is no slice without rows");
    assert_eq!(rows(AUTO, &[2048, 1024], 1), [2048]);
    let large = variable("v", &[2048, 1024]);
    let count = |variable: VariableSpec, shards: &[ShardId]| {
        placed(ROUND_ROBIN, AUTO, &[variable], shards).unwrap().slices.len()
    };
    let one_task = [0, 1, 2].map(|shard| ShardId::new(0, shard));
    assert_eq!(count(large.clone(), &one_task), 1, "one task gains nothing");
    let two_tasks = [ShardId::new(0, 0), ShardId::new(0, 1), ShardId::new(1, 0)];
    assert_eq!(count(large.clone(), &two_tasks), 3);
    assert_eq!(count(on("/job:ps/task:1", large), &two_tasks), 1, "a device takes the whole variable");
}

#[test]
fn what_does_not_fit_goes_to_further_shards() {
    let place = |strategy, variables: &[VariableSpec], update: UpdateSpec, bytes_max| {
        let spec = PlacementSpec { strategy, partitioner: PartitionerSpec::None };
        place(&spec, &update, variables, &one_shard_each(2), bytes_max, PlacementEpoch(1))
    };
    let sgd = || UpdateSpec::from(OptimizerSpec::sgd(0.1));
    let seats = |placement: &Placement| {
        placement.slices.iter().map(|placed| (placed.slice.rows, placed.shard)).collect::<Vec<_>>()
    };
    // A row has 64 bytes, and two rows fit on a shard.
    let variables = [variable("a", &[5, 16]), variable("b", &[1, 16]), variable("c", &[1, 16])];
    let placement = place(ROUND_ROBIN, &variables, sgd(), 128).unwrap();
    let at = ShardId::new;
    let expected = [(2, at(0, 0)), (2, at(1, 0)), (1, at(0, 1)), (1, at(1, 1)), (1, at(0, 1))];
    assert_eq!(seats(&placement), expected);
    assert_eq!(placement.shards, [at(0, 0), at(0, 1), at(1, 0), at(1, 1)]);
    // A variable with a device stays on its task.
    let placement = place(GREEDY, &[on("/job:ps/task:1", variables[0].clone())], sgd(), 128).unwrap();
    assert_eq!(seats(&placement), [(2, at(1, 0)), (2, at(1, 1)), (1, at(1, 2))]);
    // A variable that LAMB trains has a shard for itself; the ps says whether it fits into a frame.
    let placement = place(ROUND_ROBIN, &variables[..1], OptimizerSpec::lamb(0.1).into(), 128).unwrap();
    assert_eq!(seats(&placement), [(5, at(0, 0))]);
    let error = place(ROUND_ROBIN, &[variable("a", &[600, 16])], sgd(), 64).unwrap_err().to_string();
    assert!(error.contains("ps/0 do not fit on 256 shards of at most 64 bytes"), "{error}");
}

#[test]
fn explicit_devices_take_no_turn_of_round_robin() {
    let variables = [
        variable("a", &[4]),
        on("/job:ps/task:2", variable("b", &[4])),
        variable("c", &[4]),
        variable("d", &[4]),
        variable("e", &[4]),
    ];
    let placement = placed(ROUND_ROBIN, PartitionerSpec::None, &variables, &one_shard_each(3)).unwrap();
    assert_eq!(tasks(&placement), [0, 2, 1, 2, 0]);
    assert_eq!(placement.epoch, PlacementEpoch(1));
}

#[test]
fn greedy_counts_the_bytes_of_explicit_devices() {
    let variables = [
        on("/job:ps/task:0", variable("a", &[100])),
        variable("b", &[60]),
        variable("c", &[60]),
        variable("d", &[30]),
        variable("e", &[5]),
    ];
    let placement = placed(GREEDY, PartitionerSpec::None, &variables, &one_shard_each(2)).unwrap();
    // After c, the tasks have 400 and 480 bytes. d goes to task 0, which then has 520 bytes, so e goes to
    // task 1.
    assert_eq!(tasks(&placement), [0, 1, 1, 0, 1]);
    assert_eq!(loads(&placement, &variables), [520, 500]);
}

#[test]
fn few_variables_spread_over_the_tasks_first() {
    let shards = [ShardId::new(0, 0), ShardId::new(0, 1), ShardId::new(1, 0), ShardId::new(1, 1)];
    let variables = ["a", "b", "c", "d"].map(|name| variable(name, &[4]));
    for strategy in [ROUND_ROBIN, GREEDY] {
        let placement = placed(strategy, PartitionerSpec::None, &variables, &shards).unwrap();
        let dealt: Vec<ShardId> = placement.slices.iter().map(|placed| placed.shard).collect();
        assert_eq!(dealt, [shards[0], shards[2], shards[1], shards[3]]);
        assert_eq!(placement.shards, shards);
    }
}

#[test]
fn what_cannot_be_placed_is_named() {
    let shards = one_shard_each(10);
    let variables = [variable("dense/kernel", &[4])];
    let refused = |partitioner, variables: &[VariableSpec], shards: &[ShardId]| {
        let text = placed(ROUND_ROBIN, partitioner, variables, shards).unwrap_err().to_string();
        assert!(
            !text.contains('\n') && !text.ends_with('.'),
            "expected one line without a full stop: {text}"
        );
        text
    };
    for (partitioner, key) in [
        (PartitionerSpec::Fixed { slices: 0 }, "fixed.slices"),
        (PartitionerSpec::MaxSliceBytes { bytes: 0 }, "max_slice_bytes.bytes"),
        (PartitionerSpec::MinMax { bytes_min: 0 }, "min_max.bytes_min"),
    ] {
        // The setting is refused even if there is nothing to split.
        for variables in [&variables[..], &[]] {
            assert!(refused(partitioner, variables, &shards).contains(key));
        }
    }
    let whole = PartitionerSpec::None;
    assert!(refused(whole, &variables, &[]).contains("no shard"));
    assert!(
        refused(whole, &variables, &[shards[1], shards[0], shards[1]])
            .contains("ps/1/shard/0 is listed twice")
    );
    assert!(refused(whole, &[variable("a", &[2, 0])], &shards).contains("'a' has shape [2, 0]"));

    let elsewhere = [on("/job:ps/task:1/shard:1", variables[0].clone())];
    let error = refused(whole, &elsewhere, &shards[..2]);
    assert!(error.contains("'dense/kernel'") && error.contains("'/job:ps/task:1/shard:1'"), "{error}");
    assert!(error.ends_with("expected one of /job:ps/task:0, /job:ps/task:1"), "{error}");
    assert!(refused(whole, &elsewhere, &shards).ends_with("/job:ps/task:7 and 2 more"));
}

#[test]
fn slices_are_bounded_before_they_are_allocated() {
    let one_more = SLICES_MAX as u64 + 1;
    let by_row = PartitionerSpec::MaxSliceBytes { bytes: 1 };
    let place = |variables: &[VariableSpec]| placed(GREEDY, by_row, variables, &one_shard_each(2));
    assert_eq!(place(&[variable("a", &[SLICES_MAX])]).unwrap().slices.len(), SLICES_MAX);
    let error = place(&[variable("a", &[SLICES_MAX]), variable("b", &[])]).unwrap_err();
    assert_eq!(error, PlaceError::TooManySlices { slices: one_more });
    assert!(error.to_string().contains("at most 1048576"));
    // 2^41 slices would take 80 TiB.
    let error = place(&[variable("a", &[1 << 40]), variable("b", &[1 << 40])]).unwrap_err();
    assert_eq!(error, PlaceError::TooManySlices { slices: 1 << 41 });
}

#[test]
fn the_largest_sizes_do_not_overflow() {
    let variables = [variable("a", &[1 << 40]), variable("b", &[1, 1 << 40]), variable("c", &[])];
    for partitioner in [
        PartitionerSpec::None,
        PartitionerSpec::Fixed { slices: 1000 },
        PartitionerSpec::MaxSliceBytes { bytes: u64::MAX },
        PartitionerSpec::MinMax { bytes_min: u64::MAX },
    ] {
        let placement = placed(GREEDY, partitioner, &variables, &one_shard_each(3)).unwrap();
        placement.validate(&variables).unwrap();
        assert_eq!(loads(&placement, &variables).iter().sum::<u64>(), (2 << 42) + 4);
    }
}

#[test]
fn the_table_shows_every_slice_and_every_load() {
    let variables =
        [variable("dense/kernel", &[784, 512]), variable("dense/bias", &[512]), variable("scale", &[])];
    let partitioner = PartitionerSpec::MaxSliceBytes { bytes: 1 << 20 };
    let placement = placed(ROUND_ROBIN, partitioner, &variables, &one_shard_each(2)).unwrap();
    let expected = "\
variable          rows  shape           bytes  shard
dense/kernel    0..392  [784, 512]  784.0 KiB  ps/0/shard/0
dense/kernel  392..784  [784, 512]  784.0 KiB  ps/1/shard/0
dense/bias         all  [512]         2.0 KiB  ps/0/shard/0
scale              all  []                4 B  ps/1/shard/0

shard         slices      bytes  share
ps/0/shard/0       2  786.0 KiB  50.1%
ps/1/shard/0       2  784.0 KiB  49.9%
total              4    1.5 MiB
";
    assert_eq!(table(&placement, &variables), expected);
}

#[test]
fn the_table_of_an_empty_job_lists_its_shards() {
    let placement = placed(ROUND_ROBIN, PartitionerSpec::None, &[], &one_shard_each(1)).unwrap();
    let expected = "variable  rows  shape  bytes  shard\n\nshard         slices  bytes  share\n\
                    ps/0/shard/0       0    0 B   0.0%\ntotal              0    0 B\n";
    assert_eq!(table(&placement, &[]), expected);
}

fn any_strategy() -> impl Strategy<Value = StrategySpec> {
    prop_oneof![Just(ROUND_ROBIN), Just(GREEDY)]
}

fn any_partitioner() -> impl Strategy<Value = PartitionerSpec> {
    prop_oneof![
        Just(PartitionerSpec::Auto),
        Just(PartitionerSpec::None),
        (1..9u32).prop_map(|slices| PartitionerSpec::Fixed { slices }),
        (1..400u64).prop_map(|bytes| PartitionerSpec::MaxSliceBytes { bytes }),
        (1..400u64).prop_map(|bytes_min| PartitionerSpec::MinMax { bytes_min }),
    ]
}

fn any_shape() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![]),
        prop::collection::vec(1..60usize, 1),
        (1..60usize, 1..20usize).prop_map(|(rows, row)| vec![rows, row]),
    ]
}

fn named((position, (shape, device)): (usize, (Vec<usize>, Option<ShardId>))) -> VariableSpec {
    let device = device.map(|shard| DeviceSpec { shard });
    VariableSpec { device, ..variable(&format!("v{position}"), &shape) }
}

fn free_variables() -> impl Strategy<Value = Vec<VariableSpec>> {
    prop::collection::vec(any_shape(), 0..20)
        .prop_map(|shapes| shapes.into_iter().map(|shape| (shape, None)).enumerate().map(named).collect())
}

/// Draws the shards of up to 5 ps tasks, each with up to 3 shards.
fn any_shards() -> impl Strategy<Value = Vec<ShardId>> {
    prop::collection::vec(1..4u32, 1..6).prop_map(|counts| {
        let task = |(ps, count)| (0..count).map(move |shard| ShardId::new(ps, shard));
        (0u32..).zip(counts).flat_map(task).collect()
    })
}

/// Draws shards and variables. Some of the variables request one of these shards as their device.
fn any_job() -> impl Strategy<Value = (Vec<ShardId>, Vec<VariableSpec>)> {
    any_shards().prop_flat_map(|shards| {
        let device = prop::option::weighted(0.3, prop::sample::select(shards.clone()));
        let variables = prop::collection::vec((any_shape(), device), 0..20)
            .prop_map(|variables| variables.into_iter().enumerate().map(named).collect());
        (Just(shards), variables)
    })
}

proptest! {
    #[test]
    fn a_the_order_of_the_shards_does_not_matter(
        (strategy, partitioner, (shards, variables)) in (any_strategy(), any_partitioner(), any_job()),
        rotation in any::<prop::sample::Index>(),
    ) {
        let placement = placed(strategy, partitioner, &variables, &shards).unwrap();
        let mut rotated = shards.clone();
        rotated.rotate_left(rotation.index(shards.len()));
        let again = placed(strategy, partitioner, &variables, &rotated).unwrap();
        prop_assert_eq!(placement.digest(), again.digest());
        prop_assert_eq!(placement, again);
    }

    #[test]
    fn b_every_slice_exactly_once_and_of_even_size(
        (strategy, partitioner, (shards, variables)) in (any_strategy(), any_partitioner(), any_job()),
    ) {
        let placement = placed(strategy, partitioner, &variables, &shards).unwrap();
        prop_assert_eq!(placement.validate(&variables), Ok(()));
        prop_assert_eq!(&placement.shards, &shards);
        for (id, variable) in (0u32..).zip(&variables) {
            let rows = || placement.slices.iter().map(|placed| placed.slice)
                .filter(|slice| slice.variable == VariableId(id)).map(|slice| slice.rows);
            let (least, most, count) = (rows().min().unwrap(), rows().max().unwrap(), rows().count());
            prop_assert!(most - least <= 1);
            match partitioner {
                // The variables are smaller than the slices of `auto`; (I) has larger ones.
                PartitionerSpec::Auto | PartitionerSpec::None => prop_assert_eq!(count, 1),
                PartitionerSpec::Fixed { slices } => {
                    prop_assert_eq!(count, (slices as usize).min(variable.rows()));
                }
                PartitionerSpec::MaxSliceBytes { .. } => {}
                PartitionerSpec::MinMax { bytes_min } => {
                    let row_bytes = variable.row_elements() as u64 * 4;
                    prop_assert!(count <= shards.len());
                    prop_assert!(count == 1 || least * row_bytes >= bytes_min);
                    // With one more slice, there would be more slices than shards, or a slice would be too
                    // small.
                    let smaller = variable.rows() as u64 / (count as u64 + 1) * row_bytes;
                    prop_assert!(count == shards.len() || smaller < bytes_min);
                }
            }
        }
    }

    #[test]
    fn c_greedy_stays_within_one_slice_of_the_mean(
        (partitioner, variables, shards) in (any_partitioner(), free_variables(), any_shards()),
    ) {
        let placement = placed(GREEDY, partitioner, &variables, &shards).unwrap();
        let loads = loads(&placement, &variables);
        let bytes = |placed: &PlacedSlice| {
            placed.slice.elements(&variables[placed.slice.variable.index()]) as u64 * 4
        };
        let largest = placement.slices.iter().map(bytes).max().unwrap_or(0);
        let (heaviest, total): (u64, u64) = (*loads.iter().max().unwrap(), loads.iter().sum());
        // This is heaviest ≤ total / shards + largest, multiplied by shards to avoid the rounding of a
        // division.
        prop_assert!(heaviest * shards.len() as u64 <= total + largest * shards.len() as u64);
    }

    #[test]
    fn d_adding_a_variable_at_the_end_moves_no_other(
        (strategy, partitioner, (shards, mut variables)) in (any_strategy(), any_partitioner(), any_job()),
        shape in any_shape(),
    ) {
        let before = placed(strategy, partitioner, &variables, &shards).unwrap();
        variables.push(variable("one_more", &shape));
        let after = placed(strategy, partitioner, &variables, &shards).unwrap();
        prop_assert!(after.slices.len() > before.slices.len());
        prop_assert!(after.slices.starts_with(&before.slices));
    }

    #[test]
    fn e_round_robin_deals_out_equal_counts(
        (partitioner, variables, shards) in (any_partitioner(), free_variables(), any_shards()),
    ) {
        let placement = placed(ROUND_ROBIN, partitioner, &variables, &shards).unwrap();
        let counts: Vec<usize> = shards.iter().map(|&shard| placement.on_shard(shard).count()).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn f_explicit_devices_are_obeyed(
        (strategy, partitioner, (shards, variables)) in (any_strategy(), any_partitioner(), any_job()),
    ) {
        let placement = placed(strategy, partitioner, &variables, &shards).unwrap();
        for placed in &placement.slices {
            if let Some(device) = variables[placed.slice.variable.index()].device {
                prop_assert_eq!(placed.shard, device.shard);
            }
        }
        // Under round robin, explicit devices do not change the shards of the other variables.
        if strategy == ROUND_ROBIN {
            let free = |variable: &VariableSpec| variable.device.is_none();
            let others: Vec<VariableSpec> = variables.iter().filter(|v| free(v)).cloned().collect();
            let alone = placed(strategy, partitioner, &others, &shards).unwrap();
            let here = placement.slices.iter()
                .filter(|placed| free(&variables[placed.slice.variable.index()])).map(|placed| placed.shard);
            prop_assert!(here.eq(alone.slices.iter().map(|placed| placed.shard)));
        }
    }

    #[test]
    fn g_max_slice_bytes_is_obeyed_except_by_single_rows(
        (strategy, bytes, (shards, variables)) in (any_strategy(), 1..400u64, any_job()),
    ) {
        let placement = placed(strategy, PartitionerSpec::MaxSliceBytes { bytes }, &variables, &shards).unwrap();
        for placed in &placement.slices {
            let slice = placed.slice;
            let slice_bytes = slice.elements(&variables[slice.variable.index()]) as u64 * 4;
            prop_assert!(slice_bytes <= bytes || slice.rows == 1);
        }
    }

    /// Checks that a variable whose optimizer needs it whole has one slice (H). In the drawn jobs, LAMB
    /// trains all variables, no variables, only those of a group, or only those outside of the group.
    #[test]
    fn h_variables_that_lamb_trains_are_not_split(
        (strategy, partitioner, (shards, variables)) in (any_strategy(), any_partitioner(), any_job()),
        (job, group) in any::<(bool, bool)>(),
    ) {
        let by = |lamb: bool| if lamb { OptimizerSpec::lamb(0.1) } else { OptimizerSpec::adam(0.1) };
        let groups = vec![GroupSpec::new("v1*").optimizer(by(group))];
        let (spec, update) = (PlacementSpec { strategy, partitioner }, UpdateSpec { groups, ..by(job).into() });
        let placement = place(&spec, &update, &variables, &shards, u64::MAX, PlacementEpoch(1)).unwrap();
        let free = placed(strategy, partitioner, &variables, &shards).unwrap();
        for (id, variable) in (0u32..).zip(&variables) {
            let count = |placement: &Placement| {
                placement.slices.iter().filter(|placed| placed.slice.variable == VariableId(id)).count()
            };
            let whole = if variable.name.starts_with("v1") { group } else { job };
            prop_assert_eq!(count(&placement), if whole { 1 } else { count(&free) });
        }
    }

    /// Checks that the heaviest shard exceeds the mean by at most the largest part that is not split (I). The
    /// variables are large enough to be split, and LAMB needs some of them whole.
    #[test]
    fn i_auto_balances_all_but_the_parts_it_keeps(
        shards in any_shards(),
        shapes in prop::collection::vec((1..4000usize, 1..2000usize), 1..20),
    ) {
        let variables: Vec<VariableSpec> = shapes
            .iter()
            .enumerate()
            .map(|(position, &(rows, row))| variable(&format!("v{position}"), &[rows, row]))
            .collect();
        let groups = vec![GroupSpec::new("v*7").optimizer(OptimizerSpec::lamb(0.1))];
        let update = UpdateSpec { groups, ..OptimizerSpec::sgd(0.1).into() };
        let spec = PlacementSpec { strategy: GREEDY, partitioner: PartitionerSpec::Auto };
        let placement = place(&spec, &update, &variables, &shards, u64::MAX, PlacementEpoch(1)).unwrap();
        let part = |(id, variable): (u32, &VariableSpec)| {
            let slices = placement.slices.iter().filter(|placed| placed.slice.variable == VariableId(id));
            let bytes = slices.map(|placed| placed.slice.elements(variable) as u64 * 4).collect::<Vec<_>>();
            if bytes.len() == shards.len() {
                variable.bytes() / variable.rows() as u64
            } else {
                bytes.into_iter().max().unwrap()
            }
        };
        let part = (0u32..).zip(&variables).map(part).max().unwrap();
        let loads = loads(&placement, &variables);
        let (total, count) = (loads.iter().sum::<u64>(), loads.len() as u64);
        let heaviest = loads.into_iter().max().unwrap();
        prop_assert!(heaviest * count <= total + part * count, "{heaviest} of {total} bytes, part {part}");
    }

    /// Checks that values fit on their shards (J), that explicit devices name the task (F), and that
    /// additional variables move no slice of the others (D).
    #[test]
    fn j_no_shard_has_more_than_fits_on_it(
        (strategy, partitioner, (shards, variables)) in (any_strategy(), any_partitioner(), any_job()),
        bytes_max in 64..4000u64,
        lamb in any::<bool>(),
    ) {
        let groups = vec![GroupSpec::new("v1*").optimizer(OptimizerSpec::lamb(0.1))];
        let groups = if lamb { groups } else { Vec::new() };
        let update = UpdateSpec { groups, ..OptimizerSpec::sgd(0.1).into() };
        let spec = PlacementSpec { strategy, partitioner };
        let place = |variables: &[VariableSpec]| {
            place(&spec, &update, variables, &shards, bytes_max, PlacementEpoch(1)).unwrap()
        };
        let placement = place(&variables);
        prop_assert_eq!(placement.validate(&variables), Ok(()));
        prop_assert!(shards.iter().all(|shard| placement.shards.contains(shard)));
        for &shard in &placement.shards {
            let slices: Vec<_> = placement.on_shard(shard).map(|(_, slice)| slice).collect();
            let variable = |slice: &SliceSpec| &variables[slice.variable.index()];
            let bytes = slices.iter().map(|slice| slice.wire_bytes(variable(slice))).sum::<u64>();
            let alone = slices.len() == 1 && (slices[0].rows == 1 || update.needs_whole(variable(&slices[0])));
            prop_assert!(bytes <= bytes_max || alone, "{} has {} bytes", shard, bytes);
            prop_assert!(!slices.is_empty() || shards.contains(&shard), "{} is of no use", shard);
        }
        for placed in &placement.slices {
            let device = variables[placed.slice.variable.index()].device;
            prop_assert!(device.is_none_or(|device| device.shard.ps == placed.shard.ps));
        }
        let fewer = place(&variables[..variables.len() / 2]);
        prop_assert_eq!(&placement.slices[..fewer.slices.len()], &fewer.slices[..]);
    }
}
