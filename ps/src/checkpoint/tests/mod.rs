//! Tests of saving and restoring. Shards continue from a checkpoint bit for bit, even with another placement
//! (C2). A damaged file is refused with an error that names the file, and a variable that does not fit the
//! job with an error that names the variable.

mod shards;

use std::path::Path;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{Level, Part, SourceSpec, StartSpec};
use pushpull_messages::id::*;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{GroupSpec, OptimizerSpec, RateChange};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_storage::{Store, Stores, read_header};

use super::write;
use crate::shard::tests::devices::{assert_close, emulated};
use shards::{Bits, Shards, any_placement, block_on, job, name, only, whole};

fn any_optimizer() -> impl Strategy<Value = OptimizerSpec> {
    prop::sample::select(vec![
        OptimizerSpec::sgd(0.1),
        OptimizerSpec::momentum(0.05, 0.9),
        OptimizerSpec::adam(0.1),
        OptimizerSpec::adagrad(0.2),
        OptimizerSpec::RmsProp { learning_rate: 0.02, decay: 0.8, momentum: 0.5, epsilon: 1e-4 },
        OptimizerSpec::Ftrl { learning_rate: 0.5, initial_accumulator: 0.1, l1: 0.05, l2: 0.1 },
        OptimizerSpec::lion(0.01),
    ])
}

/// Generates an empty list, or a list of one group. The group contains either the variable `v0` or all
/// variables.
fn any_groups() -> impl Strategy<Value = Vec<GroupSpec>> {
    let group = (prop::sample::select(vec!["v0", "v*"]), any_optimizer(), any::<bool>());
    let group = group.prop_map(|(pattern, optimizer, frozen)| GroupSpec {
        frozen,
        ..GroupSpec::new(pattern).optimizer(optimizer).learning_rate_factor(0.5).weight_decay(0.1)
    });
    prop::option::of(group).prop_map(|group| group.into_iter().collect())
}

