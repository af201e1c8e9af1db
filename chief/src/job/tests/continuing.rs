//! Tests of jobs that a later run of the chief continues.

use pushpull_messages::message::{Ready, Register, Rejoin};
use pushpull_messages::sync::LeaveSpec;

use super::scripted_job::{Play, completed, evaluated, input_ended, interrupted, other_chief, report};
use super::*;
use crate::launch::HeldWorker;

const HERE: HeldWorker = HeldWorker::Here { incarnation: Incarnation(1), joined: true };
const GONE: HeldWorker = HeldWorker::Gone(Incarnation(1));
const ABSENT: HeldWorker = HeldWorker::Absent;
const APPOINTED: HeldWorker = HeldWorker::Here { incarnation: Incarnation(1), joined: false };

fn rejoin() -> Rejoin {
    Rejoin { job: job().digest(), files: None }
}

#[test]
fn workers_rejoin_and_the_job_ends() {
    let mut play = Play::new(2);
    // This worker comes before the chief knows what the shards hold.
    play.say(0, 1, rejoin());
    assert_eq!(play.log(), "1:Rejoined");
    play.continued(&[HERE, HERE]);
    assert_eq!(play.log(), "started");
    assert_eq!(play.state.progress().global_step, GlobalStep(4));
    assert_eq!(play.state.awaited().collect::<Vec<_>>(), [(0, 0), (1, 0)]);
    play.say(0, 1, rejoin());
    play.say(1, 1, rejoin());
    play.say(0, 1, rejoin());
    assert_eq!(play.log(), "2:Rejoined 3:Rejoined 4:Rejoined");
    assert_eq!(play.state.awaited().count(), 0);
    play.say(1, 1, report(5));
    play.say(1, 1, completed());
    play.say(0, 1, completed());
    assert_eq!(play.log(), "5:Reported trained 7:Evaluate");
    play.say(0, 1, evaluated());
    play.release();
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty() && play.left.is_empty());
}

#[test]
fn a_worker_that_does_not_rejoin_is_lost() {
    let mut play = Play::new(2);
    play.continued(&[HERE, HERE]);
    play.say(0, 1, rejoin());
    play.lost(1, 0);
    assert_eq!(play.left, [(1, 1)]);
    play.say(1, 1, rejoin());
    play.say(1, 1, report(4));
    assert_eq!(play.log(), "started 1:Rejoined 2:Rejoined 3:StopNow");
    play.away(1, 1, 1);
    // A new incarnation joins as usual.
    play.say(1, 2, Register::default());
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "4:Registered 5:Go");
}

#[test]
fn a_worker_that_has_left_stays_away() {
    let mut play = Play::new(2);
    play.continued(&[HERE, GONE]);
    play.say(0, 1, rejoin());
    // Its input had ended, and it waits for the others.
    play.say(1, 1, rejoin());
    play.say(1, 1, input_ended());
    play.say(0, 1, completed());
    assert_eq!(play.log(), "started 1:Rejoined 2:Rejoined 3:Finished trained 4:Evaluate");
}

#[test]
fn a_worker_that_has_finished_cannot_register_again() {
    let mut play = Play::new(2);
    play.continued(&[HERE, HERE]);
    play.say(0, 1, completed());
    play.say(0, 1, Register::default());
    assert_eq!(play.log(), "started 2:Refusal(worker/0 sent Register out of turn)");
    // The request that waits is answered when the other worker has finished, too.
    play.say(1, 1, rejoin());
    play.say(1, 1, completed());
    assert_eq!(play.log(), "3:Rejoined trained 1:Evaluate");
    play.say(0, 1, Register::default());
    assert_eq!(play.log(), "5:Refusal(worker/0 sent Register out of turn)", "it evaluates");
}

#[test]
fn a_second_start_does_not_replace_a_worker_that_waits() {
    let mut play = Play::new(2);
    play.say(1, 1, rejoin());
    play.say(1, 2, Register::default());
    assert!(play.log().contains("2:Refusal(worker/1 is already connected"));
    play.continued(&[HERE, HERE]);
    play.say(1, 1, rejoin());
    assert_eq!(play.log(), "started 3:Rejoined");
    // A worker whose connection is broken may be replaced.
    let mut play = Play::new(2);
    play.say(1, 1, rejoin());
    play.away(1, 1, 1);
    play.say(1, 2, Register::default());
    play.continued(&[HERE, HERE]);
    assert_eq!(play.log(), "1:Rejoined started 2:Registered");
}

