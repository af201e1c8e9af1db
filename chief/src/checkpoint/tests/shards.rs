//! A fake ps task. Its shards have no variables: they only count updates, and they save and stop on request.
//! When a shard saves, it writes its version as the value of every element.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pushpull_messages::checkpoint::{
    CheckpointName, FileSpec, Part, SavedTensorSpec, StartSpec, WorkerRecord,
};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::placement::Placement;
use pushpull_storage::{ManifestSpec, NewTensor, Store, write_file};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{
    Connection, Identity, InProcess, Patience, Peer, Reply, RetryConfig, Server, ServerConfig, Service,
    Transport, dial, serve,
};

use crate::launch::PsTasks;

/// The time limit for everything that a test waits for. It is long enough on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct FakeShard {
    version: u64,
    began: u64,
    end: u64,
    /// The version at which the shard waits until its learning rate is set, if any.
    hold: Option<u64>,
    /// The last change of the learning rate that the shard has received.
    rate: Option<RateChange>,
    armed: Option<(Save, Reply)>,
    /// The number of `Leave` messages that the shard has received. The chief sends one when a worker leaves.
    left: u32,
    /// The field `start` of each request to create this shard, in the order of arrival.
    starts: Vec<StartSpec>,
}

impl FakeShard {
    fn snapshot(&self) -> ShardSnapshot {
        let (version, began) = (Version(self.version), Version(self.began));
        let applied = self.version - self.began;
        let pushes = ShardCounters { received: applied, applied, ..Default::default() };
        ShardSnapshot { version, began, pushes, ..Default::default() }
    }
}

struct FakePsState {
    store: Store,
    job: JobSpec,
    placement: Placement,
    shards: Vec<FakeShard>,
    /// The checkpoints that the second shard cannot read.
    unreadable: Vec<CheckpointName>,
    /// The number of updates that a shard applies whenever it receives a request to save or to stop, before
    /// it handles the request.
    ahead: u64,
    /// The shard that does not answer `Observe` requests, if any.
    silent: Option<u32>,
    /// Whether the shards begin no save, as if the store did not respond.
    hangs: bool,
    /// The `Observe` requests without an answer: the index of the silent shard, and the reply handle.
    unanswered: Vec<(u32, Reply)>,
    /// Whether the task belongs to another chief.
    taken: bool,
    /// The names of the `Claim`, `Withdraw` and `Stop` messages that have arrived, in the order of arrival.
    rules: Vec<&'static str>,
    /// The `Appoint` and `Leave` messages that have arrived: the name, the worker and the shard of each.
    told: Vec<(&'static str, u32, u32)>,
}

impl FakePsState {
    fn cannot_read(&self, start: &StartSpec) -> bool {
        match start {
            StartSpec::Initialise => false,
            StartSpec::Resume { checkpoint, .. } | StartSpec::WarmStart { checkpoint, .. } => {
                self.unreadable.contains(checkpoint)
            }
        }
    }
}

#[derive(Clone)]
pub(crate) struct FakePs(Arc<Mutex<FakePsState>>);

impl FakePs {
    fn lock(&self) -> MutexGuard<'_, FakePsState> {
        self.0.lock()
    }

    /// Trains every shard to `version`, but not past the shard's last step, or past the version at which the
    /// shard holds. Makes the saves that become due.
    pub(crate) fn train(&self, version: u64) {
        let shards = 0..self.lock().shards.len();
        shards.for_each(|shard| self.train_one(shard, version));
    }

    pub(crate) fn train_one(&self, shard: usize, version: u64) {
        let mut state = self.lock();
        while state.shards[shard].version < version.min(state.shards[shard].end)
            && state.shards[shard].hold != Some(state.shards[shard].version)
        {
            state.shards[shard].version += 1;
            save_if_due(&mut state, shard);
        }
    }

    pub(super) fn cannot_read(&self, name: CheckpointName) {
        self.lock().unreadable.push(name);
    }

    /// Lets each shard apply `by` updates whenever it receives a request to save or to stop, before it
    /// handles the request.
    pub(super) fn run_ahead(&self, by: u64) {
        self.lock().ahead = by;
    }

