//! Tests of a job, step by step: replies, repeated requests, broken connections, and workers that leave.

mod continuing;
mod elastic;
mod hosts;
mod leaving;
mod random;
mod restarting;
mod scripted_job;
mod stopping;

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{GlobalStep, LocalStep, PlacementEpoch, ShardId, VariableId};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::message::{Ready, Register};
use pushpull_messages::observe::{JobPhase, WorkerState};
use pushpull_messages::placement::{PartitionerSpec, PlacedSlice, PlacementSpec, SliceSpec};
use pushpull_messages::variable::InitializerSpec;

use self::scripted_job::{Play, completed, evaluated, interrupted, report};
use super::*;

pub(crate) fn job() -> JobSpec {
    let mut g = GraphBuilder::new("linear");
    let x = g.input("features", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
    let input = InputSpec::new(digits(1), digits(2));
    // With two shards, each owns a slice.
    let placement =
        PlacementSpec { partitioner: PartitionerSpec::Fixed { slices: 2 }, ..PlacementSpec::default() };
    JobSpec { batch_size: 1, placement, ..JobSpec::new(g.finish(loss, &[]).unwrap(), input, 10) }
}

pub(crate) fn placement() -> Placement {
    let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 3 };
    let shard = ShardId::new(0, 0);
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: vec![PlacedSlice { slice, shard }] }
}

#[test]
fn a_job_trains_evaluates_and_ends() {
    let mut play = Play::training();
    play.say(0, 1, report(4));
    assert_eq!(play.state.progress().global_step, GlobalStep(4));
    play.say(1, 1, completed());
    assert_eq!(play.log(), "5:Reported");
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 7:Evaluate");
    play.say(0, 1, evaluated());
    assert_eq!(play.log(), "", "the workers stay until the job is saved and reported");
    play.release();
    assert_eq!(play.log(), "8:Finished 6:Finished");
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.train_loss, outcome.workers), (0.5, 2));
    assert!(play.open.is_empty() && play.ended.is_empty());
}

#[test]
fn the_train_loss_leaves_out_workers_that_left() {
    let mut play = Play::training();
    play.say(1, 1, Report { loss: 8.0, ..report(2) });
    play.say(0, 1, Report { loss: 2.0, ..report(2) });
    assert_eq!(play.state.progress().loss, Some(5.0));
    play.say(1, 1, interrupted());
    assert_eq!(play.state.progress().loss, Some(2.0));
    play.say(0, 1, completed());
    play.say(0, 1, evaluated());
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.train_loss, outcome.workers), (0.5, 1));
}

#[test]
fn a_worker_that_leads_no_replica_learns_its_leader() {
    let mut job = job();
    job.graph.nodes.last_mut().unwrap().device = Some("/job:worker/task:1".parse().unwrap());
    let mut play = Play::training_of(job);
    play.say(3, 1, Register::default());
    assert_eq!(play.log(), "5:ServeStage");
    // It has no state here, so it may ask again, and cannot train.
    play.say(3, 1, Register::default());
    assert_eq!(play.log(), "6:ServeStage");
    play.say(3, 1, Ready::default());
    assert_eq!(play.log(), "7:Refusal(worker/3 sent Ready out of turn)");
}

#[test]
fn workers_that_come_before_the_variables_wait_for_them() {
    let mut play = Play::new(1);
    play.say(0, 1, Register::default());
    assert_eq!(play.log(), "");
    assert!(play.state.progress().missing.is_empty());
    play.created();
    assert_eq!(play.log(), "1:Registered");
}

#[test]
fn a_task_that_runs_twice_is_refused() {
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, Register::default());
    play.say(0, 2, Register::default());
    play.gone(0, 2);
    assert!(play.log().contains("2:Refusal(worker/0 is already connected"));
    assert_eq!(play.state.progress().missing, [TaskId::worker(1)]);
    // Before the job begins, a worker may be disconnected for any length of time.
    play.gone(0, 1);
    assert_eq!(play.state.progress().missing, [TaskId::worker(0), TaskId::worker(1)]);
    play.say(0, 2, Register::default());
    assert_eq!(play.log(), "3:Registered");
    assert!(play.say(0, 1, Ready::default()) == 4 && play.log().contains("a later incarnation of worker/"));
    assert!(play.left.is_empty(), "(E) it has not begun");
}

