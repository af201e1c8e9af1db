//! Tests of an overview that is built from hand-made snapshots.

use std::sync::Arc;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, LocalStep, Version};
use pushpull_messages::observe::{RoundTrip, WorkerSnapshot};

use super::*;
use crate::job::MemberStatus;
use crate::job::tests::{job, placement};
use crate::monitor::{LatestReport, WorkerReport};

fn overview() -> Overview {
    overview_of(&job())
}

fn overview_of(job: &JobSpec) -> Overview {
    let addresses = [
        (JobName::Chief, vec!["chief0:1"]),
        (JobName::Ps, vec!["ps0:1", "ps1:1"]),
        (JobName::Worker, vec!["worker0:1", "worker1:1", "worker2:1"]),
        (JobName::Evaluator, vec!["evaluator0:1"]),
    ];
    let identity = Identity {
        task: TaskId::CHIEF,
        incarnation: Incarnation(1),
        cluster: ClusterSpec::new(addresses).unwrap(),
        graph: None,
        http: Some("chief0:80".into()),
        nonce: 0,
    };
    Overview::new(job, &identity, Some("s3://key:secret@bucket/x"))
}

#[test]
fn only_leaders_of_replicas_are_listed() {
    let workers = |job: &JobSpec| {
        let tasks = overview_of(job).tasks();
        tasks.into_iter().filter(|row| row.task.job == JobName::Worker).count()
    };
    let mut staged = job();
    staged.graph.nodes.last_mut().unwrap().device = Some("/job:worker/task:2".parse().unwrap());
    assert_eq!((workers(&job()), workers(&staged)), (3, 1));
}

fn published(overview: &Overview, at: Duration, at_ms: u64) -> ChiefSnapshot {
    overview.snapshot(overview.rows(at), at_ms)
}

fn worker(worker: u32, state: WorkerState) -> MemberStatus {
    MemberStatus {
        worker,
        state,
        life: Some(Incarnation(3)),
        lives: 2,
        http: Some(format!("worker{worker}:80")),
    }
}

/// Returns a snapshot after `second` seconds, in which three workers train. The last worker computes for
/// `slow_us` microseconds in each step, the others for 10 000 microseconds.
fn trains(second: u64, slow_us: u64) -> CoordinatorSnapshot {
    let at = Duration::from_secs(second);
    let mut snapshot = CoordinatorSnapshot::default();
    snapshot.status.phase = JobPhase::Training;
    snapshot.status.workers = (0..3).map(|index| worker(index, WorkerState::Training)).collect();
    let last_step = GlobalStep(100_000);
    snapshot.progress = JobProgress { running: true, last_step, loss: Some(0.5), ..JobProgress::default() };
    for index in 0..3 {
        let took_us = if index == 2 { slow_us } else { 10_000 };
        let steps = second * 20;
        let mut worker =
            WorkerSnapshot { local_step: LocalStep(steps), examples: steps * 8, ..Default::default() };
        worker.phases.compute.sum_us = steps * took_us;
        let mut times = TimeHistogram::default();
        (0..steps).for_each(|_| times.record(Duration::from_millis(4)));
        worker.round_trips = vec![RoundTrip { shard: ShardId::new(0, 0), times }];
        let (life, local_step) = (Incarnation(3), LocalStep(steps));
        let latest = LatestReport {
            life,
            at,
            local_step,
            loss: Some(0.5),
            spans_lost: 1,
            snapshot: Some(Arc::new(worker)),
        };
        snapshot.latest.insert(index, latest);
        let report =
            WorkerReport { steps: 20, local_step, loss: Some(f32::from(index as u8)), gradient_norm: None };
        snapshot.reports.insert(index, report);
    }
    snapshot
}

