//! Tests pushes that pull no values, and pushes that are in flight at the same time.

use pushpull::SyncSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::Verdict;

use crate::harness::{PATIENCE, TwoShards, ones};

/// Pushes three times without pulling, and checks that each push has this verdict and makes one update.
async fn push_thrice(sync: SyncSpec, verdict: Verdict) {
    let shards = TwoShards::create(sync).await;
    shards.appoint(1).await;
    let mut worker = shards.parameters(1).await;
    let mut versions = worker.join(sync).await.expect("it takes part").versions;
    for step in 1..=3 {
        let pushed = worker.push(ones(&worker), LocalStep(step), step, &versions).await.expect("it is taken");
        assert_eq!(pushed.verdicts, [verdict; 2]);
        assert_eq!(pushed.versions, [Version(step); 2]);
        assert_eq!(pushed.last_steps, [GlobalStep(100); 2]);
        versions = pushed.versions;
    }
    let pulled = worker.pull(false).await.expect("it serves");
    for variable in [0, 1].map(VariableId) {
        assert_eq!(pulled.values.variable(variable), [-3.0, -3.0], "each push counts once");
    }
    // A push that pulls continues where the others ended.
    let pushed =
        worker.push_pull(ones(&worker), LocalStep(4), 4, &versions, false).await.expect("it is taken");
    assert_eq!(pushed.values.variable(VariableId(1)), [-4.0, -4.0]);
    drop(worker);
    shards.end().await;
}

#[test]
fn pushes_without_pulls_are_applied() {
    actix_rt::System::new().block_on(async {
        for (sync, verdict) in [(SyncSpec::ASYNC, Verdict::Applied), (SyncSpec::SYNC, Verdict::Held)] {
            let pushes = push_thrice(sync, verdict);
            tokio::time::timeout(PATIENCE, pushes).await.expect("no task waits forever");
        }
    });
}

/// Begins several exchanges before the first one is awaited, in two rounds.
async fn push_ahead(pipeline: u64) {
    let shards = TwoShards::create_with(SyncSpec::ASYNC, pipeline as u32).await;
    shards.appoint(1).await;
    let mut worker = shards.parameters(1).await;
    let mut versions = worker.join(SyncSpec::ASYNC).await.expect("it takes part").versions;
    let mut step = 0;
    for _ in 0..2 {
        let mut exchanges = Vec::new();
        for _ in 0..pipeline {
            step += 1;
            let gradients = ones(&worker);
            exchanges
                .push((step, worker.begin_push_pull(gradients, LocalStep(step), step, &versions, false)));
        }
        for (step, mut exchange) in exchanges {
            let pushed = exchange.wait().await.expect("it is taken");
            assert_eq!(pushed.verdicts, [Verdict::Applied; 2]);
            // The values of a reply may have later pushes, too.
            for (&version, variable) in pushed.versions.iter().zip([0, 1].map(VariableId)) {
                assert!(version >= Version(step));
                assert_eq!(
                    pushed.values.variable(variable),
                    [-(version.0 as f32); 2],
                    "each push counts once"
                );
            }
            versions = pushed.versions;
        }
        assert_eq!(versions, [Version(step); 2]);
    }
    let pushed = worker.push_pull(ones(&worker), LocalStep(step + 1), step + 1, &versions, false).await;
    assert_eq!(pushed.expect("it is taken").versions, [Version(step + 1); 2]);
    drop(worker);
    shards.end().await;
}

#[test]
fn exchanges_in_flight_are_applied_once_in_order() {
    actix_rt::System::new().block_on(async {
        for pipeline in [1, 2, 16] {
            let pushes = push_ahead(pipeline);
            tokio::time::timeout(PATIENCE, pushes).await.expect("no task waits forever");
        }
    });
}
