//! Tests of workers with a pipeline, which begin steps while the pushes of earlier steps are unanswered.

use std::sync::Mutex;

use pushpull_messages::gradient::NotFiniteSpec;
use pushpull_messages::id::Version;
use pushpull_messages::message::Verdict;

use super::fake_cluster::{DRAWN, FIRST, RESUME_AGAIN, job};
use super::*;
use crate::hooks::{OnGradients, StepContext, StepGradients};

const STEPS: u64 = 7;

/// What a hook has seen of a step.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// A step began from values of this version.
    Began(u64, GlobalStep),
    /// A step ended with these verdicts, and its reply had values of this version.
    Ended(u64, Vec<Verdict>, GlobalStep),
}

/// A hook that records every step.
struct Witness(Arc<Mutex<Vec<Seen>>>);

impl Hook for Witness {
    fn before_step(&mut self, step: &StepContext<'_>) -> Result<(), HookError> {
        self.0.lock().unwrap().push(Seen::Began(step.local_step.0, step.global_step));
        Ok(())
    }

    fn after_step(&mut self, step: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        let ended = Seen::Ended(step.local_step.0, step.verdicts.to_vec(), step.global_step);
        self.0.lock().unwrap().push(ended);
        Ok(())
    }
}

/// Returns the script of a worker with a pipeline, and what its hook sees.
fn script(pipeline: u32, job: JobSpec) -> (Script, Arc<Mutex<Vec<Seen>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&seen);
    let hooks: Vec<MakeHook> = vec![Arc::new(move || Box::new(Witness(Arc::clone(&own))) as Box<dyn Hook>)];
    let script = Script { job: JobSpec { pipeline, ..job }, tcp: true, ..Default::default() };
    let config = WorkerConfig { hooks, ..script.config };
    (Script { config, ..script }, seen)
}

/// Returns the steps that ended, in the order in which hooks saw their ends.
fn ended(seen: &Mutex<Vec<Seen>>) -> Vec<(u64, Vec<Verdict>)> {
    let step = |seen: &Seen| match seen {
        Seen::Ended(step, verdicts, _) => Some((*step, verdicts.clone())),
        Seen::Began(..) => None,
    };
    seen.lock().unwrap().iter().filter_map(step).collect()
}

#[test]
fn a_worker_computes_while_its_pushes_are_unanswered() {
    for pipeline in [2, 3] {
        let (script, seen) = script(pipeline, job(STEPS));
        play(Script { keep_from: 0, ..script }, |mut play| async move {
            let shown = play.see(|play| play.pushes_kept() == 2 * pipeline as usize).await;
            let (worker, in_flight) = (worker_of(&shown), u64::from(pipeline));
            assert_eq!((worker.local_step, worker.phase.as_deref()), (LocalStep(0), Some("exchange")));
            assert_eq!(worker.in_flight_bytes, (2 * in_flight) << 10, "rounded to KiB");
            // All of these steps began from the newest values that had arrived.
            let began: Vec<Seen> = (0..in_flight).map(|step| Seen::Began(step, GlobalStep(0))).collect();
            assert_eq!(*seen.lock().unwrap(), began);
            assert_eq!(play.sequences_kept(), (1..=in_flight).collect::<Vec<_>>());
            assert_eq!(play.versions_kept(), vec![Version(0); pipeline as usize]);
            play.release();
            play.end().await.unwrap();
            check_whole(&play, &seen).await;
        });
    }
}

/// Checks that every step of a worker that has completed its job was seen and counted once, in order.
async fn check_whole(play: &Play, seen: &Mutex<Vec<Seen>>) {
    let ended = ended(seen);
    assert!(ended.iter().map(|(step, _)| *step).eq(0..ended.len() as u64), "{ended:?}");
    for (step, verdicts) in &ended {
        let verdict = if *step < STEPS { Verdict::Applied } else { Verdict::Stopped };
        assert_eq!(*verdicts, [verdict; 2], "{step}");
    }
    let version = |seen: &Seen| match seen {
        Seen::Began(_, version) | Seen::Ended(_, _, version) => *version,
    };
    assert!(seen.lock().unwrap().is_sorted_by_key(version), "values never become older");
    let steps = ended.len() as u64;
    let last = play.view.observe().await;
    let worker = worker_of(&last);
    assert_eq!((worker.local_step, worker.global_step), (LocalStep(steps), GlobalStep(STEPS)));
    assert_eq!((worker.verdicts.applied, worker.verdicts.stopped), (2 * STEPS, 2 * (steps - STEPS)));
    assert_eq!((worker.examples, worker.drawn), (steps * u64::from(BATCH), DRAWN + steps));
    assert_eq!(worker.in_flight_bytes, 0);
    let finish = play.chief.words().finish.clone().expect("it has finished");
    assert_eq!((finish.result, finish.local_step), (TrainingResult::Completed, LocalStep(steps)));
    assert!(play.drawn().into_iter().eq(DRAWN + 1..=DRAWN + STEPS), "each push once, in order");
}

