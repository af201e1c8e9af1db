//! The body of a fuzz target: a job, and the workers and events that act on it in any order, with any
//! messages. The messages are encoded and decoded as they are on the wire. Wanted properties: (A) no message
//! causes a panic; (B) every request is answered at most once, with a message that its receiver can decode,
//! and all are answered when the job has ended; (C) a job ends at most once; (D) a worker is told to begin
//! only after the shards were told of its incarnation and have confirmed it (T2), and only after the job has
//! begun; (E) what the job remembers of a worker is bounded.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{
    GlobalStep, Incarnation, LocalStep, PlacementEpoch, ShardId, TaskId, VariableId,
};
use pushpull_messages::input::{DatasetSpec, FilesDigest, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::LeaveSpec;
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::Peer;
use tokio::time::Instant;

use super::{Effect, JobStart, JobState, MembershipOrder, Phase, Settled};
use crate::error::ChiefError;
use crate::launch::HeldWorker;

#[path = "../../../tests/fuzz/src/script.rs"]
mod script;

use script::Script;

/// How far inputs can come, the shortest way first.
pub const STAGES: [&str; 6] = ["nothing", "registered", "begun", "trained", "evaluated", "ended"];

/// The largest number of messages and events of an input.
const EVENTS_MAX: usize = 400;
/// The number of workers that send messages. The job has fewer.
const WORKERS: u32 = 4;
/// The last step of the job.
const LAST_STEP: u64 = 10;
/// The largest number of incarnations that the job remembers of a worker.
const LIVES_MAX: usize = 70;

/// A reply handle: the number of the request.
type Handle = u64;

/// A worker, as it knows itself.
#[derive(Clone, Copy)]
struct Life {
    incarnation: u64,
    connection: u64,
}

struct Job {
    state: JobState<Handle>,
    lives: [Life; WORKERS as usize],
    connections: u64,
    handles: Handle,
    /// The worker and incarnation that sent each request without a reply.
    open: BTreeMap<Handle, (u32, u64)>,
    /// The appointments that the shards have not confirmed.
    appointing: Vec<(u32, u64)>,
    confirmed: BTreeSet<(u32, u64)>,
    created: bool,
    begun: bool,
    ends: usize,
    reached: usize,
}

/// Checks one input. Returns how far it came, as a position in [`STAGES`].
///
/// # Panics
/// If a property does not hold.
pub fn check(bytes: &[u8]) -> usize {
    let mut script = Script::new(bytes);
    let mut job = Job::new(&mut script);
    if script.once_in(2) {
        job.begin();
    }
    for _ in 0..EVENTS_MAX {
        if script.is_over() {
            break;
        }
        job.step(&mut script);
        job.holds();
    }
    job.reached
}

fn spec(script: &mut Script<'_>) -> JobSpec {
    let mut g = GraphBuilder::new("linear");
    let x = g.input("features", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let graph = g.finish(loss, &[("accuracy", accuracy)]).expect("a valid graph");
    let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
    let when_worker_leaves = script.choose(&[LeaveSpec::Continue, LeaveSpec::Fail]);
    JobSpec { when_worker_leaves, ..JobSpec::new(graph, InputSpec::new(digits(1), digits(2)), LAST_STEP) }
}

fn placement() -> Placement {
    let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 3 };
    let shard = ShardId::new(0, 0);
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: vec![PlacedSlice { slice, shard }] }
}

impl Job {
    fn new(script: &mut Script<'_>) -> Self {
        let (spec, how) = (spec(script), script.byte());
        let mut state = JobState::new(spec, 1 + u32::from(how % 3)).hosting_ps(how & 16 != 0);
        if how & 32 != 0 {
            state = state.up_to(Some(3));
        }
        Self {
            state,
            lives: [Life { incarnation: 1, connection: 1 }; WORKERS as usize],
            connections: 1,
            handles: 0,
            open: BTreeMap::new(),
            appointing: Vec::new(),
            confirmed: BTreeSet::new(),
            created: false,
            begun: false,
            ends: 0,
            reached: 0,
        }
    }

    /// Lets all workers begin to train.
    fn begin(&mut self) {
        self.created = true;
        let effects =
            self.state.created(placement(), JobStart { may_roll_back: true, ..JobStart::default() });
        self.carry_out(effects);
        let messages: [Message; 2] = [Register::default().into(), Ready::default().into()];
        for message in messages {
            for worker in 0..WORKERS {
                self.request(&peer(worker, 1, 1), message.clone());
            }
            while !self.appointing.is_empty() {
                self.confirm();
            }
        }
    }