#[test]
fn the_overview_is_complete_before_any_task_comes() {
    let shown = published(&overview(), Duration::from_millis(7), 99);
    assert_eq!((shown.phase, shown.at_ms, shown.up_ms), (JobPhase::Starting, 99, 7));
    assert_eq!(shown.last_step, job().last_step);
    assert_eq!(
        (shown.job.name.as_str(), shown.job.sync.as_str(), shown.job.variable_bytes),
        ("linear", "async", 24)
    );
    assert_eq!(shown.tasks.len(), 6);
    let reachable: Vec<bool> = shown.tasks.iter().map(|task| task.reachable).collect();
    assert_eq!(reachable, [true, false, false, false, false, false]);
    assert_eq!(shown.tasks[0].http.as_deref(), Some("chief0:80"));
    assert_eq!(shown.checkpoints.unwrap().location, "s3://(hidden)@bucket/x");
}

fn ps(up: bool) -> PsStatus {
    PsStatus { task: TaskId::ps(1), http: None, up }
}

/// Returns the overview of a job that has trained for twelve seconds and was then evaluated. The last worker
/// was slow in all this time.
fn trained() -> Overview {
    let mut overview = overview();
    overview.ps(vec![ps(true)]);
    let mut snapshot = trains(0, 0);
    snapshot.placement = Some(placement());
    snapshot.latest.clear();
    overview.coordinator(Duration::ZERO, snapshot);
    for second in 1..=12 {
        let at = Duration::from_secs(second);
        overview.coordinator(at, trains(second, 84_000));
        // A second snapshot at the same time changes nothing.
        overview.coordinator(at, CoordinatorSnapshot { reports: BTreeMap::new(), ..trains(second, 84_000) });
        let version = Version(second * 60);
        overview.shard(at, ShardId::new(0, 0), Some(ShardSnapshot { version, ..Default::default() }));
        overview.tick(&overview.rows(at));
        let found = published(&overview, at, 0).findings;
        assert_eq!(found.len(), usize::from(second >= 4), "in second {second}: {found:?}");
    }
    let at = Duration::from_secs(12);
    let evaluation = Evaluation { loss: 0.25, metrics: Vec::new(), examples: 1, variables_crc32c: 0 };
    overview.evaluated(at, GlobalStep(700), &evaluation);
    overview
}

#[test]
fn rows_curves_and_findings_follow_the_snapshots() {
    let overview = trained();
    let at = Duration::from_secs(12);
    let shown = published(&overview, at, 0);
    assert_eq!((shown.step, shown.steps_per_s, shown.examples_per_s), (GlobalStep(720), 60.0, 480.0));
    assert_eq!(shown.findings[0].name, "worker/2");
    assert_eq!(shown.workers[1].steps_per_s, 20.0);
    assert_eq!(shown.workers[2].phases_us[1], ("compute".to_owned(), 84_000));
    assert_eq!((shown.shards[0].round_trip_us, shown.shards[0].variables), (Some(4000), 1));
    assert_eq!((shown.spans_lost, shown.loss), (3, Some(0.5)));
    let tasks: Vec<(bool, u64)> = shown.tasks.iter().map(|task| (task.reachable, task.lives)).collect();
    assert_eq!(tasks, [(true, 1), (false, 0), (true, 1), (true, 2), (true, 2), (true, 2)]);
    let curves = overview.curves();
    assert_eq!((curves.len(), curves[3].loss, curves[3].examples_per_s), (12, Some(1.0), 480.0));
    assert_eq!(curves[11].evaluation[0].value, 0.25);
    let row = &overview.placement()[0];
    assert_eq!((row.shape.as_str(), row.rows, row.bytes), ("3x2", (0, 3), 24));
}

#[test]
fn a_shard_that_loses_its_slices_leaves_the_rows() {
    let (mut overview, at) = (trained(), Duration::from_secs(13));
    let snapshot = ShardSnapshot { version: Version(900), ..Default::default() };
    overview.shard(at, ShardId::new(1, 0), Some(snapshot));
    assert_eq!(published(&overview, at, 0).shards.len(), 2);
    overview.coordinator(at, CoordinatorSnapshot { placement: Some(placement()), ..trains(13, 84_000) });
    let shown = published(&overview, at, 0);
    let shards: Vec<ShardId> = shown.shards.iter().map(|row| row.shard).collect();
    assert_eq!((shards, shown.step), (vec![ShardId::new(0, 0)], GlobalStep(720)));
}