#[test]
fn a_chief_that_does_not_lead_stops_no_worker() {
    let mut play = Play::new(2);
    play.fail_with(other_chief());
    play.say(0, 1, rejoin());
    let mut other = Play::new(2);
    other.fail();
    other.say(0, 1, rejoin());
    assert_eq!((play.log(), other.log()), ("1:Rejoined".into(), "1:Rejoined".into()));
}

#[test]
fn a_worker_that_no_shard_knows_yet_trains() {
    let mut play = Play::new(2);
    // The earlier run of the chief has let both workers begin, but none has reached a shard.
    play.continued(&[APPOINTED, APPOINTED]);
    assert_eq!(play.log(), "");
    play.say(0, 1, rejoin());
    assert_eq!(play.log(), "started 1:Rejoined");
    // The other one has not heard of it, and registers again.
    play.say(1, 1, Register::default());
    play.say(1, 1, Ready::default());
    assert_eq!(play.log(), "2:Registered 3:Go");
}

#[test]
fn a_worker_that_never_joins_leaves_all_shards() {
    let both = vec![(0, 1), (0, 2)];
    for (held, left) in [(APPOINTED, both.clone()), (HERE, both), (ABSENT, vec![(0, 2)])] {
        let mut play = Play::new(2);
        play.confirms = false;
        // The earlier run of the chief has not let this worker begin, but the other one.
        play.say(0, 2, Register::default());
        play.continued(&[held, HERE]);
        play.gone(0, 2);
        assert_eq!(play.left, left, "(E) the shards wait for it");
    }
}

#[test]
fn a_worker_that_left_too_early_leaves_all_shards() {
    let mut play = Play::new(2);
    play.say(0, 2, Register::default());
    play.say(0, 2, interrupted());
    play.continued(&[HERE, HERE]);
    assert_eq!(play.left, [(0, 1), (0, 2)], "(E) the shards wait for it");
}

#[test]
fn a_worker_that_does_not_come_back_after_a_rollback_leaves() {
    let mut play = Play::new(2);
    // The job has rolled back, and only one worker has registered since.
    play.continued(&[HERE, ABSENT]);
    play.say(0, 1, rejoin());
    assert_eq!(play.state.awaited().collect::<Vec<_>>(), [(1, 0)]);
    play.lost(1, 0);
    assert_eq!(play.left, [(1, 0)]);
    play.say(0, 1, completed());
    assert!(play.log().ends_with("trained 2:Evaluate"));
    // The job rolls back once more. The restored shards, too, expect the worker.
    play.roll_back(&[]);
    play.created();
    assert_eq!(play.left, [(1, 0), (1, 0)]);
}

#[test]
fn no_worker_leaves_before_the_job_has_begun() {
    let fails = JobSpec { when_worker_leaves: LeaveSpec::Fail, ..job() };
    let mut play = Play::of(fails, 2);
    play.continued(&[APPOINTED, APPOINTED]);
    for life in 2..5 {
        // It comes to an end while it prepares, and is started again.
        play.away(0, life - 1, life - 1);
        play.say(0, life, Register::default());
    }
    assert!(play.left.is_empty() && play.ended.is_empty(), "(E) {:?}", play.left);
    play.say(0, 4, Ready::default());
    play.say(1, 1, Register::default());
    play.say(1, 1, Ready::default());
    assert!(play.log().ends_with("Go"));
}

#[test]
fn a_worker_started_again_meanwhile_replaces_its_earlier_life() {
    let mut play = Play::new(2);
    play.say(1, 2, Register::default());
    play.continued(&[HERE, HERE]);
    // This appointment ends the earlier life on all shards.
    assert_eq!(play.appointed, [(0, 1), (1, 2)]);
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "started 1:Registered 2:Go");
    play.say(1, 1, rejoin());
    assert!(play.log().contains("3:Refusal(worker/1 was away for too long"));
}

#[test]
fn a_worker_of_another_job_is_refused() {
    let mut play = Play::new(2);
    play.continued(&[HERE, HERE]);
    play.say(0, 1, Rejoin { job: 1, ..rejoin() });
    assert!(play.log().contains("1:Refusal(the chief leads another job than worker/0"));
    // A worker of the same job that has begun anew registers again.
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, rejoin());
    assert_eq!(play.log(), "1:Restart");
}
