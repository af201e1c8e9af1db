//! Tests the view of a ps task, while the task runs and after it has ended. Also tests the times that the
//! reply to a traced push contains.

use pushpull_messages::observe::{
    Observed, PsSnapshot, PushTimes, RoleSnapshot, TaskSnapshot, TaskState, Traffic,
};

use super::*;

pub(super) fn shown(seen: &TaskSnapshot) -> &PsSnapshot {
    let RoleSnapshot::Ps(shown) = &seen.role else { panic!("a ps shows the role of a ps") };
    shown
}

/// Observes the task until `wanted` returns true for a snapshot, and returns that snapshot.
pub(super) async fn seen_once(view: &PsView, wanted: impl Fn(&TaskSnapshot) -> bool) -> TaskSnapshot {
    loop {
        let seen = view.observe().await;
        if wanted(&seen) {
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

/// Checks that the last snapshot of a task counts exactly the requests that the test
/// `a_task_shows_its_state_and_exact_final_counts` sends.
fn assert_final_counts(ended: &TaskSnapshot) {
    let PsSnapshot { server, shards, chief_connected, .. } = shown(ended);
    assert!(!chief_connected);
    for (index, (id, shard)) in shards.iter().enumerate() {
        assert_eq!(*id, ShardId::new(0, index as u32));
        assert!(shard.pushes.add_up(), "V2: {:?}", shard.pushes);
        let expected =
            ShardCounters { received: 6, applied: 4, duplicate: 1, refused: 1, ..ShardCounters::default() };
        assert_eq!((shard.version, shard.pushes, shard.not_finite), (Version(4), expected, 1));
        assert_eq!((shard.bytes, shard.slot_bytes, shard.held_bytes), (16, 16, 0));
        assert_eq!((shard.applying.count(), shard.saving.count()), (4, 1));
        assert_eq!(shard.saves_failed, u64::from(index == 0));
        let actor = &ended.actors[index];
        assert_eq!(*actor, shard.actor);
        assert_eq!((actor.name.clone(), actor.state.as_str()), (id.to_string(), "serving"));
        assert_eq!((actor.queue, actor.busy_us), (0, None));
        // Besides pushes, the shard handles its creation, the appointment of the worker, and for each save
        // the request and the result.
        let saves = 1 + u64::from(index == 0);
        assert_eq!(actor.handling.count(), 6 + 2 + 2 * saves);
        assert_eq!(actor.waited.count(), actor.handling.count());
    }
    let files = &ended.actors[2];
    assert_eq!((files.name.as_str(), files.state.as_str()), ("ps/0/checkpoints", "idle"));
    assert_eq!((files.handling.count(), files.queue), (3, 0));
    // A gradient is as large as the values in its reply; a refusal has no payload.
    let requests = 1 + 2 * 6 + 2 * 2 + 3 + 1;
    assert_eq!(server.received, Traffic { messages: requests, payload_bytes: 2 * 6 * 16 });
    assert_eq!(server.sent, Traffic { messages: requests, payload_bytes: 2 * 5 * 16 });
    assert_eq!((server.accepted, server.writing.count()), (2, requests));
}

#[test]
fn a_task_shows_its_state_and_exact_final_counts() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().to_str().unwrap().to_owned();
    run(async {
        let task = Task::start(PATIENCE).await;
        let view = task.view.clone();
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        assert_eq!(view.observe().await.state, TaskState::Starting);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let ready = seen_once(&view, |seen| seen.state == TaskState::Ready).await;
        assert!(ready.actors[..2].iter().all(|actor| actor.state == "serving"));
        assert!(shown(&ready).chief_connected);

        for number in 1..=3 {
            push(&worker, number).await;
        }
        // A duplicate, and a gradient that is not finite.
        push(&worker, 3).await;
        for shard in 0..2 {
            worker.call::<Pushed>(push_of(0, shard, 4), gradient(f32::NAN)).await.unwrap_err();
        }
        save(&chief, &store, 3, async {}).await;
        let nowhere = Save {
            shard: 0,
            store: format!("{store}/{}", name(3).file("ps-0-shard-0.safetensors")),
            checkpoint: name(9),
            at: Version(3),
        };
        let (failed, _) = chief.call::<Saved>(nowhere, Payload::EMPTY).await.unwrap();
        assert!(matches!(failed.result, SaveResult::Failed(_)), "{failed:?}");

        task.interrupt.cancel();
        seen_once(&view, |seen| seen.state == TaskState::Stopping && shown(seen).shards[1].1.leaving).await;
        // The task is not observed again before it ends.
        push(&worker, 4).await;
        chief.call::<Stopped>(Stop { reason: StopReason::Saved }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();

        let ended = view.observe().await;
        assert_eq!((ended.task, ended.state), (TaskId::ps(0), TaskState::Ended));
        assert_final_counts(&ended);
    });
}

fn ordered(times: PushTimes) -> bool {
    let PushTimes { received_us, taken_us, done_us, answered_us } = times;
    0 <= received_us && received_us <= taken_us && taken_us <= done_us && done_us <= answered_us
}

#[test]
fn only_a_traced_push_reports_its_times() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let mut last = 0;
        for number in 1..=6 {
            let traced = number % 2 == 0;
            let push = Push { traced, pull: number % 3 == 0, ..push_of(0, 0, number) };
            let (pushed, _) = worker.call::<Pushed>(push.clone(), gradient(1.0)).await.unwrap();
            assert_eq!(pushed.staleness, number - 1);
            let (again, _) = worker.call::<Pushed>(push, gradient(1.0)).await.unwrap();
            assert_eq!(again.staleness, 0);
            assert_eq!((pushed.times.is_some(), again.times.is_some()), (traced, traced));
            for times in [pushed.times, again.times].into_iter().flatten() {
                assert!(ordered(times) && last <= times.received_us, "{times:?}");
                last = times.answered_us;
            }
        }
        task.interrupt.cancel();
        task.ended.abort();
    });
}

#[test]
fn a_push_that_waits_is_answered_after_it_is_done() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let chief = task.chief().await;
        let workers = [task.call(TaskId::worker(0)).await, task.call(TaskId::worker(1)).await];
        create_for(&chief, &StartSpec::Initialise, SyncSpec::SYNC, 2).await.unwrap();
        let first = Push { traced: true, ..push_of(0, 0, 1) };
        let first = workers[0].call::<Pushed>(first, gradient(1.0));
        let second = async {
            let held = seen_once(&task.view, |seen| shown(seen).shards[0].1.waiting == 1).await;
            assert_eq!(shown(&held).shards[0].1.held_bytes, 16);
            let second = Push { traced: true, ..push_of(1, 0, 1) };
            workers[1].call::<Pushed>(second, gradient(1.0)).await.unwrap().0
        };
        let (first, second) = tokio::join!(first, second);
        let (first, second) = (first.unwrap().0.times.unwrap(), second.times.unwrap());
        assert!(ordered(first) && ordered(second), "{first:?} {second:?}");
        assert!(first.done_us <= second.received_us && second.done_us <= first.answered_us);
        task.interrupt.cancel();
        task.ended.abort();
    });
}
