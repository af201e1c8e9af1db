//! Tests of workers that leave or are lost before the job ends, and of jobs that fail.

use pushpull_messages::message::{Evaluated, Ready, Register};

use super::scripted_job::{
    Play, completed, evaluated, finish, input_ended, interrupted, other_chief, report,
};
use super::*;

#[test]
fn a_worker_whose_input_has_ended_waits_for_the_others() {
    let mut play = Play::training();
    play.say(0, 1, input_ended());
    assert_eq!(play.log(), "");
    // A message about the end of an input does not change the progress of the job.
    assert_eq!(play.state.progress().global_step, GlobalStep(0));
    play.say(1, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.say(0, 1, evaluated());
    play.release();
    assert_eq!(play.log(), "7:Finished 6:Finished");
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty());

    // If all inputs together are too short, the error says so.
    let mut play = Play::training();
    play.say(1, 1, input_ended());
    play.say(0, 1, input_ended());
    assert_eq!(play.log(), "trained 6:Evaluate");
    play.say(0, 1, Evaluated { result: Err("too few updates".into()) });
    let reason = play.ended.pop().unwrap().unwrap_err();
    assert_eq!(reason, "worker/0 failed: too few updates; earlier, worker/1 had no more input: 3 epochs");
    assert!(play.open.is_empty());
}

#[test]
fn a_lost_worker_holds_up_no_other_and_may_rejoin() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(1, 2, Register::default());
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "5:Registered 6:Go");
    play.say(0, 1, completed());
    assert_eq!(play.log(), "");
    play.gone(1, 2);
    assert_eq!(play.log(), "trained 7:Evaluate");
}

#[test]
fn the_shards_are_told_of_workers_that_leave_early() {
    for early in [interrupted(), input_ended(), finish(TrainingResult::Failed("no data".into()))] {
        let mut play = Play::training();
        play.say(1, 1, early.clone());
        play.say(1, 1, early.clone());
        play.gone(1, 1);
        assert_eq!(play.left, [(1, 1)], "{early:?}");
        play.say(0, 1, completed());
        play.gone(0, 1);
        let failing = matches!(early.result, TrainingResult::Failed(_));
        assert_eq!(play.left, [(1, 1)], "a finished worker is not missed after {early:?}");
        assert!(!failing || play.ended.len() == 1);
    }
    // A worker that leaves before it has begun is not reported to the shards.
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(1, 2, Register::default());
    play.say(1, 2, interrupted());
    play.say(1, 3, Register::default());
    play.gone(1, 3);
    assert_eq!(play.left, [(1, 1)]);
}

