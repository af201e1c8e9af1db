//! Tests which checkpoints a job takes and makes when it rolls back because a ps task was lost.

use pushpull_messages::id::GlobalStep;
use pushpull_storage::Store;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::named;
use super::saving::{ChiefLife, block_on, config, location};
use super::shards::PATIENCE;
use crate::checkpoint::saver::{SaveStatus, SaverCommand};
use crate::checkpoint::{CheckpointConfig, RestoreChoice};
use crate::report::JobProgress;

#[test]
fn saves_after_a_rollback_count_as_the_newest() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::create(location(&path)).unwrap();
        let life = ChiefLife::new(store.clone(), CheckpointConfig { keep: 9, ..config() }).await;
        let saver = life.saver().await.unwrap();
        let first = saver.life().0;
        let mut status = saver.status();
        let (tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        let train_to = async |step: u64| {
            life.armed().await;
            life.cluster.ps.train(step);
            tell.send_modify(|progress| progress.global_step = GlobalStep(step));
        };
        let train = async {
            orders.send(SaverCommand::Begin(life.begin().await.unwrap().start)).unwrap();
            train_to(2).await;
            status.wait_for(|status| status.last == Some(named(2, first))).await.unwrap();
            // The next save waits for step 4, and a checkpoint is requested while a ps task is lost.
            life.armed().await;
            orders.send(SaverCommand::Suspend).unwrap();
            orders.send(SaverCommand::Save).unwrap();
            tell.send_modify(|progress| progress.global_step = GlobalStep(0));
            let again = life.begin_again(first).await.unwrap();
            assert_eq!(again.start.from, Some(named(2, first)));
            assert!(again.resumes.iter().all(|resume| resume.drawn == 2));
            orders.send(SaverCommand::Begin(again.start)).unwrap();
            // This is the checkpoint that was requested.
            train_to(3).await;
            let saved = |status: &SaveStatus| status.last.is_some_and(|last| last.step.0 == 3);
            let last = status.wait_for(saved).await.unwrap().last.unwrap();
            assert!(last.life.0 > first, "{last} is newer than all from before");
            // The task is only unreachable for a moment.
            orders.send(SaverCommand::Suspend).unwrap();
            orders.send(SaverCommand::Resume).unwrap();
            train_to(4).await;
            let (step, deadline) = (Some(GlobalStep(4)), Instant::now() + PATIENCE);
            orders.send(SaverCommand::End { step, deadline }).unwrap();
            last
        };
        let (last, before) = tokio::join!(saver.run(&life.tasks, progress, ordered), train);
        let last = last.unwrap();
        assert!(last.step.0 == 4 && last.life >= before.life, "{last}");
    });
}

#[test]
fn a_saver_that_is_suspended_can_end() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let life = ChiefLife::new(Store::create(location(&path)).unwrap(), config()).await;
        let saver = life.saver().await.unwrap();
        let (_tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(life.begin().await.unwrap().start)).unwrap();
        orders.send(SaverCommand::Suspend).unwrap();
        orders.send(SaverCommand::End { step: None, deadline: Instant::now() + PATIENCE }).unwrap();
        let ended = saver.run(&life.tasks, progress, ordered).await;
        assert_eq!(ended, Err("a ps task is lost".to_owned()));
    });
}

#[test]
fn a_rollback_takes_no_checkpoint_of_another_job() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::create(location(&path)).unwrap();
        let earlier = ChiefLife::new(store.clone(), config()).await.live().await.last.unwrap();
        assert_eq!(earlier, named(10, 5));
        // This job has begun with initial values, and has not saved yet.
        let from_start = CheckpointConfig { restore: RestoreChoice::None, ..config() };
        let life = ChiefLife::new(store.clone(), from_start).await;
        let again = life.begin_again(6).await.unwrap();
        assert_eq!((again.start.from, again.start.version.0), (None, 0));
        // This one continues the earlier job.
        let life = ChiefLife::new(store.clone(), config()).await;
        assert_eq!(life.begin_again(6).await.unwrap().start.from, Some(earlier));
        // This one has begun with a step, and has not saved yet.
        let step = CheckpointConfig { restore: RestoreChoice::Step(GlobalStep(8)), ..config() };
        let life = ChiefLife::new(store, step).await;
        assert_eq!(life.begin_again(6).await.unwrap().start.from, Some(named(8, 5)));
        assert_eq!(life.begin_again(5).await.unwrap().start.from, Some(earlier), "it has saved");
    });
}
