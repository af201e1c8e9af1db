//! Tests the saves of a shard that keeps training. For any order of pushes and save requests, every request
//! is answered once, and every cut (the snapshot that a save writes) has the version that was requested.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec, Level, MEMORY, StartSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::{appoint, create};
use crate::shard::{Answer, Cut, FileRequest, Restored, ShardLimits, ShardState};

const LAST_STEP: u64 = 30;

/// A shard, and a plain model of its saves. The shard's only value is the negative of its version.
struct Saving {
    state: ShardState<u32>,
    digest: u32,
    pushes: u64,
    /// For each version, the number of batches that the worker had drawn from its input, according to the
    /// push that made the version.
    drawn: Vec<u64>,
    /// The number of the latest save request. Requests are numbered from 1, and the number is the reply
    /// handle.
    asked: u32,
    open: BTreeSet<u32>,
    /// The cut that is being written.
    writing: Option<Cut>,
    writing_asked: u32,
    /// The save whose write has not begun yet, and the number of the latest request for it.
    next: Option<(Save, u32)>,
    written: Option<Save>,
}

fn save(number: u64, at: u64) -> Save {
    let checkpoint = CheckpointName { step: GlobalStep(at), life: Incarnation(number) };
    Save { shard: 0, store: "/c".into(), checkpoint, at: Version(at) }
}

impl Saving {
    fn new() -> Self {
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let create = create(SyncSpec::ASYNC, false, 1, LAST_STEP);
        let (digest, mut state) =
            (create.placement.digest(), ShardState::new(create.shard, BufferPool::default(), limits));
        assert_eq!(state.create(create, 1, 0).len(), 1);
        appoint(&mut state, 0, 1, 0);
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
            with: Vec::new(),
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
        while let Some(request) = self.state.take_file_request() {
            let FileRequest::Write(cut) = request else { panic!("{request:?}") };
            assert!(self.writing.is_none(), "one cut is written at a time");
            let (save, asked) = self.next.take().expect("a save was requested");
            assert_eq!(cut.save, save);
            self.writing_asked = asked;
            self.writing = Some(cut);
        }
    }

