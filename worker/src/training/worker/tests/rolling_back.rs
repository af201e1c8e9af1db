//! Tests of a worker whose job rolls back to a checkpoint. The worker begins again as another incarnation of
//! the same process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};

use pushpull_input::Batch;
use pushpull_messages::input::Column;
use pushpull_messages::message::{Message, PullAt, Resume};
use pushpull_messages::observe::Observed;
use pushpull_transport::{CallError, DialError, RetryConfig};

use super::fake_cluster::{DRAWN, FIRST, RESUME_AGAIN, RollBackAt};
use super::hanging::{Gate, Hanging};
use super::*;
use crate::client::ClientError;
use crate::devices::{GraphReplica, Replica, ReplicaConfig};
use crate::hooks::StepContext;

/// The number of steps in the tests' jobs.
const STEPS: u64 = 7;

/// A hook that counts the steps that it sees. It adds its count to a list when it is dropped.
struct Counter {
    steps: u64,
    counts: Arc<Mutex<Vec<u64>>>,
}

impl Hook for Counter {
    fn after_step(&mut self, info: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        assert_eq!(info.local_step.0, self.steps, "a hook sees the steps of one incarnation");
        self.steps += 1;
        Ok(())
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.counts.lock().unwrap().push(self.steps);
    }
}

/// Returns the settings of a worker with a [`Counter`], and the counts of all counters that were dropped.
fn counting() -> (WorkerConfig, Arc<Mutex<Vec<u64>>>) {
    let counts = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&counts);
    let make = move || Box::new(Counter { steps: 0, counts: Arc::clone(&own) }) as Box<dyn Hook>;
    let hooks: Vec<MakeHook> = vec![Arc::new(make)];
    (WorkerConfig { hooks, ..Script::default().config }, counts)
}

/// Checks that the worker has registered twice, and that its second incarnation has trained from the position
/// that it was given to the end.
fn check_second(play: &Play) {
    let words = play.chief.words();
    assert_eq!(words.registered, [(FIRST, None), (FIRST.again(), Some(FIRST))]);
    let drawn = play.drawn_by(FIRST.again());
    assert!(drawn.into_iter().eq(RESUME_AGAIN.drawn + 1..=RESUME_AGAIN.drawn + STEPS));
    let finish = words.finish.as_ref().expect("it has finished");
    assert_eq!((&finish.result, finish.local_step), (&TrainingResult::Completed, LocalStep(STEPS)));
}

const fn is_join(message: &Message) -> bool {
    matches!(message, Message::Pull(pull) if matches!(pull.at, PullAt::Join))
}

const fn is_last_pull(message: &Message) -> bool {
    matches!(message, Message::Pull(pull) if matches!(pull.at, PullAt::Latest))
}

/// Checks (A) of `incarnation.rs` for each kind of request. The third push of a shard stands for all of them.
#[test]
fn a_worker_refused_at_any_request_begins_again() {
    let third = |message: &Message| matches!(message, Message::Push(push) if push.version.0 == 2);
    let points = [
        RollBackAt::Connecting,
        RollBackAt::Request(|message| matches!(message, Message::Register(_))),
        RollBackAt::Request(|message| matches!(message, Message::Ready(_))),
        RollBackAt::Request(is_join),
        RollBackAt::Request(third),
        RollBackAt::Request(|message| matches!(message, Message::Finish(_))),
        RollBackAt::Request(is_last_pull),
        RollBackAt::Request(|message| matches!(message, Message::Evaluated(_))),
    ];
    for (point, roll_back_at) in points.into_iter().enumerate() {
        for tcp in [false, true] {
            let (config, counts) = counting();
            play(
                Script { saves: true, roll_back_at, config, tcp, ..Default::default() },
                |mut play| async move {
                    play.chief.words().evaluate = true;
                    play.end().await.unwrap_or_else(|error| panic!("point {point}: {error}"));
                    check_second(&play);
                    assert!(play.chief.words().evaluated.as_ref().is_some_and(|told| told.result.is_ok()));
                    let counts = counts.lock().unwrap();
                    assert_eq!(counts.last(), Some(&STEPS), "point {point}: the last hook");
                    assert!(counts.len() <= 2 && counts.iter().all(|count| *count <= STEPS), "{counts:?}");
                },
            );
        }
    }
}

