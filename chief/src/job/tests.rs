//! Properties (A)–(D) of a job's life, by hand and under random turns.

use std::collections::BTreeSet;

use messages::graph::GraphBuilder;
use messages::id::{GlobalStep, LocalStep, PlacementEpoch, ShardId, VariableId};
use messages::input::{DatasetSpec, InputSpec};
use messages::message::{Ready, Register};
use messages::optimizer::OptimizerSpec;
use messages::placement::{PlacedSlice, SliceSpec};
use messages::variable::InitializerSpec;
use proptest::prelude::*;

use super::*;

fn job() -> JobSpec {
    let mut g = GraphBuilder::new("linear");
    let x = g.input("features", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
    JobSpec {
        graph: g.finish(loss, &[]).unwrap(),
        input: InputSpec::new(digits(1), digits(2)),
        batch_size: 1,
        optimizer: OptimizerSpec::sgd(0.1),
        schedule: Default::default(),
        sync: Default::default(),
        placement: Default::default(),
        last_step: GlobalStep(10),
        seed: 0,
    }
}

fn placement() -> Placement {
    let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 3 };
    let shard = ShardId::new(0, 0);
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: vec![PlacedSlice { slice, shard }] }
}

/// A job whose replies are numbers, and what became of each.
struct Play {
    state: JobState<u32>,
    next: u32,
    open: BTreeSet<u32>,
    log: Vec<String>,
    ended: Vec<Result<Outcome, String>>,
}

impl Play {
    fn new(workers: u32) -> Self {
        let state = JobState::new(job(), workers);
        Self { state, next: 0, open: BTreeSet::new(), log: Vec::new(), ended: Vec::new() }
    }

    fn carry_out(&mut self, effects: Vec<Effect<u32>>) {
        for effect in effects {
            match effect {
                Effect::Reply(reply, message) => {
                    assert!(self.open.remove(&reply), "(A) reply {reply} was given twice");
                    let what = match &message {
                        Message::Finished(finished) if finished.evaluate => "Evaluate".to_owned(),
                        Message::Reported(reported) if reported.stop.is_some() => "StopNow".to_owned(),
                        Message::Refusal(refusal) => format!("Refusal({})", refusal.reason),
                        other => other.name().to_owned(),
                    };
                    self.log.push(format!("{reply}:{what}"));
                }
                Effect::Started => self.log.push("started".into()),
                Effect::Trained => self.log.push("trained".into()),
                Effect::Ended(result) => self.ended.push(result.map_err(|error| error.to_string())),
            }
        }
    }

    fn say(&mut self, worker: u32, life: u64, message: impl Into<Message>) -> u32 {
        self.next += 1;
        let reply = self.next;
        self.open.insert(reply);
        let effects = self.state.request(worker, life, message.into(), reply);
        self.carry_out(effects);
        reply
    }

    fn created(&mut self) {
        let effects = self.state.created(placement());
        self.carry_out(effects);
    }

    fn gone(&mut self, worker: u32, life: u64) {
        let effects = self.state.disconnected(worker, life);
        self.carry_out(effects);
    }

    fn fail(&mut self) {
        let error = ChiefError::Interrupted { step: GlobalStep(1), last_step: GlobalStep(10) };
        let effects = self.state.fail(error);
        self.carry_out(effects);
    }

    fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join(" ")
    }

    /// Both workers train.
    fn training() -> Self {
        let mut play = Self::new(2);
        play.created();
        for worker in 0..2 {
            play.say(worker, 1, Register {});
        }
        for worker in 0..2 {
            play.say(worker, 1, Ready {});
        }
        assert_eq!(play.log(), "1:Registered 2:Registered started 3:Go 4:Go");
        play
    }
}

fn finish(result: TrainingResult) -> Finish {
    Finish { result, local_step: LocalStep(5), loss: 0.5 }
}

fn completed() -> Finish {
    finish(TrainingResult::Completed)
}

fn evaluated() -> Evaluated {
    Evaluated { result: Ok(Evaluation { loss: 0.1, metrics: vec![], examples: 10, variables_crc32c: 1 }) }
}

#[test]
fn a_job_trains_evaluates_and_ends() {
    let mut play = Play::training();
    play.say(0, 1, Report { global_step: GlobalStep(4), local_step: LocalStep(2), loss: 0.7 });
    assert_eq!(play.state.progress().global_step, GlobalStep(4));
    play.say(1, 1, completed());
    assert_eq!(play.log(), "5:Reported");
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 7:Evaluate");
    play.say(0, 1, evaluated());
    assert_eq!(play.log(), "8:Finished 6:Finished");
    let outcome = play.ended.pop().unwrap().unwrap();
    assert_eq!((outcome.train_loss, outcome.workers), (0.5, 2));
    assert!(play.open.is_empty() && play.ended.is_empty());
}