#[test]
fn the_times_of_pipelined_steps_add_up() {
    for (pipeline, tcp) in [(2, true), (3, false), (16, true)] {
        let (script, seen) = script(pipeline, job(STEPS));
        play(Script { tcp, ..script }, |mut play| async move {
            play.end().await.unwrap();
            check_whole(&play, &seen).await;
            let last = play.view.observe().await;
            let (worker, trainer) = (worker_of(&last), &last.actors[0]);
            let steps = worker.local_step.0;
            let counts = worker.phases.iter().map(|(_, times)| times.count());
            assert_eq!([counts[0], counts[1], counts[3], counts[4]], [steps; 4]);
            assert_eq!(trainer.handling.count(), steps);
            let sum: u64 = worker.phases.iter().iter().map(|(_, times)| times.sum_us).sum();
            let whole = trainer.handling.sum_us;
            assert!((whole.saturating_sub(6 * steps)..=whole + steps).contains(&sum), "{sum} of {whole}");
            let words = play.chief.words();
            let spans: Vec<&SpanSpec> = words.reports.iter().flat_map(|report| &report.spans).collect();
            let mut lanes: BTreeMap<&str, Vec<&SpanSpec>> = BTreeMap::new();
            for span in spans.into_iter().filter(|span| span.task == TaskId::worker(0)) {
                lanes.entry(span.lane.as_str()).or_default().push(span);
            }
            let pushes = lanes.values().flatten().filter(|span| span.name == "push").count() as u64;
            assert_eq!(pushes, 2 * steps.div_ceil(3), "every third step is traced");
            assert!(lanes.into_values().all(nest));
        });
    }
}

/// Checks that a worker that is interrupted takes the replies that come in time, and counts their steps.
#[test]
fn an_interrupted_worker_takes_the_replies_on_their_way() {
    for answers in [true, false] {
        let (script, seen) = script(2, job(STEPS));
        play(Script { keep_from: 3, ..script }, |mut play| async move {
            play.see(|play| play.pushes_kept() == 4).await;
            play.interrupt.cancel();
            if answers {
                play.release();
            }
            let error = play.end().await.unwrap_err();
            let steps = if answers { 5 } else { 3 };
            assert!(
                matches!(error, WorkerError::Interrupted { local_step } if local_step.0 == steps),
                "{error}"
            );
            assert_eq!(ended(&seen).len() as u64, steps);
            assert_eq!(play.chief.words().finish.as_ref().unwrap().local_step, LocalStep(steps));
            let last = play.view.observe().await;
            assert_eq!(worker_of(&last).verdicts.applied, 2 * steps);
        });
    }
}

#[test]
fn a_pipeline_is_given_up_when_the_job_rolls_back() {
    let (script, seen) = script(3, job(STEPS));
    play(Script { keep_from: 2, ..script }, |mut play| async move {
        play.see(|play| play.pushes_kept() == 6).await;
        seen.lock().unwrap().clear();
        play.roll_back(0, RESUME_AGAIN);
        play.end().await.unwrap();
        assert_eq!(play.chief.words().registered, [(FIRST, None), (FIRST.again(), Some(FIRST))]);
        let drawn = play.drawn_by(FIRST.again());
        assert!(drawn.into_iter().eq(RESUME_AGAIN.drawn + 1..=RESUME_AGAIN.drawn + STEPS));
        let ended = ended(&seen);
        assert!(ended.iter().map(|(step, _)| *step).eq(0..ended.len() as u64), "{ended:?}");
    });
}

/// A step whose gradients are dropped ends behind the steps before it, and is taken again.
#[test]
fn a_dropped_step_keeps_its_place_in_the_pipeline() {
    let mut job = job(STEPS);
    job.gradient.not_finite = NotFiniteSpec::Skip;
    let (mut script, seen) = script(3, job);
    let spoiled = Arc::new(Mutex::new(false));
    let spoils = move || {
        let spoiled = Arc::clone(&spoiled);
        let change = move |gradients: &mut StepGradients<'_>| {
            if gradients.local_step().0 == 3 && !std::mem::replace(&mut *spoiled.lock().unwrap(), true) {
                gradients.for_each(|gradient| gradient.values.fill(f32::NAN));
            }
        };
        Box::new(OnGradients::new(change)) as Box<dyn Hook>
    };
    script.config.hooks.push(Arc::new(spoils));
    play(script, |mut play| async move {
        play.end().await.unwrap();
        let mut ended = ended(&seen);
        let steps: Vec<u64> = ended.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps[..6], [0, 1, 2, 3, 3, 4]);
        assert!(ended.remove(3).1.is_empty(), "it was dropped");
        assert!(ended.iter().all(|(_, verdicts)| verdicts.len() == 2));
        let last = play.view.observe().await;
        assert_eq!((worker_of(&last).skipped, worker_of(&last).local_step.0), (1, ended.len() as u64));
        let drawn = play.drawn();
        assert!(drawn.into_iter().eq((DRAWN + 1..=DRAWN + 8).filter(|&batch| batch != DRAWN + 4)));
    });
}

#[test]
fn steps_of_several_batches_are_pipelined_too() {
    let eval_every = Some(EvalEverySpec::Steps(2));
    let (script, seen) = script(2, JobSpec { accumulate: 3, eval_every, ..job(STEPS) });
    play(script, |mut play| async move {
        play.end().await.unwrap();
        let ended = ended(&seen);
        assert!(ended.iter().map(|(step, _)| *step).eq(0..ended.len() as u64), "{ended:?}");
        let drawn = (1..=STEPS).map(|step| DRAWN + 3 * step);
        assert!(play.drawn().into_iter().eq(drawn));
        let words = play.chief.words();
        let evaluated: Vec<_> = words.reports.iter().flat_map(|report| &report.evaluations).collect();
        assert!(!evaluated.is_empty() && evaluated.windows(2).all(|pair| pair[0].step < pair[1].step));
    });
}

/// The credits of this worker suffice for the push of one shard only.
#[test]
fn a_pipeline_with_few_credits_goes_on() {
    let (script, seen) = script(4, job(STEPS));
    let config = WorkerConfig { in_flight_bytes_max: 1, ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        play.end().await.unwrap();
        check_whole(&play, &seen).await;
    });
}
