//! Tests of the view of a ps task: while shards are busy, while the task is observed often, and after the
//! task has ended.

use std::sync::mpsc;

use actix::{Actor, Context, Handler};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, ShardId};
use pushpull_messages::message::ShardSnapshot;
use pushpull_transport::{Identity, InProcess, Transport};

use super::*;
use crate::{Ps, PsConfig};

/// The time limit of a test. Only a test that hangs exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on an actix system. Panics if the test takes longer than [`PATIENCE`].
fn run(test: impl Future<Output = ()>) {
    actix_rt::System::new().block_on(async { timeout(PATIENCE, test).await.expect("the test ends") });
}

async fn start(shards: u32) -> Ps {
    let jobs = [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])];
    let cluster = ClusterSpec::new(jobs).unwrap();
    let identity = Identity {
        task: TaskId::ps(0),
        incarnation: Incarnation(3),
        cluster,
        graph: None,
        http: None,
        nonce: 0,
    };
    let listener = InProcess::new().listen("p:1").await.unwrap();
    Ps::start(PsConfig { shards, ..PsConfig::default() }, identity, listener, &BufferPool::default()).unwrap()
}

#[test]
fn a_busy_shard_is_shown_as_busy_and_delays_no_observer() {
    run(async {
        let ps = start(2).await;
        let view = ps.view();
        let (release, until) = mpsc::channel();
        for until in [Some(until), None] {
            let queued = view.shards()[1].meter().queue();
            ps.arbiter(1).spawn_fn(move || {
                let _handling = queued.handle();
                // The call returns when the other end of the channel is dropped.
                let _ = until.map(|until: mpsc::Receiver<()>| until.recv());
            });
        }
        // (B): the shard stays busy until it is released below.
        let seen = loop {
            let seen = view.observe().await;
            if seen.actors[1].busy_us.is_some() {
                break seen;
            }
        };
        assert_eq!(
            (seen.task, seen.incarnation, seen.state),
            (TaskId::ps(0), Incarnation(3), TaskState::Starting)
        );
        let names: Vec<_> = seen.actors.iter().map(|actor| actor.name.as_str()).collect();
        assert_eq!(names, ["ps/0/shard/0", "ps/0/shard/1", "ps/0/checkpoints"]);
        assert_eq!((seen.actors[0].busy_us, seen.actors[0].queue, seen.actors[1].queue), (None, 0, 1));
        assert!(seen.actors[..2].iter().all(|actor| actor.state == "empty"));
        let RoleSnapshot::Ps(shown) = seen.role else { panic!("a ps shows the role of a ps") };
        assert_eq!(shown.shards[1].1.actor.queue, 1);
        assert_eq!(
            shown.shards.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            [0, 1].map(|s| ShardId::new(0, s))
        );
        drop(release);
        while view.observe().await.actors[1].handling.count() < 2 {}
        let after = view.observe().await;
        assert_eq!((after.actors[1].queue, after.actors[1].busy_us), (0, None));
        assert_eq!(after.actors[1].waited.count(), 2);
        drop(ps);
        assert_eq!(view.observe().await.state, TaskState::Ended);
    });
}

/// An actor that takes the place of a shard. It counts the snapshot requests that it gets, and stays busy
/// with the first request until the test drops the sender of `until`.
struct Counting {
    publisher: Publisher,
    asked: u32,
    until: mpsc::Receiver<()>,
}

impl Actor for Counting {
    type Context = Context<Self>;
}

impl Handler<Refresh> for Counting {
    type Result = ();

    fn handle(&mut self, _: Refresh, _: &mut Self::Context) {
        self.asked += 1;
        let _ = self.until.recv();
        let pulls = u64::from(self.asked);
        self.publisher.publish(Stage::Serving, ShardSnapshot { pulls, ..ShardSnapshot::default() });
    }
}

#[test]
fn a_shard_that_has_not_answered_is_asked_once() {
    run(async {
        // The view shows this test's own shard. The server that it shows belongs to a ps task.
        let ps = start(1).await;
        let (publisher, shard_view) = ShardView::new(ShardId::new(0, 0));
        let arbiter = actix_rt::Arbiter::new();
        let (release, until) = mpsc::channel();
        let counting = move |_: &mut Context<Counting>| Counting { publisher, asked: 0, until };
        let shard = Counting::start_in_arbiter(&arbiter.handle(), counting);
        let (_end_guard, view) = PsView::new(Observation {
            task: TaskId::ps(0),
            incarnation: Incarnation(1),
            shards: RwLock::new(vec![shard_view]),
            checkpoints: Arc::default(),
            server: ps.view().0.server.clone(),
            lifecycle: Lifecycle::new(Duration::from_secs(10)),
            leaving: CancellationToken::new(),
            phase: Mutex::new(Phase::Running {
                shards: vec![shard.recipient()],
                pool: BufferPool::default(),
                stopping: false,
            }),
        });
        let observe = async || {
            let seen = view.observe().await;
            let RoleSnapshot::Ps(shown) = seen.role else { panic!("a ps shows the role of a ps") };
            (seen.state, shown.shards[0].1.pulls)
        };
        // While the shard is busy it gets one request, however often it is observed.
        for _ in 0..20 {
            for seen in join_all((0..100).map(|_| observe())).await {
                assert_eq!(seen, (TaskState::Starting, 0));
            }
        }
        drop(release);
        // The shard now handles its one request, and the next observers see the snapshot that it publishes.
        while observe().await.1 == 0 {}
        assert!(observe().await.1 <= 3, "(A)");
        assert_eq!(observe().await.0, TaskState::Ready);
        arbiter.stop();
    });
}
