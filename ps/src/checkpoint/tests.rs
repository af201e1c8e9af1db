//! C2: what shards save, any other placement of shards goes on from bit for bit; and whatever is wrong with the files, or
//! does not fit, is told.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{CheckpointName, Part, SourceSpec, StartSpec, WorkerRecord};
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::*;
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{OptimizerSpec, ScheduleSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_storage::{FORMAT, ManifestSpec, Store, read_header};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::{read, write};
use crate::shard::{Answer, Cut, Order, ShardLimits, ShardState};

const STORE_LIFE: Incarnation = Incarnation(3);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn name(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: STORE_LIFE }
}

/// A job with these variables: shapes, and whether they are trained.
fn job(variables: &[(Vec<usize>, bool)], optimizer: OptimizerSpec, average: Option<f32>) -> JobSpec {
    let mut g = GraphBuilder::new("any");
    for (number, (shape, trainable)) in variables.iter().enumerate() {
        let (name, normal) = (format!("v{number}"), InitializerSpec::Normal { mean: 0.0, stddev: 1.0 });
        let shape = pushpull_messages::tensor::Shape(shape.clone());
        if *trainable {
            g.variable(&name, shape, normal)
        } else {
            g.untrained(&name, shape, normal)
        };
    }
    let loss = g.constant(0.0);
    let set = DatasetSpec::Digits { seed: 1, examples: 10 };
    let graph = g.finish(loss, &[]).unwrap();
    JobSpec {
        optimizer,
        average,
        schedule: ScheduleSpec::Cosine,
        seed: 5,
        ..JobSpec::new(graph, InputSpec::new(set.clone(), set), 100)
    }
}

/// Every variable whole, on one shard.
fn whole(job: &JobSpec) -> Placement {
    let shard = ShardId::new(0, 0);
    let slices = job.graph.variables.iter().zip(0..);
    let slices =
        slices.map(|(variable, id)| PlacedSlice { slice: SliceSpec::whole(VariableId(id), variable), shard });
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: slices.collect() }
}

/// Any placement of these variables.
fn any_placement(variables: Vec<VariableSpec>) -> impl Strategy<Value = Placement> {
    let all: usize = variables.iter().map(VariableSpec::rows).sum();
    // Of each row whether a slice begins there, and which shard has it then.
    (1u32..6, prop::collection::vec((any::<bool>(), any::<u32>()), all)).prop_map(move |(shards, rows)| {
        let shards: Vec<_> = (0..shards).map(|index| ShardId::new(index / 2, index % 2)).collect();
        let (mut slices, mut rows) = (Vec::<PlacedSlice>::new(), rows.into_iter());
        for (variable, id) in variables.iter().zip(0..) {
            for row in 0..variable.rows() as u64 {
                let (begins, shard) = rows.next().unwrap();
                if begins || row == 0 {
                    let slice = SliceSpec { variable: VariableId(id), row, rows: 1 };
                    slices.push(PlacedSlice { slice, shard: shards[shard as usize % shards.len()] });
                } else {
                    slices.last_mut().unwrap().slice.rows += 1;
                }
            }
        }
        Placement { epoch: PlacementEpoch(1), shards, slices }
    })
}

/// All shards of a job, without their actors.
struct Shards {
    job: JobSpec,
    placement: Placement,
    states: Vec<ShardState<u32>>,
}

/// Every part of every variable, whole, as bits.
type Contents = BTreeMap<(u32, Part), Vec<u32>>;

impl Shards {
    fn new(job: &JobSpec, placement: &Placement, start: &StartSpec) -> Result<Self, Refusal> {
        let mut shards = Self { job: job.clone(), placement: placement.clone(), states: Vec::new() };
        for &shard in &placement.shards {
            let (pool, bytes) = (BufferPool::default(), 1 << 30);
            let limits = ShardLimits { values_bytes_max: bytes, gradients_bytes_max: bytes };
            let mut state = ShardState::new(shard, pool.clone(), limits);
            let mut answers = state.create(shards.create(shard, start), 1, 0);
            while let Some(order) = state.take_order() {
                let Order::Read(create) = order else { panic!("{order:?}") };
                assert!(answers.is_empty(), "it is answered when that is read");
                answers = state.restored(block_on(read::read(&create, &pool)));
            }
            let created: ShardCreated = only(answers)?;
            assert_eq!(created.version, state.observe().began);
            shards.states.push(state);
        }
        Ok(shards)
    }

