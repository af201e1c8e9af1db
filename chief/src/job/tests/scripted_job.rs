//! A job driven by hand: reply handles are numbers, and workers send the messages that a test chooses.

use std::collections::BTreeSet;

use pushpull_messages::message::{Evaluated, Finish, Ready, Register};
use pushpull_messages::sync::LeaveSpec;

use super::*;
use crate::launch::HeldWorker;

pub(super) struct Play {
    pub state: JobState<u32>,
    next: u32,
    /// The requests that have no reply yet.
    pub open: BTreeSet<u32>,
    pub log: Vec<String>,
    pub left: Vec<(u32, u64)>,
    /// All orders to the shards that a test has not taken yet.
    pub orders: Vec<MembershipOrder>,
    /// The incarnations of workers that the shards were told to let join.
    pub appointed: Vec<(u32, u64)>,
    /// The number of them that all shards have confirmed.
    confirmed: usize,
    /// Whether the shards confirm them at once.
    pub confirms: bool,
    pub ended: Vec<Result<TrainingOutcome, String>>,
    /// The steps at which workers were told to evaluate the model, one for each such reply.
    pub evaluates: Vec<u64>,
    /// The contents of the replies to registrations: the position at which the worker resumes its input, and
    /// whether the job makes checkpoints.
    pub registered: Vec<(Resume, bool)>,
}

/// Returns what the chief knows of the sender of a message: incarnation `life` of worker `worker`, on the
/// connection with the number `connection`.
pub(super) fn peer(worker: u32, life: u64, connection: u64) -> Peer {
    let (task, incarnation) = (TaskId::worker(worker), Incarnation(life));
    Peer { task, guest: None, incarnation, connection, address: "here".into(), http: None, nonce: 0 }
}

/// Returns the error that ends the job when another chief leads it.
pub(super) fn other_chief() -> ChiefError {
    ChiefError::OtherChief { task: TaskId::ps(0), reason: "ps/0 belongs to another chief".into() }
}

impl Play {
    pub(super) fn new(workers: u32) -> Self {
        Self::of(job(), workers)
    }

    pub(super) fn of(job: JobSpec, workers: u32) -> Self {
        let state = JobState::new(job, workers);
        let (open, log, left, ended) = Default::default();
        let (evaluates, registered, orders) = Default::default();
        let (appointed, confirmed, confirms) = (Vec::new(), 0, true);
        Self {
            state,
            next: 0,
            open,
            log,
            left,
            orders,
            appointed,
            confirmed,
            confirms,
            ended,
            evaluates,
            registered,
        }
    }

