//! Tests of jobs that stop before their last step, either for good or in a drain, and of jobs that continue
//! from a checkpoint.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::message::{Ready, Register};

use super::scripted_job::{Play, completed, evaluated, interrupted, report};
use super::*;

#[test]
fn an_early_stop_is_evaluated_at_the_agreed_step() {
    let mut play = Play::training();
    play.say(0, 1, report(4));
    play.stop(false);
    // The shards tell the workers the last step before all shards have replied to the chief.
    play.say(1, 1, completed());
    play.say(0, 1, completed());
    assert_eq!(play.log(), "5:Reported", "(F)");
    play.stopping_at(6);
    assert_eq!(play.log(), "trained 7:Evaluate");
    assert_eq!(play.evaluates, [6]);
    let progress = play.state.progress();
    assert_eq!((progress.global_step, progress.last_step), (GlobalStep(6), GlobalStep(6)));
    // A repeated request gets the same reply.
    play.say_over(0, 1, 2, completed());
    play.say_over(0, 1, 2, evaluated());
    assert_eq!(play.evaluates, [6, 6]);
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.step, outcome.stopped.as_deref()), (GlobalStep(6), Some("enough")));

    // If the agreed step is the last one, the job has not stopped early.
    let mut play = Play::training();
    play.stop(false);
    play.stopping_at(10);
    play.say(1, 1, completed());
    play.say(0, 1, completed());
    play.say(0, 1, evaluated());
    assert_eq!(play.ended.pop().unwrap().unwrap().stopped, None);
}

#[test]
fn a_drained_job_is_not_evaluated() {
    let mut play = Play::training_together();
    play.stop(true);
    play.say(0, 1, completed());
    // The workers are told to stop, too. The job does not fail if one of them leaves early.
    play.say(1, 1, interrupted());
    assert!(!play.state.is_failing());
    assert_eq!(play.log(), "6:Finished");
    play.stopping_at(5);
    assert_eq!(play.ended, [Err("drained at 5".into())]);
    assert_eq!(play.log(), "", "the workers stay until the job is saved");
    play.release();
    assert_eq!(play.log(), "5:Finished");
    // A worker whose reply was lost repeats its request.
    play.say(0, 1, completed());
    assert_eq!(play.log(), "7:Finished");
    assert!(play.open.is_empty() && play.evaluates.is_empty());
}

#[test]
fn a_stop_may_become_a_drain_and_not_the_reverse() {
    for drains_first in [false, true] {
        let mut play = Play::training();
        play.stop(drains_first);
        play.stop(!drains_first);
        play.stopping_at(5);
        play.say(0, 1, completed());
        play.say(1, 1, completed());
        assert_eq!(play.ended, [Err("drained at 5".into())], "{drains_first}");
    }
    // An evaluation that is already running may still end.
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.stop(true);
    play.say(0, 1, evaluated());
    assert_eq!(play.ended.pop().unwrap().unwrap().step, GlobalStep(10));
    // If the evaluating worker is lost, no other worker evaluates.
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.stop(true);
    play.gone(0, 1);
    assert!(play.ended.is_empty());
    play.stopping_at(10);
    assert_eq!(play.ended, [Err("drained at 10".into())]);
}

#[test]
fn a_drain_ends_without_workers_that_do_not_finish() {
    let mut play = Play::training();
    play.say(0, 1, report(4));
    play.stop(true);
    play.stopping_at(5);
    play.say(0, 1, completed());
    play.end_drain();
    assert_eq!(play.log(), "5:Reported 6:Finished");
    assert_eq!(play.ended, [Err("interrupted at step 5 of 10".into())]);
    play.say(1, 1, report(5));
    assert_eq!(play.log(), "7:StopNow");
    assert!(play.open.is_empty());

    // No worker is left.
    let mut play = Play::training();
    play.stop(true);
    play.gone(0, 1);
    play.say(1, 1, interrupted());
    assert_eq!(play.ended, [Err("interrupted at step 0 of 10".into())]);

    // The job has not begun.
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, Register::default());
    play.say(0, 1, Ready::default());
    play.stop(true);
    assert!(play.log().ends_with("2:Refusal(the job is ending: interrupted at step 0 of 10)"));
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn workers_go_on_where_they_were() {
    let resume = |drawn| Resume { drawn, examples: 3 * drawn, files: None };
    let mut play = Play::of(JobSpec { batch_size: 3, ..job() }, 2);
    let start = JobStart {
        step: GlobalStep(4),
        resumes: vec![resume(5), resume(6)],
        saves: true,
        ..JobStart::default()
    };
    play.created_with(start);
    for worker in 0..2 {
        play.say(worker, 1, Register::default());
        play.say(worker, 1, Ready::default());
    }
    assert_eq!(play.registered, [(resume(5), true), (resume(6), true)]);
    assert_eq!(play.state.progress().global_step, GlobalStep(4));
    play.say(1, 1, Report { drawn: 9, ..report(7) });
    // A late report has an older position.
    play.say(1, 1, Report { drawn: 8, ..report(7) });
    play.gone(1, 1);
    play.say(1, 2, Register::default());
    assert_eq!(play.registered.last(), Some(&(resume(9), true)));
}

#[test]
fn the_progress_shows_the_checkpoints() {
    let mut play = Play::training();
    let last = Some(CheckpointName { step: GlobalStep(3), life: Incarnation(1) });
    play.state.saved(SaveStatus { saves: 2, failed: 1, last, ..Default::default() });
    let progress = play.state.progress();
    assert_eq!((progress.saves, progress.saves_failed, progress.last_checkpoint), (2, 1, last));
}