#[test]
fn a_refused_report_ends_a_wait_for_a_push() {
    let (config, counts) = counting();
    play(Script { saves: true, keep_from: 3, config, ..Default::default() }, |mut play| async move {
        play.see(Play::is_stuck).await;
        // The shards never answer the pushes that wait.
        play.roll_back_at(|message| matches!(message, Message::Report(_)));
        play.end().await.unwrap();
        check_second(&play);
        assert_eq!(*counts.lock().unwrap(), [3, STEPS]);
    });
}

#[test]
fn a_worker_that_waits_for_a_reply_begins_again() {
    // It waits for the other tasks, for its pushes, and for the other workers.
    for (go, keep_from) in [(false, u64::MAX), (true, 3), (true, u64::MAX)] {
        let (config, counts) = counting();
        let script = Script { saves: true, go, keep_from, config, ..Default::default() };
        play(script, |mut play| async move {
            play.chief.words().withhold = true;
            play.see(|play| {
                let words = play.chief.words();
                words.ready.is_some() || words.waiting.is_some() || play.is_stuck()
            })
            .await;
            play.chief.words().withhold = false;
            play.chief.go_at_once();
            play.roll_back(0, RESUME_AGAIN);
            play.end().await.unwrap();
            check_second(&play);
            let before = if keep_from == 3 {
                3
            } else if go {
                STEPS
            } else {
                0
            };
            assert_eq!(*counts.lock().unwrap(), [before, STEPS]);
        });
    }
}

/// Neither the device that hangs nor its thread delays the next incarnation.
#[test]
fn a_device_that_hangs_does_not_delay_the_next_life() {
    for tcp in [false, true] {
        let (open, gate) = mpsc::channel();
        let (gate, made): (Arc<Gate>, _) = (Arc::new(Mutex::new(gate)), AtomicU32::new(0));
        let replica = move |config: ReplicaConfig<'_>| {
            let inner = GraphReplica::new(config)?;
            Ok(match made.fetch_add(1, Ordering::Relaxed) {
                0 => Box::new(Hanging::new(inner, &gate)) as Box<dyn Replica>,
                _ => Box::new(inner),
            })
        };
        let config = WorkerConfig { replica: Arc::new(replica), ..Script::default().config };
        play(Script { saves: true, config, tcp, ..Default::default() }, |mut play| async move {
            play.see(|play| play.drawn().len() == 2).await;
            play.roll_back_at(|message| matches!(message, Message::Report(_)));
            play.end().await.unwrap();
            check_second(&play);
            assert_eq!(play.drawn_by(FIRST).len(), 2);
        });
        drop(open);
    }
}

/// A hook that records the features of each batch.
struct Reader(Arc<Mutex<Vec<Vec<f32>>>>);

impl Hook for Reader {
    fn before_step(&mut self, step: &StepContext<'_>) -> Result<(), HookError> {
        let Batch { columns, .. } = step.batch;
        let Column::F32(features) = &columns[0] else { panic!("features are numbers") };
        self.0.lock().unwrap().push(features.clone());
        Ok(())
    }
}

/// Runs a job, and returns the final values and the features of each batch. The job rolls back to step 2 in
/// its sixth step if `rolls_back` is true.
fn train(rolls_back: bool) -> ([Vec<f32>; 2], Vec<Vec<f32>>) {
    let (read, values) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (reader, trained) = (Arc::clone(&read), Arc::clone(&values));
    let hooks: Vec<MakeHook> = vec![Arc::new(move || Box::new(Reader(Arc::clone(&reader))))];
    let keep_from = if rolls_back { 5 } else { u64::MAX };
    let script = Script { saves: true, keep_from, learning_rate: 0.25, ..Default::default() };
    let config = WorkerConfig { hooks, ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        if rolls_back {
            play.see(Play::is_stuck).await;
            play.roll_back(2, Resume { drawn: DRAWN + 2, examples: 2 * u64::from(BATCH), files: None });
        }
        play.end().await.unwrap();
        *trained.lock().unwrap() = Some(play.values());
    });
    let read = std::mem::take(&mut *read.lock().unwrap());
    let values = values.lock().unwrap().take();
    (values.expect("the job has ended"), read)
}

#[test]
fn a_job_that_rolls_back_has_the_same_bits() {
    let ((values, read), (values_again, read_again)) = (train(false), train(true));
    assert_eq!(read.len(), 7);
    assert_eq!(read_again[..6], read[..6]);
    assert_eq!(read_again[6..], read[2..]);
    assert_ne!(values[0], [0.0; 2]);
    assert_eq!(values_again, values);
}

