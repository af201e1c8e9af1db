//! Jobs that stop before their last step, for good or for another one to go on; and jobs that go on from a
//! checkpoint.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::message::{Ready, Register};

use super::play::{Play, completed, evaluated, interrupted, report};
use super::*;

#[test]
fn a_job_that_stops_early_is_evaluated_where_the_shards_have_agreed() {
    let mut play = Play::training();
    play.say(0, 1, report(4));
    play.stop(false);
    // It has heard of the end from the shards, before all of them have answered the chief.
    play.say(1, 1, completed());
    play.say(0, 1, completed());
    assert_eq!(play.log(), "5:Reported", "(F)");
    play.stopping_at(6);
    assert_eq!(play.log(), "trained 7:Evaluate");
    assert_eq!(play.evaluates, [6]);
    let progress = play.state.progress();
    assert_eq!((progress.global_step, progress.last_step), (GlobalStep(6), GlobalStep(6)));
    // Asked again, it is told the same.
    play.say_over(0, 1, 2, completed());
    play.say_over(0, 1, 2, evaluated());
    assert_eq!(play.evaluates, [6, 6]);
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.step, outcome.stopped.as_deref()), (GlobalStep(6), Some("enough")));

    // Where that is the last step after all, it has not stopped early.
    let mut play = Play::training();
    play.stop(false);
    play.stopping_at(10);
    play.say(1, 1, completed());
    play.say(0, 1, completed());
    play.say(0, 1, evaluated());
    assert_eq!(play.ended.pop().unwrap().unwrap().stopped, None);
}

#[test]
fn a_job_that_drains_is_not_evaluated_and_its_workers_may_go() {
    let mut play = Play::training_together();
    play.stop(true);
    play.say(0, 1, completed());
    // They hear of it, too, and one has not got so far: it is no reason to fail.
    play.say(1, 1, interrupted());
    assert!(!play.state.is_failing());
    assert_eq!(play.log(), "6:Finished");
    play.stopping_at(5);
    assert_eq!(play.log(), "5:Finished");
    assert_eq!(play.ended, [Err("drained at 5".into())]);
    // Whose answer was lost, asks again.
    play.say(0, 1, completed());
    assert_eq!(play.log(), "7:Finished");
    assert!(play.open.is_empty() && play.evaluates.is_empty());
}

#[test]
fn a_job_that_stops_may_drain_instead_and_one_that_drains_does_not_stop_for_good() {
    for drains_first in [false, true] {
        let mut play = Play::training();
        play.stop(drains_first);
        play.stop(!drains_first);
        play.stopping_at(5);
        play.say(0, 1, completed());
        play.say(1, 1, completed());
        assert_eq!(play.ended, [Err("drained at 5".into())], "{drains_first}");
    }
    // What is being evaluated may be done in time.
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.stop(true);
    play.say(0, 1, evaluated());
    assert_eq!(play.ended.pop().unwrap().unwrap().step, GlobalStep(10));
    // And if the one that does it is lost, no other does it again.
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
fn whoever_does_not_finish_does_not_keep_a_job_that_drains() {
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

    // Nobody is left who could.
    let mut play = Play::training();
    play.stop(true);
    play.gone(0, 1);
    play.say(1, 1, interrupted());
    assert_eq!(play.ended, [Err("interrupted at step 0 of 10".into())]);

    // It has not begun.
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, Register {});
    play.say(0, 1, Ready {});
    play.stop(true);
    assert!(play.log().ends_with("2:Refusal(the job is ending: interrupted at step 0 of 10)"));
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn workers_go_on_where_they_were() {
    let resume = |drawn| Resume { drawn, examples: 3 * drawn };
    let mut play = Play::of(JobSpec { batch_size: 3, ..job() }, 2);
    let start =
        JobStart { step: GlobalStep(4), resumes: vec![resume(5), resume(6)], saves: true, trace: None };
    play.created_with(start);
    for worker in 0..2 {
        play.say(worker, 1, Register {});
        play.say(worker, 1, Ready {});
    }
    assert_eq!(play.registered, [(resume(5), true), (resume(6), true)]);
    assert_eq!(play.state.progress().global_step, GlobalStep(4));
    play.say(1, 1, Report { drawn: 9, ..report(7) });
    // A report that comes late says less.
    play.say(1, 1, Report { drawn: 8, ..report(7) });
    play.gone(1, 1);
    play.say(1, 2, Register {});
    assert_eq!(play.registered.last(), Some(&(resume(9), true)));
}

#[test]
fn what_became_of_checkpoints_is_told() {
    let mut play = Play::training();
    let last = Some(CheckpointName { step: GlobalStep(3), life: Incarnation(1) });
    play.state.saved(SaveStatus { saves: 2, failed: 1, last, ..Default::default() });
    let progress = play.state.progress();
    assert_eq!((progress.saves, progress.saves_failed, progress.last_checkpoint), (2, 1, last));
}