    /// Lets all shards confirm the next appointment, if there is one.
    pub(super) fn confirm(&mut self) {
        if let Some(&(worker, life)) = self.appointed.get(self.confirmed) {
            self.confirmed += 1;
            let effects = self.state.appointed(worker, Incarnation(life));
            self.carry_out(effects);
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<u32>>) {
        for effect in effects {
            if let Effect::Order(order) = effect {
                self.orders.push(order);
            }
            match effect {
                Effect::Reply(reply, message) => {
                    assert!(self.open.remove(&reply), "(A) reply {reply} was given twice");
                    let what = match &message {
                        Message::Finished(finished) if finished.evaluate => {
                            self.evaluates.push(finished.step.0);
                            "Evaluate".to_owned()
                        }
                        Message::Registered(registered) => {
                            self.registered.push((registered.resume, registered.saves));
                            "Registered".to_owned()
                        }
                        Message::Reported(reported) if reported.stop.is_some() => "StopNow".to_owned(),
                        Message::Refusal(refusal) if refusal.code == RefusalCode::RolledBack => {
                            "Restart".to_owned()
                        }
                        Message::Refusal(refusal) => format!("Refusal({})", refusal.reason),
                        other => other.name().to_owned(),
                    };
                    self.log.push(format!("{reply}:{what}"));
                }
                Effect::Started => self.log.push("started".into()),
                Effect::Trained(_) => self.log.push("trained".into()),
                Effect::SaveAgain(_) => self.log.push("save-again".into()),
                Effect::Evaluated(..) => {}
                Effect::Order(MembershipOrder::Leave(worker, incarnation)) => {
                    self.left.push((worker, incarnation.0));
                }
                Effect::Order(MembershipOrder::Appoint(worker, incarnation)) => {
                    self.appointed.push((worker, incarnation.0));
                }
                Effect::Ended(Ok(TrainingEnd::Evaluated(outcome))) => self.ended.push(Ok(outcome)),
                Effect::Ended(Ok(TrainingEnd::Drained { step })) => {
                    self.ended.push(Err(format!("drained at {step}")))
                }
                Effect::Ended(Err(error)) => self.ended.push(Err(error.to_string())),
            }
        }
        while self.confirms && self.confirmed < self.appointed.len() {
            self.confirm();
        }
    }

    /// Sends a message over the first connection of incarnation `life`. The number of this connection is
    /// `life`, too. Returns the reply handle.
    pub(super) fn say(&mut self, worker: u32, life: u64, message: impl Into<Message>) -> u32 {
        self.say_over(worker, life, life, message)
    }

    pub(super) fn say_over(
        &mut self,
        worker: u32,
        life: u64,
        connection: u64,
        message: impl Into<Message>,
    ) -> u32 {
        self.next += 1;
        let reply = self.next;
        self.open.insert(reply);
        let effects = self.state.request(&peer(worker, life, connection), message.into(), reply);
        self.carry_out(effects);
        reply
    }

    pub(super) fn created(&mut self) {
        self.created_with(JobStart::default());
    }

    pub(super) fn created_with(&mut self, start: JobStart) {
        let effects = self.state.created(placement(), start);
        self.carry_out(effects);
    }

    /// Continues the job of an earlier run of the chief.
    pub(super) fn continued(&mut self, workers: &[HeldWorker]) {
        let start = JobStart { step: GlobalStep(4), ..JobStart::default() };
        let effects = self.state.continued(placement(), start, workers);
        self.carry_out(effects);
    }

    /// Suspends the job, because a ps task is lost.
    pub(super) fn suspend(&mut self) {
        self.state.suspend();
    }

    /// Tells the job that the ps task of a worker was lost for good.
    pub(super) fn host_lost(&mut self, worker: u32) {
        let effects = self.state.host_lost(worker);
        self.carry_out(effects);
    }

    /// Lets the suspended job go on.
    pub(super) fn resume(&mut self) {
        let effects = self.state.resume();
        self.carry_out(effects);
    }

    /// Rolls the job back, with these workers of an earlier run of the chief.
    pub(super) fn roll_back(&mut self, workers: &[HeldWorker]) {
        let effects = self.state.roll_back(workers);
        self.carry_out(effects);
    }

    pub(super) fn connected(&mut self, worker: u32, life: u64, connection: u64) {
        let effects = self.state.connected(&peer(worker, life, connection));
        self.carry_out(effects);
    }

    /// Breaks a connection of a worker. The worker may still reconnect.
    pub(super) fn away(&mut self, worker: u32, life: u64, connection: u64) {
        self.state.disconnected(&peer(worker, life, connection));
    }

    /// Tells the job that a worker did not reconnect in time after `connection` broke.
    pub(super) fn lost(&mut self, worker: u32, connection: u64) {
        let effects = self.state.lost(worker, connection);
        self.carry_out(effects);
    }

    /// Breaks the first connection of incarnation `life`, and tells the job that the worker did not
    /// reconnect in time.
    pub(super) fn gone(&mut self, worker: u32, life: u64) {
        self.away(worker, life, life);
        self.lost(worker, life);
    }

    pub(super) fn fail(&mut self) {
        self.fail_with(ChiefError::Interrupted { step: GlobalStep(1), last_step: GlobalStep(10) });
    }

    pub(super) fn fail_with(&mut self, error: ChiefError) {
        let effects = self.state.fail(error);
        self.carry_out(effects);
    }

    pub(super) fn stop(&mut self, drains: bool) {
        let effects = self.state.stop("enough".into(), drains);
        self.carry_out(effects);
    }

    pub(super) fn stopping_at(&mut self, step: u64) {
        let effects = self.state.stopping_at(GlobalStep(step));
        self.carry_out(effects);
    }

    pub(super) fn end_drain(&mut self) {
        let effects = self.state.end_drain();
        self.carry_out(effects);
    }

    pub(super) fn end_failing(&mut self) {
        let effects = self.state.end_failing();
        self.carry_out(effects);
    }

    /// Records that the last step of the trained job was saved.
    pub(super) fn settled(&mut self) {
        let settled = Settled { save_by: Instant::now(), shards: None, observed: false };
        let effects = self.state.settled(Some(settled));
        self.carry_out(effects);
    }

    pub(super) fn release(&mut self) {
        let effects = self.state.release();
        self.carry_out(effects);
    }

    pub(super) fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join(" ")
    }

    /// Returns a job whose two workers train.
    pub(super) fn training() -> Self {
        Self::training_of(job())
    }

    pub(super) fn training_of(job: JobSpec) -> Self {
        let mut play = Self::of(job, 2);
        play.created();
        for worker in 0..2 {
            play.say(worker, 1, Register::default());
        }
        for worker in 0..2 {
            play.say(worker, 1, Ready::default());
        }
        assert_eq!(play.log(), "1:Registered 2:Registered started 3:Go 4:Go");
        play
    }

    /// Returns a job whose two workers train. The job fails if one of them leaves.
    pub(super) fn training_together() -> Self {
        Self::training_of(JobSpec { when_worker_leaves: LeaveSpec::Fail, ..job() })
    }
}

pub(super) fn finish(result: TrainingResult) -> Finish {
    Finish { result, local_step: LocalStep(5), loss: 0.5, skipped: 2 }
}

pub(super) fn completed() -> Finish {
    finish(TrainingResult::Completed)
}

pub(super) fn input_ended() -> Finish {
    finish(TrainingResult::InputEnded("3 epochs".into()))
}

pub(super) fn interrupted() -> Finish {
    finish(TrainingResult::Interrupted)
}

pub(super) fn gave_up() -> Finish {
    finish(TrainingResult::gave_up("lost ps/0"))
}

/// Returns the request to register of a process whose incarnation was `life`.
pub(super) const fn again(life: u64) -> Register {
    Register { after: Some(Incarnation(life)) }
}

pub(super) fn report(step: u64) -> Report {
    Report {
        global_step: GlobalStep(step),
        local_step: LocalStep(2),
        loss: 0.7,
        drawn: 2,
        ..Report::default()
    }
}

pub(super) fn evaluated() -> Evaluated {
    Evaluated { result: Ok(Evaluation { loss: 0.1, metrics: vec![], examples: 10, variables_crc32c: 1 }) }
}
