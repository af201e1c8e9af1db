//! Tests of a ps task to which two chiefs are connected: the task obeys only one of the chiefs.

use super::*;

/// Connects a second chief, with this incarnation and nonce. At least one of the two differs from that of
/// the first chief.
async fn another(task: &Task, incarnation: u64, nonce: u64) -> Connection {
    let own = identity(&task.cluster, TaskId::CHIEF);
    let own = Identity { incarnation: Incarnation(incarnation), nonce, ..own };
    dial(&*task.transport, "p:1", &own, TaskId::ps(0), Patience::of(PATIENCE)).await.unwrap()
}

async fn claim(chief: &Connection, attempt: u64) -> Result<(), Refusal> {
    match chief.call::<Claimed>(Claim { attempt }, Payload::EMPTY).await {
        Ok(_) => Ok(()),
        Err(CallError::Refused { refusal, .. }) => Err(refusal),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_second_chief_cannot_touch_a_running_job() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        push(&worker, 1).await;
        for (incarnation, nonce) in [(2, 0), (1, 1)] {
            let second = another(&task, incarnation, nonce).await;
            let refusal = claim(&second, 1).await.unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Term);
            assert!(
                refusal.reason.contains("ps/0 refuses Claim: it belongs to the chief with term 1-"),
                "{refusal}"
            );
            let (version, checkpoint) = (Version(1), name(1));
            let change = RateChange { from: version, factor: 0.5 };
            let orders: [Message; 6] = [
                Stop { reason: StopReason::failed("the shard already serves another job") }.into(),
                StopAt { shard: 0, step: GlobalStep(1), drains: false }.into(),
                HoldAt { shard: 0, version }.into(),
                SetLearningRate { shard: 0, change }.into(),
                Leave { shard: 0, worker: 0, incarnation: Incarnation(1), epoch: PlacementEpoch(1) }.into(),
                Save { shard: 0, store: "/c".into(), checkpoint, at: version }.into(),
            ];
            for order in orders {
                let refused = second.call::<Heartbeat>(order, Payload::EMPTY).await.unwrap_err();
                let CallError::Refused { refusal, .. } = refused else { panic!("{refused}") };
                assert_eq!(refusal.code, RefusalCode::Term, "{refusal}");
            }
            let refused = create(&second, &StartSpec::Initialise).await.unwrap_err();
            assert!(refused.to_string().contains("ps/0 refuses CreateShard"), "{refused}");
        }
        // The first chief and its worker have noticed nothing.
        push(&worker, 2).await;
        chief.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();
    });
}

#[test]
fn a_chief_that_comes_back_keeps_its_task() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let second = another(&task, 2, 0).await;
        // The connection breaks while the chief dials again.
        let again = task.call(TaskId::CHIEF).await;
        drop(chief);
        claim(&second, 1).await.unwrap_err();
        push(&worker, 1).await;
        again.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();
    });
}

#[test]
fn a_chief_gets_the_task_of_one_that_is_lost() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let chief = task.chief().await;
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let second = another(&task, 2, 0).await;
        drop(chief);
        let mut attempts = 1;
        while let Err(refusal) = claim(&second, attempts).await {
            assert_eq!(refusal.code, RefusalCode::Term, "{refusal}");
            attempts += 1;
            tokio::task::yield_now().await;
        }
        // No worker has used the shards yet, so they can be created again.
        create(&second, &StartSpec::Initialise).await.unwrap();
        let late = task.call(TaskId::CHIEF).await;
        let refused = create(&late, &StartSpec::Initialise).await.unwrap_err().to_string();
        assert!(refused.contains("it belongs to the chief with term 2-"), "{refused}");
        second.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();
    });
}

#[test]
fn orders_from_before_a_rollback_are_refused() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let early = task.chief().await;
        let shard = placement().shards[0];
        let mut create = create_shard(shard, &StartSpec::Initialise, SyncSpec::ASYNC, 1);
        create.job = 7;
        early.call::<ShardCreated>(create.clone(), Payload::EMPTY).await.unwrap();
        // The chief has dialled again, and rolls the job back.
        let late = task.chief().await;
        create.placement.epoch = PlacementEpoch(2);
        late.call::<ShardCreated>(create, Payload::EMPTY).await.unwrap();
        let (version, change) = (Version(3), RateChange { from: Version(3), factor: 0.5 });
        let orders = || -> [Message; 4] {
            [
                StopAt { shard: 0, step: GlobalStep(3), drains: false }.into(),
                HoldAt { shard: 0, version }.into(),
                SetLearningRate { shard: 0, change }.into(),
                Save { shard: 0, store: "/c".into(), checkpoint: name(0), at: version }.into(),
            ]
        };
        for order in orders() {
            let refused = early.call::<Heartbeat>(order, Payload::EMPTY).await.unwrap_err();
            let CallError::Refused { refusal, .. } = refused else { panic!("{refused}") };
            assert_eq!(refusal.code, RefusalCode::RolledBack, "{refusal}");
        }
        let [stop, hold, set, _] = orders();
        late.call::<StoppingAt>(stop, Payload::EMPTY).await.unwrap();
        late.call::<Holding>(hold, Payload::EMPTY).await.unwrap();
        late.call::<LearningRateSet>(set, Payload::EMPTY).await.unwrap();
        late.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();
    });
}
