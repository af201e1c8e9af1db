//! Tests that a drafted update has the same bits as one that was not drafted (A), that a draft that is
//! dropped changes nothing (B), that a draft becomes an update only of the version from which it leads (C),
//! and that the values that it shows are those of its update (D).

use proptest::prelude::*;
use pushpull_messages::id::{Incarnation, Sequence, SliceId, Version};
use pushpull_messages::message::{
    CreateShard, Pull, PullAt, Push, PushId, Pushed, Refusal, RefusalCode, SetLearningRate, Verdict,
};
use pushpull_messages::optimizer::{GroupSpec, OptimizerSpec, RateChange, UpdateSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{BufferPool, Payload, Segment};

use super::pushes::{Tested, create, floats, latest, only, payload, push};
use crate::shard::draft::Draft;
use crate::shard::{DraftWriter, Gradients, Reader, UpdateThreads};

/// Drafts a push as if its payload arrived in pieces; `pieces` are their sizes in bytes, again and again.
pub(super) fn draft(state: &Tested, push: &Push, gradients: &Payload, pieces: &[usize]) -> Option<Draft> {
    draft_shown(state, push, gradients, (pieces, false)).map(|(draft, _)| draft)
}

/// The values that a draft has shown, the last slice first, and their version.
struct Shown {
    version: Version,
    slices: Vec<SliceId>,
    values: Payload,
}

/// Drafts a push as [`draft`] does. Also returns the values that were shown while they were made, if `shows`
/// is true and the draft may show them.
fn draft_shown(
    state: &Tested,
    push: &Push,
    gradients: &Payload,
    (pieces, shows): (&[usize], bool),
) -> Option<(Draft, Option<Shown>)> {
    let lengths: Vec<u64> = gradients.segments().iter().map(|segment| segment.len() as u64).collect();
    let mut writer = state.0.plan()?.begin(push, &lengths, &BufferPool::default())?;
    let shown = writer.may_show().filter(|_| shows).map(|version| {
        let mut shown = None;
        writer.show(|slices, values| {
            shown = Some(Shown { version, slices, values });
            true
        });
        shown.expect("the values are sent once")
    });
    let mut pieces = pieces.iter().copied().cycle();
    for (at, segment) in gradients.segments().iter().enumerate() {
        let made = |shown: &Shown| shown.values.segments()[..at].iter().all(Segment::is_ready);
        assert!(shown.as_ref().is_none_or(made), "a value is sent as soon as it is made");
        let mut rest = segment.as_bytes();
        while !rest.is_empty() {
            let space = writer.space();
            let piece = pieces.next().unwrap().clamp(1, rest.len()).min(space.len());
            space[..piece].copy_from_slice(&rest[..piece]);
            writer.filled(piece);
            rest = &rest[piece..];
        }
    }
    let arrived = writer.finish()?;
    assert_eq!(arrived.sent_ahead(), shown.as_ref().map(|shown| shown.version));
    Some((arrived.wait(), shown))
}

fn apply(
    state: &mut Tested,
    push: &Push,
    gradients: impl Into<Gradients>,
) -> Result<(Pushed, Payload), Refusal> {
    only(state.0.push(push, gradients, 1, ()))
}

fn values(state: &mut Tested) -> Vec<Vec<u32>> {
    let (_, values) = state.pull(&latest(push(1).placement_digest)).unwrap();
    floats(&values).iter().map(|slice| slice.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Lets the first incarnation of a worker join.
pub(super) fn join(state: &mut Tested) {
    let pull = Pull { at: PullAt::Join, ..latest(push(1).placement_digest) };
    let reader = Reader { worker: 0, incarnation: push(1).id.incarnation, connection: 1 };
    state.0.pull(&pull, Some(reader), ());
}

/// The update of a job: an optimizer, perhaps with averages, and perhaps with another rule for a variable.
fn any_update() -> impl Strategy<Value = UpdateSpec> {
    let optimizer = prop_oneof![
        Just(OptimizerSpec::sgd(0.5)),
        Just(OptimizerSpec::momentum(0.1, 0.9)),
        Just(OptimizerSpec::adam(0.1)),
    ];
    let frozen = GroupSpec { frozen: true, ..GroupSpec::new("b") };
    let other = GroupSpec { optimizer: Some(OptimizerSpec::sgd(0.25)), ..GroupSpec::new("b") };
    let groups = prop_oneof![Just(Vec::new()), Just(vec![frozen]), Just(vec![other])];
    (optimizer, prop::option::of(0.1f32..0.99), 0.0f32..0.1, groups).prop_map(
        |(optimizer, average, weight_decay, groups)| UpdateSpec {
            average,
            weight_decay,
            groups,
            ..optimizer.into()
        },
    )
}

proptest! {
    #[test]
    fn a_drafted_update_has_the_same_bits(
        update in any_update(),
        staleness_lr: bool,
        pushes in prop::collection::vec((-2f32..2.0, -2f32..2.0, any::<bool>(), any::<[bool; 2]>()), 1..6),
        pieces in prop::collection::vec(1usize..20, 1..5),
    ) {
        let create = |update: &UpdateSpec| {
            let sync = SyncSpec::Async { staleness_lr };
            let mut state = Tested::new(1 << 20);
            let update = update.clone();
            state.create(CreateShard { update, sync, ..create(OptimizerSpec::sgd(1.0), 9) }).unwrap();
            join(&mut state);
            state
        };
        let (mut drafted, mut usual) = (create(&update), create(&update));
        for (sequence, (a, b, drafts, [tears, shows])) in (1..).zip(pushes) {
            let push = push(sequence);
            let gradients = payload(&[&[b, -b], &[a, 2.0 * a, -a, 0.5]]);
            if tears {
                let before = values(&mut drafted);
                drop(draft_shown(&drafted, &push, &payload(&[&[7.0; 2], &[7.0; 4]]), (&pieces, shows)));
                prop_assert_eq!(values(&mut drafted), before, "(B)");
            }
            let (expected, _) = apply(&mut usual, &push, gradients.clone()).unwrap();
            let (mut shown, mut pushed) = (None, Gradients::Arrived(gradients.clone()));
            if drafts {
                let drafted = draft_shown(&drafted, &push, &gradients, (&pieces, shows));
                let (draft, values) = drafted.expect("the shard makes drafts");
                let has_slots = !matches!(update.optimizer, OptimizerSpec::Sgd { .. });
                prop_assert_eq!(values.is_some(), shows && !has_slots);
                (shown, pushed) = (values, Gradients::Drafted(draft));
            }
            let (got, own) = apply(&mut drafted, &push, pushed).unwrap();
            if let Some(Shown { version, mut slices, values }) = shown {
                slices.reverse();
                prop_assert_eq!((version, slices), (got.version, got.slices), "(D)");
                let values: Vec<_> = floats(&values).into_iter().rev().collect();
                prop_assert_eq!(values, floats(&own), "(D)");
            }
            prop_assert_eq!((got.verdict, got.version), (expected.verdict, expected.version));
            prop_assert_eq!(values(&mut drafted), values(&mut usual), "(A)");
        }
    }
}

/// Drafts a push that is so large that its results are written past the caches, and that other threads may
/// help. An element anywhere may be NaN or too large; such a push must not be applied.
#[test]
fn a_large_drafted_update_has_the_same_bits() {
    const ROWS: usize = (8 << 20) / 8 + 3;
    let three =
        UpdateThreads::new(3, |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok());
    let (sgd, adam) = (OptimizerSpec::sgd(0.3), OptimizerSpec::adam(0.1));
    let cases = [
        (&sgd, None, &UpdateThreads::NONE),
        (&sgd, None, &three),
        (&sgd, Some(0.5), &three),
        (&adam, None, &three),
    ];
    for (optimizer, average, threads) in cases {
        let large = |update: &UpdateSpec| {
            let mut large = CreateShard { update: update.clone(), ..create(OptimizerSpec::sgd(1.0), 9) };
            large.variables[0].shape = [ROWS + 3, 2].into();
            large.placement.slices[0].slice.rows = ROWS as u64;
            large.placement.slices[1].slice.row = ROWS as u64;
            large
        };
        let update = UpdateSpec { average, weight_decay: 0.01, ..optimizer.clone().into() };
        let digest = large(&update).placement.digest();
        let [mut drafted, mut usual] = [threads, &UpdateThreads::NONE].map(|threads| {
            let Tested(state) = Tested::new(64 << 20);
            let mut state = Tested(state.shared_by(threads.clone()));
            state.create(large(&update)).unwrap();
            let pull = Pull { at: PullAt::Join, ..latest(digest) };
            let reader = Reader { worker: 0, incarnation: push(1).id.incarnation, connection: 1 };
            state.0.pull(&pull, Some(reader), ());
            state
        });
        let values = |state: &mut Tested| {
            let (_, values) = state.pull(&latest(digest)).unwrap();
            floats(&values).iter().flatten().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        let mut gradient: Vec<f32> =
            (0..2 * ROWS as u32).map(|at| (at % 1999) as f32 / 1000.0 - 1.0).collect();
        let (middle, last) = (ROWS + 77, 2 * ROWS - 1);
        let odd = [(0, 2.0), (middle, f32::NAN), (middle, f32::MAX), (last, f32::NAN), (0, f32::INFINITY)];
        for (sequence, (at, odd)) in (1..).zip(odd) {
            let usual_element = std::mem::replace(&mut gradient[at], odd);
            let push = Push { placement_digest: digest, ..push(sequence) };
            let gradients = payload(&[&[0.5, -0.5], &gradient]);
            let draft = draft(&drafted, &push, &gradients, &[300_000, 7]).expect("the shard makes drafts");
            let got = apply(&mut drafted, &push, Gradients::Drafted(draft));
            let expected = apply(&mut usual, &push, gradients);
            gradient[at] = usual_element;
            assert_eq!(got.is_ok(), sequence == 1);
            assert_eq!(got.map(|(pushed, _)| pushed), expected.map(|(pushed, _)| pushed));
            assert!(values(&mut drafted) == values(&mut usual), "(A) after push {sequence}");
        }
    }
}

#[test]
fn a_draft_shows_slices_without_bytes() {
    let mut create = create(OptimizerSpec::sgd(0.5), 9);
    // The gradient of the last slice comes first.
    create.variables[1].shape = [0, 2].into();
    create.placement.slices[2].slice.rows = 0;
    let digest = create.placement.digest();
    let mut state = Tested::new(1 << 20);
    state.create(create).unwrap();
    let pull = Pull { at: PullAt::Join, ..latest(digest) };
    let reader = Reader { worker: 0, incarnation: push(1).id.incarnation, connection: 1 };
    state.0.pull(&pull, Some(reader), ());
    let push = Push { placement_digest: digest, ..push(1) };
    let gradients = payload(&[&[], &[1.0; 4]]);
    let (draft, shown) = draft_shown(&state, &push, &gradients, (&[8], true)).expect("it is drafted");
    let shown = shown.expect("it is shown");
    let (_, values) = apply(&mut state, &push, Gradients::Drafted(draft)).unwrap();
    assert_eq!(floats(&shown.values).into_iter().rev().collect::<Vec<_>>(), floats(&values));
}

fn state() -> Tested {
    let mut state = Tested::new(1 << 20);
    state.create(create(OptimizerSpec::sgd(0.5), 10)).unwrap();
    join(&mut state);
    state
}

#[test]
fn an_overtaken_draft_is_asked_for_again() {
    let mut state = state();
    let gradients = |a| payload(&[&[a; 2], &[a; 4]]);
    let overtaken = draft(&state, &push(1), &gradients(1.0), &[8]).unwrap();
    let other = Push { id: PushId { worker: 1, ..push(1).id }, ..push(1) };
    apply(&mut state, &other, gradients(4.0)).unwrap();
    let before = values(&mut state);
    let refusal = apply(&mut state, &push(1), Gradients::Drafted(overtaken)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Again);
    assert_eq!(values(&mut state), before);
    let (pushed, _) = apply(&mut state, &push(1), gradients(1.0)).unwrap();
    assert_eq!(pushed.verdict, Verdict::Applied, "the refused copy left no trace in the ledger");
}

/// Only the answer to a push whose draft became an update says so. Otherwise it could confirm values that
/// were sent ahead, although another update has made that version.
#[test]
fn only_an_applied_draft_is_a_version() {
    let mut state = Tested::new(1 << 20);
    state.create(create(OptimizerSpec::sgd(0.5), 2)).unwrap();
    join(&mut state);
    let other = Push { id: PushId { worker: 1, ..push(1).id }, ..push(1) };
    let gradients = |a| payload(&[&[a; 2], &[a; 4]]);
    let answer = |state: &mut Tested, push: &Push, gradients: Gradients| {
        let mut answers = state.0.push(push, gradients, 1, ());
        assert_eq!(answers.len(), 1);
        answers.remove(0).drafted
    };
    let drafts = |state: &Tested, push: &Push| draft(state, push, &gradients(1.0), &[8]).unwrap();
    let own = drafts(&state, &push(1));
    assert_eq!(answer(&mut state, &push(1), Gradients::Drafted(own)), Some(Version(1)));
    let [repeated, late] = [push(1), push(2)].map(|push| drafts(&state, &push));
    assert_eq!(answer(&mut state, &other, gradients(2.0).into()), None, "it was not drafted");
    assert_eq!(state.0.observe().version, Version(2), "the version to which the drafts lead");
    assert_eq!(answer(&mut state, &push(1), Gradients::Drafted(repeated)), None, "it is a duplicate");
    assert_eq!(answer(&mut state, &push(2), Gradients::Drafted(late)), None, "the shard has stopped");
}

#[test]
fn a_draft_with_another_learning_rate_is_asked_for_again() {
    let mut state = state();
    let gradients = payload(&[&[1.0; 2], &[1.0; 4]]);
    let drafted = draft(&state, &push(1), &gradients, &[8]).unwrap();
    let change = RateChange { from: Version(0), factor: 0.5 };
    state.0.set_learning_rate(&SetLearningRate { shard: 0, change }, ());
    let refusal = apply(&mut state, &push(1), Gradients::Drafted(drafted)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Again);
}

#[test]
fn a_draft_with_nan_is_refused_with_the_variable() {
    for (bad, fault) in [(f32::NAN, "is not finite"), (1e30, "is too large")] {
        let mut state = state();
        let drafted = draft(&state, &push(1), &payload(&[&[1.0, bad], &[1.0; 4]]), &[8]).unwrap();
        let refusal = apply(&mut state, &push(1), Gradients::Drafted(drafted)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NotFinite);
        assert!(refusal.reason.contains("'b'") && refusal.reason.contains(fault), "{refusal}");
    }
}

#[test]
fn a_push_that_will_be_refused_is_not_drafted() {
    let state = state();
    let begin =
        |push: &Push, lengths: &[u64]| state.0.plan().unwrap().begin(push, lengths, &BufferPool::default());
    let begun: Option<DraftWriter> = begin(&push(1), &[8, 16]);
    assert!(begun.is_some());
    for lengths in [&[8, 12][..], &[8], &[8, 16, 0], &[]] {
        assert!(begin(&push(1), lengths).is_none(), "{lengths:?}");
    }
    let stranger = Push { id: PushId { incarnation: Incarnation(2), ..push(1).id }, ..push(1) };
    assert!(begin(&stranger, &[8, 16]).is_none());
    let early = Push { version: Version(1), ..push(1) };
    let other = Push { placement_digest: 1, ..push(1) };
    assert!(begin(&early, &[8, 16]).is_none() && begin(&other, &[8, 16]).is_none());
    assert!(
        begin(&Push { id: PushId { sequence: Sequence(7), ..push(1).id }, ..push(1) }, &[8, 16]).is_some()
    );
}

#[test]
fn a_shard_that_does_not_apply_pushes_at_once_makes_no_drafts() {
    let mut state = Tested::new(1 << 20);
    assert!(state.0.plan().is_none(), "it is empty");
    let create = create(OptimizerSpec::sgd(0.5), 1);
    let sync = SyncSpec::Sync { aggregate: None };
    state.create(CreateShard { sync, ..create.clone() }).unwrap();
    assert!(state.0.plan().is_none(), "it is synchronous");
    let mut state = Tested::new(1 << 20);
    state.create(create).unwrap();
    assert!(state.0.plan().is_some());
    apply(&mut state, &push(1), payload(&[&[1.0; 2], &[1.0; 4]])).unwrap();
    assert!(state.0.plan().is_none(), "it is complete");
}
