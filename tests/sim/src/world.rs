//! Runs a scenario: starts the tasks, lets the faults happen, and checks what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::AbortHandle;
use futures_util::stream::FuturesUnordered;
use pushpull_chief::{JobEnd, JobProgress, JobReport};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::host::{Running, Setting, TaskEnd, identity_of, stranger, twin};
use crate::invariants::{check, check_evaluated, check_store, newest_step};
use crate::job::job;
use crate::network::Network;
use crate::scenario::{After, EVALUATOR, Expected, Fault, SECOND_CHIEF, Scenario, When};
use crate::store::SimulatedStore;
use crate::trace::{Event, Trace, story};
use crate::witness::Witness;

/// The virtual time within which a scenario must end. The longest wait of a task is the one for a task that
/// never starts, 300 s.
const LIMIT: Duration = Duration::from_secs(1200);
/// The virtual time after which all faults are over: the network is whole, and nothing is killed any more.
const HEALED: Duration = Duration::from_secs(120);
/// The time after which the chief misses a task that was stopped: the silence after which its connection
/// counts as broken, and the time that it has to reconnect.
const MISSED: Duration = Duration::from_secs(25);
/// The time after which a task that has ended with an error of the store is started again.
const BACK: Duration = Duration::from_secs(1);
/// The beginning of the error of a chief whose store fails at the start.
const NO_STORE: &str = "checkpoints cannot be made";
/// A part of the error of a worker that comes when the others have finished.
const TRAINED: &str = "the job has been trained";
/// The end of the error of a worker that comes when the job is trained, saved and reported.
const ENDED: &str = "the job has ended";
/// The beginning of the error of a chief that has lost all workers.
const NO_WORKER: &str = "no worker is left";
/// A part of the error of a chief that waits in vain for tasks.
const MISSING: &str = "these tasks are missing";

/// What came of a scenario that held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether the job was trained.
    pub trained: bool,
    /// The number of faults that struck while the job trained.
    pub struck: u32,
    /// Whether the job has rolled back to a checkpoint in its last life.
    pub rolled_back: bool,
    /// All events.
    pub events: Vec<Event>,
    /// The crc32c of the trained variables.
    pub variables: Option<u32>,
    /// The virtual time that the job took.
    pub took: Duration,
}

/// A scenario that did not hold.
#[derive(Debug)]
pub struct Failure {
    /// The scenario.
    pub scenario: Scenario,
    /// What did not hold.
    pub reason: String,
    /// The last events.
    pub story: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}\n  FAILED: {}", self.story, self.scenario, self.reason)
    }
}

/// Runs a scenario in virtual time.
///
/// # Errors
/// Returns the first property that does not hold, with the story of the run.
///
/// # Panics
/// If the runtime cannot be built.
pub fn run(scenario: &Scenario) -> Result<Held, Box<Failure>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Without the seed, tokio wakes the receivers of a watch channel in a random order.
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&scenario.seed.to_le_bytes()));
    let runtime = builder.build().expect("a runtime can be built");
    runtime.block_on(async {
        clock::start();
        let trace = Trace::start();
        let mut world = World::new(scenario, trace.clone());
        world.run().await.map_err(|reason| {
            Box::new(Failure { scenario: scenario.clone(), reason, story: story(&trace.take()) })
        })
    })
}

