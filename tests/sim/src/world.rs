//! Runs a scenario: starts the tasks, lets the faults happen, and checks what comes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::AbortHandle;
use futures_util::stream::FuturesUnordered;
use object_store::memory::InMemory;
use pushpull_chief::{JobEnd, JobProgress, JobReport};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_storage::Stores;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::host::{Running, SECOND_CHIEF, Setting, TaskEnd};
use crate::invariants::check;
use crate::job::job;
use crate::network::Network;
use crate::scenario::{Expected, Fault, Scenario, When};
use crate::trace::{Event, Trace, story};

/// The virtual time within which a scenario must end. The longest wait of a task is the one for a task that
/// never starts, 300 s.
const LIMIT: Duration = Duration::from_secs(1200);
/// The virtual time after which all faults are over: the network is whole, and nothing is killed any more.
const HEALED: Duration = Duration::from_secs(120);

/// What came of a scenario that held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether the job was trained.
    pub trained: bool,
    /// The number of faults that struck while the job trained.
    pub struck: u32,
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
    tasks: FuturesUnordered<Running>,
    /// The current start of each task, and the handle that kills it; absent if the task does not run.
    alive: BTreeMap<TaskId, (u64, AbortHandle)>,
    starts: BTreeMap<TaskId, u64>,
    /// The faults to come.
    faults: Vec<(When, Fault)>,
    /// The tasks to start again, and when.
    returning: Vec<(Instant, TaskId)>,
    /// When the job was first seen to have reached each step.
    reached: Vec<(u64, Instant)>,
    began: Instant,
    /// The number of times that the whole job was started, and when it was started last.
    lives: u32,
    began_life: Instant,
    struck: u32,
    /// The newest checkpoint that was seen.
    saved: u64,
    /// The first task that ended with an error.
    failed: Option<String>,
    job_end: Option<TaskEnd>,
    /// The end of the second chief.
    second_end: Option<TaskEnd>,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, trace: Trace) -> Self {
        let addresses = |job: JobName, count: u32| {
            (job, (0..count).map(|index| format!("{job}{index}:1")).collect::<Vec<_>>())
        };
        let cluster = ClusterSpec::new([
            addresses(JobName::Chief, 1),
            addresses(JobName::Ps, scenario.ps),
            addresses(JobName::Worker, scenario.workers),
        ]);
        let network = Network::new(scenario.seed, scenario.latency, trace.clone());
        let setting = Setting {
            cluster: cluster.expect("a valid cluster"),
            job: job(scenario),
            shards: scenario.shards,
            network,
            stores: Stores::all_in(Arc::new(InMemory::new())),
            save_steps: scenario.save_steps,
            // A report every few steps, so that faults that wait for a step strike while the job trains.
            report_every: (5 * scenario.latency[1]).max(Duration::from_millis(5)),
            progress: watch::channel(JobProgress::default()).0,
        };
        Self {
            scenario,
            setting,
            trace,
            tasks: FuturesUnordered::new(),
            alive: BTreeMap::new(),
            starts: BTreeMap::new(),
            faults: scenario.faults.clone(),
            returning: Vec::new(),
            reached: Vec::new(),
            began: Instant::now(),
            lives: 1,
            began_life: Instant::now(),
            struck: 0,
            saved: 0,
            failed: None,
            job_end: None,
            second_end: None,
        }
    }

    /// Runs the job, and runs it again if it had to end and has checkpoints.
    async fn run(&mut self) -> Result<Held, String> {
        self.live().await?;
        let failed = !matches!(self.job_end, Some(Ok(_)));
        if failed && self.scenario.expected == Expected::Ended && self.scenario.save_steps.is_some() {
            self.trace.add("AGAIN");
            self.faults.clear();
            self.setting.network.heal();
            self.lives += 1;
            self.began_life = Instant::now();
            self.live().await?;
        }
        self.conclude()
    }

    /// Starts all tasks, and waits until all have ended.
    async fn live(&mut self) -> Result<(), String> {
        self.job_end = None;
        let ps = (0..self.scenario.ps).map(TaskId::ps);
        let workers = (0..self.scenario.workers).map(TaskId::worker);
        for task in ps.chain(workers).chain([TaskId::CHIEF]) {
            self.start(task);
        }
        let mut progress = self.setting.progress.subscribe();
        let mut healed = false;
        while !self.alive.is_empty() || !self.returning.is_empty() {
            let due = self.due();
            tokio::select! {
                biased;
                Some(ended) = self.tasks.next() => self.ended(ended),
                Ok(()) = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    let step = now.global_step.0;
                    // The second start must not begin before the last save of the first one.
                    if self.lives == 1 {
                        self.saved = self.saved.max(now.last_checkpoint.map_or(0, |name| name.step.0));
                    }
                    if self.reached.last().is_none_or(|&(last, _)| last < step) {
                        self.reached.push((step, Instant::now()));
                    }
                }
                () = sleep_until(due), if due > Instant::now() => {}
                () = sleep_until(self.began_life + HEALED), if !healed => {
                    healed = true;
                    self.faults.clear();
                    self.setting.network.heal();
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

    /// Returns the time of a fault; `None` if the job has not reached its step yet.
    fn time_of(&self, when: When) -> Option<Instant> {
        let Some(wanted) = when.step else { return Some(self.began + when.delay) };
        let reached = self.reached.iter().find(|&&(step, _)| step >= wanted);
        reached.map(|&(_, at)| at + when.delay)
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
            if self.job_end.is_none() {
                self.start(task);
            }
        }
    }

    fn strike(&mut self, fault: &Fault) {
        self.trace.add(format!("FAULT {fault:?}"));
        let progress = self.setting.progress.borrow().clone();
        self.struck += u32::from(progress.running && progress.global_step < progress.last_step);
        let network = &self.setting.network;
        match *fault {
            Fault::Kill(task, back) => {
                if let Some((_, kill)) = self.alive.remove(&task) {
                    kill.abort();
                    network.kill(task);
                    if task == TaskId::CHIEF {
                        self.job_end = Some(Err("the chief was killed".to_owned()));
                    }
                    self.returning.extend(back.map(|back| (Instant::now() + back, task)));
                }
            }
            Fault::SecondChief => self.start(SECOND_CHIEF),
            Fault::Cut(one, other) => network.cut(one, other),
            Fault::Block(from, to, time) => network.block(from, to, time),
            Fault::Partition(one, other, time) => {
                network.block(one, other, time);
                network.block(other, one, time);
            }
        }
    }

    fn start(&mut self, task: TaskId) {
        let start = self.starts.entry(task).or_default();
        *start += 1;
        self.trace.add(format!("{task} starts"));
        let (running, kill) = self.setting.start(task, *start);
        self.tasks.push(running);
        self.alive.insert(task, (*start, kill));
    }

    fn ended(&mut self, (task, start, end): (TaskId, u64, Option<TaskEnd>)) {
        // A start that was killed is not alive any more.
        let Some(end) = end else { return };
        if self.alive.get(&task).is_some_and(|&(current, _)| current == start) {
            self.alive.remove(&task);
        }
        self.trace.add(match &end {
            Ok(_) => format!("{task} ends"),
            Err(error) => format!("{task} ends: {error}"),
        });
        if task == SECOND_CHIEF {
            self.second_end = Some(end);
            return;
        }
        // When the chief has ended, a worker whose last reply was lost cannot learn how the job ended.
        if let (Err(error), None) = (&end, &self.job_end) {
            self.failed.get_or_insert_with(|| format!("{task} ended: {error}"));
        }
        if task == TaskId::CHIEF {
            self.job_end = Some(end);
        }
    }

    fn hang(&self) -> String {
        let alive: Vec<_> = self.alive.keys().map(ToString::to_string).collect();
        format!("still running after {LIMIT:?} of virtual time: {}", alive.join(", "))
    }

    fn conclude(&self) -> Result<Held, String> {
        let end = self.job_end.clone().expect("the chief has ended");
        let report: Option<JobReport> = match end {
            Ok(Some(JobEnd::Completed(report))) => Some(report),
            Ok(other) => return Err(format!("the job ended as {other:?}")),
            Err(error) if self.scenario.expected == Expected::Trained || self.lives > 1 => {
                return Err(format!("the job failed: {error}"));
            }
            Err(_) => None,
        };
        if let Some(report) = &report {
            check(self.scenario, report)?;
            let began = report.shards.iter().map(|(_, shard)| shard.began.0).min().unwrap_or_default();
            if self.lives > 1 && began < self.saved {
                return Err(format!("resumed from step {began}, but step {} was saved", self.saved));
            }
        }
        if let (true, Some(failed)) = (self.scenario.loses_no_task(), &self.failed) {
            return Err(failed.clone());
        }
        match &self.second_end {
            // It may train the job if the first chief was killed before its workers had begun.
            Some(Ok(Some(JobEnd::Completed(report)))) if !self.scenario.keeps_chief() => {
                check(self.scenario, report)?;
            }
            Some(Ok(end)) => return Err(format!("the second chief ended as {end:?}")),
            _ => {}
        }
        Ok(Held {
            trained: report.is_some(),
            struck: self.struck,
            events: self.trace.take(),
            variables: report.map(|report| report.evaluation.variables_crc32c),
            took: self.began.elapsed(),
        })
    }
}
