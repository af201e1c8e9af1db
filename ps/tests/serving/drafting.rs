//! Tests of pushes that are drafted while they arrive: one that stalls is overtaken and sent again, and one
//! that is torn leaves nothing behind.

use pushpull_messages::observe::TaskSnapshot;
use pushpull_transport::buffer::Promise;
use pushpull_transport::{EarlierCall, ReconnectingClient, RetryConfig, Tcp};

use super::memory::{TcpTask, VALUES_BYTES};
use super::observing::{seen_once, shown};
use super::*;

const SLOW: TaskId = TaskId::worker(0);
const FAST: TaskId = TaskId::worker(1);

/// Starts a task, and returns it with its chief and a worker that has joined.
async fn start() -> (TcpTask, Connection, Connection) {
    let task = TcpTask::start().await;
    let (chief, fast) = (task.call(TaskId::CHIEF).await, task.call(FAST).await);
    task.create(&chief, 2).await;
    join(&task, &fast).await;
    (task, chief, fast)
}

async fn join(task: &TcpTask, worker: &Connection) {
    worker.call::<Pulled>(pull(task, PullAt::Join), Payload::EMPTY).await.unwrap();
}

fn pull(task: &TcpTask, at: PullAt) -> Pull {
    let (epoch, placement_digest) = (PlacementEpoch(1), task.placement.digest());
    Pull { shard: 0, epoch, placement_digest, at, averages: false }
}

async fn first_value(task: &TcpTask, client: &Connection) -> f32 {
    let (_, values) = client.call::<Pulled>(pull(task, PullAt::Latest), Payload::EMPTY).await.unwrap();
    values.segments()[0].as_f32()[0]
}

fn filled(value: f32) -> Buffer {
    let mut buffer = Buffer::zeroed(VALUES_BYTES);
    buffer.as_f32_mut().fill(value);
    buffer
}

fn gradient(value: f32) -> Payload {
    Payload::new(vec![Segment::whole(Arc::new(filled(value)))])
}

/// Waits until the head of a large push has arrived. The head is one small write, so the session has then
/// begun the draft, too.
async fn wait_for_a_push(task: &TcpTask) {
    let arrives = |seen: &TaskSnapshot| shown(seen).server.in_flight_bytes >= VALUES_BYTES as u64;
    seen_once(&task.view, arrives).await;
}

#[test]
fn a_push_that_stalls_is_overtaken_and_sent_again() {
    run(async {
        let (task, chief, fast) = start().await;
        let before = first_value(&task, &chief).await;
        let (identity, patience) = (identity(&task.cluster, SLOW), Patience::of(PATIENCE));
        let (tcp, retry) = (Arc::new(Tcp::default()), RetryConfig::default());
        let slow =
            ReconnectingClient::connect(tcp, &task.address, &identity, TaskId::ps(0), patience, retry).await;
        let slow = slow.unwrap();
        slow.call::<Pulled>(pull(&task, PullAt::Join), Payload::EMPTY).await.unwrap();
        let promise = Promise::new(VALUES_BYTES);
        let stalled = Payload::new(vec![promise.segment(0, VALUES_BYTES)]);
        let slow_push = slow.call::<Pushed>(task.push(0, 1), stalled);
        let others = async {
            wait_for_a_push(&task).await;
            let (pushed, _) = fast.call::<Pushed>(task.push(1, 1), gradient(2.0)).await.unwrap();
            assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, Version(1)));
            promise.keep(filled(1.0));
        };
        let (slow_pushed, ()) = tokio::join!(slow_push, others);
        let (pushed, _) = slow_pushed.unwrap();
        assert_eq!((pushed.verdict, pushed.version, pushed.staleness), (Verdict::Applied, Version(2), 1));
        assert_eq!(slow.counters().snapshot().resends, 1, "the shard has asked for the push again");
        let after = first_value(&task, &chief).await;
        assert!((before - after - 0.3).abs() < 1e-5, "each gradient counts once: {before} became {after}");
    });
}

#[test]
fn a_torn_push_leaves_nothing_behind() {
    run(async {
        let (task, chief, fast) = start().await;
        let before = first_value(&task, &chief).await;
        let slow = task.call(SLOW).await;
        join(&task, &slow).await;
        let promise = Promise::new(VALUES_BYTES);
        let torn = Payload::new(vec![promise.segment(0, VALUES_BYTES)]);
        let slow_push = slow.call::<Pushed>(task.push(0, 1), torn);
        let others = async {
            wait_for_a_push(&task).await;
            drop(promise);
            for number in 1..=3 {
                let (pushed, _) = fast.call::<Pushed>(task.push(1, number), gradient(1.0)).await.unwrap();
                assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, Version(number)));
            }
        };
        let (slow_pushed, ()) = tokio::join!(slow_push, others);
        assert!(matches!(slow_pushed, Err(CallError::Lost { .. })), "its connection is closed");
        let after = first_value(&task, &chief).await;
        assert!((before - after - 0.3).abs() < 1e-5, "only whole pushes count: {before} became {after}");
    });
}

/// Checks that no push of a pipeline is lost if the draft of the first one is revoked: the second one has
/// then overtaken the first one.
#[test]
fn a_pipeline_whose_draft_is_revoked_loses_no_push() {
    run(async {
        let (task, chief, fast) = start().await;
        let before = first_value(&task, &chief).await;
        let (identity, patience) = (identity(&task.cluster, SLOW), Patience::of(PATIENCE));
        let (tcp, retry) = (Arc::new(Tcp::default()), RetryConfig::default());
        let slow =
            ReconnectingClient::connect(tcp, &task.address, &identity, TaskId::ps(0), patience, retry).await;
        let slow = slow.unwrap();
        slow.call::<Pulled>(pull(&task, PullAt::Join), Payload::EMPTY).await.unwrap();
        let promise = Promise::new(VALUES_BYTES);
        let stalled = Payload::new(vec![promise.segment(0, VALUES_BYTES)]);
        let (answered, earlier) = EarlierCall::new();
        let first = async {
            let pushed = slow.call::<Pushed>(task.push(0, 1), stalled).await;
            answered.tell();
            pushed.unwrap().0
        };
        let second =
            async { slow.call_after::<Pushed>(task.push(0, 2), gradient(4.0), earlier).await.unwrap().0 };
        let others = async {
            wait_for_a_push(&task).await;
            let (pushed, _) = fast.call::<Pushed>(task.push(1, 1), gradient(2.0)).await.unwrap();
            assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, Version(1)));
            promise.keep(filled(1.0));
        };
        let (first, second, ()) = tokio::join!(first, second, others);
        assert_eq!((first.verdict, second.verdict), (Verdict::Applied, Verdict::Applied));
        // The first one comes again while the second one waits at the shard, or the second one comes again,
        // too.
        assert!(first.version <= second.version && second.version == Version(3));
        let resends = slow.counters().snapshot().resends;
        assert!((1..=2).contains(&resends), "the shard has asked for the first one again");
        let (seen, _) = chief.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY).await.unwrap();
        assert_eq!((seen.pushes.applied, seen.pushes.refused, seen.pushes.duplicate), (3, resends, 0));
        let after = first_value(&task, &chief).await;
        assert!((before - after - 0.7).abs() < 1e-5, "each gradient counts once: {before} became {after}");
    });
}