struct World<'a> {
    scenario: &'a Scenario,
    setting: Setting,
    trace: Trace,
    witness: Witness,
    tasks: FuturesUnordered<Running>,
    /// The current start of each task, and the handle that kills it; absent if the task does not run.
    alive: BTreeMap<TaskId, (u64, AbortHandle)>,
    /// The starts that were stopped, and replaced meanwhile.
    zombies: BTreeSet<(TaskId, u64)>,
    /// When each task was stopped last.
    stopped: BTreeMap<TaskId, Instant>,
    starts: BTreeMap<TaskId, u64>,
    /// The faults to come.
    faults: Vec<(When, Fault)>,
    /// The processes to start again, and when.
    returning: Vec<(Instant, TaskId)>,
    /// When the job was first seen to train, to have reached each step, and to have made each checkpoint,
    /// since it was started last.
    trains: Option<Instant>,
    reached: Vec<(u64, Instant)>,
    saves: Vec<Instant>,
    began: Instant,
    /// The number of times that the whole job was started, and when it was started last.
    lives: u32,
    began_life: Instant,
    struck: u32,
    /// The newest checkpoint that was known when the job was started last: it was seen before, or was in the
    /// store.
    saved: u64,
    /// The newest checkpoint that the job has reported since then.
    reported: u64,
    /// The newest checkpoint that the job had reported when a ps was killed last.
    saved_at_loss: u64,
    /// Whether a ps was killed when the job was trained already, and the store may have failed. A job whose
    /// last step cannot be saved does not roll back any more.
    lost_at_end: bool,
    /// Whether the second chief was started while the machine of the first one was stopped, so that workers
    /// which dial the first one reach the second one.
    misled: bool,

    /// The tasks that may end with an error, because of a fault.
    excused: BTreeSet<TaskId>,
    /// The first other task that ended with an error.
    failed: Option<String>,
    /// Whether the chief was killed, to be started again, in this life of the job.
    chief_comes_back: bool,
    /// Whether the job was told to end while it trained, and so must be saved.
    drains: bool,
    /// The first error of a job that had to be saved.
    undrained: Option<String>,
    /// Whether the evaluator has ended after the job.
    evaluated: bool,
    job_end: Option<TaskEnd>,
    /// The end of the second chief.
    second_end: Option<TaskEnd>,
    /// The workers that were started a second time, each with the end of its twin.
    twins: BTreeMap<TaskId, Option<TaskEnd>>,
    /// The errors of workers that had a twin, which may have taken the worker's place.
    displaced: BTreeMap<TaskId, String>,
    /// The tasks that have ended without an error in this life of the job.
    ended_well: BTreeSet<TaskId>,
    /// The tasks that had ended so when the chief was started again.
    let_go: BTreeSet<TaskId>,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, trace: Trace) -> Self {
        let addresses = |job: JobName, count: u32| {
            (job, (0..count).map(|index| format!("{job}{index}:1")).collect::<Vec<_>>())
        };
        let layout = scenario.layout;
        let cluster = ClusterSpec::new([
            addresses(JobName::Chief, u32::from(!layout.worker_hosts_chief)),
            addresses(JobName::Ps, if layout.workers_host_ps { 0 } else { scenario.ps }),
            addresses(JobName::Worker, scenario.workers),
        ]);
        let witness = Witness::default();
        let network = Network::new(scenario.seed, scenario.latency, layout, trace.clone(), witness.clone());
        let setting = Setting {
            scenario: scenario.clone(),
            began: Instant::now(),
            cluster: cluster.expect("a valid cluster"),
            job: job(scenario),
            shards: scenario.shards,
            network,
            store: SimulatedStore::new(scenario.seed, scenario.latency, trace.clone()),
            save_steps: scenario.save_steps,
            keep: scenario.keep,
            memory_steps: scenario.memory_steps,
            // A report every few steps, so that faults that wait for a step strike while the job trains.
            report_every: (5 * scenario.latency[1]).max(Duration::from_millis(5)),
            progress: watch::channel(JobProgress::default()).0,
            interrupt: CancellationToken::new(),
        };
        Self {
            scenario,
            setting,
            trace,
            witness,
            tasks: FuturesUnordered::new(),
            alive: BTreeMap::new(),
            zombies: BTreeSet::new(),
            stopped: BTreeMap::new(),
            starts: BTreeMap::new(),
            faults: scenario.faults.clone(),
            returning: Vec::new(),
            trains: None,
            reached: Vec::new(),
            saves: Vec::new(),
            began: Instant::now(),
            lives: 1,
            began_life: Instant::now(),
            struck: 0,
            saved: 0,
            reported: 0,
            saved_at_loss: 0,
            lost_at_end: false,
            misled: false,
            excused: BTreeSet::new(),
            failed: None,
            chief_comes_back: false,
            drains: false,
            undrained: None,
            evaluated: false,
            job_end: None,
            second_end: None,
            twins: BTreeMap::new(),
            displaced: BTreeMap::new(),
            ended_well: BTreeSet::new(),
            let_go: BTreeSet::new(),
        }
    }

    /// Runs the job, and runs it again if it had to end and has checkpoints.
    async fn run(&mut self) -> Result<Held, String> {
        if self.scenario.evaluator {
            self.start(EVALUATOR);
        }
        self.live().await?;
        while self.must_live_again() {
            self.begin_life().await?;
            self.live().await?;
        }
        self.go_on(Self::is_quiet).await?;
        self.conclude().await
    }

    /// Returns whether the job ended early, as it may, and can go on from its checkpoints.
    fn must_live_again(&self) -> bool {
        let failed = !matches!(self.job_end, Some(Ok(Some(JobEnd::Completed(_)))));
        let lives = if self.scenario.second.is_empty() { 2 } else { 3 };
        let may_fail = self.may_fail() && self.scenario.save_steps.is_some();
        failed && may_fail && self.lives < lives
    }

    /// Returns whether the job may end before it is trained and reported.
    fn may_fail(&self) -> bool {
        self.scenario.expected == Expected::Ended || self.lost_at_end
    }

    /// Prepares another life of the job.
    async fn begin_life(&mut self) -> Result<(), String> {
        self.trace.add("AGAIN");
        self.lives += 1;
        self.began_life = Instant::now();
        self.trains = None;
        self.reached.clear();
        self.misled = false;
        self.chief_comes_back = false;
        self.saves.clear();
        self.setting.network.heal();
        self.setting.store.heal();
        self.witness.begin_life();
        self.twins.clear();
        self.displaced.clear();
        self.ended_well.clear();
        self.let_go.clear();
        // A chief that was stopped tells its own progress.
        self.setting.progress = watch::channel(JobProgress::default()).0;
        self.setting.interrupt = CancellationToken::new();
        self.faults = if self.lives == 2 { self.scenario.second.clone() } else { Vec::new() };
        // What still runs is stopped. The job is started again on other machines.
        self.zombies.extend(
            self.alive.iter().filter(|(task, _)| **task != EVALUATOR).map(|(task, alive)| (*task, alive.0)),
        );
        self.alive.retain(|task, _| *task == EVALUATOR);
        self.saved = self.reported.max(newest_step(&self.setting.store.files()).await?);
        // Tasks that wait for a chief may outlast the patience of the evaluator.
        if std::mem::take(&mut self.evaluated) {
            self.start(EVALUATOR);
        }
        Ok(())
    }

    /// Starts all tasks of the job, and waits until all have ended.
    async fn live(&mut self) -> Result<(), String> {
        self.job_end = None;
        let ps = (0..self.scenario.ps).map(TaskId::ps);
        let workers = (0..self.scenario.workers).map(TaskId::worker);
        let layout = self.scenario.layout;
        for task in ps.chain(workers).chain([TaskId::CHIEF]).filter(|&task| layout.host_of(task) == task) {
            self.start(task);
        }
        self.go_on(Self::is_over).await
    }

    /// Returns whether all tasks of the job have ended, or are stopped and are not waited for because the job
    /// will be started again.
    fn is_over(&self) -> bool {
        let again = self.must_live_again();
        let runs = |task: &TaskId| *task != EVALUATOR && !(again && self.setting.network.is_stopped(*task));
        !self.alive.keys().any(runs) && self.returning.iter().all(|(_, task)| *task == EVALUATOR)
    }

    /// Returns whether no task runs any more.
    fn is_quiet(&self) -> bool {
        self.alive.is_empty() && self.returning.is_empty() && self.zombies.is_empty()
    }

    /// Lets the tasks run and the faults happen until `done` returns true.
    async fn go_on(&mut self, done: fn(&Self) -> bool) -> Result<(), String> {
        let mut progress = self.setting.progress.subscribe();
        let mut healed = false;
        // Some faults are due at once.
        self.let_happen();
        while !done(self) {
            let due = self.due();
            tokio::select! {
                biased;
                Some(ended) = self.tasks.next() => self.ended(ended),
                Ok(()) = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    let step = now.global_step.0;
                    self.reported = self.reported.max(now.last_checkpoint.map_or(0, |name| name.step.0));
                    if now.running {
                        self.trains.get_or_insert_with(Instant::now);
                    }
                    let known = self.saves.len() as u64;
                    self.saves.extend((known..now.saves).map(|_| Instant::now()));
                    if self.reached.last().is_none_or(|&(last, _)| last < step) {
                        self.reached.push((step, Instant::now()));
                    }
                }
                () = sleep_until(due), if due > Instant::now() => {}
                () = sleep_until(self.began_life + HEALED), if !healed => {
                    healed = true;
                    self.faults.clear();
                    self.setting.network.heal();
                    self.setting.store.heal_early();
                }
                () = sleep_until(self.began_life + LIMIT) => return Err(self.hang()),
            }
            self.let_happen();
        }
        Ok(())
    }

    /// Returns the time of the next fault or return of a task.
    fn due(&self) -> Instant {
        let faults = self.faults.iter().filter_map(|(when, _)| self.time_of(*when));
        let returns = self.returning.iter().map(|&(at, _)| at);
        faults.chain(returns).min().unwrap_or(self.began_life + LIMIT)
    }

    /// Returns the time of a fault; `None` if the event that it waits for has not happened yet.
    fn time_of(&self, when: When) -> Option<Instant> {
        let event = match when.after {
            After::Start => Some(self.began_life),
            After::Begin => self.trains,
            After::Step(wanted) => self.reached.iter().find(|&&(step, _)| step >= wanted).map(|&(_, at)| at),
            After::Save(number) => self.saves.get(number as usize - 1).copied(),
        };
        event.map(|at| at + when.delay)
    }

    fn let_happen(&mut self) {
        let now = Instant::now();
        let (faults, later) = std::mem::take(&mut self.faults)
            .into_iter()
            .partition(|(when, _)| self.time_of(*when).is_some_and(|at| at <= now));
        self.faults = later;
        let faults: Vec<(When, Fault)> = faults;
        for (_, fault) in faults {
            self.strike(&fault);
        }
        let (back, later): (Vec<_>, _) =
            std::mem::take(&mut self.returning).into_iter().partition(|&(at, _)| at <= now);
        self.returning = later;
        for (_, task) in back {
            // A task whose job has ended is not started again.
            if self.job_end.is_none() || task == EVALUATOR {
                self.start(task);
            }
        }
    }

    fn strike(&mut self, fault: &Fault) {
        self.trace.add(format!("FAULT {fault:?}"));
        let progress = self.setting.progress.borrow().clone();
        self.struck += u32::from(progress.running && progress.global_step < progress.last_step);
        let network = &self.setting.network;
        let layout = self.scenario.layout;
        self.excused.extend(fault.excused(layout));
        match *fault {
            Fault::Stop(task, time, back) => {
                let host = layout.host_of(task);
                network.stop(task, time);
                self.stopped.extend(layout.tasks_on(host).into_iter().map(|task| (task, Instant::now())));
                self.returning.extend(back.map(|back| (Instant::now() + back, host)));
            }
            Fault::Store(trouble, time) => self.setting.store.trouble(trouble, time),
            Fault::Kill(task, back) => self.kill(layout.host_of(task), back),
            Fault::Hang(ps, shard) => network.hang(ps, shard),
            Fault::SecondChief => {
                self.misled = network.is_stopped(TaskId::CHIEF);
                self.start(SECOND_CHIEF);
            }
            Fault::Twin(worker) => {
                self.twins.insert(worker, None);
                self.start(twin(worker));
            }
            Fault::Stranger(worker) => self.start(stranger(worker)),
            // A worker does not join a job that has ended.
            Fault::Join(worker) if self.job_end.is_none() => self.start(worker),
            Fault::Join(_) => {}
            Fault::Clock(task, time) => network.set_clock(task, time),
            Fault::Interrupt => {
                self.drains |= progress.running && self.scenario.drains(self.lives);
                self.setting.interrupt.cancel();
            }
            Fault::Cut(one, other) => network.cut(one, other),
            Fault::Block(from, to, time) => network.block(from, to, time),
            Fault::Partition(one, other, time) => {
                network.block(one, other, time);
                network.block(other, one, time);
            }
        }
    }

    /// Kills a process, which is started again after a time, if there is one.
    fn kill(&mut self, host: TaskId, back: Option<Duration>) {
        let mut killed = Vec::new();
        for task in self.scenario.layout.tasks_on(host) {
            if let Some((_, kill)) = self.alive.remove(&task) {
                kill.abort();
                killed.push(task);
            }
        }
        if killed.is_empty() {
            return;
        }
        self.setting.network.kill(host);
        // A machine that was stopped is not waited for any more.
        self.returning.retain(|(_, returns)| *returns != host);
        if killed.contains(&TaskId::CHIEF) {
            self.chief_comes_back |= back.is_some();
            if back.is_none() {
                self.witness.chief_was_killed();
                self.job_end = Some(Err("the chief was killed".to_owned()));
            }
        }
        if killed.iter().any(|task| task.job == JobName::Ps) && back.is_some() {
            self.saved_at_loss = self.reported;
            let store = self.scenario.all_faults().any(|fault| matches!(fault, Fault::Store(..)));
            let trains = self.setting.progress.borrow().running;
            self.lost_at_end |= store && self.trains.is_some() && !trains;
        }
        self.returning.extend(back.map(|back| (Instant::now() + back, host)));
    }

    /// Starts all tasks of a process.
    fn start(&mut self, host: TaskId) {
        let tasks = self.scenario.layout.tasks_on(host);
        let starts = tasks.iter().map(|task| self.begin_start(*task)).max();
        for (task, running, kill) in self.setting.start(host, starts.unwrap_or_default()) {
            self.trace.add(format!("{task} starts"));
            self.tasks.push(running);
            self.alive.insert(task, (starts.unwrap_or_default(), kill));
        }
    }

    /// Records that a task starts. Returns how often it has started.
    fn begin_start(&mut self, task: TaskId) -> u64 {
        // A worker is refused while the chief believes that its earlier start is connected.
        if let Some((stopped, _)) = self.alive.remove(&task) {
            self.zombies.insert((task, stopped));
        }
        let recent = self.stopped.get(&task).is_some_and(|at| at.elapsed() < MISSED);
        let mut refused = recent && self.zombies.iter().any(|(zombie, _)| *zombie == task);
        // A worker that comes when the others have finished has nothing left to do.
        let progress = self.setting.progress.borrow().clone();
        refused |= self.starts.contains_key(&task) && progress.global_step >= progress.last_step;
        match refused {
            true => self.excused.insert(task),
            false => self.excused.remove(&task),
        };
        if task == TaskId::CHIEF {
            self.let_go.clone_from(&self.ended_well);
        }
        let start = self.starts.entry(task).or_default();
        *start += 1;
        *start
    }

    /// Closes the port that a task has shared, if no other task of its process runs any more.
    fn close_port(&self, task: TaskId) {
        let host = self.scenario.layout.host_of(task);
        let tasks = self.scenario.layout.tasks_on(host);
        if tasks.len() > 1 && !tasks.iter().any(|task| self.alive.contains_key(task)) {
            self.setting.network.close(host);
        }
    }

    fn ended(&mut self, (task, start, end): (TaskId, u64, Option<TaskEnd>)) {
        // A start that was killed is not alive any more.
        let Some(end) = end else { return };
        let is_zombie = self.zombies.remove(&(task, start));
        self.trace.add(match &end {
            Ok(_) => format!("{task} ends"),
            Err(error) => format!("{task} ends: {error}"),
        });
        if task == SECOND_CHIEF {
            self.alive.remove(&task);
            self.second_end = Some(end);
            return;
        }
        if is_zombie {
            return;
        }
        self.alive.remove(&task);
        self.close_port(task);
        let worker = identity_of(task);
        if worker != task {
            match self.twins.get_mut(&worker).filter(|_| task == twin(worker)) {
                Some(known) => *known = Some(end),
                None => self.failed = self.failed.take().or_else(|| end.err()),
            }
            return;
        }
        let over = self.job_end.is_some();
        match (task.job, &end) {
            // A chief that finds no store to write to is started again until it does.
            (JobName::Chief, Err(error)) if self.chief_comes_back && error.starts_with(NO_STORE) => {
                let host = self.scenario.layout.host_of(task);
                self.kill(host, None);
                self.returning.push((Instant::now() + BACK, host));
                return;
            }
            (JobName::Chief, _) => {
                self.job_end = Some(end.clone());
                if let (true, Err(error)) = (std::mem::take(&mut self.drains), &end) {
                    self.undrained
                        .get_or_insert_with(|| format!("the job was told to end, and failed: {error}"));
                }
                // Only the evaluator may wait for a store that hangs for ever.
                self.setting.store.heal();
            }
            (JobName::Evaluator, Ok(_)) => self.evaluated = self.job_end.is_some(),
            // An evaluator whose store fails for long ends, and is started again. So does one that is started
            // while the store fails.
            (JobName::Evaluator, Err(_)) if !self.scenario.saves_last() || start > 1 => {
                // It has waited long enough for a checkpoint that could not be saved.
                if !over {
                    self.returning.push((Instant::now() + BACK, task));
                }
                return;
            }
            _ => {}
        }
        // A worker that comes when the others have finished has nothing left to do.
        let again = start > 1 || self.scenario.joins(task) || self.twins.contains_key(&task);
        let late = matches!(&end, Err(error) if error.contains(TRAINED) || (again && error.ends_with(ENDED)));
        if let (Err(error), false) = (&end, over || late || self.excused.contains(&task)) {
            let error = format!("{task} ended: {error}");
            match self.twins.contains_key(&task) {
                true => drop(self.displaced.insert(task, error)),
                false => drop(self.failed.get_or_insert(error)),
            }
        }
        if end.is_ok() {
            self.ended_well.insert(task);
        }
    }

    /// Checks that of a worker and its twin one stays, whichever the chief decides, and the other ends with
    /// an error.
    fn check_twins(&self) -> Result<(), String> {
        for (worker, end) in &self.twins {
            let stays = matches!(end, Some(Ok(_)));
            if let Some(error) = self.displaced.get(worker).filter(|_| !stays) {
                return Err(format!("{error}, although its twin did not stay"));
            }
            // A worker that an earlier run of the chief has let go leaves its place to the other one.
            if stays && self.ended_well.contains(worker) && !self.let_go.contains(worker) {
                return Err(format!("{worker} and its twin both stayed"));
            }
        }
        Ok(())
    }

    /// Returns whether all workers had ended well when the chief was started again.
    fn was_over(&self) -> bool {
        let over = |index| self.let_go.contains(&TaskId::worker(index));
        self.chief_comes_back && (0..self.scenario.workers).all(over)
    }

    fn hang(&self) -> String {
        let zombies = self.zombies.iter().map(|(task, _)| task);
        let alive: Vec<_> = self.alive.keys().chain(zombies).map(ToString::to_string).collect();
        format!("still running after {LIMIT:?} of virtual time: {}", alive.join(", "))
    }

    async fn conclude(&self) -> Result<Held, String> {
        let end = self.job_end.clone().expect("the chief has ended");
        let report: Option<JobReport> = match end {
            Ok(Some(JobEnd::Completed(report))) => Some(report),
            Ok(other) => return Err(format!("the job ended as {other:?}")),
            // The chief was killed when the job was trained, saved and reported, and some tasks had ended.
            Err(error) if self.chief_comes_back && self.witness.saw_end() && error.contains(MISSING) => None,
            // The chief was killed just after it had let its workers go.
            Err(error) if self.was_over() && error.starts_with(NO_WORKER) => None,
            // All workers have dialled again, and have reached the second chief.
            Err(error) if self.misled && error.starts_with(NO_WORKER) => None,
            Err(error) if !self.may_fail() || self.lives > 1 => {
                return Err(format!("the job failed: {error}"));
            }
            // If the lost host ran the only worker, the error may be about that.
            Err(error) if self.scenario.workers == 1 && error.starts_with(NO_WORKER) => None,
            Err(error) => match self.scenario.loses_host().filter(|ps| !names_host(&error, *ps)) {
                Some(ps) => return Err(format!("lost {ps}, but the error does not say so: {error}")),
                None => None,
            },
        };
        if let Some(report) = &report {
            self.check_report(report).await?;
        }
        if let Some(failed) = &self.undrained {
            return Err(failed.clone());
        }
        let comes_back = self.chief_comes_back && self.witness.saw_end();
        let cut_short = report.is_none() && (comes_back || self.misled || self.was_over());
        if let (false, Some(failed), false) = (self.may_fail(), &self.failed, cut_short) {
            return Err(failed.clone());
        }
        if report.is_some() && !self.may_fail() {
            self.check_twins()?;
        }
        match &self.second_end {
            // It may train the job if the first chief was killed before its workers had begun.
            Some(Ok(Some(JobEnd::Completed(report)))) if !self.scenario.keeps_chief() => {
                check(self.scenario, report)?;
            }
            Some(Ok(end)) => return Err(format!("the second chief ended as {end:?}")),
            _ => {}
        }
        if let Some(fault) = self.witness.fault() {
            return Err(fault);
        }
        // A chief that was stopped may commit a checkpoint whose files its successor has deleted.
        let stops = |fault: &Fault| matches!(fault, Fault::Stop(TaskId::CHIEF, ..));
        let may_break = self.lives > 1 && self.scenario.all_faults().any(stops);
        check_store(&self.setting.store.files(), may_break).await?;
        Ok(Held {
            trained: report.is_some(),
            struck: self.struck,
            rolled_back: self.witness.saw_rollback(),
            events: self.trace.take(),
            variables: report.map(|report| report.evaluation.variables_crc32c),
            took: self.began.elapsed(),
        })
    }

    /// Checks what the report says, and that the job went on from the last checkpoint.
    async fn check_report(&self, report: &JobReport) -> Result<(), String> {
        check(self.scenario, report)?;
        self.witness.check(report)?;
        if self.evaluated {
            check_evaluated(self.scenario, &self.setting.store.files(), report).await?;
        }
        let began = report.shards.iter().map(|(_, shard)| shard.began.0).min().unwrap_or_default();
        if self.witness.saw_rollback() && began < self.saved_at_loss && self.lives == 1 {
            let saved = self.saved_at_loss;
            return Err(format!("rolled back to step {began}, but step {saved} was saved"));
        }
        if self.lives > 1 && began < self.saved {
            return Err(format!("resumed from step {began}, but step {} was saved", self.saved));
        }
        Ok(())
    }
}

/// Returns whether an error names a ps task that a worker hosts. A host that is lost before the training
/// begins is missed as a worker.
fn names_host(error: &str, ps: TaskId) -> bool {
    [ps, TaskId::worker(ps.index)].iter().any(|task| error.contains(&task.to_string()))
}
