//! Tests that only the chief decides which incarnation of a worker is a member.

use std::sync::Arc;

use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::{appoint, create};
use crate::shard::{Answer, Reader, ShardLimits, ShardState};

/// A reply handle: the incarnation that asks; 0 for the chief.
type Handle = u64;

/// A shard of a job with two workers. All requests are those of incarnations of the first one.
struct Tested {
    state: ShardState<Handle>,
    digest: u32,
}

impl Tested {
    fn new(sync: SyncSpec) -> Self {
        let create = create(sync, false, 2, 9);
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let (digest, mut state) =
            (create.placement.digest(), ShardState::new(create.shard, BufferPool::default(), limits));
        assert!(state.create(create, 1, 0)[0].result.is_ok());
        Self { state, digest }
    }

    fn pull(&mut self, life: u64, at: PullAt) -> Vec<Answer<Handle>> {
        let (epoch, placement_digest) = (PlacementEpoch(1), self.digest);
        let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
        let reader = Reader { worker: 0, incarnation: Incarnation(life), connection: 1 };
        self.state.pull(&pull, Some(reader), life)
    }

    fn push(&mut self, life: u64, sequence: u64) -> Vec<Answer<Handle>> {
        let push = Push {
            shard: 0,
            id: PushId { worker: 0, incarnation: Incarnation(life), sequence: Sequence(sequence) },
            local_step: LocalStep(sequence),
            epoch: PlacementEpoch(1),
            placement_digest: self.digest,
            version: self.state.observe().version,
            slices: vec![SliceId(0)],
            drawn: sequence,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        self.state.push(&push, gradient, 1, life)
    }

    fn appoint(&mut self, life: u64, number: u64) -> Vec<Answer<Handle>> {
        let appoint = Appoint { shard: 0, worker: 0, incarnation: Incarnation(life), number };
        self.state.appoint(&appoint, 0)
    }
}

/// Returns who is answered, and whether the request is refused.
fn told(answers: &[Answer<Handle>]) -> Vec<(Handle, bool)> {
    answers.iter().map(|answer| (answer.reply, answer.result.is_err())).collect()
}

#[test]
fn a_stray_neither_joins_nor_pushes() {
    for stray in [1, 9] {
        let mut shard = Tested::new(SyncSpec::ASYNC);
        // The stray comes first, before the chief has appointed any incarnation.
        assert_eq!(told(&shard.pull(stray, PullAt::Join)), [(stray, true)]);
        assert_eq!(told(&shard.push(stray, 1)), [(stray, true)]);
        appoint(&mut shard.state, 0, 5, 0);
        assert_eq!(told(&shard.pull(5, PullAt::Join)), [(5, false)]);
        assert_eq!(told(&shard.push(5, 1)), [(5, false)]);
        // It comes while the worker trains.
        for at in [PullAt::Join, PullAt::Step(GlobalStep(1))] {
            assert_eq!(told(&shard.pull(stray, at)), [(stray, true)]);
        }
        assert_eq!(told(&shard.push(stray, 2)), [(stray, true)]);
        assert_eq!(told(&shard.push(5, 2)), [(5, false)], "the worker goes on");
        let seen = shard.state.observe();
        assert_eq!((seen.version, seen.pushes.refused, seen.members), (Version(2), 2, 2));
    }
}

#[test]
fn an_appointment_ends_the_earlier_incarnation() {
    // The clock of the worker's host was set back before the second start.
    let mut shard = Tested::new(SyncSpec::SYNC);
    assert_eq!(told(&shard.appoint(900, 1)), [(0, false)]);
    shard.pull(900, PullAt::Join);
    assert_eq!(told(&shard.push(900, 1)), [], "it waits for the other worker");
    assert_eq!(told(&shard.appoint(5, 2)), [(0, false), (900, true)], "its wait ends");
    assert_eq!(shard.state.observe().members, 1);
    assert_eq!(told(&shard.push(900, 1)), [(900, true)]);
    assert_eq!(told(&shard.pull(5, PullAt::Join)), [(5, false)]);
    // Late copies of the chief's messages change nothing.
    let leave = Leave { shard: 0, worker: 0, incarnation: Incarnation(900), epoch: PlacementEpoch(1) };
    assert_eq!(told(&shard.state.leave(&leave, 0)), [(0, false)]);
    assert_eq!(told(&shard.appoint(900, 1)), [(0, false)]);
    assert_eq!(told(&shard.pull(900, PullAt::Join)), [(900, true)]);
    assert_eq!((shard.state.observe().members, told(&shard.pull(5, PullAt::Join))), (2, vec![(5, false)]));
}

#[test]
fn a_stray_cannot_displace_a_join_that_waits() {
    let mut shard = Tested::new(SyncSpec::ASYNC);
    shard.appoint(3, 1);
    shard.pull(3, PullAt::Join);
    shard.state.hold_at(&HoldAt { shard: 0, version: Version(0) }, 0);
    assert_eq!(told(&shard.push(3, 1)), [], "it waits for the learning rate");
    assert_eq!(told(&shard.appoint(2, 2)), [(0, false)]);
    assert_eq!(told(&shard.pull(2, PullAt::Join)), [], "it waits behind the push");
    assert_eq!(told(&shard.pull(9, PullAt::Join)), [(9, true)]);
    let change = pushpull_messages::optimizer::RateChange { from: Version(0), factor: 1.0 };
    let answers = shard.state.set_learning_rate(&SetLearningRate { shard: 0, change }, 0);
    assert_eq!(
        told(&answers),
        [(0, false), (3, false), (2, false)],
        "the push counts, then the worker joins"
    );
    assert_eq!(shard.state.observe().version, Version(1));
}

#[test]
fn a_shard_tells_the_chief_what_it_was_told() {
    let mut shard = Tested::new(SyncSpec::ASYNC);
    shard.appoint(3, 7);
    let answers = shard.state.create(create(SyncSpec::ASYNC, false, 2, 9), 2, 0);
    let Ok((Message::ShardCreated(created), _)) = &answers[0].result else { panic!("{answers:?}") };
    assert_eq!(created.appointed, 7);
    let mut empty = ShardState::<()>::new(
        ShardId::new(0, 0),
        BufferPool::default(),
        ShardLimits { values_bytes_max: 1, gradients_bytes_max: 1 },
    );
    let appoint = Appoint { shard: 0, worker: 0, incarnation: Incarnation(1), number: 1 };
    assert_eq!(empty.appoint(&appoint, ())[0].result.as_ref().unwrap_err().code, RefusalCode::Unavailable);
    let outside = Appoint { worker: 2, ..appoint };
    assert_eq!(shard.state.appoint(&outside, 0)[0].result.as_ref().unwrap_err().code, RefusalCode::Misfit);
}
