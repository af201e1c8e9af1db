//! Tests of a thread that hangs while its process lives and answers heartbeats.

use std::time::Duration;

use pushpull_messages::id::TaskId;

use crate::harness::{Cluster, ENDLESS, Job, freeze_shards, wait_for_version};

/// The time limit for all tasks to notice the hang and end.
const PROMPT: Duration = Duration::from_secs(15);

#[test]
fn a_shard_whose_thread_hangs_ends_the_job() {
    // The model is so large that the shard has a thread of its own. A small shard that hangs also stops the
    // heartbeats of its task.
    let cluster = Cluster::with(1, 1, 2, |dir| Job::with(dir, ENDLESS, &["--width=512"]));
    let mut chief = cluster.start_with(TaskId::CHIEF, &["--shard-hung-after-s=2"]);
    let mut ps = cluster.start(TaskId::ps(0));
    let mut workers = [0, 1].map(|worker| cluster.start(TaskId::worker(worker)));
    wait_for_version(&cluster, 50);
    if freeze_shards(&ps) == 0 {
        return;
    }
    chief.wait_within(PROMPT).expect_failure().says("hangs: its task is alive");
    // The thread is still frozen, and nothing waits for its end.
    ps.wait_within(PROMPT).expect_failure().says("hangs: its task is alive");
    for worker in &mut workers {
        worker.wait_within(PROMPT).expect_failure().says("hangs: its task is alive");
    }
}