/// Checks (B) of `incarnation.rs`.
#[test]
fn a_worker_begins_again_after_the_loss_of_a_ps() {
    for evaluates in [false, true] {
        let (config, counts) = counting();
        let keep_from = if evaluates { u64::MAX } else { 3 };
        play(Script { saves: true, keep_from, config, ..Default::default() }, |mut play| async move {
            play.chief.words().withhold = true;
            play.see(|play| play.is_stuck() || play.chief.words().waiting.is_some()).await;
            play.stop_ps().await;
            if evaluates {
                play.chief.let_evaluate();
            }
            play.start_ps().await;
            play.see(|play| play.chief.words().registered.len() == 2).await;
            assert_eq!(play.chief.words().registered[1], (FIRST.again(), Some(FIRST)));
            play.chief.words().withhold = false;
            // The second incarnation has the placement before the roll-back, so it is refused, too.
            play.roll_back(0, RESUME_AGAIN);
            play.end().await.unwrap();
            let words = play.chief.words();
            let last = FIRST.again().again();
            assert_eq!(words.registered[2..], [(last, Some(FIRST.again()))]);
            assert!(play.drawn_by(last).into_iter().eq(RESUME_AGAIN.drawn + 1..=RESUME_AGAIN.drawn + STEPS));
            assert_eq!(words.finish.as_ref().map(|finish| &finish.result), Some(&TrainingResult::Completed));
            // The chief learns of the loss only from the next registration.
            let told = words.finished.iter().filter(|by| **by == FIRST).count();
            assert_eq!(told, usize::from(evaluates));
            assert_eq!(counts.lock().unwrap().last(), Some(&STEPS));
        });
    }
}

#[test]
fn a_lost_ps_of_a_job_without_checkpoints_is_final() {
    play(Script { keep_from: 3, ..Default::default() }, |mut play| async move {
        play.see(Play::is_stuck).await;
        play.stop_ps().await;
        play.start_ps().await;
        let error = play.end().await.unwrap_err();
        assert!(matches!(error, WorkerError::Client(ClientError::Call(CallError::Lost { .. }))), "{error}");
        let words = play.chief.words();
        assert_eq!(words.registered, [(FIRST, None)]);
        let result = words.finish.as_ref().map(|finish| finish.result.clone());
        assert_eq!(result, Some(TrainingResult::GaveUp(error.to_string())));
    });
}

const fn is_missing_ps(error: &WorkerError) -> bool {
    matches!(error, WorkerError::Client(ClientError::Dial(DialError::Missing { .. })))
}

#[test]
fn a_ps_that_is_missing_from_the_start_ends_the_worker() {
    let script = Script { saves: true, ps_runs: false, ..Default::default() };
    let config = WorkerConfig { start_timeout: Duration::from_secs(2), ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        let error = play.end().await.unwrap_err();
        assert!(is_missing_ps(&error), "{error}");
        let words = play.chief.words();
        assert_eq!(words.registered, [(FIRST, None)]);
        let result = words.finish.as_ref().map(|finish| finish.result.clone());
        assert_eq!(result, Some(TrainingResult::Failed(error.to_string())));
    });
}

/// A job must not fail because one of its workers is cut off from a ps task.
#[test]
fn a_worker_gives_up_if_it_reaches_a_ps_no_more() {
    let script = Script { saves: true, keep_from: 3, ..Default::default() };
    let retry = RetryConfig { redial_for: Duration::from_millis(50), ..script.config.retry };
    let config = WorkerConfig { retry, start_timeout: Duration::from_secs(2), ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        play.see(Play::is_stuck).await;
        play.stop_ps().await;
        let error = play.end().await.unwrap_err();
        assert!(is_missing_ps(&error), "{error}");
        let words = play.chief.words();
        assert_eq!(words.registered, [(FIRST, None), (FIRST.again(), Some(FIRST))]);
        let result = words.finish.as_ref().map(|finish| finish.result.clone());
        assert_eq!(result, Some(TrainingResult::GaveUp(error.to_string())));
    });
}

/// A hook that fails in its third step if it is the first one of the worker.
struct FailsFirst {
    first: bool,
}

