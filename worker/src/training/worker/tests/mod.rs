//! Tests what the view of a worker shows, and what the worker reports. The chief and the ps task are
//! simulated.

mod accumulating;
mod announcing;
mod changing;
mod fake_cluster;
mod hanging;
mod pipelining;
mod rolling_back;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::cadence::EvalEverySpec;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, LocalStep, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::TrainingResult;
use pushpull_messages::observe::{
    Micros, Observed, RoleSnapshot, SpanSpec, TaskSnapshot, TaskState, WorkerSnapshot,
};
use pushpull_messages::summary::SummarySpec;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, InProcess};
use tokio_util::sync::CancellationToken;

use self::fake_cluster::{AHEAD_US, BATCH, Play, SHARDS, Script, job, play};
use super::Worker;
use crate::config::WorkerConfig;
use crate::devices::DeviceList;
use crate::error::WorkerError;
use crate::hooks::{Hook, HookError, MakeHook, StepInfo};
use crate::telemetry::{Plots, nest};

/// The tolerance for times that the worker has converted to the chief's clock: one minute. Without a
/// conversion, they would be wrong by at least an hour ([`AHEAD_US`]).
const OFF_US_MAX: Micros = 60_000_000;

fn worker_of(seen: &TaskSnapshot) -> &WorkerSnapshot {
    let RoleSnapshot::Worker(worker) = &seen.role else { panic!("a worker's") };
    worker
}

/// Returns the snapshot as a report contains it: without `chief_connected`.
fn as_told(worker: &WorkerSnapshot) -> WorkerSnapshot {
    WorkerSnapshot { chief_connected: None, ..worker.clone() }
}

fn doing(seen: &TaskSnapshot) -> &str {
    assert_eq!(seen.actors[0].name, "worker/0/trainer");
    &seen.actors[0].state
}

#[test]
fn a_life_is_seen_from_its_beginning_to_its_end() {
    play(Script { keep_from: 3, go: false, ..Default::default() }, |mut play| async move {
        let seen = play.see(|play| play.chief.words().ready.is_some()).await;
        assert_eq!((seen.state, doing(&seen)), (TaskState::Starting, "waiting for the other tasks"));
        assert_eq!(worker_of(&seen).local_step, LocalStep(0));
        play.chief.go();
        // The worker is stuck in its fourth step.
        let seen = play.see(Play::is_stuck).await;
        assert_eq!((seen.state, doing(&seen)), (TaskState::Ready, "training"));
        let worker = worker_of(&seen);
        assert_eq!((worker.local_step, worker.global_step, worker.drawn), (LocalStep(3), GlobalStep(3), 7));
        assert_eq!((worker.verdicts.applied, worker.staleness.sum), (6, 6));
        assert_eq!((worker.phase.as_deref(), worker.chief_connected), (Some("exchange"), Some(true)));
        let told = |phase: &str, words: &fake_cluster::Words| {
            let last = words.reports.last().and_then(|report| report.snapshot.as_ref());
            last.is_some_and(|told| told.phase.as_deref() == Some(phase) && told.phase_us > 0)
        };
        play.see(|play| told("exchange", &play.chief.words())).await;
        // The number of bytes in flight is rounded to KiB.
        assert_eq!((worker.in_flight_bytes, worker.in_flight_bytes_max), (2 << 10, 1 << 30));
        assert!(seen.actors[0].busy_us.is_some() && seen.actors[0].handling.count() == 3);
        let names: Vec<&str> = seen.actors.iter().map(|actor| actor.name.as_str()).collect();
        assert_eq!(names, ["worker/0/trainer", "worker/0/input", "worker/0/device/0"]);
        assert_eq!((seen.actors[2].handling.count(), seen.actors[2].queue), (4, 0));
        play.interrupt.cancel();
        assert_eq!(play.view.observe().await.state, TaskState::Stopping);
        let error = play.end().await.unwrap_err();
        assert!(matches!(error, WorkerError::Interrupted { .. }), "{error}");
        let last = play.view.observe().await;
        assert_eq!((last.state, doing(&last)), (TaskState::Ended, "ended"));
        assert_eq!((worker_of(&last).local_step, worker_of(&last).in_flight_bytes), (LocalStep(3), 0));
        assert_eq!((&worker_of(&last).phase, worker_of(&last).phase_us), (&None, 0));
        assert_eq!(worker_of(&last).verdicts, worker.verdicts);
        // The reports that the chief received contain the same snapshot.
        let words = play.chief.words();
        let told = words.reports.last().and_then(|report| report.snapshot.clone()).expect("there was a step");
        assert_eq!((told.local_step, told.verdicts), (LocalStep(3), worker.verdicts));
        assert_eq!(words.finish.as_ref().unwrap().local_step, LocalStep(3));
    });
}