#[test]
fn the_status_shows_what_workers_do() {
    let status = |play: &Play| {
        let JobStatus { phase, workers, .. } = play.state.status();
        let headline = play.state.headline();
        assert_eq!(headline.phase, phase);
        let of = |worker: &MemberStatus| (worker.state, worker.lives);
        assert_eq!(headline.workers, workers.iter().map(of).collect::<Vec<_>>());
        (phase, of(&workers[0]), of(&workers[1]))
    };
    let mut play = Play::new(2);
    assert_eq!(status(&play), (JobPhase::Starting, (WorkerState::Absent, 0), (WorkerState::Absent, 0)));
    play.created_with(JobStart {
        summary_every: Some(7),
        trace: Some(TraceSpec::every(5)),
        step: GlobalStep(2),
        ..JobStart::default()
    });
    play.say(0, 1, Register::default());
    play.away(0, 1, 1);
    assert_eq!(status(&play).1, (WorkerState::Away, 1));
    play.say_over(0, 1, 2, Register::default());
    play.say_over(0, 1, 2, Ready::default());
    play.say(1, 1, Register::default());
    assert_eq!(status(&play).1, (WorkerState::Preparing, 1));
    play.say(1, 1, Ready::default());
    assert_eq!(status(&play), (JobPhase::Training, (WorkerState::Training, 1), (WorkerState::Training, 1)));
    play.away(1, 1, 1);
    assert_eq!(status(&play).2, (WorkerState::Away, 1));
    play.lost(1, 1);
    assert_eq!(status(&play).2, (WorkerState::Lost, 1));
    play.say(1, 2, Register::default());
    assert_eq!(status(&play).2, (WorkerState::Preparing, 2));
    assert_eq!(play.state.status().workers[1].life, Some(Incarnation(2)));
    play.say(1, 2, Ready::default());
    play.say(1, 2, completed());
    assert_eq!(status(&play).2, (WorkerState::Finished, 2));
    play.say_over(0, 1, 2, completed());
    assert_eq!(status(&play).0, JobPhase::Evaluating);
    let now = play.state.status();
    assert_eq!((now.began, now.reason.as_deref(), now.stops), (GlobalStep(2), None, false));
    play.fail();
    let now = play.state.status();
    assert!(now.phase == JobPhase::Failing && now.stops && now.reason.is_some());
}

#[test]
fn a_worker_reconnects_before_the_job_begins() {
    let mut play = Play::new(2);
    play.say(0, 1, Register::default());
    play.away(0, 1, 1);
    play.created();
    // The reply has not reached the worker.
    assert_eq!(play.log(), "1:Registered");
    play.say_over(0, 1, 2, Register::default());
    play.away(0, 1, 2);
    play.say_over(0, 1, 3, Ready::default());
    play.say(1, 1, Register::default());
    play.away(0, 1, 3);
    play.say(1, 1, Ready::default());
    assert_eq!(play.log(), "2:Registered 4:Registered", "(B) one of them is away");
    assert_eq!(play.state.progress().missing, [TaskId::worker(0)]);
    play.connected(0, 1, 4);
    assert_eq!(play.log(), "started 3:Go 5:Go");
    // This reply has not reached the worker either.
    play.say_over(0, 1, 4, Ready::default());
    assert_eq!(play.log(), "6:Go");
}

#[test]
fn repeated_requests_are_answered_again() {
    let again = "Refusal(the request was sent again: the later copy gets the reply)";
    let mut play = Play::new(1);
    play.say(0, 1, Register::default());
    play.say(0, 1, Register::default());
    assert_eq!(play.log(), format!("1:{again}"));
    play.created();
    play.say_over(0, 1, 2, Register::default());
    assert_eq!(play.log(), "2:Registered 3:Registered");
    // A request over the earlier connection comes late.
    play.say(0, 1, Register::default());
    play.say_over(0, 1, 2, Ready::default());
    play.say_over(0, 1, 3, Ready::default());
    play.say_over(0, 1, 3, report(3));
    play.say_over(0, 1, 3, report(3));
    assert_eq!(play.log(), format!("4:{again} started 5:Go 6:Go 7:Reported 8:Reported"));
    play.say_over(0, 1, 3, completed());
    play.say_over(0, 1, 4, completed());
    play.say_over(0, 1, 4, report(3));
    assert_eq!(play.log(), "trained 9:Evaluate 10:Evaluate 11:Reported");
    play.say_over(0, 1, 4, evaluated());
    play.say_over(0, 1, 5, evaluated());
    play.release();
    play.say_over(0, 1, 5, completed());
    // Requests are also answered after the end, because the last reply may have been lost.
    assert_eq!(play.log(), format!("12:{again} 13:Finished 14:Finished"));
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!(outcome.skipped, 2, "counted once");
    assert!(play.ended.is_empty() && play.open.is_empty() && play.left.is_empty());
}

