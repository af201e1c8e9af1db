//! Helpers for the tests of checkpoints: the shards of a job, without their actors, and functions to save
//! and restore them.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{CheckpointName, Level, Part, StartSpec};
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::*;
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{OptimizerSpec, RateChange, RateSpec, ScheduleSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_storage::{FORMAT, ManifestSpec, Store, Stores};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::super::{read, write};
use crate::device::MakeDevice;
use crate::shard::{Answer, Cut, FileRequest, ShardLimits, ShardState};

pub(super) const STORE_LIFE: Incarnation = Incarnation(3);

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(super) fn name(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: STORE_LIFE }
}

/// Returns a job with these variables. Each is given by its shape and by whether it is trained.
pub(super) fn job(
    variables: &[(Vec<usize>, bool)],
    optimizer: OptimizerSpec,
    average: Option<f32>,
) -> JobSpec {
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

/// Returns a placement that puts every variable, without splitting it, on one shard.
pub(super) fn whole(job: &JobSpec) -> Placement {
    let shard = ShardId::new(0, 0);
    let slices = job.graph.variables.iter().zip(0..);
    let slices =
        slices.map(|(variable, id)| PlacedSlice { slice: SliceSpec::whole(VariableId(id), variable), shard });
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: slices.collect() }
}

/// Generates placements that cut these variables into slices, and put the slices on up to five shards.
pub(super) fn any_placement(variables: Vec<VariableSpec>) -> impl Strategy<Value = Placement> {
    let all: usize = variables.iter().map(VariableSpec::rows).sum();
    // For each row: whether a slice begins there, and the shard that gets the slice.
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
pub(super) struct Shards {
    pub(super) job: JobSpec,
    pub(super) placement: Placement,
    pub(super) states: Vec<ShardState<u32>>,
    /// The factor of the learning rate, and the next change of this factor, as the chief writes them into a
    /// manifest.
    pub(super) rate: RateSpec,
    /// The sequence number of the last push of this run.
    sequence: Sequence,
}

/// The bits of all elements, for each part of each variable. The number in the key is the variable's id.
pub(super) type Bits = BTreeMap<(u32, Part), Vec<u32>>;

impl Shards {
    pub(super) fn new(job: &JobSpec, placement: &Placement, start: &StartSpec) -> Result<Self, Refusal> {
        Self::on(None, job, placement, start)
    }

    /// Creates shards that keep their slots on devices.
    pub(super) fn on(
        device: Option<&MakeDevice>,
        job: &JobSpec,
        placement: &Placement,
        start: &StartSpec,
    ) -> Result<Self, Refusal> {
        let mut shards = Self {
            job: job.clone(),
            placement: placement.clone(),
            states: Vec::new(),
            rate: RateSpec::default(),
            sequence: Sequence(0),
        };
        for &shard in &placement.shards {
            let (pool, bytes) = (BufferPool::default(), 1 << 30);
            let limits = ShardLimits { values_bytes_max: bytes, gradients_bytes_max: bytes };
            let mut state = ShardState::new(shard, pool.clone(), limits).on_device(device.cloned());
            let mut answers = state.create(shards.create(shard, start), 1, 0);
            while let Some(request) = state.take_file_request() {
                let FileRequest::Read(create) = request else { panic!("{request:?}") };
                assert!(answers.is_empty(), "the creation is answered after the read");
                answers = state.restored(block_on(read::read(&create, &pool, &Stores::default())));
            }
            let created: ShardCreated = only(answers)?;
            assert_eq!(created.version, state.observe().began);
            let incarnation = Incarnation(1);
            let appoint = Appoint { shard: shard.shard, worker: 1, incarnation, number: 1 };
            only::<Appointed>(state.appoint(&appoint, 0))?;
            shards.states.push(state);
        }
        Ok(shards)
    }

    pub(super) fn create(&self, shard: ShardId, start: &StartSpec) -> CreateShard {
        CreateShard {
            job: 0,
            shard,
            placement: self.placement.clone(),
            variables: self.job.graph.variables.clone(),
            update: self.job.update(),
            compression: Vec::new(),
            sync: SyncSpec::ASYNC,
            pipeline: 1,
            deterministic: false,
            workers: 2,
            last_step: self.job.last_step,
            seed: self.job.seed,
            start: start.clone(),
        }
    }

    /// Makes every shard change its learning rate at the version that `change` names.
    pub(super) fn set_rate(&mut self, change: RateChange) {
        self.rate = RateSpec { next: Some(change), ..self.rate };
        for state in &mut self.states {
            let shard = state.id().shard;
            only::<Holding>(state.hold_at(&HoldAt { shard, version: change.from }, 0)).unwrap();
            only::<LearningRateSet>(state.set_learning_rate(&SetLearningRate { shard, change }, 0)).unwrap();
        }
    }

    /// Sends the push number `number` of the whole training to every shard. The gradients do not depend on
    /// the placement.
    pub(super) fn push(&mut self, number: u64) {
        self.sequence = self.sequence.next();
        let id = PushId { worker: 1, incarnation: Incarnation(1), sequence: self.sequence };
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
                id,
                local_step: LocalStep(number),
                epoch: self.placement.epoch,
                placement_digest: self.placement.digest(),
                version,
                slices: ids,
                drawn: 3 * number,
                pull: true,
                traced: false,
                with: Vec::new(),
            };
            let pushed: Pushed = only(state.push(&push, Payload::new(segments), 1, 0)).unwrap();
            assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, version.next()));
        }
    }

    /// Requests a save of all shards, and returns the cuts of the shards that have reached the version of
    /// the save.
    pub(super) fn arm(&mut self, save: &Save) -> Vec<Cut> {
        let ask = |state: &mut ShardState<u32>| {
            let save = Save { shard: state.id().shard, ..save.clone() };
            assert!(state.save(save, 1, 1).is_empty());
        };
        self.states.iter_mut().for_each(ask);
        self.cuts()
    }

    pub(super) fn cuts(&mut self) -> Vec<Cut> {
        let take = |state: &mut ShardState<u32>| match state.take_file_request() {
            Some(FileRequest::Write(cut)) => Some(cut),
            other => {
                assert!(other.is_none());
                None
            }
        };
        self.states.iter_mut().filter_map(take).collect()
    }

    /// Writes the cuts of all shards, and the manifest.
    pub(super) fn commit(&mut self, cuts: Vec<Cut>) -> ManifestSpec {
        let save = cuts[0].save.clone();
        let (mut files, mut all_workers) = (Vec::new(), Vec::new());
        for (cut, state) in cuts.into_iter().zip(&mut self.states) {
            let saved: Saved =
                only(state.written(Level::Directory, block_on(write::write(cut, &Stores::default()))))
                    .unwrap();
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
            learning_rate: self.rate.at(Version(save.at.0)),
            inputs: Default::default(),
        };
        let bytes = manifest.encode().unwrap();
        assert_eq!(ManifestSpec::decode(&bytes).unwrap(), manifest);
        let store = Store::open(&save.store).unwrap();
        block_on(store.put(&save.checkpoint.manifest(), bytes)).unwrap();
        manifest
    }

    pub(super) fn version(&self) -> Version {
        let versions: Vec<_> = self.states.iter().map(|state| state.observe().version).collect();
        assert!(versions.windows(2).all(|pair| pair[0] == pair[1]));
        versions[0]
    }

    /// Returns the current values, averages and slots of all shards, and the number of batches that each
    /// worker has drawn.
    pub(super) fn contents(&mut self) -> (Bits, Vec<(u32, u64)>) {
        let at = self.version();
        let checkpoint = CheckpointName { step: GlobalStep(at.0), life: Incarnation(99) };
        let save = Save { shard: 0, store: "/c".into(), checkpoint, at };
        let cuts = self.arm(&save);
        let (mut contents, mut workers) = (Bits::new(), Vec::new());
        for (cut, state) in cuts.into_iter().zip(&mut self.states) {
            for state in cut.slices {
                let slice = self.placement.slices[state.id.index()].slice;
                let variable = &self.job.graph.variables[slice.variable.index()];
                let first = slice.first_element(variable);
                let slots = state.slots.into_iter().zip(0..).map(|(slot, number)| (Part::Slot(number), slot));
                let average = state.average.map(|average| (Part::Average, average));
                for (part, buffer) in [(Part::Value, state.value)].into_iter().chain(average).chain(slots) {
                    let all = contents
                        .entry((slice.variable.0, part))
                        .or_insert_with(|| vec![0; variable.shape.elements()]);
                    let bits = buffer.as_f32().iter().map(|value| value.to_bits());
                    all[first..first + buffer.len() / 4].copy_from_slice(&bits.collect::<Vec<_>>());
                }
            }
            workers = cut.workers.iter().map(|record| (record.worker, record.drawn)).collect();
            only::<Saved>(state.written(Level::Directory, SaveResult::failed("the test writes no file")))
                .unwrap();
        }
        (contents, workers)
    }
}

pub(super) fn only<T: TryFrom<Message, Error = Message>>(
    mut answers: Vec<Answer<u32>>,
) -> Result<T, Refusal> {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let (message, _) = answers.remove(0).result?;
    Ok(message.try_into().unwrap())
}
