//! Saves of a shard that goes on: whatever is pushed, asked and asked again, every question is answered once, and what is
//! handed out is of the version that was asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec, StartSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::cut::{Cut, Restored};
use super::state::{Order, ShardLimits, ShardState};
use super::waiting::Answer;
use super::workers::create;

const LAST_STEP: u64 = 30;

/// A shard whose value is minus its version, and who has asked it what.
struct Saving {
    state: ShardState<u32>,
    digest: u32,
    pushes: u64,
    /// By version, what the push that made it said.
    drawn: Vec<u64>,
    /// The last question.
    asked: u32,
    open: BTreeSet<u32>,
    /// What is being written, and its question as last asked.
    writing: Option<Cut>,
    writing_asked: u32,
    /// The same of what is to come.
    next: Option<(Save, u32)>,
    written: Option<Save>,
}

fn save(number: u64, at: u64) -> Save {
    let checkpoint = CheckpointName { step: GlobalStep(at), life: Incarnation(number) };
    Save { shard: 0, store: "memory://".into(), checkpoint, at: Version(at) }
}

impl Saving {
    fn new() -> Self {
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let create = create(SyncSpec::ASYNC, false, 1, LAST_STEP);
        let (digest, mut state) =
            (create.placement.digest(), ShardState::new(create.shard, BufferPool::default(), limits));
        assert_eq!(state.create(create, 1, 0).len(), 1);
        Self {
            state,
            digest,
            pushes: 0,
            drawn: vec![0],
            asked: 0,
            open: BTreeSet::new(),
            writing: None,
            writing_asked: 0,
            next: None,
            written: None,
        }
    }

    fn version(&self) -> u64 {
        self.state.observe().version.0
    }

    fn push(&mut self) {
        self.pushes += 1;
        let push = Push {
            shard: 0,
            id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(self.pushes) },
            local_step: LocalStep(self.pushes),
            epoch: PlacementEpoch(1),
            placement_digest: self.digest,
            version: Version(self.version()),
            slices: vec![SliceId(0)],
            drawn: 2 * self.pushes,
            pull: true,
            traced: false,
        };
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        let before = self.state.observe();
        let answers = self.state.push(&push, gradient, 1, u32::MAX);
        assert_eq!(answers.len(), 1, "a push answers no save");
        let after = self.state.observe();
        assert_eq!(before.pushes.received + 1, after.pushes.received);
        if after.version > before.version {
            self.drawn.push(2 * self.pushes);
        }
        self.take_cut();
    }

    fn take_cut(&mut self) {
        while let Some(order) = self.state.take_order() {
            let Order::Write(cut) = order else { panic!("{order:?}") };
            assert!(self.writing.is_none(), "one at a time");
            let (save, asked) = self.next.take().expect("a save was asked for");
            assert_eq!(cut.save, save);
            self.writing_asked = asked;
            self.writing = Some(cut);
        }
    }

    /// What becomes of earlier questions is found by what the shard answers, and must be what a plain model says.
    fn ask(&mut self, wanted: Save, connection: u64) {
        self.asked += 1;
        let (asked, version) = (self.asked, self.version());
        self.open.insert(asked);
        let answers = self.state.save(wanted.clone(), connection, asked);
        let told: Vec<_> = answers.iter().map(|answer| (answer.reply, told(answer))).collect();
        for (reply, _) in &told {
            assert!(self.open.remove(reply), "each is answered once");
        }
        if self.written.as_ref() == Some(&wanted) {
            assert_eq!(told, [(asked, "written")]);
        } else if self.writing.as_ref().is_some_and(|cut| cut.save == wanted) {
            let older = std::mem::replace(&mut self.writing_asked, asked);
            assert_eq!(told, [(older, "superseded")]);
        } else if self.next.as_ref().is_some_and(|(next, _)| *next == wanted) {
            let older = std::mem::replace(&mut self.next.as_mut().unwrap().1, asked);
            assert_eq!(told, [(older, "superseded")]);
        } else if wanted.at.0 < version {
            assert_eq!(told, [(asked, "past")]);
        } else {
            let older = self.next.replace((wanted, asked));
            assert_eq!(told, Vec::from_iter(older.map(|(_, older)| (older, "replaced"))));
        }
        self.take_cut();
    }

    /// The writing ends, well or not.
    fn finish(&mut self, well: bool) {
        let Some(cut) = self.writing.take() else { return };
        let at = cut.save.at.0;
        assert_eq!(cut.slices[0].value.as_f32(), [-(at as f32)], "the values of version {at}");
        let drawn = cut.workers.first().map_or(0, |record| record.drawn);
        assert_eq!(drawn, self.drawn[at as usize], "what is remembered at version {at}");
        let name = CheckpointName::shard_file(cut.created.shard);
        let file =
            FileSpec { name, shard: cut.created.shard, version: cut.save.at, bytes: 0, tensors: vec![] };
        let written = SaveResult::Written { file, workers: cut.workers, took_ms: 0 };
        let result = if well { written } else { SaveResult::failed("the disk is full") };
        let answers = self.state.written(result);
        let told: Vec<_> = answers.iter().map(|answer| (answer.reply, told(answer))).collect();
        assert_eq!(told, [(self.writing_asked, if well { "written" } else { "failed" })]);
        assert!(self.open.remove(&self.writing_asked));
        if well {
            self.written = Some(cut.save);
        }
        self.take_cut();
    }
}