    /// Returns the last change of each shard's learning rate.
    pub(crate) fn rates(&self) -> Vec<Option<RateChange>> {
        self.lock().shards.iter().map(|shard| shard.rate).collect()
    }

    /// Returns the number of `Leave` messages that each shard has received.
    pub(crate) fn left(&self) -> Vec<u32> {
        self.lock().shards.iter().map(|shard| shard.left).collect()
    }

    pub(crate) fn ends(&self) -> Vec<u64> {
        self.lock().shards.iter().map(|shard| shard.end).collect()
    }

    /// Leaves `Observe` requests to the shard `shard` unanswered until the test calls `answer_again`.
    pub(crate) fn silence(&self, shard: u32) {
        self.lock().silent = Some(shard);
    }

    /// Makes the shards begin no save from now on, as if the store did not respond.
    pub(crate) fn hang(&self) {
        self.lock().hangs = true;
    }

    pub(crate) fn answer_again(&self) {
        let mut state = self.lock();
        state.silent = None;
        for (shard, reply) in std::mem::take(&mut state.unanswered) {
            reply.send(state.shards[shard as usize].snapshot(), Payload::EMPTY);
        }
    }

    /// Makes the ps task refuse the orders and claims of the chief, as if it belonged to another chief, or
    /// accept them again if `taken` is false.
    pub(crate) fn take(&self, taken: bool) {
        self.lock().taken = taken;
    }

    /// Returns the names of the `Claim`, `Withdraw` and `Stop` messages that have arrived, in the order of
    /// arrival.
    pub(crate) fn rules(&self) -> Vec<&'static str> {
        self.lock().rules.clone()
    }

    /// Returns the `Appoint` and `Leave` messages that have arrived, in the order of arrival: the name, the
    /// worker and the shard of each.
    pub(crate) fn told(&self) -> Vec<(&'static str, u32, u32)> {
        self.lock().told.clone()
    }

    pub(super) fn starts(&self, shard: usize) -> Vec<StartSpec> {
        self.lock().shards[shard].starts.clone()
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.lock().shards.iter().all(|shard| shard.armed.is_some())
    }
}

fn save_if_due(state: &mut FakePsState, shard: usize) {
    let due = |(save, _): &(Save, Reply)| save.at.0 == state.shards[shard].version;
    if state.hangs || !state.shards[shard].armed.as_ref().is_some_and(due) {
        return;
    }
    let (save, reply) = state.shards[shard].armed.take().expect("it is due");
    let (store, job, placement) = (state.store.clone(), state.job.clone(), state.placement.clone());
    tokio::spawn(async move {
        let shard = ShardId::new(0, shard as u32);
        let result = match write(&store, &job, &placement, shard, &save).await {
            Ok(file) => SaveResult::Written {
                file,
                workers: vec![record(0, save.at.0), record(1, save.at.0)],
                took_ms: 1,
            },
            Err(error) => SaveResult::failed(error),
        };
        reply.send(Saved { result }, Payload::EMPTY);
    });
}

fn record(worker: u32, drawn: u64) -> WorkerRecord {
    let (incarnation, sequence) = (Incarnation(1), Sequence(drawn));
    WorkerRecord { worker, incarnation, sequence, verdict: Verdict::Applied, drawn }
}

async fn write(
    store: &Store,
    job: &JobSpec,
    placement: &Placement,
    shard: ShardId,
    save: &Save,
) -> Result<FileSpec, pushpull_storage::StoreError> {
    let own: Vec<_> = placement.on_shard(shard).collect();
    let tensor = |&(id, slice): &(SliceId, pushpull_messages::placement::SliceSpec)| {
        let variable = &job.graph.variables[slice.variable.index()];
        let elements = slice.elements(variable);
        let bytes = (save.at.0 as f32).to_le_bytes().repeat(elements);
        NewTensor {
            name: format!("{}[{id}]", variable.name),
            shape: [elements].into(),
            bytes: vec![bytes.into()],
        }
    };
    let tensors: Vec<_> = own.iter().map(tensor).collect();
    let name = CheckpointName::shard_file(shard);
    let path = save.checkpoint.file(&name);
    let (written, bytes) = write_file(store, &path, tensors.clone(), Default::default()).await?;
    let placed = own.iter().zip(&tensors).zip(written);
    let tensors = placed.map(|((&(slice, _), tensor), written)| SavedTensorSpec {
        name: tensor.name.clone(),
        slice,
        part: Part::Value,
        offset: written.offset,
        bytes: written.bytes,
        crc32c: written.crc32c,
    });
    Ok(FileSpec { name, shard, version: save.at, bytes, tensors: tensors.collect() })
}

