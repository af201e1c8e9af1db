//! The body of a fuzz target: a shard, and the chiefs and workers that send it any messages in any order. The
//! messages are encoded and decoded as they are on the wire, and pass the rules of the router. Wanted
//! properties: (A) no message causes a panic; (B) V1, V2, T1 and T2 of ARCHITECTURE.md hold after every
//! message; (C) every request is answered at most once, with a message that its receiver can decode; (D) a
//! refused request changes no version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::checkpoint::{CheckpointName, Level, StartSpec, WorkerRecord};
use pushpull_messages::compression::{CompressionSpec, EncodingSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{OptimizerSpec, RateChange};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::Peer;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};
use tokio::time::Instant;

use crate::claims::{Claims, Term};
use crate::router::{is_order, shard_of};
use crate::serving::dispatch;
use crate::shard::{Answer, FileRequest, Reader, Restored, ShardLimits, ShardState};

#[path = "../../tests/fuzz/src/script.rs"]
mod script;

use script::Script;

/// How far inputs can come, the shortest way first.
pub const STAGES: [&str; 5] = ["no shard", "a shard", "a member", "a push counted", "an update"];

/// The largest number of messages of an input.
const MESSAGES_MAX: usize = 400;
/// How long a chief may be away before another one gets the task.
const LEASE: Duration = Duration::from_secs(10);
/// The numbers of chiefs and of workers that send messages.
const CHIEFS: u64 = 2;
const WORKERS: u32 = 3;
const SHARD: ShardId = ShardId::new(0, 0);

/// A reply handle: the number of the request.
type Handle = u64;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Push,
    /// The worker and the incarnation that pull.
    Pull(Option<(u32, u64)>),
    Other,
}

/// A ps task with one shard, and its peers.
struct Task {
    claims: Claims,
    state: ShardState<Handle>,
    now: Instant,
    /// The connections of each chief.
    connections: [usize; CHIEFS as usize],
    /// The chiefs whose claims were granted and not withdrawn.
    granted: BTreeSet<u64>,
    /// The chief whose order was obeyed last, and when its last connection ended.
    obeyed: Option<u64>,
    left: [Instant; CHIEFS as usize],
    /// The incarnations that the shard was told to let join, since it was created.
    appointed: BTreeSet<(u32, u64)>,
    lives: [u64; WORKERS as usize],
    /// The number of pushes of each incarnation of a worker.
    sequences: BTreeMap<(u32, u64), u64>,
    /// The number of the latest connection.
    connection: u64,
    asked: BTreeMap<Handle, Asked>,
    handles: Handle,
    /// The reads and writes of files that have begun.
    reads: usize,
    writes: Vec<Level>,
    reached: usize,
}

/// Checks one input. Returns how far it came, as a position in [`STAGES`].
///
/// # Panics
/// If a property does not hold.
pub fn check(bytes: &[u8]) -> usize {
    let (mut script, mut task) = (Script::new(bytes), Task::new());
    if !script.once_in(4) {
        task.begin(&mut script);
    }
    for _ in 0..MESSAGES_MAX {
        if script.is_over() {
            break;
        }
        task.step(&mut script);
    }
    task.reached
}

impl Task {
    fn new() -> Self {
        let limits = ShardLimits { values_bytes_max: 1 << 14, gradients_bytes_max: 1 << 14 };
        let now = Instant::now();
        Self {
            claims: Claims::new(LEASE),
            state: ShardState::new(SHARD, BufferPool::new(1 << 16), limits),
            now,
            connections: [0; CHIEFS as usize],
            granted: BTreeSet::new(),
            obeyed: None,
            left: [now; CHIEFS as usize],
            appointed: BTreeSet::new(),
            lives: [1; WORKERS as usize],
            sequences: BTreeMap::new(),
            connection: 1,
            asked: BTreeMap::new(),
            handles: 0,
            reads: 0,
            writes: Vec::new(),
            reached: 0,
        }
    }