fn told(answer: &Answer<u32>) -> &'static str {
    match &answer.result {
        Ok((Message::Saved(saved), _)) => match saved.result {
            SaveResult::Written { .. } => "written",
            SaveResult::Past(_) => "past",
            SaveResult::Replaced => "replaced",
            SaveResult::Failed(_) => "failed",
        },
        Err(refusal) if refusal.code == RefusalCode::Superseded => "superseded",
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Push,
    /// For a version so many further; of the checkpoint of that number.
    Ask(u64, u64),
    Again,
    Finish(bool),
    StopAt(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Push),
        4 => (0u64..4, 0u64..2).prop_map(|(further, number)| Event::Ask(further, number)),
        3 => Just(Event::Again),
        3 => any::<bool>().prop_map(Event::Finish),
        1 => (0u64..5).prop_map(Event::StopAt),
    ]
}

proptest! {
    /// (A), (B), (C) and (D) of saves.
    #[test]
    fn every_save_is_answered_once_and_is_of_its_version(
        events in prop::collection::vec(any_event(), 0..150),
    ) {
        let mut saving = Saving::new();
        let mut last = None;
        for event in events {
            match event {
                Event::Push => saving.push(),
                Event::Ask(further, number) => {
                    // One that has gone by, too.
                    let wanted = save(number, (saving.version() + further).saturating_sub(1));
                    last = Some(wanted.clone());
                    saving.ask(wanted, 1);
                }
                Event::Again => {
                    if let Some(last) = last.clone() {
                        saving.ask(last, 1);
                    }
                }
                Event::Finish(well) => saving.finish(well),
                Event::StopAt(further) => {
                    let stop = StopAt { shard: 0, step: GlobalStep(saving.version() + further) };
                    assert_eq!(saving.state.stop_at(&stop, u32::MAX).len(), 1);
                    saving.take_cut();
                }
            }
            let waiting = usize::from(saving.writing.is_some()) + usize::from(saving.next.is_some());
            prop_assert_eq!(saving.open.len(), waiting, "(A)");
        }
        // Whatever is still open is answered when its version comes.
        let stop = StopAt { shard: 0, step: GlobalStep(LAST_STEP) };
        saving.state.stop_at(&stop, u32::MAX);
        while saving.version() < LAST_STEP {
            saving.push();
            saving.finish(true);
        }
        let too_late = saving.next.iter().filter(|(next, _)| next.at.0 > LAST_STEP).count();
        saving.finish(true);
        saving.finish(true);
        prop_assert_eq!(saving.open.len(), too_late);
    }
}

#[test]
fn what_a_later_connection_asked_is_not_superseded_by_what_an_earlier_one_asked() {
    let mut saving = Saving::new();
    saving.state.save(save(1, 2), 7, 1);
    let answers = saving.state.save(save(1, 2), 6, 2);
    assert_eq!((answers[0].reply, told(&answers[0])), (2, "superseded"));
}