    fn create(&self, shard: ShardId, start: &StartSpec) -> CreateShard {
        CreateShard {
            shard,
            placement: self.placement.clone(),
            variables: self.job.graph.variables.clone(),
            update: self.job.update(),
            sync: SyncSpec::ASYNC,
            deterministic: false,
            workers: 2,
            last_step: self.job.last_step,
            seed: self.job.seed,
            start: start.clone(),
        }
    }

    /// A push of that life of a worker to every shard, which is the same whatever the placement.
    fn push(&mut self, number: u64) {
        for state in &mut self.states {
            let version = state.observe().version;
            let (mut ids, mut segments) = (Vec::new(), Vec::new());
            for (id, slice) in self.placement.on_shard(state.id()) {
                let variable = &self.job.graph.variables[slice.variable.index()];
                let first = slice.first_element(variable) as u64;
                let gradient: Vec<f32> = (first..first + slice.elements(variable) as u64)
                    .map(|element| ((element * 31 + number * 17) % 23) as f32 / 4.0 - 2.5)
                    .collect();
                ids.push(id);
                segments.push(Segment::whole(Arc::new(Buffer::from_f32(&gradient))));
            }
            ids.reverse();
            segments.reverse();
            let push = Push {
                shard: state.id().shard,
                id: PushId { worker: 1, incarnation: Incarnation(1), sequence: Sequence(number) },
                local_step: LocalStep(number),
                epoch: self.placement.epoch,
                placement_digest: self.placement.digest(),
                version,
                slices: ids,
                drawn: 3 * number,
                pull: true,
                traced: false,
            };
            let pushed: Pushed = only(state.push(&push, Payload::new(segments), 1, 0)).unwrap();
            assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, version.next()));
        }
    }

    /// Has all of them saved at that version, and gives what there is to be written now.
    fn arm(&mut self, save: &Save) -> Vec<Cut> {
        let ask = |state: &mut ShardState<u32>| {
            let save = Save { shard: state.id().shard, ..save.clone() };
            assert!(state.save(save, 1, 1).is_empty());
        };
        self.states.iter_mut().for_each(ask);
        self.cuts()
    }

    fn cuts(&mut self) -> Vec<Cut> {
        let take = |state: &mut ShardState<u32>| match state.take_order() {
            Some(Order::Write(cut)) => Some(cut),
            other => {
                assert!(other.is_none());
                None
            }
        };
        self.states.iter_mut().filter_map(take).collect()
    }

    /// Writes these cuts, of all shards, and the manifest.
    fn commit(&mut self, cuts: Vec<Cut>) -> ManifestSpec {
        let save = cuts[0].save.clone();
        let (mut files, mut all_workers) = (Vec::new(), Vec::new());
        for (cut, state) in cuts.into_iter().zip(&mut self.states) {
            let saved: Saved = only(state.written(block_on(write::write(cut)))).unwrap();
            let SaveResult::Written { file, workers, .. } = saved.result else {
                panic!("{:?}", saved.result)
            };
            files.push(file);
            all_workers.push(workers);
        }
        assert!(all_workers.windows(2).all(|pair| pair[0] == pair[1]));
        let manifest = ManifestSpec {
            format: FORMAT,
            step: save.checkpoint.step,
            saved_ms: 1,
            job: self.job.clone(),
            placement: self.placement.clone(),
            files,
            workers: all_workers.remove(0),
        };
        let bytes = manifest.encode().unwrap();
        assert_eq!(ManifestSpec::decode(&bytes).unwrap(), manifest);
        let store = Store::open(&save.store).unwrap();
        block_on(store.put(&save.checkpoint.manifest(), bytes)).unwrap();
        manifest
    }

    fn version(&self) -> Version {
        let versions: Vec<_> = self.states.iter().map(|state| state.observe().version).collect();
        assert!(versions.windows(2).all(|pair| pair[0] == pair[1]));
        versions[0]
    }

    /// What all of them hold now, and remember.
    fn contents(&mut self) -> (Contents, Vec<WorkerRecord>) {
        let at = self.version();
        let checkpoint = CheckpointName { step: GlobalStep(at.0), life: Incarnation(99) };
        let save = Save { shard: 0, store: "memory://".into(), checkpoint, at };
        let cuts = self.arm(&save);
        let (mut contents, mut workers) = (Contents::new(), Vec::new());
        for (cut, state) in cuts.into_iter().zip(&mut self.states) {
            for held in cut.slices {
                let slice = self.placement.slices[held.id.index()].slice;
                let variable = &self.job.graph.variables[slice.variable.index()];
                let first = slice.first_element(variable);
                let slots = held.slots.into_iter().zip(0..).map(|(slot, number)| (Part::Slot(number), slot));
                let average = held.average.map(|average| (Part::Average, average));
                for (part, buffer) in [(Part::Value, held.value)].into_iter().chain(average).chain(slots) {
                    let all = contents
                        .entry((slice.variable.0, part))
                        .or_insert_with(|| vec![0; variable.shape.elements()]);
                    let bits = buffer.as_f32().iter().map(|value| value.to_bits());
                    all[first..first + buffer.len() / 4].copy_from_slice(&bits.collect::<Vec<_>>());
                }
            }
            workers = cut.workers;
            only::<Saved>(state.written(SaveResult::failed("not meant to be"))).unwrap();
        }
        (contents, workers)
    }
}

