//! Tests of workers that the cluster does not list: they join, leave and come back, and the examples are
//! divided among the workers that are there.

use super::scripted_job::{Play, again, completed, evaluated, interrupted, report};
use super::*;
use crate::launch::HeldWorker;

/// Returns a job with two listed workers that may have up to four.
fn elastic() -> Play {
    let mut play = Play::new(2);
    play.state = JobState::new(job(), 2).up_to(Some(4));
    play
}

fn begin(play: &mut Play) {
    play.created();
    for worker in 0..2 {
        play.say(worker, 1, Register::default());
    }
    for worker in 0..2 {
        play.say(worker, 1, Ready::default());
    }
}

fn join(play: &mut Play, worker: u32, life: u64) {
    play.say(worker, life, Register::default());
    play.say(worker, life, Ready::default());
}

/// Returns the shares of these workers as position, number of shares and examples.
fn shares(play: &Play, workers: &[u32]) -> Vec<(u32, u32, u64)> {
    let share = |&worker: &u32| play.state.share(worker).expect("an elastic job");
    workers.iter().map(share).map(|own| (own.position, own.shares, own.examples)).collect()
}

#[test]
fn a_job_begins_without_the_workers_that_may_join() {
    let mut play = elastic();
    assert_eq!(play.state.progress().missing, [TaskId::worker(0), TaskId::worker(1)]);
    begin(&mut play);
    assert_eq!(play.left, [(2, 0), (3, 0)], "the shards do not wait for them");
    assert_eq!(play.log(), "1:Registered 2:Registered started 3:Go 4:Go");
    assert_eq!(play.state.status().workers.len(), 2, "those that have never come are not shown");
    assert_eq!(play.state.progress().gradients_per_update, 1);
}

#[test]
fn shares_follow_workers_that_join_and_leave() {
    let mut play = elastic();
    begin(&mut play);
    assert_eq!(shares(&play, &[0, 1]), [(0, 2, 0), (1, 2, 0)]);
    play.say(0, 1, Report { drawn: 40, ..report(4) });
    play.say(1, 1, Report { drawn: 20, ..report(4) });
    assert_eq!(shares(&play, &[0, 1]), [(0, 2, 40), (1, 2, 20)]);
    play.say(3, 1, Register::default());
    assert_eq!(shares(&play, &[3]), [(2, 3, 20)], "what it gets when it is ready");
    assert_eq!(shares(&play, &[0, 1]), [(0, 2, 40), (1, 2, 20)], "it may still fail");
    play.say(3, 1, Ready::default());
    assert_eq!(shares(&play, &[0, 1, 3]), [(0, 3, 20), (1, 3, 20), (2, 3, 20)]);
    assert_eq!(play.appointed.last(), Some(&(3, 1)));
    play.log();
    play.say(0, 1, interrupted());
    assert_eq!(play.left.last(), Some(&(0, 1)));
    assert_eq!(shares(&play, &[1, 3]), [(0, 2, 30), (1, 2, 30)]);
    // It comes back, as another incarnation.
    join(&mut play, 0, 2);
    assert_eq!(shares(&play, &[0, 1, 3]), [(0, 3, 20), (1, 3, 20), (2, 3, 20)]);
    for worker in [1, 3] {
        play.say(worker, 1, completed());
    }
    play.say(0, 2, completed());
    play.say(0, 2, evaluated());
    assert_eq!(play.ended.pop().unwrap().unwrap().workers, 3);
}

#[test]
fn a_worker_may_come_before_the_job_begins_and_go_again() {
    let mut play = elastic();
    play.created();
    join(&mut play, 2, 1);
    play.away(2, 1, 1);
    for worker in 0..2 {
        join(&mut play, worker, 1);
    }
    assert!(play.log().contains("started"), "the job waits for listed workers only");
    play.lost(2, 1);
    assert_eq!(shares(&play, &[0, 1]), [(0, 2, 0), (1, 2, 0)]);
}

#[test]
fn a_worker_beyond_the_limit_hears_what_to_do() {
    let mut play = elastic();
    begin(&mut play);
    play.log();
    play.say(4, 1, Register::default());
    let said = play.log();
    assert!(said.contains("lists 2 worker(s), and --workers-max is 4") && said.contains("--workers-max 5"));
    let mut play = Play::training();
    play.say(2, 1, Register::default());
    let said = play.log();
    assert!(said.contains("worker/2 is not in the cluster, which lists 2 worker(s)"), "{said}");
    assert!(said.contains("--workers-max 3"), "{said}");
}

#[test]
fn a_rollback_takes_workers_that_have_joined_along() {
    let mut play = elastic();
    begin(&mut play);
    join(&mut play, 2, 1);
    play.suspend();
    play.roll_back(&[]);
    play.left.clear();
    let drawn = |examples| Resume { drawn: examples, examples, files: None };
    let resumes = vec![drawn(8), drawn(4), drawn(0), drawn(6)];
    play.created_with(JobStart { resumes, ..JobStart::default() });
    assert_eq!(play.left, [(3, 0)], "the restored shards wait for three workers");
    // A worker that has not come back yet has its share, and what worker 3 had read is divided.
    assert_eq!(shares(&play, &[0, 1, 2]), [(0, 3, 6), (1, 3, 6), (2, 3, 6)]);
    for worker in 0..3 {
        play.say(worker, 2, again(1));
        play.say(worker, 2, Ready::default());
    }
    assert_eq!(shares(&play, &[0, 1, 2]), [(0, 3, 6), (1, 3, 6), (2, 3, 6)]);
}

#[test]
fn a_later_chief_finds_the_workers_that_have_joined() {
    let mut play = elastic();
    let here = |life| HeldWorker::Here { incarnation: Incarnation(life), joined: true };
    play.continued(&[here(1), HeldWorker::Gone(Incarnation(1)), HeldWorker::Absent, here(7)]);
    assert_eq!(play.left, [(2, 0)], "the shards may not know this yet");
    assert_eq!(shares(&play, &[0, 3]), [(0, 2, 0), (1, 2, 0)]);
    let awaited: Vec<u32> = play.state.awaited().map(|(worker, _)| worker).collect();
    assert_eq!(awaited, [0, 3]);
}