fn created(version: u64) -> ShardCreated {
    ShardCreated { slices: 1, bytes: 4, version: Version(version), appointed: 0 }
}

/// Handles the messages that concern the whole task. Returns any other message, which is for a shard, with
/// its reply handle. If the task belongs to another chief, refuses every message except `Withdraw` and
/// `Observe`.
fn rule(state: &mut FakePsState, message: Message, reply: Reply) -> Option<(Message, Reply)> {
    if matches!(message, Message::Claim(_) | Message::Withdraw(_) | Message::Stop(_)) {
        state.rules.push(message.name());
    }
    match message {
        Message::Withdraw(_) => reply.send(Withdrawn {}, Payload::EMPTY),
        Message::Observe(_) => return Some((message, reply)),
        Message::Inspect(_) => reply.send(Inspected { held: None }, Payload::EMPTY),
        _ if state.taken => reply.refuse(RefusalCode::Term, "ps/0 belongs to another chief"),
        Message::Claim(_) => reply.send(Claimed {}, Payload::EMPTY),
        Message::Stop(_) => reply.send(Stopped {}, Payload::EMPTY),
        Message::Appoint(appoint) => {
            state.told.push(("Appoint", appoint.worker, appoint.shard));
            reply.send(Appointed {}, Payload::EMPTY);
        }
        message => return Some((message, reply)),
    }
    None
}

impl Service for FakePs {
    fn call(&self, _: &Peer, message: Message, _: Payload, reply: Reply) {
        let mut state = self.lock();
        let ahead = state.ahead;
        let Some((message, reply)) = rule(&mut state, message, reply) else { return };
        match message {
            Message::CreateShard(create) => {
                state.placement = create.placement.clone();
                let unreadable = state.cannot_read(&create.start);
                let version = match &create.start {
                    StartSpec::Resume { checkpoint, .. } => checkpoint.step.0,
                    _ => 0,
                };
                let shard = &mut state.shards[create.shard.shard as usize];
                shard.starts.push(create.start.clone());
                // The first shard can read every checkpoint, even those that the second cannot read.
                if unreadable && create.shard.shard == 1 {
                    return reply.refuse(RefusalCode::Unavailable, "a checksum differs");
                }
                shard.armed = None;
                (shard.version, shard.began, shard.end) = (version, version, create.last_step.0);
                reply.send(created(version), Payload::EMPTY);
            }
            Message::Save(save) => {
                let index = save.shard as usize;
                let shard = &mut state.shards[index];
                shard.version = (shard.version + ahead).min(shard.end);
                if shard.version > save.at.0 {
                    let result = SaveResult::Past(Version(shard.version));
                    return reply.send(Saved { result }, Payload::EMPTY);
                }
                if let Some((_, older)) = shard.armed.replace((*save, reply)) {
                    older.send(Saved { result: SaveResult::Replaced }, Payload::EMPTY);
                }
                save_if_due(&mut state, index);
            }
            Message::StopAt(stop) => {
                let shard = &mut state.shards[stop.shard as usize];
                shard.version = (shard.version + ahead).min(shard.end);
                if shard.version <= stop.step.0 {
                    shard.end = stop.step.0;
                }
                reply.send(StoppingAt { version: Version(shard.version) }, Payload::EMPTY);
            }
            Message::HoldAt(hold) => {
                let shard = &mut state.shards[hold.shard as usize];
                shard.hold = Some(hold.version.0).filter(|&hold| shard.version <= hold);
                reply.send(Holding { version: Version(shard.version) }, Payload::EMPTY);
            }
            Message::SetLearningRate(set) => {
                let shard = &mut state.shards[set.shard as usize];
                (shard.hold, shard.rate) = (None, Some(set.change));
                reply.send(LearningRateSet {}, Payload::EMPTY);
            }
            Message::Observe(observe) if state.silent == Some(observe.shard) => {
                state.unanswered.push((observe.shard, reply));
            }
            Message::Observe(observe) => {
                reply.send(state.shards[observe.shard as usize].snapshot(), Payload::EMPTY)
            }
            Message::Leave(leave) => {
                state.told.push(("Leave", leave.worker, leave.shard));
                state.shards[leave.shard as usize].left += 1;
                reply.send(Left {}, Payload::EMPTY);
            }
            other => reply.refuse(RefusalCode::Malformed, other.name()),
        }
    }
}

