//! Tests of a job whose workers host the ps tasks. A worker's process is lost with its variables, so the job
//! rolls back, and the worker stays a member.

use pushpull_messages::message::{Ready, Register};

use super::scripted_job::*;
use super::*;

/// Returns a job whose workers host the ps tasks, with two workers that train. It can roll back if `saves` is
/// true.
fn hosting(saves: bool) -> Play {
    let mut play = Play::new(2);
    play.state.hosts_ps = true;
    play.created_with(JobStart { saves, may_roll_back: saves, ..JobStart::default() });
    for worker in 0..2 {
        play.say(worker, 1, Register::default());
        play.say(worker, 1, Ready::default());
    }
    assert_eq!(play.log(), "1:Registered 3:Registered started 2:Go 4:Go");
    play
}

/// Returns a job whose workers host the ps tasks, that was evaluated, and whose last step is being saved.
fn settling() -> Play {
    let mut play = hosting(true);
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.say(0, 1, evaluated());
    assert!(play.state.progress().settling && play.ended.is_empty());
    play.log();
    play
}

#[test]
fn a_host_that_was_started_again_stays_a_member() {
    let mut play = hosting(true);
    play.away(1, 1, 1);
    play.say(1, 2, Register::default());
    assert_eq!(play.left, [], "its departure would let the other train a step alone");
    assert_eq!(play.log(), "5:Registered");
    play.suspend();
    play.roll_back(&[]);
    play.say(0, 1, completed());
    play.created_with(JobStart { may_roll_back: true, ..JobStart::default() });
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    play.say(1, 2, again(1));
    assert_eq!(play.log(), "6:Restart started 7:Registered 8:Go 9:Restart");
    play.say(1, 3, again(2));
    play.say(1, 3, Ready::default());
    assert_eq!(play.log(), "10:Registered 11:Go");
    assert_eq!(play.left, []);
}

#[test]
fn a_host_that_is_lost_for_good_is_not_waited_for() {
    let mut play = hosting(true);
    play.away(1, 1, 1);
    play.suspend();
    play.host_lost(0);
    assert!(play.state.members[&0].is_here(), "it is connected");
    play.host_lost(1);
    play.roll_back(&[]);
    play.left.clear();
    play.created_with(JobStart { may_roll_back: true, ..JobStart::default() });
    assert_eq!(play.left, [(1, 1)], "the restored shards do not wait for it");
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    assert!(play.log().ends_with("6:Go"), "the other begins alone");
    // It may come back, as any worker that was lost.
    play.say(1, 2, Register::default());
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "7:Registered 8:Go");
}

#[test]
fn a_host_is_not_awaited_while_its_ps_is_lost() {
    let mut play = hosting(true);
    play.away(1, 1, 1);
    assert_eq!(play.state.awaited().collect::<Vec<_>>(), [(1, 1)]);
    play.suspend();
    assert_eq!(play.state.awaited().count(), 0);
    play.lost(1, 1);
    assert_eq!(play.left, [], "a timer that has expired meanwhile changes nothing");
    play.roll_back(&[]);
    play.created_with(JobStart { may_roll_back: true, ..JobStart::default() });
    assert_eq!(play.state.awaited().collect::<Vec<_>>(), [(1, 1)], "the process must come back in time");
    play.lost(1, 1);
    assert_eq!(play.left, [(1, 1)]);
}

#[test]
fn without_checkpoints_a_host_leaves_as_other_workers_do() {
    let mut play = hosting(false);
    assert!(!play.state.awaits_hosts());
    play.suspend();
    play.away(1, 1, 1);
    assert_eq!(play.state.awaited().count(), 1);
    play.say(1, 2, Register::default());
    assert_eq!(play.left, [(1, 1)]);
}

#[test]
fn a_finished_host_that_comes_back_waits_for_the_rollback() {
    let mut play = settling();
    play.away(1, 1, 1);
    let reply = play.say(1, 2, Register::default());
    assert!(play.open.contains(&reply) && play.state.progress().settling);
    play.suspend();
    play.roll_back(&[]);
    play.created_with(JobStart { may_roll_back: true, ..JobStart::default() });
    assert!(play.log().contains(&format!("{reply}:Registered")));
    // The job waits for this worker, too, before it is evaluated again.
    play.say(0, 2, again(1));
    play.say(0, 2, Ready::default());
    play.say(0, 2, completed());
    play.log();
    play.say(1, 2, Ready::default());
    let last = play.say(1, 2, completed());
    assert_eq!(play.log(), format!("{}:Go trained {}:Evaluate", last - 1, last - 2));
}

#[test]
fn a_host_that_evaluates_and_comes_back_waits_too() {
    let mut play = hosting(true);
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    play.away(0, 1, 1);
    play.log();
    let reply = play.say(0, 2, Register::default());
    assert_eq!(play.left, []);
    assert_eq!(play.log(), format!("{reply}:Registered"), "the other worker does not evaluate yet");
}

#[test]
fn a_finished_host_is_refused_if_no_rollback_comes() {
    let mut play = settling();
    play.away(1, 1, 1);
    let waits = play.say(1, 2, Register::default());
    play.suspend();
    play.log();
    play.resume();
    assert_eq!(play.log(), format!("{waits}:Refusal({TRAINED}) save-again"));
    play.say(1, 2, Ready::default());
    assert!(play.log().contains("Refusal"), "it must not wait for a training that does not begin");
}

#[test]
fn a_host_that_comes_back_after_the_last_save_is_refused() {
    let mut play = settling();
    play.away(1, 1, 1);
    let waits = play.say(1, 2, Register::default());
    play.log();
    play.settled();
    assert_eq!(play.log(), format!("{waits}:Refusal({TRAINED})"));
    let late = play.say(1, 3, Register::default());
    assert_eq!(play.log(), format!("{late}:Refusal({TRAINED})"));
    assert!(play.ended.pop().unwrap().is_ok());
}
