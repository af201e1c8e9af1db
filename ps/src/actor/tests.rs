//! Tests on which thread a shard works, that nothing is lost when it moves, and that its task ends when its
//! device fails.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName, PlacementEpoch, ShardId, TaskId};
use pushpull_messages::message::{
    Appoint, Appointed, Claim, Claimed, CreateShard, Observe, Pull, PullAt, Pulled, Pushed, ShardCreated,
    ShardSnapshot,
};
use pushpull_messages::observe::{Observed, RoleSnapshot};
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, InProcess, Patience, Transport, dial};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::shard::tests::devices::failing;
use crate::shard::tests::pushes::{create, latest, payload, push};
use crate::{Ps, PsConfig, PsError};

/// The time limit of a test. Only a test that hangs exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on an actix system. Panics if the test takes longer than [`PATIENCE`].
fn run(test: impl Future<Output = ()>) {
    actix_rt::System::new().block_on(async { timeout(PATIENCE, test).await.expect("the test ends") });
}

fn identity(task: TaskId) -> Identity {
    let jobs = [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])];
    let cluster = ClusterSpec::new(jobs).unwrap();
    Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
}

/// Starts a task whose shard works on its own thread if it has `own_thread_bytes_min` bytes. Returns the task
/// with a connection of its chief.
async fn start(own_thread_bytes_min: u64) -> (Ps, Connection) {
    start_in(&InProcess::new(), PsConfig { own_thread_bytes_min, ..PsConfig::default() }).await
}

/// Starts a task. Returns it with a connection of its chief.
async fn start_in(transport: &InProcess, config: PsConfig) -> (Ps, Connection) {
    let pool = BufferPool::default();
    let listener = transport.listen("p:1").await.unwrap();
    let ps = Ps::start(config, identity(TaskId::ps(0)), listener, &pool).unwrap();
    let (chief, patience) = (identity(TaskId::CHIEF), Patience::of(PATIENCE));
    let chief = dial(transport, "p:1", &chief, TaskId::ps(0), patience).await.unwrap();
    chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.unwrap();
    (ps, chief)
}

/// A job whose shard has 24 bytes of values.
fn small() -> CreateShard {
    create(OptimizerSpec::sgd(1.0), 10)
}

async fn pull(chief: &Connection) {
    chief.call::<Pulled>(latest(small().placement.digest()), Payload::EMPTY).await.unwrap();
}

/// Keeps the shard's own thread busy until the returned value is dropped.
async fn block(ps: &Ps) -> mpsc::Sender<()> {
    let ((release, until), (begin, begun)) = (mpsc::channel(), tokio::sync::oneshot::channel());
    ps.arbiter(0).spawn_fn(move || {
        begin.send(()).unwrap();
        // The call returns when the other end of the channel is dropped.
        let _ = until.recv();
    });
    begun.await.unwrap();
    release
}

#[test]
fn a_small_shard_works_on_the_thread_of_the_sessions() {
    run(async {
        for (own_thread_bytes_min, alone) in [(1 << 20, false), (25, false), (24, true), (1, true)] {
            let (ps, chief) = start(own_thread_bytes_min).await;
            chief.call::<ShardCreated>(small(), Payload::EMPTY).await.unwrap();
            pull(&chief).await;
            let release = block(&ps).await;
            let mut pulls = std::pin::pin!(pull(&chief));
            if alone {
                let waits = timeout(Duration::from_millis(50), &mut pulls).await;
                assert!(waits.is_err(), "its thread is busy, so it cannot answer");
                drop(release);
            }
            pulls.await;
        }
    });
}

#[test]
fn a_shard_that_has_moved_keeps_its_views_and_its_requests() {
    run(async {
        let (ps, chief) = start(1 << 20).await;
        let view = ps.view();
        let release = block(&ps).await;
        // Both wait in the mailbox of the actor that the shard will leave.
        let created = chief.call::<ShardCreated>(small(), Payload::EMPTY);
        let observed = async {
            tokio::task::yield_now().await;
            chief.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY).await.unwrap().0
        };
        let released = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(release);
        };
        let (created, observed, ()) = tokio::join!(created, observed, released);
        assert_eq!((created.unwrap().0.slices, observed.actor.state.as_str()), (2, "serving"));
        loop {
            let RoleSnapshot::Ps(shown) = view.observe().await.role else { panic!("a ps shows its role") };
            if shown.shards[0].1.actor.state == "serving" {
                break;
            }
        }
        drop((chief, ps));
        // The last snapshot is published when the shard ends, wherever it is.
        view.wait_for_end().await;
    });
}

#[test]
fn a_shard_that_is_created_again_moves_back() {
    run(async {
        let (ps, chief) = start(1 << 10).await;
        chief.call::<ShardCreated>(small(), Payload::EMPTY).await.unwrap();
        let mut large = small();
        large.placement.epoch = PlacementEpoch(2);
        large.variables[1].shape = [1000, 2].into();
        large.placement.slices[2].slice.rows = 1000;
        assert_eq!(large.placement.slices[2].shard, ShardId::new(0, 0));
        let digest = large.placement.digest();
        chief.call::<ShardCreated>(large, Payload::EMPTY).await.unwrap();
        let release = block(&ps).await;
        let latest = Pull { epoch: PlacementEpoch(2), ..latest(digest) };
        let mut pulls = std::pin::pin!(chief.call::<Pulled>(latest, Payload::EMPTY));
        assert!(timeout(Duration::from_millis(50), &mut pulls).await.is_err(), "its thread is busy");
        drop(release);
        pulls.await.unwrap();
    });
}

#[test]
fn a_device_that_fails_ends_its_task_with_the_error() {
    let Some((device, kernels)) = failing(u64::MAX) else { return };
    run(async {
        let transport = InProcess::new();
        let (ps, chief) =
            start_in(&transport, PsConfig { device: Some(device), ..PsConfig::default() }).await;
        let ended = actix_rt::spawn(ps.run(CancellationToken::new()));
        chief.call::<ShardCreated>(create(OptimizerSpec::adam(0.1), 10), Payload::EMPTY).await.unwrap();
        let appoint = Appoint { shard: 0, worker: 0, incarnation: Incarnation(1), number: 1 };
        chief.call::<Appointed>(appoint, Payload::EMPTY).await.unwrap();
        let (worker, patience) = (identity(TaskId::worker(0)), Patience::of(PATIENCE));
        let worker = dial(&transport, "p:1", &worker, TaskId::ps(0), patience).await.unwrap();
        let join = Pull { at: PullAt::Join, ..latest(push(1).placement_digest) };
        worker.call::<Pulled>(join, Payload::EMPTY).await.unwrap();
        let gradients = || payload(&[&[1.0; 2], &[2.0; 4]]);
        worker.call::<Pushed>(push(1), gradients()).await.unwrap();
        // The device updates the first slice of the next push, and fails at the second one.
        kernels.store(1, Ordering::Relaxed);
        let refused = worker.call::<Pushed>(push(2), gradients()).await;
        assert!(refused.is_err(), "the reply would have values that are lost: {refused:?}");
        let error = ended.await.unwrap().expect_err("the task cannot go on");
        assert!(matches!(error, PsError::DeviceFailed { shard, .. } if shard == ShardId::new(0, 0)));
        let words = "ps/0/shard/0 has lost the slots that were on its device: the device has failed: it fell off the bus";
        assert_eq!(error.to_string(), words);
    });
}