#[test]
fn a_stopped_worker_shows_that_it_stops() {
    play(Script { keep_from: 3, ..Default::default() }, |mut play| async move {
        play.see(Play::is_stuck).await;
        play.chief.words().stop = Some("enough".into());
        let seen = play.see(|play| play.view.shown().life.state() != TaskState::Ready).await;
        assert_eq!(seen.state, TaskState::Stopping);
        let error = play.end().await.unwrap_err();
        assert!(matches!(&error, WorkerError::Stopped(reason) if reason == "enough"), "{error}");
        assert_eq!(play.view.observe().await.state, TaskState::Ended);
    });
}

#[test]
fn a_worker_that_never_runs_has_ended() {
    let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])]).unwrap();
    let (task, incarnation) = (TaskId::worker(0), Incarnation(1));
    let identity = Identity { task, incarnation, cluster, graph: None, http: None, nonce: 0 };
    let (transport, pool) = (Arc::new(InProcess::new()), BufferPool::default());
    let worker =
        Worker::new(WorkerConfig::default(), identity, transport, pool, CancellationToken::new()).unwrap();
    let view = worker.view();
    drop(worker.run());
    let seen = actix_rt::System::new().block_on(view.observe());
    assert_eq!(seen.state, TaskState::Ended);
}

struct Plotter;

impl Hook for Plotter {
    fn after_step(&mut self, info: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        plots.plot(SummarySpec::scalar("loss", GlobalStep(info.local_step.0), info.loss));
        Ok(())
    }
}

#[test]
fn a_report_on_its_way_and_a_last_one_are_answered() {
    let hooks: Vec<MakeHook> = vec![Arc::new(|| Box::new(Plotter) as Box<dyn Hook>)];
    let script = Script { keep_from: 3, ..Default::default() };
    let config = WorkerConfig { hooks, ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        play.see(Play::is_stuck).await;
        play.chief.words().deaf = true;
        play.see(|play| !play.chief.words().unheard.is_empty()).await;
        play.release();
        while worker_of(&play.view.observe().await).phase.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        play.chief.hear();
        play.end().await.unwrap();
        let last = play.view.observe().await;
        let words = play.chief.words();
        let told = words.reports.last().and_then(|report| report.snapshot.as_deref());
        assert_eq!(told, Some(&as_told(worker_of(&last))));
        let plotted = words.reports.iter().flat_map(|report| &report.summaries);
        let plotted = plotted.filter(|summary| summary.tag == "loss");
        assert!(plotted.map(|summary| summary.step.0).eq(0..7), "each once");
        let traced = words.reports.iter().flat_map(|report| &report.spans).filter(|span| span.name == "step");
        assert!(traced.filter_map(|span| span.local_step).eq([0, 3, 6]), "each once");
    });
}

/// Checks that one evaluation runs at a time (A), and that an evaluation that is due begins if none runs (B;
/// see `validation.rs`). The simulated shards never change their values, so all evaluations must be equal.
#[test]
fn evaluations_are_made_one_after_the_other() {
    for every in 1..5 {
        let eval_every = Some(EvalEverySpec::Steps(every));
        let script = Script { job: JobSpec { eval_every, ..job(40) }, ..Default::default() };
        play(script, |mut play| async move {
            play.end().await.unwrap();
            let words = play.chief.words();
            assert_eq!(words.finish.as_ref().unwrap().local_step, LocalStep(40));
            let all: Vec<_> = words.reports.iter().flat_map(|report| &report.evaluations).collect();
            assert_eq!(all[0].step, GlobalStep(every), "(B): no other runs");
            for pair in all.windows(2) {
                assert!(pair[0].step < pair[1].step && pair[1].step.0 >= 2 * every, "(A)");
                assert_eq!(pair[0].evaluation, pair[1].evaluation, "the same values");
            }
            assert!(all.last().unwrap().step < GlobalStep(40), "the end is evaluated later");
            assert_eq!(all[0].evaluation.examples, 37);
            assert!(all[0].evaluation.loss > 0.0);
        });
    }
}

