//! Tests of the frames that `pushpull top` shows for made-up jobs.

use proptest::prelude::*;
use pushpull_messages::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use pushpull_messages::message::{MetricValue, ShardCounters};
use pushpull_messages::observe::{
    Checkpoints, ChiefSnapshot, Finding, FindingKind, JobPhase, JobSummary, ShardRow, ShardState, TaskRow,
    VerdictCounters, WorkerRow, WorkerState,
};

use super::frame::{Size, frame};
use super::{how_it_ended, is_over};

fn worker(worker: u32) -> WorkerRow {
    WorkerRow {
        worker,
        state: WorkerState::Training,
        reported_ms: Some(400),
        local_step: LocalStep(2715),
        loss: Some(0.2137),
        steps_per_s: 3.79,
        examples_per_s: 485.0,
        staleness: Some(2.8),
        phases_us: vec![("input".to_owned(), 3_200), ("compute".to_owned(), 202_000)],
        verdicts: VerdictCounters { applied: 2715, ..Default::default() },
        ..Default::default()
    }
}

fn shard(ps: u32) -> ShardRow {
    ShardRow {
        shard: ShardId::new(ps, 0),
        seen_ms: 300,
        version: Version(10_860),
        updates_per_s: 14.3,
        busy: 0.31,
        queue: 1,
        waited_us: 120,
        handling_us: 2_300,
        round_trip_us: Some(9_100),
        variables: 6,
        slices: 7,
        bytes: 44_040_192,
        more_bytes: 88_080_384,
        pushes: ShardCounters { received: 10_860, applied: 10_860, ..Default::default() },
        pulls: 10_860,
        staleness: Some(2.7),
        waiting: 0,
        state: ShardState::Serving,
    }
}