    /// Lets one thing happen.
    fn step(&mut self, script: &mut Script<'_>) {
        let worker = script.below(WORKERS as usize) as u32;
        match script.below(32) {
            0..=17 => self.say(worker, script),
            18..=21 => self.confirm(),
            22 => self.connect(worker, script),
            23 => {
                let Life { incarnation, connection } = self.lives[worker as usize];
                self.state.disconnected(&peer(worker, incarnation, script.about(connection)));
            }
            24 => {
                let awaited: Vec<_> = self.state.awaited().collect();
                if let Some(&(worker, connection)) = awaited.first() {
                    let effects = self.state.lost(worker, script.about(connection));
                    self.carry_out(effects);
                }
            }
            25 => {
                self.connections += 1;
                let connection = self.connections;
                let incarnation = self.lives[worker as usize].incarnation + 1;
                self.lives[worker as usize] = Life { incarnation, connection };
            }
            26 | 27 => self.create(script),
            _ => self.event(worker, script),
        }
    }

    fn connect(&mut self, worker: u32, script: &mut Script<'_>) {
        self.connections += 1;
        self.lives[worker as usize].connection = self.connections;
        let incarnation = script.about(self.lives[worker as usize].incarnation);
        let effects = self.state.connected(&peer(worker, incarnation, self.connections));
        self.carry_out(effects);
    }

    fn confirm(&mut self) {
        if !self.appointing.is_empty() {
            let (worker, life) = self.appointing.remove(0);
            self.confirmed.insert((worker, life));
            let effects = self.state.appointed(worker, Incarnation(life));
            self.carry_out(effects);
        }
    }