    /// Lets a chief create the shard, and all workers join it, as in most jobs.
    fn begin(&mut self, script: &mut Script<'_>) {
        self.claims.connected(term(0), "here");
        self.connections[0] = 1;
        let chief = chief_peer(0, self.connection);
        self.send(&chief, Claim { attempt: 1 }.into(), Payload::EMPTY);
        self.send(&chief, create(script).into(), Payload::EMPTY);
        let (epoch, placement_digest, _) = self.placement();
        for worker in 0..WORKERS {
            let appoint = Appoint { shard: 0, worker, incarnation: Incarnation(1), number: 1 };
            self.send(&chief, appoint.into(), Payload::EMPTY);
            let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Join, averages: false };
            self.send(&peer(TaskId::worker(worker), 1, self.connection), pull.into(), Payload::EMPTY);
        }
        self.holds();
    }

    /// Lets one thing happen.
    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(16) {
            0 => self.change_connection(script),
            1 => self.connection += 1,
            2 => {
                let worker = script.below(WORKERS as usize);
                self.lives[worker] = self.lives[worker] % 3 + 1;
            }
            3 => self.finish_file(script),
            4..=8 => {
                let chief = u64::from(script.once_in(6));
                if self.connections[chief as usize] == 0 {
                    self.claims.connected(term(chief), "here");
                    self.connections[chief as usize] = 1;
                }
                let message = self.of_chief(script);
                self.send(&chief_peer(chief, self.connection), message, Payload::EMPTY);
            }
            _ => self.of_worker(script),
        }
        self.holds();
    }

    fn change_connection(&mut self, script: &mut Script<'_>) {
        let chief = script.below(CHIEFS as usize);
        match script.below(3) {
            0 => {
                self.claims.connected(term(chief as u64), "here");
                self.connections[chief] += 1;
            }
            1 if self.connections[chief] > 0 => {
                self.connections[chief] -= 1;
                self.left[chief] = self.now;
                self.claims.disconnected(term(chief as u64), self.now);
            }
            _ => self.now += Duration::from_secs(script.byte().into()),
        }
    }

    /// Begins a read or a write of a file, and may end one.
    fn finish_file(&mut self, script: &mut Script<'_>) {
        match self.state.take_file_request() {
            Some(FileRequest::Read(_)) => self.reads += 1,
            Some(FileRequest::Write(cut)) => self.writes.push(Level::of(&cut.save.store)),
            None => {}
        }
        assert!(self.reads <= 1 && self.writes.len() <= 2, "one read, and one write of each level at a time");
        let creations = self.state.creations();
        let answers = match self.writes.pop() {
            _ if self.reads > 0 && !script.once_in(4) => {
                self.reads -= 1;
                let damaged = || Refusal::new(RefusalCode::Unavailable, "the file is damaged");
                let version = Version(script.about(3));
                let restored = Restored { version, ..Restored::default() };
                self.state.restored(if script.once_in(4) { Err(damaged()) } else { Ok(restored) })
            }
            Some(level) => {
                let result =
                    if script.once_in(2) { SaveResult::Replaced } else { SaveResult::failed("no space") };
                self.state.written(level, result)
            }
            None => return,
        };
        if self.state.creations() != creations {
            self.appointed.clear();
        }
        self.receive(answers);
    }

    /// Returns what a worker must know of the shard's placement; that of the usual one if there is no shard.
    fn placement(&self) -> (PlacementEpoch, u32, Vec<(SliceId, usize)>) {
        let created = self.state.inspect().held.map(|held| held.created);
        let created = created.unwrap_or_else(|| create(&mut Script::new(&[])));
        let slices = created.placement.on_shard(SHARD);
        let slices =
            slices.map(|(id, slice)| (id, slice.elements(&created.variables[slice.variable.index()])));
        (created.placement.epoch, created.placement.digest(), slices.collect())
    }

    /// Returns a message that a chief sends, or sends by mistake.
    fn of_chief(&mut self, script: &mut Script<'_>) -> Message {
        let version = self.state.observe().version.0;
        let worker = script.below(WORKERS as usize) as u32;
        let incarnation = Incarnation(script.about(self.lives[worker as usize]));
        let (shard, epoch) = (script.about_u32(0), self.placement().0);
        match script.below(16) {
            0 | 1 => Claim { attempt: script.about(1) }.into(),
            2 => Withdraw { attempt: script.about(1) }.into(),
            3 | 4 => create(script).into(),
            5..=8 => {
                let number = u64::from(script.byte());
                let number = script.about(number);
                Appoint { shard, worker: script.about_u32(worker), incarnation, number }.into()
            }
            9 => {
                let epoch = PlacementEpoch(script.about(epoch.0));
                Leave { shard, worker: script.about_u32(worker), incarnation, epoch }.into()
            }
            10 => StopAt {
                shard,
                step: GlobalStep(script.about(version.wrapping_add(1))),
                drains: script.once_in(3),
            }
            .into(),
            11 => HoldAt { shard, version: Version(script.about(version.wrapping_add(1))) }.into(),
            12 => {
                let factor = script.choose(&[0.5, 1.0, 1e-30, 3e38, 0.0, -1.0, f32::NAN, f32::INFINITY]);
                let change = RateChange { from: Version(script.about(version)), factor };
                SetLearningRate { shard, change }.into()
            }
            13 => {
                let at = Version(script.about(version));
                let checkpoint = CheckpointName { step: GlobalStep(at.0), life: Incarnation(1) };
                let store = script.choose(&["/c", "memory://", "s3://b/k", ""]).to_owned();
                Save { shard, store, checkpoint, at }.into()
            }
            14 => Inspect { shard }.into(),
            _ => Stop { reason: StopReason::failed("enough") }.into(),
        }
    }

    /// Lets a worker, or a peer that is none, send a message.
    fn of_worker(&mut self, script: &mut Script<'_>) {
        let worker = script.below(WORKERS as usize) as u32;
        let life = self.lives[worker as usize];
        let task = match script.byte() {
            250.. => TaskId::new(JobName::Evaluator, worker),
            246.. => TaskId::worker(u32::MAX),
            _ => TaskId::worker(worker),
        };
        let connection = script.about(self.connection);
        let peer = peer(task, life, connection);
        let (epoch, digest, slices) = self.placement();
        let epoch = PlacementEpoch(script.about(epoch.0));
        let digest = script.about_u32(digest);
        match script.below(8) {
            0..=4 => self.push(script, &peer, (epoch, digest, slices)),
            5 | 6 => {
                let step = GlobalStep(script.about(self.state.observe().version.0));
                let at = script.choose(&[PullAt::Join, PullAt::Join, PullAt::Step(step), PullAt::Latest]);
                let averages = script.once_in(4);
                let pull = Pull { shard: script.about_u32(0), epoch, placement_digest: digest, at, averages };
                self.send(&peer, pull.into(), Payload::EMPTY);
            }
            _ => {
                // A worker must not give the orders of a chief, nor answer what nobody has asked.
                let message = if script.once_in(2) { self.of_chief(script) } else { Heartbeat {}.into() };
                self.send(&peer, message, Payload::EMPTY);
            }
        }
    }

    fn push(
        &mut self,
        script: &mut Script<'_>,
        peer: &Peer,
        (epoch, placement_digest, slices): (PlacementEpoch, u32, Vec<(SliceId, usize)>),
    ) {
        let (worker, life) = (peer.task.index, peer.incarnation.0);
        let sent = self.sequences.get(&(worker, life)).copied().unwrap_or(0);
        let sequence = script.about(sent + 1);
        if sequence == sent + 1 {
            self.sequences.insert((worker, life), sequence);
        }
        let mut ids: Vec<SliceId> = slices.iter().rev().map(|(id, _)| *id).collect();
        let mut segments: Vec<Segment> = Vec::new();
        for (_, elements) in slices.iter().rev() {
            let value = script.choose(&[0.5, 0.0, -1.0, 1e-30, 1e19, 3e38, f32::NAN, f32::INFINITY]);
            let count = script.about(*elements as u64).min(64) as usize;
            segments.push(Segment::whole(Arc::new(Buffer::from_f32(&vec![value; count]))));
        }
        if script.once_in(32) {
            ids.swap_remove(0);
            segments.pop();
        }
        let mut with = Vec::new();
        if script.once_in(6) {
            for other in (0..WORKERS).filter(|&other| other != worker) {
                let life = self.lives[other as usize];
                let next = self.sequences.get(&(other, life)).copied().unwrap_or(0) + 1;
                let incarnation = Incarnation(life);
                let id = PushId { worker: other, incarnation, sequence: Sequence(script.about(next)) };
                with.push(Contribution { id, local_step: LocalStep(1), drawn: 1 });
            }
        }
        let version = self.state.observe().version.0;
        let push = Push {
            shard: script.about_u32(0),
            id: PushId {
                worker: script.about_u32(worker),
                incarnation: peer.incarnation,
                sequence: Sequence(sequence),
            },
            local_step: LocalStep(script.about(sequence)),
            epoch,
            placement_digest,
            version: Version(script.about(version)),
            slices: ids,
            drawn: script.about(sequence),
            pull: !script.once_in(4),
            traced: false,
            with,
        };
        self.send(peer, push.into(), Payload::new(segments));
    }

    /// Sends a message as it is sent on the wire, and handles it as the router and the shard do.
    fn send(&mut self, peer: &Peer, message: Message, payload: Payload) {
        let lengths: Vec<u64> = payload.segments().iter().map(|segment| segment.len() as u64).collect();
        let Ok(message) = Message::decode(message.kind(), &message.encode(), &lengths) else { return };
        if peer.task.job == JobName::Chief && !self.rule(peer, &message) {
            return;
        }
        if matches!(message, Message::Inspect(_) | Message::Observe(_)) {
            return check_message(&self.state.inspect().into(), &[]);
        }
        if shard_of(peer, &message) != Some(SHARD.shard) {
            return;
        }
        let (incarnation, connection) = (peer.incarnation, peer.connection);
        let worker = (peer.task.job == JobName::Worker).then_some(peer.task.index);
        let reader = worker.map(|worker| Reader { worker, incarnation, connection });
        self.handles += 1;
        let handle = self.handles;
        let asked = match &message {
            Message::Push(_) => Asked::Push,
            Message::Pull(_) => Asked::Pull(worker.map(|worker| (worker, incarnation.0))),
            _ => Asked::Other,
        };
        self.asked.insert(handle, asked);
        let held = |state: &ShardState<Handle>| state.inspect().held.map(|held| held.version);
        let (creations, before) = (self.state.creations(), held(&self.state));
        let appoint = if let Message::Appoint(appoint) = &message { Some(**appoint) } else { None };
        let answers = dispatch(&mut self.state, message, payload.into(), reader, connection, handle);
        let refused = |answer: &Answer<Handle>| answer.reply == handle && answer.result.is_err();
        let after = held(&self.state);
        if self.state.creations() != creations {
            self.appointed.clear();
        } else if after.is_some() {
            assert!(after >= before, "V1: the version never decreases");
        }
        if answers.iter().any(refused) && asked == Asked::Push {
            assert_eq!(after, before, "(D)");
        }
        if let Some(Appoint { worker, incarnation, .. }) = appoint
            && !answers.iter().any(refused)
        {
            self.appointed.insert((worker, incarnation.0));
        }
        self.receive(answers);
    }

    /// Returns whether the shards see the message of a chief, as the router decides.
    fn rule(&mut self, chief: &Peer, message: &Message) -> bool {
        let (own, now, number) = (Term::of(chief), self.now, chief.incarnation.0 - 1);
        match message {
            Message::Claim(claim) => {
                if self.claims.claim(own, claim.attempt, now).is_ok() {
                    self.granted.insert(number);
                }
                false
            }
            Message::Withdraw(withdraw) => {
                self.claims.withdraw(own, withdraw.attempt);
                false
            }
            Message::Stop(_) => {
                if self.claims.stop(own, now).is_ok() {
                    self.obeys(number);
                }
                false
            }
            order if is_order(order) => {
                let obeyed = self.claims.order(own, now).is_ok();
                if obeyed {
                    self.obeys(number);
                }
                obeyed
            }
            _ => true,
        }
    }

    /// Checks that the task may obey this chief.
    fn obeys(&mut self, chief: u64) {
        assert!(self.granted.contains(&chief), "T1: a claim of chief {chief} was granted");
        if let Some(other) = self.obeyed.filter(|&other| other != chief) {
            let away = self.now.duration_since(self.left[other as usize]);
            let connected = self.connections[other as usize] > 0;
            assert!(!connected && away >= LEASE, "T1: one chief at a time");
        }
        self.obeyed = Some(chief);
    }

    /// Receives answers of the shard.
    fn receive(&mut self, answers: Vec<Answer<Handle>>) {
        for Answer { reply, result, .. } in answers {
            let asked = self.asked.remove(&reply).expect("(C) every request is answered once");
            let (message, payload) = match result {
                Ok(answer) => answer,
                Err(refusal) => (refusal.into(), Payload::EMPTY),
            };
            let lengths: Vec<u64> = payload.segments().iter().map(|segment| segment.len() as u64).collect();
            check_message(&message, &lengths);
            match (asked, &message) {
                (_, Message::ShardCreated(_)) => self.reached = self.reached.max(1),
                (Asked::Pull(Some(_)), Message::Pulled(_)) => self.reached = self.reached.max(2),
                (_, Message::Pushed(_)) => self.reached = self.reached.max(3),
                _ => {}
            }
        }
    }

    /// Checks what must hold after every message.
    fn holds(&mut self) {
        let (seen, held) = (self.state.observe(), self.state.inspect().held);
        assert!(seen.pushes.add_up(), "V2: {:?}", seen.pushes);
        let Some(held) = held else { return };
        assert!(held.version >= held.began, "V1: {:?} began at {:?}", held.version, held.began);
        assert!(
            held.version.0 <= held.created.last_step.0.max(held.began.0),
            "V3: no update after the last step"
        );
        for (worker, member) in (0u32..).zip(&held.members) {
            if let Some(Incarnation(life)) = member.member {
                assert!(self.appointed.contains(&(worker, life)), "T2: worker/{worker} in life {life}");
            }
        }
        if held.version > held.began {
            self.reached = 4;
        }
    }
}