#[test]
fn a_shard_that_begins_anew_gives_up_what_it_was_to_save() {
    let mut saving = Saving::new();
    saving.ask(save(1, 2), 1);
    let answers = saving.state.create(create(SyncSpec::SYNC, false, 1, 9), 1, 50);
    assert_eq!((answers[0].reply, told(&answers[0])), (1, "replaced"));
    assert!(matches!(&answers[1].result, Ok((Message::ShardCreated(_), _))));
    assert!(saving.state.take_order().is_none());
}

/// What it begins with, where that has to be read.
fn resume(step: u64) -> CreateShard {
    let checkpoint = CheckpointName { step: GlobalStep(step), life: Incarnation(1) };
    let start = StartSpec::Resume { store: "memory://".into(), checkpoint, workers: Vec::new() };
    CreateShard { start, ..create(SyncSpec::SYNC, false, 2, 9) }
}

fn refused(answers: &[Answer<u32>]) -> RefusalCode {
    assert_eq!(answers.len(), 1);
    answers[0].result.as_ref().expect_err("it is refused").code
}

#[test]
fn while_a_shard_reads_it_serves_nothing_and_the_newest_question_counts() {
    let mut saving = Saving::new();
    let state = &mut saving.state;
    assert!(state.create(resume(4), 1, 1).is_empty());
    assert!(matches!(state.take_order(), Some(Order::Read(create)) if *create == resume(4)));
    let answers = state.create(resume(4), 1, 2);
    assert_eq!((answers[0].reply, refused(&answers)), (1, RefusalCode::Superseded));
    assert_eq!(refused(&state.create(resume(3), 1, 3)), RefusalCode::Unavailable);
    assert_eq!(refused(&state.save(save(1, 5), 1, 4)), RefusalCode::Unavailable);
    assert_eq!(
        refused(&state.stop_at(&StopAt { shard: 0, step: GlobalStep(5) }, 5)),
        RefusalCode::Unavailable
    );
    // One that leaves meanwhile is not waited for afterwards.
    let leave = Leave { shard: 0, worker: 1, incarnation: Incarnation(8) };
    assert_eq!(state.leave(&leave, 6).len(), 1);
    assert!(state.take_order().is_none(), "it is read once");
    let unreadable = Refusal::new(RefusalCode::Unavailable, "the file is missing");
    let answers = state.restored(Err(unreadable));
    assert_eq!((answers[0].reply, refused(&answers)), (2, RefusalCode::Unavailable));
    // An older one is there.
    assert!(state.create(resume(3), 1, 7).is_empty());
    assert!(matches!(state.take_order(), Some(Order::Read(_))));
    let answers = state.restored(Ok(Restored { version: Version(3), ..Restored::default() }));
    assert!(
        matches!(&answers[0].result, Ok((Message::ShardCreated(created), _)) if created.version == Version(3))
    );
    let seen = state.observe();
    assert_eq!((seen.version, seen.began, seen.members), (Version(3), Version(3), 1));
    let answers = state.create(resume(3), 1, 8);
    assert!(answers[0].result.is_ok(), "it has that already");
    assert!(state.take_order().is_none());
}

#[test]
fn a_gradient_that_is_held_is_not_what_a_worker_goes_on_after() {
    let create = create(SyncSpec::SYNC, false, 2, 9);
    let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
    let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
    let placement_digest = create.placement.digest();
    state.create(create, 1, 0);
    let push = |state: &mut ShardState<u32>, worker| {
        let push = Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(1), sequence: Sequence(1) },
            local_step: LocalStep(1),
            epoch: PlacementEpoch(1),
            placement_digest,
            version: Version(0),
            slices: vec![SliceId(0)],
            drawn: 7,
            pull: false,
            traced: false,
        };
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        assert!(state.push(&push, gradient, 1, 1)[0].result.is_ok());
    };
    let drawn = |state: &mut ShardState<u32>, at| {
        state.save(save(1, at), 1, 2);
        let Some(Order::Write(cut)) = state.take_order() else { panic!("it is due") };
        state.written(SaveResult::failed("not meant to be"));
        cut.workers.iter().map(|record| record.drawn).collect::<Vec<_>>()
    };
    push(&mut state, 0);
    assert_eq!(drawn(&mut state, 0), [0]);
    push(&mut state, 1);
    assert_eq!(drawn(&mut state, 1), [7, 7]);
}
