//! Tests that a shard of a running job can be rolled back, and that nothing from before has an effect after
//! that.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{CheckpointName, Level, StartSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::create;
use crate::shard::cut::Restored;
use crate::shard::{Answer, FileRequest, Reader, ShardLimits, ShardState};

const LAST_STEP: u64 = 1000;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Worker 0 or 1 joins at its epoch, which may be an earlier one.
    Join(u32),
    /// The worker pushes, and asks for the next values.
    Push(u32),
    /// The worker's last push arrives again.
    Repeat(u32),
    /// The worker registers again, and knows the current epoch from then on.
    Restart(u32),
    Leave(u32),
    /// The shard waits for its learning rate.
    Hold,
    SetRate,
    Save,
    /// The chief rolls the job back to this version, or to the initial values.
    RollBack(Option<u64>),
    /// The read of a checkpoint ends, and has succeeded or failed.
    Read(bool),
}

fn action() -> impl Strategy<Value = Action> {
    use Action::*;
    prop_oneof![
        4 => (0u32..2).prop_map(Join),
        12 => (0u32..2).prop_map(Push),
        3 => (0u32..2).prop_map(Repeat),
        4 => (0u32..2).prop_map(Restart),
        1 => (0u32..2).prop_map(Leave),
        1 => Just(Hold),
        2 => Just(SetRate),
        1 => Just(Save),
        2 => prop::option::of(0u64..5).prop_map(RollBack),
        4 => any::<bool>().prop_map(Read),
    ]
}

/// What a worker knows.
#[derive(Clone, Debug)]
struct Known {
    epoch: u64,
    life: u64,
    sequence: u64,
    last: Option<Push>,
}

struct Tested {
    state: ShardState<u64>,
    /// The request with which the shard was created last.
    created: CreateShard,
    workers: [Known; 2],
    handles: u64,
    /// The requests without an answer, each with the epoch in which it was sent.
    open: BTreeSet<(u64, u64)>,
    appointments: u64,
    /// Whether a read is in progress.
    reads: bool,
    /// The version to which the job has rolled back.
    began: u64,
    /// The pushes that were sent since then, each once.
    sent: BTreeSet<(u32, u64, u64)>,
}

impl Tested {
    fn new(sync: SyncSpec) -> Self {
        let created = CreateShard { job: 7, ..create(sync, false, 2, LAST_STEP) };
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let mut state = ShardState::new(created.shard, BufferPool::default(), limits);
        assert!(state.create(created.clone(), 1, 0)[0].result.is_ok());
        let known = |life| Known { epoch: 1, life, sequence: 0, last: None };
        let (open, sent) = Default::default();
        let workers = [known(1), known(2)];
        let mut tested =
            Self { state, created, workers, handles: 0, open, appointments: 0, reads: false, began: 0, sent };
        (0..2).for_each(|worker| tested.appoint(worker));
        tested
    }

    fn epoch(&self) -> u64 {
        self.created.placement.epoch.0
    }

    fn digest_at(&self, epoch: u64) -> u32 {
        let placement = &self.created.placement;
        pushpull_messages::placement::Placement { epoch: PlacementEpoch(epoch), ..placement.clone() }.digest()
    }

    /// Returns a handle for a request that is sent in an epoch.
    fn handle(&mut self, epoch: u64) -> u64 {
        self.handles += 1;
        self.open.insert((epoch, self.handles));
        self.handles
    }

    fn hear(&mut self, answers: Vec<Answer<u64>>) {
        for Answer { reply, .. } in answers {
            let asked = self.open.iter().copied().find(|&(_, handle)| handle == reply);
            assert!(self.open.remove(&asked.expect("(A) it was not answered before")));
        }
    }

    fn appoint(&mut self, worker: u32) {
        self.appointments += 1;
        let (handle, known) = (self.handle(self.epoch()), &self.workers[worker as usize]);
        let (incarnation, number) = (Incarnation(known.life), self.appointments);
        let answers = self.state.appoint(&Appoint { shard: 0, worker, incarnation, number }, handle);
        self.hear(answers);
    }

    fn push(&mut self, worker: u32, push: &Push) {
        let handle = self.handle(push.epoch.0);
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        let before = self.state.observe().pushes;
        let answers = self.state.push(push, gradient, 1, handle);
        let after = self.state.observe().pushes;
        if push.epoch.0 < self.epoch() {
            let refused =
                answers.iter().find(|answer| answer.reply == handle).expect("it is answered at once");
            assert_eq!(refused.result.as_ref().unwrap_err().code, RefusalCode::RolledBack, "(B)");
        }
        if push.epoch.0 == self.epoch() {
            self.sent.insert((worker, push.id.incarnation.0, push.id.sequence.0));
        } else {
            assert_eq!((after.applied, after.held), (before.applied, before.held), "(B)");
        }
        self.hear(answers);
    }