    /// Requests a save, and compares the answers to this and earlier requests with those of the model.
    fn ask(&mut self, wanted: Save, connection: u64) {
        self.asked += 1;
        let (asked, version) = (self.asked, self.version());
        self.open.insert(asked);
        let answers = self.state.save(wanted.clone(), connection, asked);
        let told: Vec<_> = answers.iter().map(|answer| (answer.reply, told(answer))).collect();
        for (reply, _) in &told {
            assert!(self.open.remove(reply), "each request is answered once");
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

    /// Checks the cut that is being written, and tells the shard that the write succeeded or failed.
    fn finish(&mut self, success: bool) {
        let Some(cut) = self.writing.take() else { return };
        let at = cut.save.at.0;
        assert_eq!(cut.slices[0].value.as_f32(), [-(at as f32)], "the values of version {at}");
        let drawn = cut.workers.first().map_or(0, |record| record.drawn);
        assert_eq!(drawn, self.drawn[at as usize], "the batches drawn at version {at}");
        let name = CheckpointName::shard_file(cut.created.shard);
        let file =
            FileSpec { name, shard: cut.created.shard, version: cut.save.at, bytes: 0, tensors: vec![] };
        let written = SaveResult::Written { file, workers: cut.workers, took_ms: 0 };
        let result = if success { written } else { SaveResult::failed("the disk is full") };
        let answers = self.state.written(Level::Directory, result);
        let told: Vec<_> = answers.iter().map(|answer| (answer.reply, told(answer))).collect();
        assert_eq!(told, [(self.writing_asked, if success { "written" } else { "failed" })]);
        assert!(self.open.remove(&self.writing_asked));
        if success {
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
    /// Requests a save at a version: the shard's current version, plus the first field, minus one. If the
    /// first field is 0, the shard may have passed that version. The second field becomes the incarnation in
    /// the checkpoint's name.
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
    /// Checks that every save request is answered once (A) and every cut has the requested version (B), that
    /// there are at most two cuts (C), and that no save is written twice (D). Pushes, save requests, ends of
    /// writes and changes of the last step come in any order.
    #[test]
    fn every_save_is_answered_once_at_its_version(
        events in prop::collection::vec(any_event(), 0..150),
    ) {
        let mut saving = Saving::new();
        let mut last = None;
        for event in events {
            match event {
                Event::Push => saving.push(),
                Event::Ask(further, number) => {
                    // The requested version may be the one before the current version, which is too late.
                    let wanted = save(number, (saving.version() + further).saturating_sub(1));
                    last = Some(wanted.clone());
                    saving.ask(wanted, 1);
                }
                Event::Again => {
                    if let Some(last) = last.clone() {
                        saving.ask(last, 1);
                    }
                }
                Event::Finish(success) => saving.finish(success),
                Event::StopAt(further) => {
                    let stop = StopAt { shard: 0, step: GlobalStep(saving.version() + further), drains: false };
                    assert_eq!(saving.state.stop_at(&stop, u32::MAX).len(), 1);
                    saving.take_cut();
                }
            }
            let waiting = usize::from(saving.writing.is_some()) + usize::from(saving.next.is_some());
            prop_assert_eq!(saving.open.len(), waiting, "(A)");
        }
        // A request that has not been answered yet is answered when the shard reaches the requested version.
        let stop = StopAt { shard: 0, step: GlobalStep(LAST_STEP), drains: false };
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
fn an_earlier_connection_does_not_supersede_a_later_one() {
    let mut saving = Saving::new();
    saving.state.save(save(1, 2), 7, 1);
    let answers = saving.state.save(save(1, 2), 6, 2);
    assert_eq!((answers[0].reply, told(&answers[0])), (2, "superseded"));
}

#[test]
fn a_shard_created_anew_abandons_its_next_save() {
    let mut saving = Saving::new();
    saving.ask(save(1, 2), 1);
    let answers = saving.state.create(create(SyncSpec::SYNC, false, 1, 9), 1, 50);
    assert_eq!((answers[0].reply, told(&answers[0])), (1, "replaced"));
    assert!(matches!(&answers[1].result, Ok((Message::ShardCreated(_), _))));
    assert!(saving.state.take_file_request().is_none());
}

/// Returns a request to create a shard with the values of the checkpoint of this step.
fn resume(step: u64) -> CreateShard {
    let checkpoint = CheckpointName { step: GlobalStep(step), life: Incarnation(1) };
    let start = StartSpec::Resume { store: "/c".into(), checkpoint, workers: Vec::new() };
    CreateShard { start, ..create(SyncSpec::SYNC, false, 2, 9) }
}

fn refused(answers: &[Answer<u32>]) -> RefusalCode {
    assert_eq!(answers.len(), 1);
    answers[0].result.as_ref().expect_err("the request is refused").code
}

#[test]
fn a_shard_that_is_restoring_refuses_other_requests() {
    let mut saving = Saving::new();
    let state = &mut saving.state;
    assert!(state.create(resume(4), 1, 1).is_empty());
    assert!(matches!(state.take_file_request(), Some(FileRequest::Read(create)) if *create == resume(4)));
    let answers = state.create(resume(4), 1, 2);
    assert_eq!((answers[0].reply, refused(&answers)), (1, RefusalCode::Superseded));
    assert_eq!(refused(&state.create(resume(3), 1, 3)), RefusalCode::Unavailable);
    assert_eq!(refused(&state.save(save(1, 5), 1, 4)), RefusalCode::Unavailable);
    assert_eq!(
        refused(&state.stop_at(&StopAt { shard: 0, step: GlobalStep(5), drains: false }, 5)),
        RefusalCode::Unavailable
    );
    // A worker leaves while the values are being read. Afterwards, no other worker waits for it.
    let leave = Leave { shard: 0, worker: 1, incarnation: Incarnation(8), epoch: PlacementEpoch(1) };
    assert_eq!(state.leave(&leave, 6).len(), 1);
    assert!(state.take_file_request().is_none(), "the read is requested once");
    let unreadable = Refusal::new(RefusalCode::Unavailable, "the file is missing");
    let answers = state.restored(Err(unreadable));
    assert_eq!((answers[0].reply, refused(&answers)), (2, RefusalCode::Unavailable));
    // The chief then tries an older checkpoint, which can be read.
    assert!(state.create(resume(3), 1, 7).is_empty());
    assert!(matches!(state.take_file_request(), Some(FileRequest::Read(_))));
    let answers = state.restored(Ok(Restored { version: Version(3), ..Restored::default() }));
    assert!(
        matches!(&answers[0].result, Ok((Message::ShardCreated(created), _)) if created.version == Version(3))
    );
    let seen = state.observe();
    assert_eq!((seen.version, seen.began, seen.members), (Version(3), Version(3), 1));
    let answers = state.create(resume(3), 1, 8);
    assert!(answers[0].result.is_ok(), "the shard has these values already");
    assert!(state.take_file_request().is_none());
}

#[test]
fn examples_of_a_held_gradient_do_not_count_as_drawn() {
    let create = create(SyncSpec::SYNC, false, 2, 9);
    let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
    let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
    let placement_digest = create.placement.digest();
    state.create(create, 1, 0);
    (0..2).for_each(|worker| appoint(&mut state, worker, 1, 0));
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
            with: Vec::new(),
        };
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        assert!(state.push(&push, gradient, 1, 1)[0].result.is_ok());
    };
    let drawn = |state: &mut ShardState<u32>, at| {
        state.save(save(1, at), 1, 2);
        let Some(FileRequest::Write(cut)) = state.take_file_request() else { panic!("the save is due") };
        state.written(Level::Directory, SaveResult::failed("the test writes no file"));
        cut.workers.iter().map(|record| record.drawn).collect::<Vec<_>>()
    };
    push(&mut state, 0);
    assert_eq!(drawn(&mut state, 0), [0]);
    push(&mut state, 1);
    assert_eq!(drawn(&mut state, 1), [7, 7]);
}

#[test]
fn saves_of_one_level_do_not_replace_those_of_the_other() {
    let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
    let create = create(SyncSpec::ASYNC, false, 1, LAST_STEP);
    let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
    state.create(create, 1, 0);
    let in_memory = |number, at| Save { store: MEMORY.into(), ..save(number, at) };
    // Both wait for versions that do not come.
    assert!(state.save(save(1, 9), 1, 1).is_empty() && state.save(in_memory(1, 8), 1, 2).is_empty());
    let replaced = state.save(in_memory(2, 0), 1, 3);
    assert_eq!(replaced.iter().map(|answer| answer.reply).collect::<Vec<_>>(), [2], "only the one in memory");
    // The cut in memory is written, while one for the directory is written, too.
    assert_eq!(state.save(save(2, 0), 1, 4)[0].reply, 1);
    let mut cuts = Vec::new();
    while let Some(FileRequest::Write(cut)) = state.take_file_request() {
        cuts.push(cut.save.store);
    }
    cuts.sort_unstable();
    assert_eq!(cuts, ["/c", MEMORY]);
    let ended = |answers: Vec<Answer<u32>>| answers[0].reply;
    assert_eq!(ended(state.written(Level::Memory, SaveResult::failed("full"))), 3);
    assert_eq!(ended(state.written(Level::Directory, SaveResult::failed("full"))), 4);
}