#[test]
fn a_worker_whose_input_has_ended_waits_for_the_others() {
    let ended = || finish(TrainingResult::InputEnded("3 epochs".into()));
    let mut play = Play::training();
    play.say(0, 1, ended());
    assert_eq!(play.log(), "");
    // It says nothing of how far the job is.
    assert_eq!(play.state.progress().global_step, GlobalStep(0));
    play.say(1, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.say(0, 1, evaluated());
    assert_eq!(play.log(), "7:Finished 6:Finished");
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty());

    // All inputs together were not enough: that is the reason, and it is told.
    let mut play = Play::training();
    play.say(1, 1, ended());
    play.say(0, 1, ended());
    assert_eq!(play.log(), "trained 6:Evaluate");
    play.say(0, 1, Evaluated { result: Err("too few updates".into()) });
    let reason = play.ended.pop().unwrap().unwrap_err();
    assert_eq!(reason, "worker/0 failed: too few updates; before, worker/1 had said: 3 epochs");
    assert!(play.open.is_empty());
}

#[test]
fn workers_that_come_before_the_variables_wait_for_them() {
    let mut play = Play::new(1);
    play.say(0, 1, Register {});
    assert_eq!(play.log(), "");
    assert!(play.state.progress().missing.is_empty());
    play.created();
    assert_eq!(play.log(), "1:Registered");
}

#[test]
fn the_same_task_twice_is_refused_and_one_that_went_may_come_again() {
    let mut play = Play::new(2);
    play.created();
    play.say(0, 1, Register {});
    play.say(0, 2, Register {});
    play.gone(0, 2);
    assert!(play.log().contains("2:Refusal(worker/0 is here already"));
    assert_eq!(play.state.progress().missing, [TaskId::worker(1)]);
    play.gone(0, 1);
    play.say(0, 2, Register {});
    assert_eq!(play.log(), "3:Registered");
    assert!(play.say(0, 1, Ready {}) == 4 && play.log().contains("out of turn"));
}

#[test]
fn a_lost_worker_never_holds_up_the_others_and_may_join_again() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(1, 2, Register {});
    play.say(1, 2, Ready {});
    assert_eq!(play.log(), "5:Registered 6:Go");
    play.say(0, 1, completed());
    assert_eq!(play.log(), "");
    play.gone(1, 2);
    assert_eq!(play.log(), "trained 7:Evaluate");
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
fn nobody_joins_while_the_job_is_evaluated() {
    let mut play = Play::training();
    play.gone(1, 1);
    play.say(0, 1, completed());
    assert_eq!(play.log(), "trained 5:Evaluate");
    play.say(1, 2, Register {});
    assert!(play.log().contains("6:Refusal(the job has been trained"));
    play.say(0, 1, evaluated());
    assert!(play.ended.pop().unwrap().is_ok() && play.open.is_empty());
}

#[test]
fn a_failed_worker_ends_the_job_with_its_words() {
    let mut play = Play::training();
    play.say(1, 1, finish(TrainingResult::Failed("no data".into())));
    assert!(play.ended.is_empty());
    play.say(0, 1, Report { global_step: GlobalStep(4), local_step: LocalStep(2), loss: 0.7 });
    assert_eq!(play.log(), "5:Finished 6:StopNow");
    play.say(0, 1, finish(TrainingResult::Interrupted));
    assert_eq!(play.ended.pop().unwrap().unwrap_err(), "worker/1 failed: no data");
    assert!(play.open.is_empty());
}

#[test]
fn an_interrupt_before_the_start_refuses_everybody_and_ends() {
    let mut play = Play::new(2);
    play.say(0, 1, Register {});
    play.fail();
    assert!(play.log().contains("1:Refusal(the job is ending: interrupted"));
    assert!(play.ended.pop().unwrap().unwrap_err().contains("interrupted at step 1 of 10"));
}

#[test]
fn workers_that_do_not_leave_do_not_keep_a_failing_job() {
    let mut play = Play::training();
    play.fail();
    assert!(play.ended.is_empty());
    let effects = play.state.end_failing();
    play.carry_out(effects);
    assert_eq!(play.ended.len(), 1);
    let effects = play.state.end_failing();
    play.carry_out(effects);
    assert_eq!(play.ended.len(), 1);
}

proptest! {
    /// (A), (B) and (C) under turns in any order, sensible or not.
    #[test]
    fn any_turns_end_a_job_at_most_once(
        turns in prop::collection::vec((0u32..3, 1u64..3, 0u8..11), 0..150),
    ) {
        let mut play = Play::new(3);
        let mut created = false;
        for (worker, life, turn) in turns {
            match turn {
                0 if !created => {
                    created = true;
                    play.created();
                }
                0 | 1 => drop(play.say(worker, life, Register {})),
                2 | 3 => drop(play.say(worker, life, Ready {})),
                4 => {
                    let report = Report { global_step: GlobalStep(99), local_step: LocalStep(2), loss: f32::NAN };
                    play.say(worker, life, report);
                }
                5 | 6 => drop(play.say(worker, life, completed())),
                7 => drop(play.say(worker, life, evaluated())),
                8 => drop(play.say(worker, life, finish(TrainingResult::Interrupted))),
                9 => drop(play.say(worker, life, finish(TrainingResult::InputEnded("over".into())))),
                _ => play.gone(worker, life),
            }
            prop_assert!(play.ended.len() <= 1, "(C)");
            prop_assert!(play.state.global_step() <= GlobalStep(10));
            let log = play.log.join(" ");
            if let Some(go) = log.find(":Go") {
                prop_assert!(log[..go].contains("started"), "(B)");
            }
            if matches!(play.ended.first(), Some(Ok(_))) {
                prop_assert!(log.contains("Evaluate"), "(C)");
            }
        }
    }
}