struct Quiet;
impl Hook for Quiet {}

/// Runs a worker to its end, and checks that the final view and the last report account for every step.
fn whole(tcp: bool, devices: usize) {
    let hooks: Vec<MakeHook> = vec![Arc::new(|| Box::new(Quiet) as Box<dyn Hook>)];
    // Timing decides whether a report is sent before the final ones.
    let script = Script::default();
    let config = WorkerConfig { devices: DeviceList::cpus(devices), hooks, ..script.config };
    play(Script { config, tcp, ..script }, |mut play| async move {
        play.end().await.unwrap();
        let end = play.chief.clock.now() + AHEAD_US;
        let last = play.view.observe().await;
        let worker = worker_of(&last);
        let steps = 7;
        assert_eq!((worker.local_step, worker.global_step), (LocalStep(steps), GlobalStep(steps)));
        assert_eq!((worker.drawn, worker.examples), (4 + steps, steps * u64::from(BATCH)));
        assert_eq!((worker.verdicts.applied, worker.staleness.count()), (2 * steps, 2 * steps));
        let round_trips = worker.round_trips.iter().map(|trip| (trip.shard, trip.times.count()));
        assert_eq!(round_trips.collect::<Vec<_>>(), SHARDS.map(|shard| (shard, steps)));
        // There is one pull besides the pushes. All of them carry the bytes of both variables.
        assert_eq!((worker.sent.messages, worker.received.messages), (2 * steps + 2, 2 * steps + 2));
        assert_eq!((worker.sent.payload_bytes, worker.received.payload_bytes), (12 * steps, 12 * steps + 12));
        assert!(worker.loss.is_some_and(f32::is_finite) && worker.skipped == 0);
        // The durations of the phases add up to those of the steps, except for fractions of a microsecond.
        let counts = worker.phases.iter().map(|(_, times)| times.count());
        let filtered = if tcp && devices == 1 { 1 } else { steps };
        assert_eq!(counts, [steps, steps, filtered, steps, steps]);
        let sum: u64 = worker.phases.iter().iter().map(|(_, times)| times.sum_us).sum();
        let trainer = &last.actors[0];
        assert_eq!(trainer.handling.count(), steps);
        assert!(
            (trainer.handling.sum_us.saturating_sub(6 * steps)..=trainer.handling.sum_us + steps)
                .contains(&sum)
        );
        let reductions = if devices == 2 { steps } else { 0 };
        let handled = last.actors[2..].iter().map(|device| device.handling.count());
        assert_eq!(handled.sum::<u64>(), steps * devices as u64 + reductions);
        let words = play.chief.words();
        assert!(words.reports.iter().all(|report| report.snapshot.is_some() && report.spans_lost == 0));
        let reported = words.reports.last().unwrap().snapshot.as_deref();
        assert_eq!(reported, Some(&as_told(worker)));
        assert_eq!(worker.chief_connected, Some(false), "the worker has ended");
        let metrics: Vec<f32> = words.reports.iter().flat_map(|report| report.metrics.clone()).collect();
        assert!(!metrics.is_empty() && metrics.iter().all(|metric| metric.is_finite()), "{metrics:?}");
        // The summaries of the graph are plotted in every second step.
        let summaries = words.reports.iter().flat_map(|report| &report.summaries);
        let summaries: Vec<_> = summaries.map(|summary| (summary.tag.as_str(), summary.step.0)).collect();
        let wanted = [1, 3, 5, 7].map(|step| [("own/loss", step), ("kernel", step)]);
        assert_eq!(summaries, wanted.as_flattened());
        let spans: Vec<&SpanSpec> = words.reports.iter().flat_map(|report| &report.spans).collect();
        check_spans(&spans, end, devices);
    });
}

