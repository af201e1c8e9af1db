//! Tests the properties (A)-(F) and (H) of `JobState` under random actions: correct and incorrect workers,
//! repeated requests, broken connections, new incarnations, timers that expire, and lost ps tasks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use pushpull_messages::message::{Ready, Register};
use pushpull_messages::sync::LeaveSpec;

use super::scripted_job::*;
use super::*;

const WORKERS: u32 = 3;

/// A random action. It concerns one drawn worker, unless its name or description says otherwise.
#[derive(Clone, Copy, Debug)]
enum Action {
    Created,
    /// The worker sends the message that a correct worker would send next.
    Next,
    Register,
    Ready,
    Report,
    Complete,
    EndInput,
    Interrupt,
    Evaluate,
    /// The worker opens a new connection.
    Connect,
    Break,
    /// The chief notices late that an earlier connection of the worker has ended.
    BreakEarlier,
    TimeOut,
    StartAgain,
    /// The chief fails the job with an error.
    Fail,
    /// The job fails, because another chief leads it.
    Abandon,
    EndFailing,
    /// The job is told to stop early, without a drain.
    Stop,
    Drain,
    /// The job learns the step at which the shards have agreed to stop.
    Agree,
    EndDrain,
    /// The last step of the job is saved.
    Settle,
    /// The job is saved and reported.
    Release,
    /// A ps task is lost.
    Suspend,
    /// The ps task is back, with its variables.
    Resume,
    /// The ps task is back, without its variables.
    RollBack,
    /// The worker has lost a ps task.
    GiveUp,
    /// The worker's process registers again, as another incarnation.
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    use Action::*;
    prop_oneof![
        30 => Just(Next),
        3 => Just(Created),
        8 => prop_oneof![Just(Connect), Just(Break), Just(BreakEarlier)],
        4 => Just(TimeOut),
        4 => Just(StartAgain),
        6 => prop_oneof![Just(Register), Just(Ready), Just(Report), Just(Evaluate)],
        2 => prop_oneof![Just(Complete), Just(EndInput), Just(Interrupt)],
        1 => prop_oneof![4 => Just(EndFailing), 1 => Just(Fail), 1 => Just(Abandon)],
        1 => prop_oneof![2 => Just(Stop), 2 => Just(Drain), 3 => Just(Agree), 1 => Just(EndDrain)],
        2 => prop_oneof![Just(Settle), Just(Release)],
        3 => prop_oneof![2 => Just(Suspend), 1 => Just(Resume), 1 => Just(RollBack)],
        2 => prop_oneof![Just(GiveUp), Just(Restart)],
    ]
}

/// The incarnation and connection of a worker, as the worker knows them.
#[derive(Clone, Copy)]
struct WorkerLife {
    life: u64,
    connection: u64,
}

/// What a shard knows of a worker that it counts as a member.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Expected,
    Here(u64),
}

/// The members that a shard counts, and the latest appointment of each worker.
#[derive(Clone, Debug, Default)]
struct ShardModel {
    counted: BTreeMap<u32, Counted>,
    appointed: BTreeMap<u32, u64>,
}

impl ShardModel {
    /// Returns a shard that was just created.
    fn created() -> Self {
        let counted = (0..WORKERS).map(|worker| (worker, Counted::Expected)).collect();
        Self { counted, appointed: BTreeMap::new() }
    }

    fn order(&mut self, order: MembershipOrder) {
        match order {
            MembershipOrder::Appoint(worker, Incarnation(life)) => {
                self.appointed.insert(worker, life);
                if matches!(self.counted.get(&worker), Some(Counted::Here(other)) if *other != life) {
                    self.counted.remove(&worker);
                }
            }
            MembershipOrder::Leave(worker, Incarnation(life)) => {
                let appointed = self.appointed.get(&worker);
                let ends = match self.counted.get(&worker) {
                    Some(Counted::Here(known)) => *known == life,
                    Some(Counted::Expected) => appointed.is_none_or(|last| *last == life),
                    None => false,
                };
                if ends {
                    self.counted.remove(&worker);
                }
            }
        }
    }
}