#[test]
fn a_job_that_needs_all_workers_ends_when_one_leaves() {
    let input = input_ended();
    for (word, why) in [(Some(interrupted()), "told to stop"), (Some(input), "3 epochs"), (None, "is lost")] {
        let mut play = Play::training_together();
        play.say(0, 1, report(4));
        match word {
            Some(word) => drop(play.say(1, 1, word)),
            None => play.gone(1, 1),
        }
        assert_eq!(play.left, [(1, 1)]);
        play.say(0, 1, report(5));
        play.say(0, 1, interrupted());
        assert!(play.log().contains("StopNow"));
        let error = play.ended.pop().unwrap().unwrap_err();
        assert!(error.starts_with("worker/1 left at step 4 of 10: ") && error.contains(why), "{error}");
        assert!(error.contains("when_worker_leaves") && play.open.is_empty(), "{error}");
    }
    // A finished worker may leave; a worker that was started again counts as having left.
    let mut play = Play::training_together();
    play.say(1, 1, completed());
    play.gone(1, 1);
    assert!(!play.state.is_failing());
    play.away(0, 1, 1);
    play.say(0, 2, Register::default());
    let log = play.log();
    assert!(log.contains("6:Refusal(the job is ending: worker/0 left at step"), "{log}");
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn late_workers_hear_why_the_job_failed() {
    let mut play = Play::new(3);
    play.created();
    play.say(0, 1, Register::default());
    play.say(0, 1, finish(TrainingResult::Failed("no data".into())));
    assert!(play.ended.is_empty());
    play.say(1, 1, Register::default());
    play.say(2, 1, Register::default());
    let log = play.log();
    assert_eq!(log.matches("Refusal(the job is ending: worker/0 failed: no data)").count(), 2, "{log}");
    assert_eq!(play.ended.pop().unwrap().unwrap_err(), "worker/0 failed: no data");
    play.say(2, 1, Register::default());
    assert!(play.log().contains("the job has ended: worker/0 failed"));

    // The job does not wait for a worker that missed the start timeout.
    let mut play = Play::new(2);
    play.fail_with(ChiefError::Missing { seconds: 1, tasks: vec!["worker/0".into()] });
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn a_repeated_request_hears_why_the_job_failed() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.away(0, 1, 1);
    play.say(1, 1, finish(TrainingResult::Failed("no data".into())));
    play.say_over(0, 1, 2, completed());
    play.say(1, 1, finish(TrainingResult::Failed("no data".into())));
    let log = play.log();
    assert!(
        log.contains("7:Refusal(the job has ended: worker/1 failed") && log.ends_with("8:Finished"),
        "{log}"
    );
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn a_failed_worker_ends_the_job_with_its_reason() {
    let mut play = Play::training();
    play.say(1, 1, finish(TrainingResult::Failed("no data".into())));
    assert!(play.ended.is_empty());
    play.say(0, 1, report(4));
    assert_eq!(play.log(), "5:Finished 6:StopNow");
    play.say(0, 1, interrupted());
    assert_eq!(play.ended.pop().unwrap().unwrap_err(), "worker/1 failed: no data");
    assert!(play.open.is_empty());
}

#[test]
fn an_interrupt_before_the_start_ends_the_job() {
    let mut play = Play::new(2);
    play.say(0, 1, Register::default());
    play.fail();
    assert!(play.log().contains("1:Refusal(the job is ending: interrupted"));
    assert!(play.ended.pop().unwrap().unwrap_err().contains("interrupted at step 1 of 10"));
}

#[test]
fn a_failing_job_ends_without_its_workers() {
    let mut play = Play::training();
    play.fail();
    assert!(play.ended.is_empty());
    play.end_failing();
    assert_eq!(play.ended.len(), 1);
    play.end_failing();
    assert_eq!(play.ended.len(), 1);
}

#[test]
fn a_worker_cut_off_from_a_ps_leaves() {
    let mut play = Play::training();
    play.say(1, 1, finish(TrainingResult::GaveUp("ps/0 is silent".into())));
    assert!(!play.state.is_failing());
    assert_eq!(play.left, [(1, 1)]);
    play.say(0, 1, completed());
    play.say(0, 1, evaluated());
    assert!(play.ended.pop().unwrap().is_ok());
}

#[test]
fn a_worker_that_cannot_join_does_not_end_the_job() {
    for result in [TrainingResult::Failed("no data".into()), TrainingResult::GaveUp("ps/0 is silent".into())]
    {
        let mut play = Play::training();
        play.gone(1, 1);
        play.say(1, 2, Register::default());
        play.say(1, 2, finish(result));
        assert!(!play.state.is_failing());
        play.say(0, 1, completed());
        play.say(0, 1, evaluated());
        assert!(play.ended.pop().unwrap().is_ok());
    }
}

#[test]
fn the_last_worker_that_gives_up_is_named() {
    let mut play = Play::training();
    play.say(0, 1, finish(TrainingResult::GaveUp("ps/0 is silent".into())));
    play.say(1, 1, finish(TrainingResult::GaveUp("the input hangs".into())));
    let error = play.ended.pop().unwrap().unwrap_err();
    assert_eq!(error, "no worker is left at step 0 of 10: worker/1 gave up: the input hangs");
}

#[test]
fn another_worker_evaluates_if_one_is_cut_off() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.say(0, 1, finish(TrainingResult::GaveUp("ps/0 is silent".into())));
    assert_eq!(play.log(), "7:Finished trained 6:Evaluate");
    play.say(1, 1, evaluated());
    play.release();
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty());
}

#[test]
fn a_job_of_another_chief_ends_without_its_workers() {
    let mut play = Play::training();
    play.fail_with(other_chief());
    let ended = "another chief leads this job: ps/0 belongs to another chief";
    assert_eq!(play.ended, [Err(ended.to_owned())]);
    let reply = play.say(0, 1, report(3));
    assert_eq!(play.log.last(), Some(&format!("{reply}:Reported")), "it is not told to stop");
    let reply = play.say(1, 1, completed());
    assert_eq!(play.log.last(), Some(&format!("{reply}:Refusal(the job has ended: {ended})")));
    assert!(play.left.is_empty());

    // Workers that wait for this chief are told why it ends.
    let mut play = Play::new(2);
    let reply = play.say(0, 1, Register::default());
    play.fail_with(other_chief());
    assert_eq!(play.log.last(), Some(&format!("{reply}:Refusal(the job is ending: {ended})")));
    assert_eq!(play.ended.len(), 1, "it does not wait for the other worker");
}