#[test]
fn the_older_of_two_requests_that_wait_is_answered() {
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, Register::default());
    play.say(1, 1, Register::default());
    play.say(0, 1, Ready::default());
    play.say_over(0, 1, 2, Ready::default());
    assert_eq!(
        play.log(),
        "1:Registered 2:Registered 3:Refusal(the request was sent again: the later copy gets the reply)"
    );
    play.say(1, 1, Ready::default());
    assert_eq!(play.log(), "started 4:Go 5:Go");
    play.say(1, 1, completed());
    play.say_over(1, 1, 2, completed());
    assert_eq!(play.log(), "6:Refusal(the request was sent again: the later copy gets the reply)");
    // The worker is interrupted while it waits.
    play.say_over(1, 1, 2, interrupted());
    assert_eq!(play.log(), "7:Refusal(the request was sent again: the later copy gets the reply) 8:Finished");
    play.say_over(1, 1, 2, interrupted());
    play.say_over(0, 1, 2, completed());
    assert_eq!(play.log(), "9:Finished trained 10:Evaluate");
}

#[test]
fn a_worker_that_comes_back_in_time_goes_on() {
    let mut play = Play::training();
    play.away(1, 1, 1);
    assert_eq!(play.state.awaited().collect::<Vec<_>>(), [(1, 1)]);
    assert_eq!(play.state.progress().workers, 1);
    play.say(0, 1, completed());
    play.say_over(1, 1, 2, report(4));
    assert_eq!(play.state.awaited().count(), 0);
    // The timer and the end of the old connection come late.
    play.lost(1, 1);
    play.away(1, 1, 1);
    assert_eq!(play.log(), "6:Reported");
    play.away(1, 1, 2);
    play.connected(1, 1, 3);
    play.lost(1, 2);
    play.say_over(1, 1, 3, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    assert!(play.left.is_empty());
}

#[test]
fn a_worker_that_comes_back_too_late_is_told_so() {
    let mut play = Play::training();
    play.gone(1, 1);
    assert_eq!(play.left, [(1, 1)]);
    play.say_over(1, 1, 2, report(4));
    play.say_over(1, 1, 2, Ready::default());
    play.say_over(1, 1, 2, Register::default());
    play.say_over(1, 1, 2, completed());
    let log = play.log();
    assert!(log.starts_with("5:StopNow 6:Refusal(worker/1 was away for too long"), "{log}");
    assert!(log.contains("7:Refusal(worker/1 was away for too long") && log.ends_with("8:Finished"), "{log}");
    play.gone(1, 1);
    assert_eq!(play.left, [(1, 1)], "(E) once");
}

#[test]
fn a_later_life_ends_an_earlier_one_that_is_away() {
    let mut play = Play::training();
    play.say(1, 2, Register::default());
    assert!(play.log().contains("is the same task started twice?") && play.left.is_empty());
    play.away(1, 1, 1);
    play.say(1, 2, Register::default());
    play.say(1, 2, Ready::default());
    assert_eq!(play.log(), "6:Registered 7:Go");
    assert_eq!(play.left, [(1, 1)]);
    // The timer and late requests of the earlier incarnation do not affect the new one.
    play.lost(1, 1);
    play.say(1, 1, report(3));
    play.say(1, 1, Register::default());
    assert_eq!(play.log().matches("a later incarnation of worker/").count(), 2);
    play.gone(1, 2);
    assert_eq!(play.left, [(1, 1), (1, 2)]);
}

#[test]
fn a_worker_whose_clock_was_set_back_is_taken() {
    let mut play = Play::new(1);
    play.created();
    // The first incarnation has the number of a clock that was ahead.
    play.say_over(0, 900, 1, Register::default());
    play.say_over(0, 900, 1, Ready::default());
    play.away(0, 900, 1);
    play.say_over(0, 5, 2, Register::default());
    play.say_over(0, 5, 2, Ready::default());
    assert_eq!(play.log(), "1:Registered started 2:Go 3:Registered 4:Go");
    assert_eq!((&play.left[..], &play.appointed[..]), (&[(0, 900)][..], &[(0, 900), (0, 5)][..]));
    // The first one comes back, while the second one is here and while it is away.
    play.say_over(0, 900, 3, Register::default());
    play.away(0, 5, 2);
    play.say_over(0, 900, 3, Register::default());
    play.say_over(0, 900, 3, completed());
    assert_eq!(play.log().matches("a later incarnation of worker/0 has registered").count(), 3);
    assert_eq!(play.appointed.len(), 2);
}

#[test]
fn a_worker_begins_when_all_shards_know_it() {
    let mut play = Play::new(1);
    play.confirms = false;
    play.say(0, 1, Register::default());
    play.created();
    play.say(0, 1, Ready::default());
    assert_eq!(play.log(), "1:Registered");
    // The worker is started again before the shards know its first incarnation.
    play.away(0, 1, 1);
    play.say(0, 2, Register::default());
    play.confirm();
    play.say(0, 2, Ready::default());
    assert!(!play.log().contains("Go"));
    play.confirm();
    assert_eq!(play.log(), "started 4:Go");
    assert_eq!(play.appointed, [(0, 1), (0, 2)]);
    // The same for a worker that comes back while the job trains.
    play.away(0, 2, 2);
    play.say(0, 3, Register::default());
    play.say(0, 3, Ready::default());
    assert!(!play.log().contains("Go"));
    play.confirm();
    assert_eq!(play.log(), "6:Go");
}

#[test]
fn an_evaluating_worker_may_be_started_again() {
    let mut play = Play::new(1);
    play.created();
    play.say(0, 1, Register::default());
    play.say(0, 1, Ready::default());
    play.say(0, 1, completed());
    play.away(0, 1, 1);
    play.say(0, 2, Register::default());
    play.say(0, 2, Ready::default());
    play.say(0, 2, completed());
    play.say(0, 2, evaluated());
    play.release();
    let log = play.log();
    assert!(log.ends_with("4:Registered 5:Go trained 6:Evaluate 7:Finished"), "{log}");
    assert!(play.ended.pop().unwrap().is_ok() && play.left.is_empty(), "(E) it had finished");
}

#[test]
fn a_worker_that_can_be_reached_evaluates() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.away(0, 1, 1);
    play.say(1, 1, completed());
    assert_eq!(play.log(), "trained 6:Evaluate");
    // If no worker can be reached, the first one that reconnects evaluates.
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.away(0, 1, 1);
    play.away(1, 1, 1);
    play.lost(1, 1);
    assert_eq!(play.log(), "trained");
    play.say_over(0, 1, 2, completed());
    assert_eq!(
        play.log(),
        "5:Refusal(the request was sent again: the later copy gets the reply) trained 6:Evaluate"
    );
    play.away(0, 1, 2);
    play.lost(0, 2);
    assert!(play.ended.pop().unwrap().unwrap_err().contains("no worker is left"));
}

#[test]
fn another_worker_evaluates_when_the_first_gets_lost() {
    let mut play = Play::training();
    play.say(0, 1, completed());
    play.say(1, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.gone(0, 1);
    assert_eq!(play.log(), "trained 6:Evaluate");
    play.gone(1, 1);
    assert!(play.ended.pop().unwrap().unwrap_err().contains("no worker is left"));
}

#[test]
fn no_worker_joins_during_the_evaluation() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.say(1, 2, Register::default());
    assert!(play.log().contains("6:Refusal(the job has been trained"));
    play.say(0, 1, evaluated());
    play.say(1, 3, Register::default());
    assert!(play.log().contains("8:Refusal(the job has been trained"));
    play.release();
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty());
}

#[test]
fn a_late_start_does_not_displace_a_worker_that_was_let_go() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(0, 1, completed());
    play.say(0, 1, evaluated());
    play.release();
    play.gone(0, 1);
    play.log();
    play.say(0, 2, Register::default());
    assert!(play.log().contains("Refusal(the job has ended"));
    // It has not heard that it was let go.
    play.say(0, 1, evaluated());
    assert!(play.log().ends_with("Finished"));
}
