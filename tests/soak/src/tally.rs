//! Counts what happened to all jobs, and prints it as a table.

use std::fmt;

use pushpull_messages::id::{JobName, TaskId};

use crate::fault::Fault;
use crate::losses::Counts;

/// What happened to one job or to all jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happened {
    /// The number of times that all tasks were started.
    pub lives: u64,
    /// For chief, ps and workers: the number of times that a task was started again alone.
    pub alone: [u64; 3],
    /// The number of times that a job rolled back to a checkpoint.
    pub rollbacks: u64,
    /// The number of times that a lost ps came back with its variables.
    pub resumptions: u64,
    /// The number of jobs whose bits were compared.
    pub bits: u64,
    /// The most memory that a process has used, in bytes.
    pub memory_bytes: u64,
    /// For chief, ps and workers: the number of times that a task was killed.
    killed: [u64; 3],
    terminated: [u64; 3],
    paused: [u64; 3],
    cuts: u64,
    stalls: u64,
}

/// Returns the place of a task in a count for chief, ps and workers.
const fn of(task: TaskId) -> usize {
    match task.job {
        JobName::Chief => 0,
        JobName::Ps => 1,
        JobName::Worker | JobName::Evaluator | JobName::Other(_) => 2,
    }
}

impl Happened {
    /// Counts a task that was started again alone.
    pub const fn returned(&mut self, task: TaskId) {
        self.alone[of(task)] += 1;
    }

    /// Counts how often the job has survived the loss of a ps task, according to the log of its chief.
    pub fn count_survived(&mut self, log: &str) {
        self.rollbacks = log.matches("rolling the job back to its latest checkpoint").count() as u64;
        self.resumptions = log.matches("all ps tasks are back with their variables").count() as u64;
    }

    /// Counts a fault.
    pub fn count(&mut self, fault: &Fault) {
        match *fault {
            Fault::Kill(task) => self.killed[of(task)] += 1,
            Fault::Terminate(task) => self.terminated[of(task)] += 1,
            Fault::Pause(task, _) => self.paused[of(task)] += 1,
            Fault::Cut(_) => self.cuts += 1,
            Fault::Stall(..) => self.stalls += 1,
        }
    }

    /// Returns the number of faults.
    pub fn faults(&self) -> u32 {
        let tasks = [self.killed, self.terminated, self.paused].into_iter().flatten().sum::<u64>();
        (tasks + self.cuts + self.stalls) as u32
    }

    fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.rollbacks += other.rollbacks;
        self.resumptions += other.resumptions;
        self.bits += other.bits;
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        for (sum, more) in [
            (&mut self.killed, &other.killed),
            (&mut self.terminated, &other.terminated),
            (&mut self.paused, &other.paused),
            (&mut self.alone, &other.alone),
        ] {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        self.cuts += other.cuts;
        self.stalls += other.stalls;
    }
}

/// The counts of all jobs.
#[derive(Debug, Default)]
pub struct Tally {
    jobs: u64,
    happened: Happened,
    counts: Counts,
    /// The seeds of the jobs that have lost something.
    pub failed: Vec<u64>,
}

impl Tally {
    /// Adds a job.
    pub fn add(&mut self, happened: &Happened, counts: Counts) {
        self.jobs += 1;
        self.happened.add(happened);
        self.counts.updates += counts.updates;
        self.counts.pushes += counts.pushes;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Happened { lives, alone, rollbacks, resumptions, bits, memory_bytes, .. } = self.happened;
        let Happened { killed, terminated, paused, cuts, stalls, .. } = self.happened;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display| {
            writeln!(f, "{name:36} {value}")
        };
        let roles = |[chief, ps, worker]: [u64; 3]| format!("{chief} chief, {ps} ps, {worker} worker");
        row(f, "jobs", &self.jobs)?;
        row(f, "killed", &roles(killed))?;
        row(f, "told to end", &roles(terminated))?;
        row(f, "stopped for a time", &roles(paused))?;
        row(f, "connections to a task cut", &cuts)?;
        row(f, "network stood still", &stalls)?;
        row(f, "jobs started again", &(lives.saturating_sub(self.jobs)))?;
        row(f, "tasks started again alone", &roles(alone))?;
        row(f, "rolled back to a checkpoint", &rollbacks)?;
        row(f, "ps lost, but back with its variables", &resumptions)?;
        row(f, "updates of the last starts", &self.counts.updates)?;
        row(f, "pushes of the last starts", &self.counts.pushes)?;
        row(f, "jobs with the bits of an undisturbed", &bits)?;
        row(f, "most memory of a process", &format!("{} MiB", memory_bytes.div_ceil(1024 * 1024)))?;
        match self.failed.as_slice() {
            [] => write!(f, "{:36} nothing", "lost"),
            failed => write!(f, "{:36} seeds {failed:?}", "LOST"),
        }
    }
}