/// A running fake ps task with two shards, and the identity with which the chief connects to it. The
/// identity contains the addresses of all tasks.
pub(crate) struct FakeCluster {
    pub transport: InProcess,
    pub identity: Identity,
    pub ps: FakePs,
    /// The server of the ps task. It stops when it is dropped.
    _server: Server,
}

impl FakeCluster {
    pub(crate) async fn new(job: JobSpec, store: Store) -> Self {
        let addresses = [
            (JobName::Chief, vec!["chief0:1"]),
            (JobName::Ps, vec!["ps0:1"]),
            (JobName::Worker, vec!["worker0:1", "worker1:1"]),
        ];
        let cluster = ClusterSpec::new(addresses).unwrap();
        let identity = |task, life| Identity {
            task,
            incarnation: Incarnation(life),
            cluster: cluster.clone(),
            graph: None,
            http: None,
            nonce: 0,
        };
        let placement = Placement { epoch: PlacementEpoch(1), shards: vec![], slices: vec![] };
        let shards = (0..2).map(|_| FakeShard::default()).collect();
        let state = FakePsState {
            store,
            job,
            placement,
            shards,
            unreadable: vec![],
            ahead: 0,
            silent: None,
            hangs: false,
            unanswered: vec![],
            taken: false,
            rules: vec![],
            told: vec![],
        };
        let ps = FakePs(Arc::new(Mutex::new(state)));
        let transport = InProcess::new();
        let listener = transport.listen("ps0:1").await.unwrap();
        let config = ServerConfig { shards: 2, ..Default::default() };
        let server = serve(listener, identity(TaskId::ps(0), 1), Arc::new(ps.clone()), config);
        Self { transport, identity: identity(TaskId::CHIEF, 5), ps, _server: server }
    }

    /// Connects to the chief as incarnation `life` of worker `index`.
    pub(crate) async fn worker(&self, index: u32, life: u64) -> Connection {
        let (task, incarnation) = (TaskId::worker(index), Incarnation(life));
        let identity = Identity { task, incarnation, ..self.identity.clone() };
        let patience = Patience::of(PATIENCE);
        dial(&self.transport, "chief0:1", &identity, TaskId::CHIEF, patience).await.unwrap()
    }

    /// Connects to the ps task as the chief does.
    pub(super) async fn connect(&self) -> PsTasks {
        let tasks = PsTasks::default();
        let transport: Arc<dyn Transport> = Arc::new(self.transport.clone());
        let patience = Patience::of(PATIENCE);
        tasks.connect(&transport, &self.identity, patience, RetryConfig::default()).await.unwrap();
        tasks
    }
}

/// Reads the values of every variable from a checkpoint. Checks that each element equals the checkpoint's
/// step, which is what the fake shards write.
pub(super) async fn read_all(store: &Store, name: CheckpointName, manifest: &ManifestSpec) {
    for (variable, id) in manifest.job.graph.variables.iter().zip(0u32..) {
        for piece in manifest.pieces(VariableId(id), Part::Value, 0..variable.rows() as u64) {
            let mut bytes = vec![0; (piece.from.end - piece.from.start) as usize];
            pushpull_storage::read_piece(store, name, &piece, &mut bytes).await.unwrap();
            let value = (name.step.0 as f32).to_le_bytes();
            assert!(bytes.chunks(4).all(|element| element == value), "{name} is of one version");
        }
    }
}