    /// Lets the variables get their values, in a new job or in that of an earlier run of the chief.
    fn create(&mut self, script: &mut Script<'_>) {
        if std::mem::replace(&mut self.created, true) {
            return;
        }
        let start = JobStart {
            step: GlobalStep(script.choose(&[0, 0, 0, 4, LAST_STEP])),
            saves: script.once_in(2),
            may_roll_back: script.once_in(2),
            ..JobStart::default()
        };
        let first = !self.begun && self.handles == 0;
        let effects = if first && script.once_in(3) {
            let held = |worker: u32, script: &mut Script<'_>| match script.below(3) {
                0 => HeldWorker::Absent,
                1 => HeldWorker::Here {
                    incarnation: Incarnation(u64::from(worker % 2) + 1),
                    joined: script.once_in(2),
                },
                _ => HeldWorker::Gone(Incarnation(1)),
            };
            let workers: Vec<_> = (0..WORKERS).map(|worker| held(worker, script)).collect();
            // An earlier run of the chief has appointed them, and has begun the job.
            for (held, worker) in workers.iter().zip(0..) {
                if let HeldWorker::Here { incarnation, .. } = held {
                    self.confirmed.insert((worker, incarnation.0));
                }
            }
            self.begun = true;
            self.state.continued(placement(), start, &workers)
        } else {
            self.state.created(placement(), start)
        };
        self.carry_out(effects);
    }

    /// Lets something happen that is no message of a worker.
    fn event(&mut self, worker: u32, script: &mut Script<'_>) {
        let ended = matches!(self.state.phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_));
        let effects = match script.below(24) {
            0 => self.state.stop("enough".into(), script.once_in(2)),
            1..=3 if self.state.is_agreeing() => {
                let step = script.about(5).min(LAST_STEP);
                self.state.stopping_at(GlobalStep(step))
            }
            4 if self.state.drains() => self.state.end_drain(),
            5..=7 => {
                let settled = Settled { save_by: Instant::now(), shards: None, observed: false };
                self.state.settled(Some(settled).filter(|_| !script.once_in(4)))
            }
            8..=10 => self.state.release(),
            11 | 12 => {
                self.state.suspend();
                Vec::new()
            }
            13..=15 if self.state.suspended && self.created => self.state.resume(),
            16 | 17 if self.created => {
                self.created = ended;
                self.state.suspend();
                self.state.roll_back(&[])
            }
            18 => self.state.host_lost(worker),
            19 => self.state.end_failing(),
            20 if script.once_in(8) => {
                let step = GlobalStep(1);
                self.state.fail(ChiefError::Interrupted { step, last_step: GlobalStep(LAST_STEP) })
            }
            21 if script.once_in(8) => {
                let reason = "ps/0 belongs to another chief".into();
                self.state.fail(ChiefError::OtherChief { task: TaskId::ps(0), reason })
            }
            _ => Vec::new(),
        };
        self.carry_out(effects);
    }

    /// Lets a worker send a message that it may send, or one that it must not send.
    fn say(&mut self, worker: u32, script: &mut Script<'_>) {
        let Life { incarnation, connection } = self.lives[worker as usize];
        let incarnation = script.about(incarnation);
        let index = if script.once_in(64) { u32::MAX } else { worker };
        let peer = peer(index, incarnation, script.about(connection));
        let message = self.message(worker, script);
        // What cannot be decoded never reaches the chief.
        if let Ok(message) = Message::decode(message.kind(), &message.encode(), &[]) {
            self.request(&peer, message);
        }
    }

    fn request(&mut self, peer: &Peer, message: Message) {
        self.handles += 1;
        let handle = self.handles;
        self.open.insert(handle, (peer.task.index, peer.incarnation.0));
        let effects = self.state.request(peer, message, handle);
        self.carry_out(effects);
    }

    fn message(&self, worker: u32, script: &mut Script<'_>) -> Message {
        let number = |script: &mut Script<'_>| script.choose(&[0.5, f32::NAN, f32::INFINITY, -1.0, 3e38]);
        let files = FilesDigest { files: 2, bytes: 7, crc32c: 3 };
        match script.below(16) {
            0..=3 => {
                let after = script
                    .once_in(3)
                    .then(|| Incarnation(script.about(self.lives[worker as usize].incarnation - 1)));
                Register { after }.into()
            }
            4..=6 => Ready { files: script.once_in(2).then_some(files) }.into(),
            7 | 8 => Report {
                global_step: GlobalStep(script.about(4)),
                local_step: LocalStep(script.about(2)),
                loss: number(script),
                drawn: script.about(2),
                metrics: vec![number(script); script.below(4)],
                ..Report::default()
            }
            .into(),
            9..=11 => {
                let result = match script.below(12) {
                    8 => TrainingResult::Interrupted,
                    9 => TrainingResult::input_ended("3 epochs"),
                    10 => TrainingResult::gave_up("lost ps/0"),
                    11 => TrainingResult::failed("no memory"),
                    _ => TrainingResult::Completed,
                };
                let (local_step, skipped) = (LocalStep(script.about(5)), script.about(1));
                Finish { result, local_step, loss: number(script), skipped }.into()
            }
            12 | 13 => {
                let metrics =
                    vec![MetricValue { name: "accuracy".into(), value: number(script) }; script.below(3)];
                let evaluation = Evaluation {
                    loss: number(script),
                    metrics,
                    examples: script.about(10),
                    variables_crc32c: 1,
                };
                let result = if script.once_in(8) { Err("no memory".into()) } else { Ok(evaluation) };
                Evaluated { result }.into()
            }
            14 => Rejoin {
                job: script.about_u32(self.state.job().digest()),
                files: script.once_in(2).then_some(files),
            }
            .into(),
            _ => match script.below(4) {
                0 => Go {}.into(),
                1 => Finished { evaluate: true, step: GlobalStep(1) }.into(),
                2 => Stop { reason: StopReason::Completed }.into(),
                _ => Claim { attempt: 1 }.into(),
            },
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Handle>>) {
        for effect in effects {
            match effect {
                Effect::Reply(reply, message) => self.answered(reply, &message),
                Effect::Order(MembershipOrder::Appoint(worker, incarnation)) => {
                    self.appointing.push((worker, incarnation.0));
                }
                Effect::Order(MembershipOrder::Leave(worker, incarnation)) => {
                    self.confirmed.remove(&(worker, incarnation.0));
                }
                Effect::Started => (self.begun, self.reached) = (true, self.reached.max(2)),
                Effect::Trained(step) | Effect::SaveAgain(step) => {
                    assert!(step.0 <= LAST_STEP, "the job ends at its last step");
                    self.reached = self.reached.max(3);
                }
                Effect::Evaluated(..) => self.reached = self.reached.max(4),
                Effect::Ended(_) => {
                    self.ends += 1;
                    self.reached = 5;
                }
            }
        }
    }

    /// Records the reply to a request.
    fn answered(&mut self, reply: Handle, message: &Message) {
        let (worker, life) = self.open.remove(&reply).expect("(B) every request is answered once");
        let again = Message::decode(message.kind(), &message.encode(), &[]);
        assert!(again.is_ok(), "(B) {} cannot be decoded: {again:?}", message.name());
        match message {
            Message::Registered(_) => self.reached = self.reached.max(1),
            Message::Go(_) => {
                assert!(self.begun, "(D) the job has begun");
                let confirmed = self.confirmed.contains(&(worker, life));
                assert!(confirmed, "(D) worker/{worker} in life {life} was appointed");
            }
            _ => {}
        }
    }

    /// Checks what must hold after every event.
    fn holds(&self) {
        let state = &self.state;
        assert!(state.global_step().0 <= LAST_STEP, "no step after the last one");
        assert!(self.ends <= 1, "(C)");
        if matches!(state.phase, Phase::Ended(_)) {
            assert!(self.open.is_empty(), "(B) {:?} are open", self.open);
        }
        for member in state.members.values() {
            assert!(member.replaced.len() <= LIVES_MAX && member.ended.len() <= LIVES_MAX, "(E)");
        }
        let progress = state.progress();
        assert!(progress.workers <= state.members.len(), "only members train");
    }
}

fn peer(worker: u32, life: u64, connection: u64) -> Peer {
    let (task, incarnation) = (TaskId::worker(worker), Incarnation(life));
    Peer { task, guest: None, incarnation, connection, address: "here".into(), http: None, nonce: 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn any_messages_in_any_order_keep_the_invariants(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            check(&bytes);
        }
    }
}
