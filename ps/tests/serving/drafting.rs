//! Tests of pushes that are drafted while they arrive: one that stalls is overtaken and sent again, one that
//! is torn leaves nothing behind, and the values that one makes are sent ahead of its reply.

use pushpull_messages::observe::{Observed, TaskSnapshot};
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

/// Returns how often the task has sent values ahead of a reply. The time to write them is not counted.
async fn sent_ahead(task: &TcpTask) -> u64 {
    let seen = task.view.observe().await;
    let server = &shown(&seen).server;
    server.sent.messages - server.writing.count()
}

/// A worker whose next push gets its values ahead of the reply, because earlier ones were quick.
struct Quick {
    client: ReconnectingClient,
    /// The number of its last push.
    pushed: u64,
    version: Version,
}

impl Quick {
    async fn start(task: &TcpTask) -> Self {
        let (identity, patience) = (identity(&task.cluster, SLOW), Patience::of(PATIENCE));
        let (tcp, retry) = (Arc::new(Tcp::default()), RetryConfig::default());
        let client =
            ReconnectingClient::connect(tcp, &task.address, &identity, TaskId::ps(0), patience, retry).await;
        let client = client.unwrap();
        client.call::<Pulled>(pull(task, PullAt::Join), Payload::EMPTY).await.unwrap();
        let mut quick = Self { client, pushed: 0, version: Version(0) };
        while sent_ahead(task).await == 0 {
            let (pushed, values) = quick.push(task, gradient(1.0)).await.unwrap();
            assert_eq!(values.segments()[0].as_f32()[0], first_value(task, &task.call(FAST).await).await);
            quick.version = pushed.version;
        }
        quick
    }

    async fn push(&mut self, task: &TcpTask, gradient: Payload) -> Result<(Pushed, Payload), CallError> {
        self.pushed += 1;
        let push = Push { pull: true, version: self.version, ..task.push(0, self.pushed) };
        self.client.call(push, gradient).await
    }
}

#[test]
fn values_that_came_ahead_are_those_of_the_reply() {
    run(async {
        let (task, chief, _fast) = start().await;
        let before = first_value(&task, &chief).await;
        let quick = Quick::start(&task).await;
        let after = first_value(&task, &chief).await;
        let expected = 0.1 * quick.pushed as f32;
        assert!((before - after - expected).abs() < 1e-4, "{before} became {after}");
        assert!(quick.pushed > 2, "only a quick connection gets values ahead");
    });
}

#[test]
fn values_that_came_ahead_of_a_refusal_are_not_used() {
    run(async {
        let (task, chief, _fast) = start().await;
        let mut quick = Quick::start(&task).await;
        let (before, ahead) = (first_value(&task, &chief).await, sent_ahead(&task).await);
        let refused = quick.push(&task, gradient(f32::NAN)).await.unwrap_err();
        assert!(
            matches!(&refused, CallError::Refused { refusal, .. } if refusal.code == RefusalCode::NotFinite)
        );
        assert_eq!(sent_ahead(&task).await, ahead + 1);
        assert_eq!(first_value(&task, &chief).await, before);
    });
}

#[test]
fn values_that_came_ahead_of_another_update_are_not_used() {
    run(async {
        let (task, chief, fast) = start().await;
        let mut quick = Quick::start(&task).await;
        let (version, before) = (quick.version, first_value(&task, &chief).await);
        let ahead = sent_ahead(&task).await;
        let promise = Promise::new(VALUES_BYTES);
        let stalled = Payload::new(vec![promise.segment(0, VALUES_BYTES)]);
        let own = quick.push(&task, stalled);
        let others = async {
            wait_for_a_push(&task).await;
            let push = Push { version, ..task.push(1, 1) };
            let (pushed, _) = fast.call::<Pushed>(push, gradient(2.0)).await.unwrap();
            assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, version.next()));
            promise.keep(filled(1.0));
        };
        let (own, ()) = tokio::join!(own, others);
        let (pushed, values) = own.unwrap();
        assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, version.next().next()));
        let after = first_value(&task, &chief).await;
        assert!(sent_ahead(&task).await > ahead, "the draft that was revoked was sent");
        assert_eq!(values.segments()[0].as_f32()[0], after);
        assert!((before - after - 0.3).abs() < 1e-4, "each gradient counts once: {before} became {after}");
    });
}