/// Checks that the receiver of a message can decode it.
fn check_message(message: &Message, lengths: &[u64]) {
    let again = Message::decode(message.kind(), &message.encode(), lengths);
    assert!(again.is_ok(), "(C) {} cannot be decoded: {again:?}", message.name());
}

const fn term(chief: u64) -> Term {
    Term { incarnation: Incarnation(chief + 1), nonce: chief }
}

fn peer(task: TaskId, life: u64, connection: u64) -> Peer {
    let incarnation = Incarnation(life);
    Peer { task, guest: None, incarnation, connection, address: "here".into(), http: None, nonce: 0 }
}

fn chief_peer(chief: u64, connection: u64) -> Peer {
    Peer { nonce: chief, ..peer(TaskId::CHIEF, chief + 1, connection) }
}

/// Returns a request to create the shard. That of an empty script is the usual one.
fn create(script: &mut Script<'_>) -> CreateShard {
    let variable = |name: &str, rows: usize| VariableSpec {
        name: name.into(),
        shape: [rows, 2].into(),
        dtype: DType::F32,
        initializer: InitializerSpec::Zeros,
        trainable: true,
        device: None,
    };
    let shard = ShardId::new(script.about_u32(0), script.about_u32(0));
    let variables = vec![variable("x", 2), variable("y", script.choose(&[1, 3, 1 << 10]))];
    let slices = variables.iter().zip(0u32..).map(|(variable, position)| {
        let slice = SliceSpec { variable: VariableId(position), row: 0, rows: variable.rows() as u64 };
        PlacedSlice { slice, shard: SHARD }
    });
    let start = match script.below(8) {
        6 | 7 => {
            let checkpoint = CheckpointName { step: GlobalStep(3), life: Incarnation(1) };
            let record = WorkerRecord {
                worker: script.about_u32(0),
                incarnation: Incarnation(script.about(1)),
                sequence: Sequence(script.about(3)),
                verdict: Verdict::Applied,
                drawn: script.about(3),
            };
            StartSpec::Resume { store: "/c".into(), checkpoint, workers: vec![record] }
        }
        _ => StartSpec::Initialise,
    };
    let compression = match script.below(8) {
        6 => vec![CompressionSpec::new("*").gradients(EncodingSpec::Int8)],
        7 => vec![CompressionSpec::new("x").values(EncodingSpec::Bf16)],
        _ => Vec::new(),
    };
    let optimizers = [OptimizerSpec::sgd(0.5), OptimizerSpec::adam(0.1), OptimizerSpec::momentum(0.1, 0.9)];
    CreateShard {
        job: script.choose(&[7, 7, 7, 0, 8]),
        shard,
        placement: Placement {
            epoch: PlacementEpoch(script.choose(&[1, 1, 1, 2, 3, 0, u64::MAX])),
            shards: vec![SHARD],
            slices: slices.collect(),
        },
        variables,
        update: optimizers[script.below(3)].clone().into(),
        compression,
        sync: script
            .choose(&["sync", "async", "bounded:1", "sync:2", "bounded:0"])
            .parse()
            .expect("a policy"),
        pipeline: script.choose(&[1, 1, 1, 2, 4]),
        deterministic: script.once_in(4),
        workers: script.choose(&[2, 1, 3, 200]),
        last_step: GlobalStep(script.choose(&[20, 3, 1, u64::MAX])),
        seed: 0,
        start,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn any_messages_in_any_order_keep_the_invariants(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            check(&bytes);
        }
    }
}