    fn roll_back(&mut self, version: Option<u64>) {
        let start = version.map_or(StartSpec::Initialise, |step| {
            let checkpoint = CheckpointName { step: GlobalStep(step), life: Incarnation(1) };
            StartSpec::Resume { store: "here".into(), checkpoint, workers: Vec::new() }
        });
        let epoch = PlacementEpoch(self.epoch() + 1);
        self.created.placement.epoch = epoch;
        self.created.start = start;
        let handle = self.handle(epoch.0);
        let answers = self.state.create(self.created.clone(), self.epoch(), handle);
        self.hear(answers);
        let waits = |&(asked, _): &(u64, u64)| asked < epoch.0;
        assert!(!self.open.iter().any(waits), "(A) nothing from before waits");
        (self.began, self.sent) = (version.unwrap_or(0), BTreeSet::new());
        assert!(self.state.predates(self.epoch() - 1) && !self.state.predates(self.epoch()), "(B)");
    }

    fn read(&mut self, succeeds: bool) {
        if !std::mem::take(&mut self.reads) {
            return;
        }
        let restored = Restored { version: Version(self.began), ..Restored::default() };
        let refusal = Refusal::new(RefusalCode::Unavailable, "broken");
        let answers = self.state.restored(if succeeds { Ok(restored) } else { Err(refusal) });
        self.hear(answers);
    }

    fn join(&mut self, worker: u32) {
        let known = &self.workers[worker as usize];
        let (epoch, incarnation) = (known.epoch, Incarnation(known.life));
        let (handle, placement_digest) = (self.handle(epoch), self.digest_at(epoch));
        let epoch = PlacementEpoch(epoch);
        let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Join, averages: false };
        let reader = Reader { worker, incarnation, connection: 1 };
        let answers = self.state.pull(&pull, Some(reader), handle);
        self.hear(answers);
    }

    fn push_next(&mut self, worker: u32) {
        let version = self.state.observe().version;
        let placement_digest = self.digest_at(self.workers[worker as usize].epoch);
        let known = &mut self.workers[worker as usize];
        known.sequence += 1;
        let sequence = Sequence(known.sequence);
        let push = Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(known.life), sequence },
            local_step: LocalStep(known.sequence),
            epoch: PlacementEpoch(known.epoch),
            placement_digest,
            version,
            slices: vec![SliceId(0)],
            drawn: known.sequence,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        known.last = Some(push.clone());
        self.push(worker, &push);
    }

    /// Carries out an order of the chief.
    fn order(&mut self, action: Action) {
        let (epoch, version) = (self.epoch(), self.state.observe().version);
        let handle = self.handle(epoch);
        let answers = match action {
            Action::Leave(worker) => {
                let incarnation = Incarnation(self.workers[worker as usize].life);
                let epoch = PlacementEpoch(epoch);
                self.state.leave(&Leave { shard: 0, worker, incarnation, epoch }, handle)
            }
            Action::Hold => self.state.hold_at(&HoldAt { shard: 0, version }, handle),
            Action::SetRate => {
                let change = RateChange { from: version, factor: 0.5 };
                self.state.set_learning_rate(&SetLearningRate { shard: 0, change }, handle)
            }
            _ => {
                let at = version.next();
                let checkpoint = CheckpointName { step: GlobalStep(at.0), life: Incarnation(1) };
                self.state.save(Save { shard: 0, store: "here".into(), checkpoint, at }, 1, handle)
            }
        };
        self.hear(answers);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Join(worker) => self.join(worker),
            Action::Push(worker) => self.push_next(worker),
            Action::Repeat(worker) => {
                if let Some(push) = self.workers[worker as usize].last.clone() {
                    self.push(worker, &push);
                }
            }
            Action::Restart(worker) => {
                let epoch = self.epoch();
                let known = &mut self.workers[worker as usize];
                *known = Known { epoch, life: known.life + 2, sequence: 0, last: known.last.take() };
                self.appoint(worker);
            }
            Action::RollBack(version) => self.roll_back(version),
            Action::Read(succeeds) => self.read(succeeds),
            Action::Leave(_) | Action::Hold | Action::SetRate | Action::Save => self.order(action),
        }
        while let Some(request) = self.state.take_file_request() {
            match request {
                FileRequest::Read(read) => {
                    assert!(!std::mem::replace(&mut self.reads, true), "one read at a time");
                    assert_eq!(read.placement.epoch.0, self.epoch(), "only the newest is read");
                }
                FileRequest::Write(_) => {
                    let answers = self.state.written(Level::Directory, SaveResult::failed("full"));
                    self.hear(answers);
                }
            }
        }
    }

    fn holds(&self) {
        let seen = self.state.observe();
        assert!(seen.pushes.add_up(), "V2: {:?}", seen.pushes);
        let counted = seen.pushes.applied + seen.pushes.held;
        assert!(counted <= self.sent.len() as u64, "(C)");
        // The shard is empty while it is being restored.
        let begun = self.state.inspect().held.is_some();
        assert!(!begun || seen.version.0 >= self.began, "(B)");
        assert!(!begun || seen.version.0 <= self.began + counted, "(B)");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn nothing_from_before_a_rollback_counts_after_it(
        sync in prop_oneof![
            Just(SyncSpec::ASYNC),
            Just(SyncSpec::SYNC),
            Just(SyncSpec::Bounded { staleness: 1 }),
        ],
        actions in prop::collection::vec(action(), 0..120),
    ) {
        let mut tested = Tested::new(sync);
        for action in actions {
            tested.act(action);
            tested.holds();
        }
    }
}