/// Checks that exactly the steps 0, 3 and 6 have spans, and that these spans nest. They must end by `end`, a
/// time on the chief's clock, with a tolerance of [`OFF_US_MAX`].
fn check_spans(spans: &[&SpanSpec], end: Micros, devices: usize) {
    let steps: BTreeSet<u64> = spans.iter().filter_map(|span| span.local_step).collect();
    assert_eq!(steps, BTreeSet::from([0, 3, 6]));
    let mut lanes: BTreeMap<(TaskId, &str), Vec<&SpanSpec>> = BTreeMap::new();
    for span in spans {
        let (start, end) = (AHEAD_US - OFF_US_MAX, end + OFF_US_MAX);
        assert!(span.start_us >= start && span.took_us >= 0 && span.start_us + span.took_us <= end);
        lanes.entry((span.task, span.lane.as_str())).or_default().push(span);
    }
    let (own, ps) = (TaskId::worker(0), TaskId::ps(0));
    let mut known = vec![
        (own, "to ps/0/shard/0"),
        (own, "to ps/0/shard/1"),
        (own, "trainer"),
        (ps, "shard/0"),
        (ps, "shard/1"),
    ];
    known.extend(["device/0", "device/1"].iter().take(devices).map(|lane| (own, *lane)));
    assert_eq!(lanes.keys().copied().collect::<BTreeSet<_>>(), known.into_iter().collect());
    for (lane, spans) in &lanes {
        assert!(nest(spans.clone()), "{lane:?}: {spans:?}");
    }
    let ops: Vec<_> = spans.iter().filter(|span| span.name.contains("mat_mul")).collect();
    assert!(ops.len() >= devices && ops.iter().all(|op| op.local_step == Some(0)), "{ops:?}");
    for op in ops {
        let mut lane = lanes[&(own, op.lane.as_str())].iter();
        let whole = lane.find(|span| span.local_step == Some(0) && span.name == "forward and backward");
        let ends = |span: &SpanSpec| span.start_us + span.took_us;
        assert!(whole.is_some_and(|own| own.start_us <= op.start_us && ends(op) <= ends(own)), "{op:?}");
    }
    for step in steps {
        let named = |name: &str| {
            let of = spans.iter().filter(|span| span.local_step == Some(step) && span.name == name);
            of.copied().collect::<Vec<&SpanSpec>>()
        };
        for (name, count) in [
            ("step", 1),
            ("input", 1),
            ("hooks", 2),
            ("compute", 1),
            ("exchange", 1),
            ("forward and backward", devices),
            ("reduce", devices - 1),
            ("push", 2),
            ("wire", 2),
            ("queue", 2),
            ("apply", 2),
        ] {
            assert_eq!(named(name).len(), count, "{name}");
        }
        let whole = named("step")[0];
        for push in named("push") {
            let (id, shard) = push.push.expect("whose it is");
            // The first push is that of step 0.
            assert_eq!((id.worker, id.incarnation, id.sequence.0), (0, Incarnation(5), step + 1));
            let of: Vec<&&SpanSpec> = spans.iter().filter(|span| span.push == Some((id, shard))).collect();
            assert!(of.iter().all(|span| span.local_step == Some(step)) && of.len() >= 5);
            for part in of.iter().copied().chain([&push]) {
                assert!(whole.start_us <= push.start_us && push.start_us <= part.start_us);
                let ends = [part, push, whole].map(|span| span.start_us + span.took_us);
                assert!(ends.is_sorted(), "{part:?} is within {push:?} is within {whole:?}");
            }
        }
    }
}

#[test]
fn the_final_view_covers_every_step() {
    whole(false, 1);
}

#[test]
fn two_devices_and_their_sums_are_shown() {
    whole(false, 2);
}

#[test]
fn pushes_that_begin_early_are_traced_too() {
    whole(true, 1);
}
