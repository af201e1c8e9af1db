//! Tests which checkpoint a job rolls back to if it has checkpoints in memory, too.

use std::sync::Arc;

use object_store::memory::InMemory;
use pushpull_messages::checkpoint::{CheckpointName, MEMORY};
use pushpull_messages::id::ShardId;
use pushpull_messages::job::JobSpec;
use pushpull_storage::Store;

use super::saving::{ChiefLife, block_on, config, location};
use super::{manifest_of, named};
use crate::checkpoint::error::RestoreError;
use crate::error::ChiefError;
use crate::job::tests::job;

/// Returns a store with the checkpoints of steps 8 and 10.
async fn saved(store: &Store) -> ChiefLife {
    let life = ChiefLife::new(store.clone(), config()).await;
    assert_eq!(life.live().await.last, Ok(named(10, 5)));
    life
}

fn memory() -> Store {
    Store::with(Arc::new(InMemory::new()), MEMORY)
}

/// Deletes the file of a shard.
async fn lose(store: &Store, name: CheckpointName) {
    store.delete(&name.file(&CheckpointName::shard_file(ShardId::new(0, 1)))).await.unwrap();
}

#[test]
fn a_rollback_takes_the_newest_of_both_levels() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let (memory, directory) = (memory(), Store::create(location(&path)).unwrap());
        saved(&memory).await;
        let life = saved(&directory).await;
        let taken = async || {
            let start = life.begin_again_from(&memory, true, false).await.unwrap().start;
            (start.version.0, start.in_memory, start.from)
        };
        assert_eq!(taken().await, (10, true, None), "in memory, it is read faster");
        lose(&memory, named(10, 5)).await;
        assert_eq!(taken().await, (10, false, Some(named(10, 5))));
        lose(&directory, named(10, 5)).await;
        assert_eq!(taken().await, (8, true, None));
        memory.delete(&named(8, 5).manifest()).await.unwrap();
        assert_eq!(taken().await, (8, false, Some(named(8, 5))));
    });
}

#[test]
fn a_job_that_lost_its_memory_says_so() {
    block_on(async {
        let memory = memory();
        let life = ChiefLife::new(memory.clone(), config()).await;
        // Nothing was saved yet, so nothing is lost.
        assert_eq!(life.begin_again_from(&memory, false, true).await.unwrap().start.version.0, 0);
        let error = async || match life.begin_again_from(&memory, false, false).await {
            Err(ChiefError::Restore(error @ RestoreError::MemoryLost { .. })) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(error().await.contains("more than one of them was lost; start the job again"));
        saved(&memory).await;
        for step in [8, 10] {
            lose(&memory, named(step, 5)).await;
        }
        let error = error().await;
        assert!(error.contains("(step-10-0000000000000005: ") && error.contains("is missing"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    });
}

#[test]
fn a_checkpoint_in_memory_of_another_job_is_not_taken() {
    block_on(async {
        let memory = memory();
        saved(&memory).await;
        let other = manifest_of(JobSpec { seed: 99, ..job() }, 12).encode().unwrap();
        for file in manifest_of(job(), 12).files {
            memory.put(&named(12, 9).file(&file.name), vec![0; file.bytes as usize]).await.unwrap();
        }
        memory.put(&named(12, 9).manifest(), other).await.unwrap();
        let life = ChiefLife::new(memory.clone(), config()).await;
        let start = life.begin_again_from(&memory, false, false).await.unwrap().start;
        assert_eq!((start.version.0, start.in_memory), (10, true));
    });
}
