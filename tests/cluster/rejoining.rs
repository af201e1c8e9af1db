//! Tests a worker that joins again after it died in the middle of a push. One shard has the gradient of the
//! push, the other shard does not, and there is no other worker.

use std::sync::Arc;

use pushpull::SyncSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::placement::Placement;
use pushpull_transport::buffer::{Buffer, Payload, Segment};

use crate::harness::{PATIENCE, TwoShards, ones};

/// Returns the push of the first incarnation, which reaches only one shard.
fn first_push(placement: &Placement) -> Push {
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: placement.epoch,
        placement_digest: placement.digest(),
        version: Version(0),
        slices: vec![SliceId(0)],
        drawn: 1,
        pull: true,
        traced: false,
        with: Vec::new(),
    }
}

/// The versions of the shards after a push, and the number of shards that received it.
type Step = ([u64; 2], usize);

/// Lets a worker die and join again. Checks its first steps, in which it must bring both shards to the same
/// version: `begun` are the versions when the first incarnation has died.
async fn rejoin(sync: SyncSpec, begun: [u64; 2], steps: &[Step]) {
    let shards = TwoShards::create(sync).await;
    shards.appoint(1).await;
    // The push of the first incarnation reaches only one shard.
    let first = shards.worker().await;
    let push = first_push(&shards.placement);
    let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0, 1.0])))]);
    let (pushed, _) = first.call::<Pushed>(push, gradient).await.expect("it is taken");
    assert_eq!(pushed.version.0, begun[0]);
    drop(first);
    shards.appoint(2).await;
    let mut second = shards.parameters(2).await;
    let mut latest = second.join(sync).await.expect("it takes part");
    assert_eq!(latest.versions, begun.map(Version));
    for (step, &(versions, pushes)) in (0..).zip(steps) {
        let gradients = ones(&second);
        let pushed = second.push_pull(gradients, LocalStep(step), step + 1, &latest.versions, false);
        latest = pushed.await.expect("it is taken");
        assert_eq!(latest.versions, versions.map(Version));
        assert_eq!(latest.verdicts, vec![Verdict::Held; pushes]);
    }
    for variable in [0, 1].map(VariableId) {
        assert_eq!(latest.values.variable(variable), [-3.0, -3.0], "three updates on each shard");
    }
    drop(second);
    shards.end().await;
}

#[test]
fn a_shard_that_lags_behind_is_brought_to_the_others_step() {
    actix_rt::System::new().block_on(async {
        let steps = [([1, 1], 1), ([2, 2], 2), ([3, 3], 2)];
        let rejoin = rejoin(SyncSpec::SYNC, [1, 0], &steps);
        tokio::time::timeout(PATIENCE, rejoin).await.expect("no task waits forever");
    });
}

#[test]
fn a_shard_that_lacks_a_repeated_gradient_gets_it() {
    actix_rt::System::new().block_on(async {
        // An update has two gradients, and the first shard has one of them from the first incarnation.
        let sync = SyncSpec::Sync { aggregate: Some(2) };
        let steps = [([1, 0], 2), ([1, 1], 1), ([1, 1], 2), ([2, 2], 2), ([2, 2], 2), ([3, 3], 2)];
        let rejoin = rejoin(sync, [0, 0], &steps);
        tokio::time::timeout(PATIENCE, rejoin).await.expect("no task waits forever");
    });
}