/// Returns the number of updates that a synchronous shard has made after a rollback, if only worker 0 pushes.
/// `before` and `after` say whether worker 1 has left before the rollback, and whether the shard learns only
/// after the rollback that the worker left before it.
fn updates_without_the_other(before: bool, after: bool) -> u64 {
    let mut tested = Tested::new(SyncSpec::SYNC);
    (0..2).for_each(|worker| tested.act(Action::Join(worker)));
    let (incarnation, epoch) = (Incarnation(tested.workers[1].life), PlacementEpoch(1));
    let leave = Leave { shard: 0, worker: 1, incarnation, epoch };
    let hear_of_it = |tested: &mut Tested, told: bool| {
        if told {
            let handle = tested.handle(tested.epoch());
            let answers = tested.state.leave(&leave, handle);
            tested.hear(answers);
        }
    };
    hear_of_it(&mut tested, before);
    tested.act(Action::RollBack(None));
    hear_of_it(&mut tested, after);
    (0..2).for_each(|worker| tested.act(Action::Restart(worker)));
    tested.act(Action::Join(0));
    tested.act(Action::Push(0));
    tested.state.observe().version.0
}

#[test]
fn a_departure_from_before_a_rollback_is_forgotten() {
    assert_eq!(updates_without_the_other(true, false), 0, "the shard waits for the worker again");
    assert_eq!(updates_without_the_other(false, true), 0, "a late copy changes nothing");
    let mut tested = Tested::new(SyncSpec::SYNC);
    tested.act(Action::RollBack(None));
    tested.act(Action::Restart(0));
    let epoch = PlacementEpoch(tested.epoch());
    let handle = tested.handle(epoch.0);
    let leave = Leave { shard: 0, worker: 1, incarnation: Incarnation(2), epoch };
    let answers = tested.state.leave(&leave, handle);
    tested.hear(answers);
    tested.act(Action::Join(0));
    tested.act(Action::Push(0));
    assert_eq!(tested.state.observe().version, Version(1), "a departure after it counts");
}

#[test]
fn only_a_later_epoch_of_the_same_job_rolls_a_shard_back() {
    let mut tested = Tested::new(SyncSpec::ASYNC);
    tested.act(Action::Join(0));
    tested.act(Action::Push(0));
    let later = |job: u32, epoch| {
        let mut create = CreateShard { job, seed: 1, ..tested.created.clone() };
        create.placement.epoch = PlacementEpoch(epoch);
        create
    };
    for (refused, why) in
        [(later(8, 2), "another job"), (later(7, 1), "the same epoch"), (later(0, 2), "none")]
    {
        let answers = tested.state.create(refused, 2, 1);
        assert!(answers[0].result.is_err(), "{why}");
        assert_eq!(tested.state.observe().version, Version(1));
    }
    let answers = tested.state.create(later(7, 2), 2, 1);
    assert!(answers[0].result.is_ok());
    assert_eq!(tested.state.observe().version, Version(0));
    // A late copy of the earlier request, although no worker has used the shard since.
    let answers = tested.state.create(later(7, 1), 3, 1);
    assert_eq!(answers[0].result.as_ref().unwrap_err().code, RefusalCode::RolledBack);
    assert_eq!(tested.state.inspect().held.unwrap().created.placement.epoch, PlacementEpoch(2));
}
