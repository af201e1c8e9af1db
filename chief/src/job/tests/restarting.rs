//! Tests of a job that loses a ps task: it is suspended, and goes on or rolls back.

use pushpull_messages::message::{Ready, Register, Rejoin};

use super::scripted_job::*;
use super::*;
use crate::launch::HeldWorker;

fn restored(step: u64) -> JobStart {
    let resumes = vec![Resume { drawn: step, examples: 10 * step, files: None }; 2];
    JobStart { step: GlobalStep(step), resumes, saves: true, ..JobStart::default() }
}

/// Lets both workers of a job that has rolled back register again and begin.
fn begin_again(play: &mut Play) {
    for worker in 0..2 {
        play.say(worker, 2, again(1));
        play.say(worker, 2, Ready::default());
    }
}

#[test]
fn all_workers_register_again_after_a_rollback() {
    let mut play = Play::training();
    play.say(0, 1, report(7));
    play.suspend();
    play.roll_back(&[]);
    assert_eq!(play.state.global_step(), GlobalStep(0));
    play.say(0, 1, report(8));
    play.say(1, 1, completed());
    assert_eq!(play.log(), "5:Reported 6:Restart 7:Restart", "(H)");
    // The first worker comes before the variables are restored.
    play.say(0, 2, again(1));
    play.created_with(restored(4));
    play.say(0, 2, Ready::default());
    play.say(1, 2, again(1));
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "started 8:Registered 9:Go 10:Registered 11:Go");
    assert!(play.registered[2..].iter().all(|(resume, saves)| resume.drawn == 4 && *saves));
    assert_eq!(play.state.status().rollbacks, 1);
    assert_eq!(play.left, [], "the new shards do not know the earlier incarnations");
    assert_eq!(play.state.global_step(), GlobalStep(4));
}

/// Returns a job with checkpoints that was evaluated, and whose last step is being saved.
fn settling() -> Play {
    let mut play = Play::new(2);
    play.created_with(JobStart { may_roll_back: true, ..JobStart::default() });
    for worker in 0..2 {
        play.say(worker, 1, Register::default());
        play.say(worker, 1, Ready::default());
    }
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.say(0, 1, evaluated());
    assert!(play.state.progress().settling && play.ended.is_empty());
    play.log();
    play
}

#[test]
fn a_trained_job_rolls_back_until_its_last_step_is_saved() {
    let mut play = settling();
    play.suspend();
    play.roll_back(&[]);
    assert_eq!(play.log(), "7:Restart 6:Restart");
    play.created_with(JobStart { may_roll_back: true, ..restored(4) });
    assert!(!play.state.progress().settling);
    begin_again(&mut play);
    play.say(0, 2, completed());
    play.say(1, 2, completed());
    play.say(1, 2, evaluated());
    assert!(play.ended.is_empty());
    play.say(0, 2, evaluated());
    play.settled();
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.rollbacks, outcome.began, outcome.step), (1, GlobalStep(4), GlobalStep(10)));
    assert!(outcome.settled.is_some());
    // Now it has ended: nothing that a ps task loses matters.
    play.log();
    play.roll_back(&[]);
    assert_eq!(play.log(), "");
    play.release();
    assert!(play.open.is_empty());
}

#[test]
fn a_trained_job_is_saved_again_when_its_ps_are_back() {
    let mut play = settling();
    play.suspend();
    play.resume();
    assert_eq!(play.log(), "save-again", "the save may have failed because the task was lost");
    play.settled();
    assert!(play.ended.pop().unwrap().is_ok());
}

#[test]
fn a_trained_job_that_is_told_to_drain_ends_as_trained() {
    let mut play = settling();
    play.stop(true);
    play.end_drain();
    assert!(play.ended.pop().unwrap().is_ok());
    play.end_drain();
    assert_eq!(play.log(), "", "the workers stay until the job is reported");
    play.release();
    assert!(play.open.is_empty());
}

#[test]
fn a_trained_job_that_is_interrupted_ends_as_trained() {
    // In this case, the launcher gives both orders, because it cannot know whether the job is trained.
    let mut play = settling();
    play.suspend();
    play.settled();
    play.fail();
    assert!(play.ended.pop().unwrap().is_ok());
    assert!(play.ended.is_empty());
    // The same two orders end a job that rolls back already.
    let mut play = settling();
    play.suspend();
    play.roll_back(&[]);
    play.settled();
    assert!(play.ended.is_empty());
    play.fail();
    play.end_failing();
    assert!(play.ended.pop().unwrap().is_err());
}

#[test]
fn a_worker_that_evaluates_trains_again_after_a_rollback() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    assert!(play.log().contains("Evaluate"));
    play.suspend();
    play.roll_back(&[]);
    play.created_with(restored(4));
    play.say(0, 1, evaluated());
    assert_eq!(play.log(), "6:Restart started 7:Restart", "(A) and (H)");
    begin_again(&mut play);
    assert_eq!(play.log(), "8:Registered 9:Go 10:Registered 11:Go");
    assert!(play.ended.is_empty());
}

#[test]
fn a_worker_that_gives_up_stays_while_a_ps_is_lost() {
    let mut play = Play::training();
    play.suspend();
    play.say(0, 1, gave_up());
    // It waits until the ps task is back.
    play.say(0, 2, again(1));
    assert_eq!(play.log(), "5:Restart");
    play.resume();
    play.say(0, 2, Ready::default());
    assert_eq!(play.log(), "6:Registered 7:Go");
    // This appointment ends the earlier incarnation on all shards.
    assert_eq!((&play.left[..], play.appointed.last()), (&[][..], Some(&(0, 2))));
    // Without the loss of a ps task it leaves.
    play.say(1, 1, gave_up());
    assert_eq!((play.log().as_str(), &play.left[..]), ("8:Finished", &[(1, 1)][..]));
}