fn only<T: TryFrom<Message, Error = Message>>(mut answers: Vec<Answer<u32>>) -> Result<T, Refusal> {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let (message, _) = answers.remove(0).result?;
    Ok(message.try_into().unwrap())
}

fn any_optimizer() -> impl Strategy<Value = OptimizerSpec> {
    prop::sample::select(vec![
        OptimizerSpec::sgd(0.1),
        OptimizerSpec::momentum(0.05, 0.9),
        OptimizerSpec::adam(0.1),
        OptimizerSpec::adagrad(0.2),
        OptimizerSpec::RmsProp { learning_rate: 0.02, decay: 0.8, momentum: 0.5, epsilon: 1e-4 },
        OptimizerSpec::Ftrl { learning_rate: 0.5, initial_accumulator: 0.1, l1: 0.05, l2: 0.1 },
    ])
}

fn any_world() -> impl Strategy<Value = (JobSpec, Placement, Placement)> {
    let shape = prop_oneof![
        Just(vec![]),
        (1usize..9).prop_map(|rows| vec![rows]),
        (1usize..9, 1usize..4).prop_map(|(rows, columns)| vec![rows, columns]),
        (1usize..5).prop_map(|rows| vec![rows, 1, 3]),
    ];
    let variables = prop::collection::vec((shape, prop::bool::weighted(0.8)), 1..5);
    (variables, any_optimizer(), prop::option::of(0.3f32..0.9)).prop_flat_map(
        |(variables, optimizer, average)| {
            let job = job(&variables, optimizer, average);
            let placement = || any_placement(job.graph.variables.clone());
            let placements = (placement(), placement());
            (Just(job), placements).prop_map(|(job, (one, other))| (job, one, other))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// (A), and that what is saved is of one version whatever is pushed before it is written.
    #[test]
    fn what_was_saved_goes_on_elsewhere_bit_for_bit(
        (job, one, other) in any_world(),
        before in 0u64..5,
        after in 0u64..4,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().to_str().unwrap().to_owned();
        let mut shards = Shards::new(&job, &one, &StartSpec::Initialise).unwrap();
        let save = Save { shard: 0, store: store.clone(), checkpoint: name(before), at: Version(before) };
        let mut cuts = shards.arm(&save);
        for number in 1..=before {
            prop_assert!(cuts.is_empty(), "not before its version");
            shards.push(number);
            cuts = shards.cuts();
        }
        prop_assert_eq!(cuts.len(), one.shards.len());
        // Another one beside it that makes the same pushes, to be looked at meanwhile.
        let mut twin = Shards::new(&job, &one, &StartSpec::Initialise).unwrap();
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

    /// (B).
    #[test]
    fn whatever_happens_to_a_file_it_is_refused_and_named(
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
            // Neither the header of a tensor file nor how a manifest is spelt is what is read of them.
            Ok(mut restored) => {
                prop_assert!(which < 2, "cut at {place}");
                prop_assert!(which == 1 || (place as u64) < manifest.files[0].tensors[0].offset);
                prop_assert_eq!(restored.contents(), shards.contents());
            }
        }
    }
}

/// A checkpoint of some steps of that job, in that directory.
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
fn what_does_not_fit_is_refused_and_names_the_variable() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [(vec![4, 2], true), (vec![3], true)];
    let good = job(&variables, OptimizerSpec::momentum(0.1, 0.9), None);
    let (_, start) = saved(&good, directory.path(), 2);
    let refused = |variables: &[(Vec<usize>, bool)], optimizer: OptimizerSpec| {
        let job = job(variables, optimizer, None);
        let Err(refusal) = Shards::new(&job, &whole(&job), &start) else { panic!("it was taken") };
        assert_eq!(refusal.code, RefusalCode::Misfit);
        refusal.reason
    };
    let momentum = || OptimizerSpec::momentum(0.1, 0.9);
    let reason = refused(&[(vec![4, 3], true), (vec![3], true)], momentum());
    assert!(reason.contains("variable 'v0' has shape [4, 3], and 'v0' of step-2-"), "{reason}");
    assert!(reason.ends_with("has [4, 2]"), "{reason}");
    let more = [variables.to_vec(), vec![(vec![], true)]].concat();
    let reason = refused(&more, momentum());
    assert!(reason.contains("variable 'v2' of the job is not in step-2-"), "{reason}");
    let reason = refused(&variables[..1], momentum());
    assert!(reason.contains("variable 'v1' of step-2-") && reason.contains("is not in the job"), "{reason}");
    let reason = refused(&variables, OptimizerSpec::adam(0.1));
    assert!(reason.contains("adam needs the slot 'm' of variable 'v0'"), "{reason}");
    assert!(reason.contains("made with momentum") && reason.ends_with("--warm-start"), "{reason}");
    let other =
        StartSpec::Resume { store: "/nowhere/at/all".into(), checkpoint: name(2), workers: Vec::new() };
    let Err(refusal) = Shards::new(&good, &whole(&good), &other) else { panic!("it was taken") };
    assert!(
        refusal.code == RefusalCode::Overloaded && refusal.reason.contains("/nowhere/at/all"),
        "{refusal}"
    );
}

#[test]
fn slots_are_taken_over_by_their_names_and_averages_begin_at_the_values() {
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
    // Plain gradient descent has no use for them.
    let sgd = JobSpec { optimizer: OptimizerSpec::sgd(0.1), ..adam };
    let restored = Shards::new(&sgd, &whole(&sgd), &start).unwrap().contents().0;
    assert_eq!(restored.keys().map(|&(_, part)| part).collect::<Vec<_>>(), [Part::Value; 2]);
}

#[test]
fn a_warm_start_takes_the_values_that_are_named_and_nothing_else() {
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
        ([(0, "v7")], "variable 'v7' of"),
        ([(0, "v2")], "variable 'v0' has shape [4, 2], and 'v2' of step-2-"),
    ] {
        let Err(refusal) = Shards::new(&job, &whole(&job), &warm(&variables)) else { panic!("{words}") };
        assert!(refusal.code == RefusalCode::Misfit && refusal.reason.contains(words), "{refusal}");
    }
}

#[test]
fn a_file_has_the_names_that_people_look_for() {
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
fn a_store_that_fails_costs_a_save_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("later").to_str().unwrap().to_owned();
    let job = job(&[(vec![4, 2], true)], OptimizerSpec::momentum(0.1, 0.9), None);
    let mut shards = Shards::new(&job, &whole(&job), &StartSpec::Initialise).unwrap();
    let at =
        |version| Save { shard: 0, store: store.clone(), checkpoint: name(version), at: Version(version) };
    let fail = |shards: &mut Shards, version: u64| {
        let cut = shards.arm(&at(version)).remove(0);
        shards.push(version + 1);
        let saved: Saved = only(shards.states[0].written(block_on(write::write(cut)))).unwrap();
        let SaveResult::Failed(reason) = saved.result else { panic!("{:?}", saved.result) };
        reason
    };
    let reason = fail(&mut shards, 0);
    assert!(reason.contains("ps/0/shard/0") && reason.contains("later is not a directory"), "{reason}");
    std::fs::create_dir(&store).unwrap();
    // A file where the folder would be.
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