#[test]
fn absent_tasks_and_the_end_show_in_the_rows() {
    let mut overview = trained();
    // The connection of a worker is broken, and its finding ends.
    for second in 13..=15 {
        let mut snapshot = trains(12, 84_000);
        snapshot.status.workers[2].state = WorkerState::Away;
        overview.coordinator(Duration::from_secs(second), snapshot);
        overview.tick(&overview.rows(Duration::from_secs(second)));
    }
    let shown = published(&overview, Duration::from_secs(15), 0);
    assert_eq!((shown.workers[2].state, shown.tasks[5].reachable), (WorkerState::Away, false));
    assert!(shown.findings.iter().all(|finding| finding.name != "worker/2"), "{:?}", shown.findings);
    // A worker that has left does not count as missing.
    let mut snapshot = trains(12, 84_000);
    snapshot.status.workers[0].state = WorkerState::Left;
    overview.coordinator(Duration::from_secs(15), snapshot);
    let tasks = published(&overview, Duration::from_secs(15), 0).tasks;
    assert!(
        tasks.len() == 5 && tasks.iter().all(|row| row.reachable || row.task == TaskId::ps(0)),
        "{tasks:?}"
    );
    // A shard whose task cannot be reached is unreachable; after the end all rates are zero.
    let version = Version(900);
    let at = Duration::from_millis(15_500);
    for shard in [ShardId::new(0, 0), ShardId::new(1, 0)] {
        overview.shard(at, shard, Some(ShardSnapshot { version, ..Default::default() }));
    }
    overview.ps(vec![ps(false)]);
    let shown = published(&overview, at, 0);
    let states: Vec<_> = shown.shards.iter().map(|row| row.state).collect();
    assert_eq!(states, [ShardState::Serving, ShardState::Unreachable]);
    assert!(shown.steps_per_s > 0.0 && shown.shards[0].updates_per_s > 0.0, "{shown:?}");
    overview.ps(Vec::new());
    overview.end(Some("told to".into()), true);
    let shown = published(&overview, Duration::from_secs(16), 0);
    assert!(shown.shards.iter().all(|row| row.state == ShardState::Ended && row.updates_per_s == 0.0));
    assert!(shown.workers.iter().all(|row| row.steps_per_s == 0.0 && row.examples_per_s == 0.0));
    assert!(shown.steps_per_s == 0.0 && shown.examples_per_s.is_sign_positive(), "{shown:?}");
    assert_eq!(
        (shown.phase, shown.reason.as_deref(), shown.failed),
        (JobPhase::Ended, Some("told to"), true)
    );
    assert!(shown.findings.is_empty() && !shown.tasks[2].reachable && shown.tasks[2].lives == 1);
}

#[test]
fn checkpoints_have_an_age_once_one_was_made() {
    let mut overview = overview();
    let last = Some(CheckpointName { step: GlobalStep(4), life: Incarnation(2) });
    let mut status = SaveStatus { last, ..SaveStatus::default() };
    overview.saves(Duration::from_secs(1), &status);
    let shown = published(&overview, Duration::from_secs(2), 0).checkpoints.unwrap();
    assert_eq!((shown.last_step, shown.age_ms, shown.saves), (Some(GlobalStep(4)), None, 0));
    (status.saves, status.failed) = (1, 2);
    overview.saves(Duration::from_secs(3), &status);
    overview.saves(Duration::from_secs(4), &status);
    let shown = published(&overview, Duration::from_secs(5), 0).checkpoints.unwrap();
    assert_eq!((shown.age_ms, shown.saves, shown.failed), (Some(2000), 1, 2));
}