fn any_world() -> impl Strategy<Value = (JobSpec, Placement, Placement)> {
    let shape = prop_oneof![
        Just(vec![]),
        (1usize..9).prop_map(|rows| vec![rows]),
        (1usize..9, 1usize..4).prop_map(|(rows, columns)| vec![rows, columns]),
        (1usize..5).prop_map(|rows| vec![rows, 1, 3]),
    ];
    let variables = prop::collection::vec((shape, prop::bool::weighted(0.8)), 1..5);
    (variables, any_optimizer(), prop::option::of(0.3f32..0.9), any_groups(), any::<bool>()).prop_flat_map(
        |(variables, optimizer, average, groups, chosen)| {
            let mut job = JobSpec { groups, ..job(&variables, optimizer, average) };
            if chosen {
                let update = job.update();
                let last = job.graph.variables.iter().rfind(|variable| update.averages(variable));
                job.average_variables = last.map(|variable| variable.name.clone()).into_iter().collect();
            }
            let placement = || any_placement(job.graph.variables.clone());
            let placements = (placement(), placement());
            (Just(job), placements).prop_map(|(job, (one, other))| (job, one, other))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that shards that are restored with another placement have and compute the same bits as the
    /// saved shards (property A of `read`). All saved values have the requested version, even if more
    /// gradients are pushed before the values are written.
    #[test]
    fn another_placement_continues_bit_for_bit(
        (job, one, other) in any_world(),
        before in 0u64..5,
        after in 0u64..4,
        change in prop::option::of((0u64..9, 0.1f32..2.0)),
    ) {
        let change = change.map(|(from, factor)| RateChange { from: Version(from), factor });
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().to_str().unwrap().to_owned();
        let mut shards = Shards::new(&job, &one, &StartSpec::Initialise).unwrap();
        change.into_iter().for_each(|change| shards.set_rate(change));
        let save = Save { shard: 0, store: store.clone(), checkpoint: name(before), at: Version(before) };
        let mut cuts = shards.arm(&save);
        for number in 1..=before {
            prop_assert!(cuts.is_empty(), "no cut before the save's version");
            shards.push(number);
            cuts = shards.cuts();
        }
        prop_assert_eq!(cuts.len(), one.shards.len());
        // A second set of shards gets the same pushes up to the saved version, and stays there while the
        // first set continues to train.
        let mut twin = Shards::new(&job, &one, &StartSpec::Initialise).unwrap();
        change.into_iter().for_each(|change| twin.set_rate(change));
        (1..=before).for_each(|number| twin.push(number));
        (before + 1..=before + after).for_each(|number| shards.push(number));
        let manifest = shards.commit(cuts);
        prop_assert_eq!(manifest.workers.len(), usize::from(before > 0));
        prop_assert!(manifest.workers.iter().all(|record| record.drawn == 3 * before));

        let start = StartSpec::Resume { store, checkpoint: name(before), workers: Vec::new() };
        let mut restored = Shards::new(&job, &other, &start).unwrap();
        prop_assert_eq!(restored.version(), Version(before));
        prop_assert_eq!(restored.contents(), twin.contents());
        (before + 1..=before + after).for_each(|number| restored.push(number));
        prop_assert_eq!(restored.contents(), shards.contents());
    }

    /// Flips a bit of a file, truncates the file or removes it. Checks that the restore then fails with an
    /// error that names the file, unless the damage has no effect (property B of `read`).
    #[test]
    fn a_damaged_file_is_refused_and_named(
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
        which in 0u8..6,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().to_str().unwrap().to_owned();
        let job = job(&[(vec![6, 2], true), (vec![], true)], OptimizerSpec::momentum(0.1, 0.9), None);
        let mut shards = Shards::new(&job, &whole(&job), &StartSpec::Initialise).unwrap();
        shards.push(1);
        let save = Save { shard: 0, store: store.clone(), checkpoint: name(1), at: Version(1) };
        let cuts = shards.arm(&save);
        let manifest = shards.commit(cuts);
        let file = if which % 2 == 0 { &manifest.files[0].name } else { "manifest.json" };
        let path = directory.path().join(name(1).file(file));
        let bytes = std::fs::read(&path).unwrap();
        let place = place.index(bytes.len());
        match which / 2 {
            0 => {
                let mut changed = bytes;
                changed[place] ^= 1 << bit;
                std::fs::write(&path, changed).unwrap();
            }
            1 => std::fs::write(&path, &bytes[..place]).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
        let start = StartSpec::Resume { store, checkpoint: name(1), workers: Vec::new() };
        match Shards::new(&job, &whole(&job), &start) {
            Err(refusal) => {
                prop_assert_eq!(refusal.code, RefusalCode::Unavailable);
                prop_assert!(refusal.reason.contains(&name(1).file(file)), "{}", refusal);
            }
            // Two kinds of damage have no effect: a change in the header of a tensor file, and a change in a
            // manifest that keeps its meaning.
            Ok(mut restored) => {
                prop_assert!(which < 2, "truncated at byte {place}");
                prop_assert!(which == 1 || (place as u64) < manifest.files[0].tensors[0].offset);
                prop_assert_eq!(restored.contents(), shards.contents());
            }
        }
    }
}

/// Trains a job for `steps` steps and saves it in a directory. Returns the shards, and the `StartSpec` that
/// makes other shards resume from the saved checkpoint.
fn saved(job: &JobSpec, directory: &Path, steps: u64) -> (Shards, StartSpec) {
    let store = directory.to_str().unwrap().to_owned();
    let mut shards = Shards::new(job, &whole(job), &StartSpec::Initialise).unwrap();
    (1..=steps).for_each(|number| shards.push(number));
    let save = Save { shard: 0, store: store.clone(), checkpoint: name(steps), at: Version(steps) };
    let cuts = shards.arm(&save);
    shards.commit(cuts);
    (shards, StartSpec::Resume { store, checkpoint: name(steps), workers: Vec::new() })
}

#[test]
fn a_misfit_is_refused_and_the_variable_named() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [(vec![4, 2], true), (vec![3], true)];
    let good = job(&variables, OptimizerSpec::momentum(0.1, 0.9), None);
    let (_, start) = saved(&good, directory.path(), 2);
    let refused = |variables: &[(Vec<usize>, bool)], optimizer: OptimizerSpec| {
        let job = job(variables, optimizer, None);
        let Err(refusal) = Shards::new(&job, &whole(&job), &start) else { panic!("it was accepted") };
        assert_eq!(refusal.code, RefusalCode::Misfit);
        refusal.reason
    };
    let momentum = || OptimizerSpec::momentum(0.1, 0.9);
    let reason = refused(&[(vec![4, 3], true), (vec![3], true)], momentum());
    assert!(reason.contains("variable 'v0' has shape [4, 3], but 'v0' of step-2-"), "{reason}");
    assert!(reason.ends_with("has [4, 2]"), "{reason}");
    let more = [variables.to_vec(), vec![(vec![], true)]].concat();
    let reason = refused(&more, momentum());
    assert!(reason.contains("variable 'v2' is not in step-2-"), "{reason}");
    let reason = refused(&variables[..1], momentum());
    assert!(reason.contains("variable 'v1' of step-2-") && reason.contains("is not in the job"), "{reason}");
    let reason = refused(&variables, OptimizerSpec::adam(0.1));
    assert!(reason.contains("adam needs the slot 'm' of variable 'v0'"), "{reason}");
    assert!(reason.contains("made with momentum") && reason.ends_with("--warm-start"), "{reason}");
    let other =
        StartSpec::Resume { store: "/nowhere/at/all".into(), checkpoint: name(2), workers: Vec::new() };
    let Err(refusal) = Shards::new(&good, &whole(&good), &other) else { panic!("it was accepted") };
    assert!(
        refusal.code == RefusalCode::Overloaded && refusal.reason.contains("/nowhere/at/all"),
        "{refusal}"
    );
}

#[test]
fn slots_are_restored_by_name_and_averages_from_values() {
    let directory = tempfile::tempdir().unwrap();
    let adam = job(&[(vec![4, 2], true), (vec![2], false)], OptimizerSpec::adam(0.1), None);
    let (mut shards, start) = saved(&adam, directory.path(), 3);
    let adamw = OptimizerSpec::AdamW {
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-6,
        weight_decay: 0.5,
    };
    let other = JobSpec { optimizer: adamw, average: Some(0.9), ..adam.clone() };
    let mut restored = Shards::new(&other, &whole(&other), &start).unwrap();
    let (mut expected, records) = shards.contents();
    expected.insert((0, Part::Average), expected[&(0, Part::Value)].clone());
    assert_eq!(restored.contents(), (expected, records));
    // Plain gradient descent has no slots.
    let sgd = JobSpec { optimizer: OptimizerSpec::sgd(0.1), ..adam };
    let restored = Shards::new(&sgd, &whole(&sgd), &start).unwrap().contents().0;
    assert_eq!(restored.keys().map(|&(_, part)| part).collect::<Vec<_>>(), [Part::Value; 2]);
}

/// Checks that a restore decides for each variable separately which slots the checkpoint must contain: those
/// that the optimizer of that variable needs.
#[test]
fn a_variable_that_was_frozen_lacks_slots() {
    let directory = tempfile::tempdir().unwrap();
    let group = |group: GroupSpec, optimizer| JobSpec {
        groups: vec![group],
        ..job(&[(vec![4, 2], true), (vec![3], true)], optimizer, Some(0.5))
    };
    let momentum = || OptimizerSpec::momentum(0.1, 0.9);
    let frozen = group(GroupSpec::new("v1").frozen(), momentum());
    let (mut shards, start) = saved(&frozen, directory.path(), 2);
    let parts = |shards: &mut Shards| shards.contents().0.into_keys().collect::<Vec<_>>();
    let of_v0 = [(0, Part::Value), (0, Part::Average), (0, Part::Slot(0)), (1, Part::Value)];
    assert_eq!(parts(&mut shards), of_v0);
    let refused = |job: &JobSpec| {
        let Err(refusal) = Shards::new(job, &whole(job), &start) else { panic!("it was accepted") };
        refusal.reason
    };
    let thawed = JobSpec { groups: Vec::new(), ..frozen.clone() };
    let reason = refused(&thawed);
    assert!(reason.contains("momentum needs the slot 'momentum' of variable 'v1', but step-2-"), "{reason}");
    assert!(reason.contains(", which froze it, does not contain that slot"), "{reason}");
    let reason = refused(&group(GroupSpec::new("v0").optimizer(OptimizerSpec::adam(0.1)), momentum()));
    assert!(reason.contains("adam needs the slot 'm' of variable 'v0'"), "{reason}");
    assert!(reason.contains("made with momentum"), "{reason}");
    // The slot of v0 continues in a group, and v1 continues without slots.
    let other = group(GroupSpec::new("v0").optimizer(momentum()), OptimizerSpec::sgd(0.1));
    let mut restored = Shards::new(&other, &whole(&other), &start).unwrap();
    let (mut expected, records) = shards.contents();
    expected.insert((1, Part::Average), expected[&(1, Part::Value)].clone());
    assert_eq!(restored.contents(), (expected, records));
}

#[test]
fn a_warm_start_reads_the_named_values_only() {
    let directory = tempfile::tempdir().unwrap();
    let shapes = [(vec![4, 2], true), (vec![4, 2], true), (vec![3], true)];
    let job = job(&shapes, OptimizerSpec::adam(0.1), Some(0.5));
    let (mut shards, _) = saved(&job, directory.path(), 2);
    let store = directory.path().to_str().unwrap().to_owned();
    let warm = |variables: &[(u32, &str)]| StartSpec::WarmStart {
        store: store.clone(),
        checkpoint: name(2),
        variables: variables
            .iter()
            .map(|&(variable, source)| SourceSpec { variable: VariableId(variable), source: source.into() })
            .collect(),
    };
    let fresh = Shards::new(&job, &whole(&job), &StartSpec::Initialise).unwrap().contents().0;
    let before = shards.contents().0;
    let start = warm(&[(0, "v1"), (2, "v2")]);
    let mut restored = Shards::new(&job, &whole(&job), &start).unwrap();
    assert_eq!(restored.version(), Version(0));
    let (now, records) = restored.contents();
    assert!(records.is_empty());
    for (key @ (variable, part), bits) in now {
        let expected = match (variable, part) {
            (0, Part::Value | Part::Average) => &before[&(1, Part::Value)],
            (2, Part::Value | Part::Average) => &before[&(2, Part::Value)],
            _ => &fresh[&key],
        };
        assert_eq!(&bits, expected, "{key:?}");
    }
    restored.push(1);
    for (variables, words) in [
        ([(0, "v7")], "variable 'v7' is not in"),
        ([(0, "v2")], "variable 'v0' has shape [4, 2], but 'v2' of step-2-"),
    ] {
        let Err(refusal) = Shards::new(&job, &whole(&job), &warm(&variables)) else { panic!("{words}") };
        assert!(refusal.code == RefusalCode::Misfit && refusal.reason.contains(words), "{refusal}");
    }
}

#[test]
fn tensors_in_a_file_have_readable_names() {
    let directory = tempfile::tempdir().unwrap();
    let job = job(&[(vec![4, 2], true), (vec![], false)], OptimizerSpec::adam(0.1), Some(0.5));
    let mut placement = whole(&job);
    placement.slices[0].slice.rows = 3;
    let rest = SliceSpec { variable: VariableId(0), row: 3, rows: 1 };
    placement.slices.insert(1, PlacedSlice { slice: rest, shard: placement.shards[0] });
    let mut shards = Shards::new(&job, &placement, &StartSpec::Initialise).unwrap();
    let store = directory.path().to_str().unwrap().to_owned();
    let save = Save { shard: 0, store: store.clone(), checkpoint: name(0), at: Version(0) };
    let cuts = shards.arm(&save);
    let manifest = shards.commit(cuts);
    let store = Store::open(&store).unwrap();
    let file = name(0).file(&manifest.files[0].name);
    let found = block_on(read_header(&store, &file)).unwrap();
    let shown: Vec<_> = found.iter().map(|found| format!("{} {}", found.name, found.shape)).collect();
    let expected = [
        "v0[0:3] [3, 2]",
        "v0[0:3]:average [3, 2]",
        "v0[0:3]:m [3, 2]",
        "v0[0:3]:v [3, 2]",
        "v0[3:4] [1, 2]",
        "v0[3:4]:average [1, 2]",
        "v0[3:4]:m [1, 2]",
        "v0[3:4]:v [1, 2]",
        "v1 []",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_failing_store_costs_a_save_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("later").to_str().unwrap().to_owned();
    let job = job(&[(vec![4, 2], true)], OptimizerSpec::momentum(0.1, 0.9), None);
    let mut shards = Shards::new(&job, &whole(&job), &StartSpec::Initialise).unwrap();
    let at =
        |version| Save { shard: 0, store: store.clone(), checkpoint: name(version), at: Version(version) };
    let fail = |shards: &mut Shards, version: u64| {
        let cut = shards.arm(&at(version)).remove(0);
        shards.push(version + 1);
        let saved: Saved =
            only(shards.states[0].written(Level::Directory, block_on(write::write(cut, &Stores::default()))))
                .unwrap();
        let SaveResult::Failed(reason) = saved.result else { panic!("{:?}", saved.result) };
        reason
    };
    let reason = fail(&mut shards, 0);
    assert!(reason.contains("ps/0/shard/0") && reason.contains("later is not a directory"), "{reason}");
    std::fs::create_dir(&store).unwrap();
    // A file with the name of the checkpoint's folder prevents the folder from being made.
    std::fs::write(Path::new(&store).join(name(1).to_string()), "in the way").unwrap();
    let reason = fail(&mut shards, 1);
    assert!(reason.contains(&format!("{}/ps-0-shard-0.safetensors", name(1))), "{reason}");
    let expected = shards.contents();
    let cuts = shards.arm(&at(2));
    shards.push(3);
    shards.commit(cuts);
    let start = StartSpec::Resume { store, checkpoint: name(2), workers: Vec::new() };
    assert_eq!(Shards::new(&job, &whole(&job), &start).unwrap().contents(), expected);
}

#[test]
fn a_checkpoint_moves_between_a_device_and_the_host() {
    let Some(device) = emulated() else { return };
    let variables = [(vec![6, 2], true), (vec![4], false), (vec![5, 3], true), (vec![], true)];
    let frozen = GroupSpec { frozen: true, ..GroupSpec::new("v3") };
    let other = GroupSpec::new("v2").optimizer(OptimizerSpec::momentum(0.1, 0.9));
    let job = JobSpec { groups: vec![frozen, other], ..job(&variables, OptimizerSpec::adam(0.1), Some(0.8)) };
    let other_placement = {
        let mut placement = whole(&job);
        placement.slices[2].slice.rows = 2;
        let rest = SliceSpec { row: 2, rows: 3, ..placement.slices[2].slice };
        placement.slices.insert(3, PlacedSlice { slice: rest, ..placement.slices[2] });
        placement
    };
    for (saves, restores) in [(Some(&device), None), (None, Some(&device)), (Some(&device), Some(&device))] {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().to_str().unwrap().to_owned();
        let mut saved = Shards::on(saves, &job, &whole(&job), &StartSpec::Initialise).unwrap();
        (1..=3).for_each(|number| saved.push(number));
        let cuts = saved.arm(&Save { shard: 0, store: store.clone(), checkpoint: name(3), at: Version(3) });
        saved.commit(cuts);
        let start = StartSpec::Resume { store, checkpoint: name(3), workers: Vec::new() };
        let mut restored = Shards::on(restores, &job, &other_placement, &start).unwrap();
        assert_eq!(restored.contents(), saved.contents(), "a checkpoint has the same bits everywhere");
        for number in 4..=6 {
            saved.push(number);
            restored.push(number);
        }
        let numbers =
            |(bits, _): (Bits, _)| bits.into_values().flatten().map(f32::from_bits).collect::<Vec<_>>();
        assert_close("the shards go on", &numbers(restored.contents()), &numbers(saved.contents()));
    }
}