#[test]
fn no_worker_begins_while_a_ps_is_lost() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(1, 2, Register::default());
    play.suspend();
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "5:Registered");
    play.resume();
    assert_eq!(play.log(), "6:Go");
}

#[test]
fn a_worker_that_does_not_come_back_is_not_waited_for() {
    let mut play = Play::training();
    play.suspend();
    play.say(0, 1, gave_up());
    play.resume();
    play.gone(0, 1);
    assert_eq!(play.left, [(0, 1)], "the shards still counted it as a member");
    let mut play = Play::training();
    play.suspend();
    play.roll_back(&[]);
    play.created_with(restored(4));
    play.gone(0, 1);
    assert_eq!(play.left, [(0, 1)], "the new shards count every worker");
    play.say(1, 2, again(1));
    play.say(1, 2, Ready::default());
    assert!(play.log().ends_with("Registered 6:Go"));
}

#[test]
fn orders_that_a_lost_ps_has_missed_are_given_again() {
    let mut play = Play::training();
    play.gone(0, 1);
    play.confirms = false;
    play.say(0, 2, Register::default());
    play.say(0, 2, Ready::default());
    play.suspend();
    play.resume();
    assert_eq!(play.appointed[2..], [(0, 2), (0, 2)]);
    play.gone(0, 2);
    play.resume();
    assert_eq!(play.left, [(0, 1), (0, 1), (0, 2)], "also of the incarnation before");
}

#[test]
fn departures_are_repeated_each_time_a_ps_comes_back() {
    let mut play = Play::training();
    play.suspend();
    play.say(0, 2, again(1));
    play.say(0, 3, again(2));
    play.gone(0, 3);
    // The ps task that comes back may be lost again before it has confirmed anything.
    for _ in 0..2 {
        play.left.clear();
        play.resume();
        assert_eq!(play.left, [(0, 1), (0, 2), (0, 3)]);
        play.suspend();
    }
}

#[test]
fn a_worker_that_lost_a_ps_alone_begins_again() {
    let mut play = Play::training();
    // Its earlier connection is still open.
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    assert_eq!(play.log(), "5:Registered 6:Go");
    // This appointment ends the earlier incarnation on all shards.
    assert_eq!((&play.left[..], play.appointed.last()), (&[][..], Some(&(0, 2))));
    // Another start of the worker is refused, as before.
    play.say(0, 3, again(9));
    assert!(play.log().contains("7:Refusal(worker/0 is already connected"));
    // Even a job that fails when a worker leaves goes on.
    let mut play = Play::training_together();
    play.say(0, 2, again(1));
    assert_eq!(play.log(), "5:Registered");
    play.gone(0, 2);
    assert_eq!(play.left, [], "no shard counts it any more");
    // The shards have not confirmed the appointment.
    let mut play = Play::training();
    play.confirms = false;
    play.say(0, 2, again(1));
    play.gone(0, 2);
    assert_eq!(play.left, [(0, 1), (0, 2)]);
}

#[test]
fn a_worker_that_the_shards_expect_is_reported_when_it_leaves() {
    let mut play = Play::training();
    play.suspend();
    play.roll_back(&[]);
    play.created_with(restored(4));
    begin_again(&mut play);
    assert_eq!(play.left, []);
    play.suspend();
    play.roll_back(&[]);
    play.created_with(restored(4));
    // One gives up while it prepares, and the other one is lost.
    play.say(0, 3, again(2));
    play.say(0, 3, gave_up());
    play.say(1, 3, again(2));
    play.gone(1, 3);
    assert_eq!(play.left, [(0, 3), (1, 3)]);
}

#[test]
fn a_second_start_does_not_displace_a_worker_that_restarts() {
    let mut play = Play::training();
    play.suspend();
    play.roll_back(&[]);
    play.say(0, 9, Register::default());
    assert!(
        play.log().ends_with("5:Refusal(worker/0 is already connected: is the same task started twice?)")
    );
    play.say(0, 2, again(1));
    play.created_with(restored(4));
    assert!(play.log().contains("6:Registered"));
}

#[test]
fn an_interrupted_worker_leaves_a_job_that_rolls_back() {
    let mut play = Play::training();
    play.suspend();
    play.roll_back(&[]);
    play.say(0, 1, interrupted());
    assert_eq!(play.log(), "5:Finished");
    play.created_with(restored(4));
    assert!(play.left.contains(&(0, 1)));
}

#[test]
fn an_evaluation_does_not_count_while_a_ps_is_lost() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.suspend();
    play.say(0, 1, evaluated());
    assert!(play.log().ends_with("7:Restart") && play.ended.is_empty());
    play.resume();
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    play.say(0, 2, completed());
    assert!(play.log().contains("Evaluate"));
}

#[test]
fn a_later_run_of_the_chief_rolls_back_with_those_that_remain() {
    let here = HeldWorker::Here { incarnation: Incarnation(1), joined: true };
    let rejoin = || Rejoin { job: job().digest(), files: None };
    let mut play = Play::new(2);
    play.say(0, 1, rejoin());
    play.roll_back(&[here, HeldWorker::Gone(Incarnation(1))]);
    play.say(0, 1, rejoin());
    assert_eq!(play.log(), "1:Rejoined 2:Rejoined", "the variables are not restored");
    play.created_with(restored(4));
    play.say(0, 1, rejoin());
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    assert_eq!(play.log(), "started 3:Restart 4:Registered 5:Go");
    assert_eq!(play.left, [(1, 1)]);
}