impl Hook for FailsFirst {
    fn after_step(&mut self, info: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        match info.local_step {
            LocalStep(2) if self.first => Err(HookError::new("the third step")),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_worker_whose_farewell_is_refused_begins_again() {
    let made = AtomicU32::new(0);
    let make =
        move || Box::new(FailsFirst { first: made.fetch_add(1, Ordering::Relaxed) == 0 }) as Box<dyn Hook>;
    let roll_back_at = RollBackAt::Request(|message| matches!(message, Message::Finish(_)));
    let script = Script { saves: true, roll_back_at, ..Default::default() };
    let config = WorkerConfig { hooks: vec![Arc::new(make)], ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        play.end().await.unwrap();
        check_second(&play);
        assert_eq!(play.drawn_by(FIRST).len(), 3);
    });
}

/// Checks that the worker does not spin, and that (C) of `incarnation.rs` holds.
#[test]
fn a_worker_that_is_always_refused_waits_and_can_end() {
    play(Script::default(), |mut play| async move {
        play.chief.words().refuses_all = true;
        play.see(|play| play.chief.words().registered.len() == 4).await;
        play.interrupt.cancel();
        let error = play.end().await.unwrap_err();
        assert!(matches!(error, WorkerError::Interrupted { .. }), "{error}");
        let words = play.chief.words();
        for pair in words.registered.windows(2) {
            assert_eq!(pair[1], (pair[0].0.again(), Some(pair[0].0)));
        }
        let pauses = words.registered_at.windows(2).map(|pair| pair[1] - pair[0]);
        for (pause, least_ms) in pauses.zip([100, 200, 400]) {
            assert!(pause >= Duration::from_millis(least_ms), "{pause:?}");
        }
    });
}

#[test]
fn an_interrupt_ends_a_worker_that_begins_again() {
    play(Script { saves: true, go: false, ..Default::default() }, |mut play| async move {
        play.see(|play| play.chief.words().ready.is_some()).await;
        play.roll_back(0, RESUME_AGAIN);
        play.see(|play| play.chief.words().ready.is_some()).await;
        play.interrupt.cancel();
        let error = play.end().await.unwrap_err();
        assert!(matches!(error, WorkerError::Interrupted { .. }), "{error}");
        let words = play.chief.words();
        assert_eq!(words.registered, [(FIRST, None), (FIRST.again(), Some(FIRST))]);
        assert_eq!(words.finish.as_ref().map(|finish| &finish.result), Some(&TrainingResult::Interrupted));
    });
}

/// Checks (C) of `incarnation.rs`.
#[test]
fn an_interrupted_worker_does_not_begin_again() {
    play(Script { saves: true, keep_from: 3, ..Default::default() }, |mut play| async move {
        play.see(Play::is_stuck).await;
        play.interrupt.cancel();
        play.roll_back(0, RESUME_AGAIN);
        let error = play.end().await.unwrap_err();
        assert!(matches!(error, WorkerError::Interrupted { local_step: LocalStep(3) }), "{error}");
        assert_eq!(play.chief.words().registered.len(), 1);
    });
}

#[test]
fn a_view_shows_the_current_incarnation_alone() {
    play(Script { saves: true, keep_from: 5, ..Default::default() }, |mut play| async move {
        let seen = play.see(Play::is_stuck).await;
        assert_eq!((seen.incarnation, worker_of(&seen).local_step), (FIRST, LocalStep(5)));
        play.roll_back(2, RESUME_AGAIN);
        play.keep_from(5);
        play.chief.words().reports.clear();
        let seen = play.see(Play::is_stuck).await;
        assert_eq!(
            (seen.incarnation, seen.state, doing(&seen)),
            (FIRST.again(), TaskState::Ready, "training")
        );
        let worker = worker_of(&seen);
        assert_eq!((worker.local_step, worker.global_step), (LocalStep(3), GlobalStep(5)));
        assert_eq!((worker.drawn, worker.examples), (RESUME_AGAIN.drawn + 3, 3 * u64::from(BATCH)));
        assert_eq!((worker.verdicts.applied, worker.chief_connected), (6, Some(true)));
        assert_eq!((seen.actors[0].handling.count(), seen.actors[2].handling.count()), (3, 4));
        play.see(|play| play.is_disconnected(FIRST)).await;
        assert!(!play.is_disconnected(FIRST.again()));
        play.release();
        play.end().await.unwrap();
        let last = play.view.observe().await;
        assert_eq!((last.incarnation, last.state), (FIRST.again(), TaskState::Ended));
        // The reports of the new incarnation count from 1, as after a restart.
        let words = play.chief.words();
        let counted = words.reports.iter().map(|report| report.number);
        assert!(counted.eq(1..=words.reports.len() as u64));
        assert_eq!(words.reports.last().map(|report| report.local_step), Some(LocalStep(5)));
    });
}
