//! Tests that a ps task starts shards that its chief names beyond those that it has announced.

use pushpull_messages::observe::{Observed, TaskSnapshot, TaskState};
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;

use super::*;

fn observe(shard: u32) -> Observe {
    Observe { shard }
}

fn reason<A>(answer: Result<A, CallError>) -> String {
    match answer {
        Err(CallError::Refused { refusal, .. }) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is taken"),
    }
}

#[test]
fn only_the_chief_starts_further_shards() {
    run(async {
        let task = Task::start(Duration::ZERO).await;
        let worker = task.call(TaskId::worker(0)).await;
        let refused = reason(worker.call::<ShardSnapshot>(observe(3), Payload::EMPTY).await);
        assert!(refused.contains("ps/0 has 2 shard(s), but no shard 3"), "{refused}");
        let chief = task.chief().await;
        let started = |seen: &TaskSnapshot| observing::shown(seen).shards.len();
        assert_eq!(started(&task.view.observe().await), 2);
        chief.call::<ShardSnapshot>(observe(3), Payload::EMPTY).await.unwrap();
        let seen = task.view.observe().await;
        let ids: Vec<ShardId> = observing::shown(&seen).shards.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(|shard| ShardId::new(0, shard)));
        worker.call::<ShardSnapshot>(observe(2), Payload::EMPTY).await.unwrap();
        let beyond = observe(SHARDS_PER_TASK_MAX);
        let refused = reason(chief.call::<ShardSnapshot>(beyond, Payload::EMPTY).await);
        assert!(refused.contains("has 4 shard(s), but no shard 256"), "{refused}");
        // A shard that was started later ends with the task, too.
        chief.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        drop((chief, worker));
        let view = task.view.clone();
        task.ended().await.unwrap();
        let seen = view.observe().await;
        assert_eq!((seen.state, started(&seen)), (TaskState::Ended, 4));
    });
}