fn job(workers: u32, shards: u32) -> ChiefSnapshot {
    let task = |task| TaskRow { task, address: String::new(), http: None, reachable: true, lives: 1 };
    ChiefSnapshot {
        job: JobSummary {
            name: "resnet20".to_owned(),
            sync: "async".to_owned(),
            optimizer: "momentum".to_owned(),
            batch_size: 128,
            ..Default::default()
        },
        phase: JobPhase::Training,
        up_ms: 759_000,
        step: GlobalStep(10_860),
        last_step: GlobalStep(20_000),
        loss: Some(0.2134),
        metrics: vec![MetricValue { name: "accuracy".to_owned(), value: 0.9021 }],
        steps_per_s: 14.3,
        examples_per_s: 1877.0,
        evaluation: Some((
            GlobalStep(10_000),
            vec![MetricValue { name: "accuracy".to_owned(), value: 0.9123 }],
        )),
        tasks: (0..shards).map(|ps| task(TaskId::ps(ps))).collect(),
        workers: (0..workers).map(worker).collect(),
        shards: (0..shards).map(shard).collect(),
        checkpoints: Some(Checkpoints {
            location: "/data/checkpoints".to_owned(),
            saves: 11,
            last: Some("step-10000".to_owned()),
            age_ms: Some(61_000),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn text(job: &ChiefSnapshot, columns: usize, rows: usize) -> Vec<String> {
    frame(job, None, Size { columns, rows }).iter().map(|line| line.print(false)).collect()
}

#[test]
fn a_job_on_a_screen() {
    let mut job = job(2, 1);
    job.workers[1].state = WorkerState::Lost;
    job.findings = vec![Finding {
        kind: FindingKind::OverloadedShard,
        name: "ps/0/shard/0".to_owned(),
        reason: "busy 97 % of the time".to_owned(),
    }];
    let expected = "\
training  step 10 860 of 20 000  54.3 %  10:39 left  up 12:39  resnet20
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━────────────────────────────
loss 0.2134  accuracy 0.9021  test accuracy 0.9123 (step 10000)  examples/s 1 8…
! ps/0/shard/0 is overloaded: busy 97 % of the time

WORKER    STATE      STEP  STEPS/S  STALENESS  SLOWEST PHASE               LOSS
worker/0  training  2 715     3.79        2.8  compute 202 ms of 205 ms  0.2137
worker/1  lost      2 715     3.79        2.8  compute 202 ms of 205 ms  0.2137

SHARD         STATE    VERSION  BUSY  QUEUE    WAIT  HANDLING  ROUND TRIP
ps/0/shard/0  serving   10 860  31 %      1  120 µs   2.30 ms     9.10 ms

checkpoints  newest step-10000 (1 min ago)  11 saved  in /data/checkpoints";
    assert_eq!(text(&job, 80, 24).join("\n"), expected);
}

/// Checks (B).
#[test]
fn of_two_hundred_those_in_trouble_are_seen() {
    let mut job = job(200, 32);
    job.workers[150].state = WorkerState::Lost;
    job.workers[199].state = WorkerState::Away;
    job.shards[30].state = ShardState::Unreachable;
    job.findings = vec![Finding {
        kind: FindingKind::SlowWorker,
        name: "worker/77".to_owned(),
        reason: "its step takes 553 ms".to_owned(),
    }];
    let shown = text(&job, 100, 30);
    assert_eq!(shown.len(), 30);
    for expected in ["worker/0 ", "worker/77 ", "worker/150 ", "worker/199 ", "ps/30/shard/0 ", "step-10000"]
    {
        assert!(shown.iter().any(|line| line.contains(expected)), "{expected} in {shown:#?}");
    }
    let more =
        |noun: &str| shown.iter().filter(|line| line.starts_with("and ") && line.ends_with(noun)).count();
    assert_eq!((more("more workers"), more("more shards")), (1, 1));
    assert_eq!(text(&job, 200, usize::MAX).iter().filter(|line| line.starts_with("worker/")).count(), 200);
}

/// Checks (C).
#[test]
fn control_characters_are_shown_harmlessly() {
    let mut job = job(1, 1);
    job.job.name = "\x1b]0;title\x07\x1b[2Jname\r\n\u{202e}".to_owned();
    job.findings = vec![Finding {
        kind: FindingKind::SlowWorker,
        name: "worker/\x1b[31m0".to_owned(),
        reason: "a\nb\tc".to_owned(),
    }];
    job.workers[0].phases_us = vec![("\x1b[5m".to_owned(), 1)];
    job.reason = Some("\u{9b}31m".to_owned());
    let shown = text(&job, 120, 40);
    assert!(shown.iter().all(|line| !line.chars().any(char::is_control)), "{shown:#?}");
    assert!(
        shown[0].contains("\u{fffd}]0;title\u{fffd}\u{fffd}[2Jname\u{fffd}\u{fffd}\u{fffd}"),
        "{}",
        shown[0]
    );
}

/// Checks that numbers that are not finite become `null` in JSON, which has no NaN, and are read back as
/// NaN.
#[test]
fn a_model_that_has_diverged_is_still_shown() {
    let mut job = job(1, 1);
    job.loss = Some(f32::NAN);
    job.evaluation.as_mut().unwrap().1[0].value = f32::NAN;
    (job.steps_per_s, job.examples_per_s) = (f64::NAN, f64::INFINITY);
    let (worker, shard) = (&mut job.workers[0], &mut job.shards[0]);
    (worker.loss, worker.steps_per_s, worker.examples_per_s) = (Some(f32::NAN), f64::NAN, f64::NAN);
    (worker.staleness, shard.staleness) = (Some(f64::NAN), Some(f64::NAN));
    (shard.updates_per_s, shard.busy) = (f64::NAN, f64::NAN);
    let told = serde_json::to_string(&job).unwrap();
    let read: ChiefSnapshot = serde_json::from_str(&told).unwrap();
    let value = read.evaluation.as_ref().unwrap().1[0].value;
    assert!(value.is_nan() && read.steps_per_s.is_nan() && read.shards[0].busy.is_nan());
    assert_eq!(serde_json::to_string(&read).unwrap(), told);
    let shown = text(&read, 120, 24);
    assert!(shown.iter().any(|line| line.contains("step 10 860 of 20 000")), "{shown:#?}");
    assert!(shown.iter().any(|line| line.contains("accuracy NaN (step 10000)")), "{shown:#?}");
    let without = told.replace("\"updates_per_s\":null,", "");
    assert_ne!(without, told);
    assert!(serde_json::from_str::<ChiefSnapshot>(&without).is_err(), "what is not there is not read as NaN");
}

#[test]
fn colours_are_only_where_they_are_wanted() {
    let lines = frame(&job(1, 1), None, Size { columns: 80, rows: 24 });
    assert!(lines.iter().all(|line| !line.print(false).contains('\x1b')));
    assert!(lines[0].print(true).contains("\x1b[32mtraining"), "{:?}", lines[0].print(true));
}

#[test]
fn an_old_frame_says_so() {
    let lines = frame(&job(1, 1), Some("the chief does not answer"), Size { columns: 80, rows: 24 });
    assert!(lines.iter().any(|line| line.print(false) == "last known state: the chief does not answer"));
}

#[test]
fn a_chief_that_is_gone_has_ended_its_job_or_not() {
    let mut job = job(1, 1);
    assert!(!is_over(&job));
    job.step = job.last_step;
    assert!(is_over(&job));
    job.phase = JobPhase::Failing;
    assert!(!is_over(&job));
    job.step = GlobalStep(7);
    job.reason = Some("told to\nstop".to_owned());
    assert!(!is_over(&job), "it fails for that reason");
    for phase in [JobPhase::Training, JobPhase::Evaluating, JobPhase::Ended] {
        job.phase = phase;
        assert!(is_over(&job), "it was drained, or stopped early: {phase:?}");
    }
    assert!(is_over(&job));
    assert_eq!(how_it_ended(&job), "the job has ended at step 7 of 20000: told to\u{fffd}stop");
    job.failed = true;
    assert!(how_it_ended(&job).starts_with("the job has failed at step 7"));
    assert!(text(&job, 80, 24)[0].starts_with("failed"));
    assert!(!is_over(&ChiefSnapshot::default()));
}

proptest! {
    /// Checks that a frame is no larger than requested (A), and that text from the snapshot contains no
    /// control characters when it is shown (C).
    #[test]
    fn a_frame_fits(
        columns in 0usize..160,
        rows in 0usize..60,
        workers in 0u32..80,
        shards in 0u32..40,
        findings in 0usize..9,
        name in any::<String>(),
        state in 0usize..WorkerState::ALL.len(),
        number in any::<u64>(),
        value in any::<f64>(),
    ) {
        let mut job = job(workers, shards);
        job.job.name.clone_from(&name);
        (job.step, job.up_ms, job.steps_per_s) = (GlobalStep(number), number, value);
        for row in &mut job.workers {
            (row.state, row.steps_per_s, row.local_step) = (WorkerState::ALL[state], value, LocalStep(number));
            row.phases_us = vec![(name.clone(), number), (name.clone(), 1)];
        }
        for row in &mut job.shards {
            (row.busy, row.bytes, row.waited_us) = (value, number, number);
        }
        let finding = Finding { kind: FindingKind::SlowWorker, name: name.clone(), reason: name };
        job.findings = vec![finding; findings];
        let lines = text(&job, columns, rows);
        prop_assert!(lines.len() <= rows);
        for line in lines {
            prop_assert!(console::measure_text_width(&line) <= columns, "{line:?}");
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
}