struct Random {
    play: Play,
    mine: Vec<WorkerLife>,
    created: bool,
    /// Whether the job rolls back if a ps task loses its variables.
    rolls_back: bool,
    /// The worker and incarnation that sent each request, by reply handle.
    asked: BTreeMap<u32, (u32, u64)>,
    /// The workers and incarnations that were told to begin.
    begun: BTreeSet<(u32, u64)>,
    /// The workers and incarnations that trained until they reported that the training is complete.
    finished: BTreeSet<(u32, u64)>,
    connections: u64,
    /// The step at which the shards have agreed to stop, if any.
    agreed: Option<u64>,
    /// Whether the job began to drain before any worker was told to evaluate.
    drains: bool,
    /// Whether the job was ever suspended. The shards are then told some departures twice, or with the
    /// appointment of the next incarnation.
    suspended: bool,
    /// The number of entries of the log that have been read.
    heard: usize,
    /// A shard that receives all orders, and one of the ps task that is lost while the job is suspended.
    shards: [ShardModel; 2],
}

impl Random {
    /// Returns a job whose cluster lists `listed` workers; the others may join.
    fn new(job: JobSpec, rolls_back: bool, listed: u32) -> Self {
        let mut play = Play::of(job.clone(), WORKERS);
        if listed < WORKERS {
            play.state = JobState::new(job, listed).up_to(Some(WORKERS));
        }
        let mine = WorkerLife { life: 1, connection: 1 };
        Self {
            play,
            mine: vec![mine; WORKERS as usize],
            created: false,
            rolls_back,
            asked: BTreeMap::new(),
            begun: BTreeSet::new(),
            finished: BTreeSet::new(),
            connections: 1,
            agreed: None,
            drains: false,
            suspended: false,
            heard: 0,
            shards: Default::default(),
        }
    }

    fn stop(&mut self, drains: bool) {
        self.drains |= drains && self.play.evaluates.is_empty() && self.play.ended.is_empty();
        self.play.stop(drains);
    }

    fn agree(&mut self) {
        if self.play.state.is_agreeing() {
            // If a worker evaluates, the shards have already reached the last step.
            let step = if self.play.evaluates.is_empty() { 5 } else { 10 };
            self.agreed = Some(step);
            self.play.stopping_at(step);
        }
    }

    fn say(&mut self, worker: u32, message: impl Into<Message>) {
        let WorkerLife { life, connection } = self.mine[worker as usize];
        let reply = self.play.say_over(worker, life, connection, message);
        self.asked.insert(reply, (worker, life));
        self.hear();
    }

    /// Records the incarnations that were told to begin since the last call, according to the log.
    fn hear(&mut self) {
        let seen = std::mem::replace(&mut self.heard, self.play.log.len());
        for line in &self.play.log[seen..] {
            if let Some(reply) = line.strip_suffix(":Go") {
                let (worker, life) = self.asked[&reply.parse::<u32>().unwrap()];
                self.begun.insert((worker, life));
                for shard in &mut self.shards {
                    shard.counted.insert(worker, Counted::Here(life));
                }
            }
        }
    }

    fn complete(&mut self, worker: u32) {
        let life = self.mine[worker as usize].life;
        let trained = self.trains(worker);
        self.say(worker, completed());
        if trained && !self.trains(worker) {
            self.finished.insert((worker, life));
        }
    }

    /// Returns whether the chief counts the current incarnation of `worker` as training.
    fn trains(&self, worker: u32) -> bool {
        let known = &self.play.state.members[&worker];
        known.incarnation == Some(Incarnation(self.mine[worker as usize].life))
            && matches!(known.state, MemberState::Training)
    }

    fn next(&mut self, worker: u32) {
        let known = &self.play.state.members[&worker];
        if known.incarnation != Some(Incarnation(self.mine[worker as usize].life)) {
            return self.say(worker, Register::default());
        }
        match known.state {
            MemberState::Absent | MemberState::Registered(_) => self.say(worker, Register::default()),
            MemberState::Preparing | MemberState::Ready(_) => self.say(worker, Ready::default()),
            MemberState::Training => self.complete(worker),
            MemberState::Evaluating => self.say(worker, evaluated()),
            MemberState::Restarting => self.restart(worker),
            MemberState::Finished(_) | MemberState::Left | MemberState::Lost => self.say(worker, report(99)),
        }
    }

    /// Lets the worker's process register again, as another incarnation on another connection.
    fn restart(&mut self, worker: u32) {
        self.connections += 1;
        let WorkerLife { life, .. } = self.mine[worker as usize];
        self.mine[worker as usize] = WorkerLife { life: life + 1, connection: self.connections };
        self.say(worker, again(life));
    }

    /// Forgets what was known of the incarnations before the rollback.
    fn roll_back(&mut self) {
        let phase = &self.play.state.phase;
        if !matches!(phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_)) {
            self.created = false;
            self.begun.clear();
            self.finished.clear();
            self.play.left.clear();
            self.play.evaluates.clear();
        }
        self.suspended = true;
        self.play.suspend();
        self.play.roll_back(&[]);
        let restarts =
            |member: &Member<u32>| !matches!(member.state, MemberState::Training | MemberState::Ready(_));
        let over = matches!(self.play.state.phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_));
        assert!(over || self.play.state.members.values().all(restarts), "(H)");
    }

    fn take(&mut self, worker: u32, action: Action) {
        let starting = matches!(self.play.state.phase, Phase::Starting);
        self.carry_out(worker, action);
        self.pass_orders();
        if starting && matches!(self.play.state.phase, Phase::Training) {
            let mut listed = self.play.state.members.values().filter(|member| member.is_listed);
            assert!(listed.all(Member::is_present), "(B) all are present");
        }
    }

    /// Reads what the workers were told, and passes the orders to the shards.
    fn pass_orders(&mut self) {
        self.hear();
        let reached = if self.play.state.suspended { 1 } else { 2 };
        for order in std::mem::take(&mut self.play.orders) {
            self.shards[..reached].iter_mut().for_each(|shard| shard.order(order));
        }
    }

    fn carry_out(&mut self, worker: u32, action: Action) {
        let WorkerLife { life, connection } = self.mine[worker as usize];
        match action {
            Action::Created if self.created => {}
            Action::Created => {
                self.created = true;
                self.shards = [ShardModel::created(), ShardModel::created()];
                self.play.created_with(JobStart { may_roll_back: self.rolls_back, ..JobStart::default() });
            }
            Action::Next => self.next(worker),
            Action::Register => self.say(worker, Register::default()),
            Action::Ready => self.say(worker, Ready::default()),
            Action::Report => self.say(worker, report(99)),
            Action::Complete => self.complete(worker),
            Action::EndInput => self.say(worker, input_ended()),
            Action::Interrupt => self.say(worker, interrupted()),
            Action::Evaluate => self.say(worker, evaluated()),
            Action::Connect => {
                self.connections += 1;
                self.mine[worker as usize].connection = self.connections;
                self.connected(worker);
            }
            Action::Break => self.play.away(worker, life, connection),
            Action::BreakEarlier => self.play.away(worker, life, connection - 1),
            Action::TimeOut => self.play.lost(worker, connection),
            Action::StartAgain => {
                self.connections += 1;
                self.mine[worker as usize] = WorkerLife { life: life + 1, connection: self.connections };
            }
            Action::Fail => self.play.fail(),
            Action::Abandon => self.play.fail_with(other_chief()),
            Action::EndFailing => self.play.end_failing(),
            Action::Stop => self.stop(false),
            Action::Drain => self.stop(true),
            Action::Agree => self.agree(),
            Action::EndDrain if self.play.state.drains() => self.play.end_drain(),
            Action::EndDrain => {}
            Action::Settle => self.play.settled(),
            Action::Release => self.play.release(),
            Action::Suspend => {
                self.suspended = true;
                self.play.suspend();
            }
            Action::Resume if self.play.state.suspended && self.created => self.play.resume(),
            Action::Resume => {}
            Action::RollBack => self.roll_back(),
            Action::GiveUp => self.say(worker, gave_up()),
            Action::Restart => {
                self.suspended = true;
                self.restart(worker);
            }
        }
    }

    fn connected(&mut self, worker: u32) {
        let WorkerLife { life, connection } = self.mine[worker as usize];
        self.play.connected(worker, life, connection);
        self.hear();
    }

    /// Checks the properties that must hold after every action.
    fn holds(&self) -> Result<(), TestCaseError> {
        let Play { state, log, left, ended, open, .. } = &self.play;
        prop_assert!(state.global_step() <= GlobalStep(10));
        prop_assert!(ended.len() <= 1, "(C)");
        if let Some(ended) = ended.first() {
            let concluding = matches!(state.phase, Phase::Concluding);
            prop_assert!(open.is_empty() || concluding, "(A) {open:?} are open");
            prop_assert!(ended.is_err() || log.iter().any(|line| line.ends_with(":Evaluate")), "(C)");
        }
        // (B)
        let started = log.iter().position(|line| line == "started");
        let first = log.iter().position(|line| line.ends_with(":Go"));
        prop_assert!(first.is_none_or(|first| started.is_some_and(|started| started < first)), "(B)");

        // (D): a job that waits has a worker that is busy, or one that may still reconnect.
        // A job that rolls back ends when its variables are restored, if all workers have left.
        if matches!(state.phase, Phase::Training) && !state.is_agreeing() && !state.rolls_back {
            let busy =
                |worker: &Member<u32>| worker.is_here() && !matches!(worker.state, MemberState::Finished(_));
            let away = state.awaited().next().is_some();
            prop_assert!(away || state.members.values().any(busy), "(D)");
        }
        // (D) and (E): no shard counts a worker that takes no part.
        if matches!(state.phase, Phase::Training | Phase::Evaluating(_)) && !state.suspended {
            for (worker, member) in &state.members {
                // A worker that has finished has reached the last step, so nothing waits for it.
                let waited = |counted: &Counted| match counted {
                    Counted::Expected => true,
                    Counted::Here(life) => !self.finished.contains(&(*worker, *life)),
                };
                let counted = self.shards.iter().any(|shard| shard.counted.get(worker).is_some_and(waited));
                prop_assert!(!counted || !member.is_over(), "(E) worker/{worker}: {:?} {log:?}", self.shards);
            }
        }
        self.shares_hold()?;
        // (E)
        let left: Vec<_> = left.iter().copied().filter(|&(_, life)| life > 0).collect();
        let told: BTreeSet<_> = left.iter().copied().collect();
        if self.suspended {
            return self.holds_at_end();
        }
        prop_assert_eq!(told.len(), left.len(), "(E) once");
        for &(worker, life) in &self.begun {
            let known = &state.members[&worker];
            let trains =
                known.incarnation == Some(Incarnation(life)) && matches!(known.state, MemberState::Training);
            let early = !trains && !self.finished.contains(&(worker, life));
            prop_assert_eq!(
                told.contains(&(worker, life)),
                early,
                "(E) worker/{} in life {}: {:?}",
                worker,
                life,
                log
            );
        }
        // The shards wait for a worker that is not listed if it was there when they were created.
        let listed = |&&(worker, _): &&(u32, u64)| state.members[&worker].is_listed;
        prop_assert!(
            told.iter().filter(listed).all(|own| self.begun.contains(own)),
            "(E) none that has not begun"
        );
        self.holds_at_end()
    }

    /// Checks that the shares of an elastic job are disjoint, and cover all examples.
    fn shares_hold(&self) -> Result<(), TestCaseError> {
        let state = &self.play.state;
        let Some(elastic) = &state.elastic else { return Ok(()) };
        let own = |(worker, member): (&u32, &Member<u32>)| {
            member.has_share().then(|| state.share(*worker).expect("it is elastic"))
        };
        let shares: Vec<_> = state.members.iter().filter_map(own).collect();
        let over = matches!(state.phase, Phase::Failing(_) | Phase::Concluding | Phase::Ended(_));
        if state.placement.is_some() && !shares.is_empty() && !over {
            prop_assert!(shares.iter().map(|share| share.position).eq(0..shares.len() as u32), "{elastic:?}");
            prop_assert!(shares.iter().all(|share| share.shares == shares.len() as u32), "{elastic:?}");
        }
        Ok(())
    }

    /// Checks what must hold of evaluations and of the end.
    fn holds_at_end(&self) -> Result<(), TestCaseError> {
        let Play { ended, .. } = &self.play;
        // (F)
        prop_assert!(!self.drains || self.play.evaluates.is_empty(), "(F)");
        prop_assert!(self.play.evaluates.iter().all(|&step| step == 10 || Some(step) == self.agreed), "(F)");
        if let Some(Ok(outcome)) = ended.first() {
            prop_assert_eq!(Some(&outcome.step.0), self.play.evaluates.last(), "(F)");
        }
        Ok(())
    }

    /// Ends the waits for unreachable workers, lets every other worker do what the chief tells it, and
    /// checks that the job ends.
    fn settles(&mut self) -> Result<(), TestCaseError> {
        self.take(0, Action::Resume);
        self.take(0, Action::Created);
        self.take(0, Action::Agree);
        if matches!(self.play.state.phase, Phase::Starting) {
            for worker in 0..WORKERS {
                let known = &self.play.state.members[&worker];
                let (life, connection) = (known.incarnation.map_or(0, |life| life.0), known.connection);
                self.play.away(worker, life, connection);
                self.take(worker, Action::StartAgain);
                self.next(worker);
                self.next(worker);
                self.pass_orders();
                self.holds()?;
            }
        }
        for _ in 0..10 {
            let away: Vec<_> = self.play.state.awaited().collect();
            for (worker, connection) in away {
                self.play.lost(worker, connection);
                self.pass_orders();
                self.holds()?;
            }
            for worker in 0..WORKERS {
                let known = &self.play.state.members[&worker];
                let life = known.incarnation.map_or(0, |life| life.0);
                if known.is_here() {
                    self.mine[worker as usize] = WorkerLife { life, connection: known.connection };
                    self.next(worker);
                    self.pass_orders();
                    self.holds()?;
                }
            }
        }
        self.play.settled();
        self.play.end_failing();
        self.play.release();
        self.pass_orders();
        self.holds()?;
        prop_assert_eq!(self.play.ended.len(), 1, "(C) and (D): it ends, whichever workers are gone");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_actions_lead_to_one_end(
        actions in prop::collection::vec((0..WORKERS, action()), 0..150),
        fails in any::<bool>(),
        loses_ps in any::<bool>(),
        rolls_back in any::<bool>(),
        listed in 1..=WORKERS,
    ) {
        let when_worker_leaves = if fails { LeaveSpec::Fail } else { LeaveSpec::Continue };
        let mut random = Random::new(JobSpec { when_worker_leaves, ..job() }, rolls_back, listed);
        use Action::{GiveUp, Restart, Resume, RollBack, Suspend};
        for (worker, action) in actions {
            if !loses_ps && matches!(action, Suspend | Resume | RollBack | GiveUp | Restart) {
                continue;
            }
            random.take(worker, action);
            random.holds()?;
        }
        random.settles()?;
    }
}
