//! A scenario: the size of a cluster, its job, and the faults that happen to it. All of it follows from a
//! seed.

use std::fmt;
use std::time::Duration;

use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::sync::SyncSpec;

use crate::random::Random;

/// A fault of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kills a task. It is started again after a time, if there is one.
    Kill(TaskId, Option<Duration>),
    /// Breaks the links between two tasks.
    Cut(TaskId, TaskId),
    /// Holds everything that the first task sends to the second for a time.
    Block(TaskId, TaskId, Duration),
    /// Holds everything between two tasks for a time.
    Partition(TaskId, TaskId, Duration),
    /// Starts a second chief of the same job. If the first one runs, it listens at an address of its own.
    SecondChief,
}

/// The time after which a partition makes a task give up its peer: the silence after which a connection
/// counts as broken, and the time for which it is dialled again.
const LOST_AFTER: Duration = Duration::from_secs(30);

impl Fault {
    /// Returns whether the fault separates two tasks for so long that one of them gives up the other.
    fn is_long(&self) -> bool {
        matches!(self, Self::Block(.., time) | Self::Partition(.., time) if *time >= LOST_AFTER)
    }
}

/// When a fault happens: a time after the job has reached a step, or after its start if there is no step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The step that the workers have reported.
    pub step: Option<u64>,
    /// The time after that.
    pub delay: Duration,
}

/// What the end of a scenario must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The job is trained to its last step.
    Trained,
    /// All tasks end, with or without a trained job. If the job makes checkpoints, it is then started again,
    /// and trained to its last step.
    Ended,
}

/// A simulated job with its faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed from which everything follows.
    pub seed: u64,
    /// The number of ps tasks.
    pub ps: u32,
    /// The number of shards of each ps task.
    pub shards: u32,
    /// The number of workers.
    pub workers: u32,
    /// The synchronisation policy.
    pub sync: SyncSpec,
    /// The number of updates.
    pub steps: u64,
    /// Whether two runs must end with the same bits.
    pub deterministic: bool,
    /// The number of steps between two checkpoints; `None` if the job makes none.
    pub save_steps: Option<u64>,
    /// The least and the greatest latency of the network.
    pub latency: [Duration; 2],
    /// The faults, each with its time.
    pub faults: Vec<(When, Fault)>,
    /// What must come of it.
    pub expected: Expected,
}

impl Scenario {
    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let (ps, shards) = (random.between(1, 3) as u32, random.between(1, 2) as u32);
        let workers = random.between(1, 4) as u32;
        let steps = random.between(3, 25);
        let sync = match random.between(0, 4) {
            0 => SyncSpec::ASYNC,
            1 => SyncSpec::Bounded { staleness: random.between(0, 3) as u32 },
            2 => SyncSpec::Sync { aggregate: Some(random.between(1, u64::from(workers) + 2) as u32) },
            _ => SyncSpec::SYNC,
        };
        let least = Duration::from_micros(random.between(20, 5000));
        let latency = [least, least * random.between(1, 8) as u32];
        let deterministic = sync == SyncSpec::SYNC && random.one_in(2);
        let save_steps = random.one_in(2).then(|| random.between(1, 5));
        let (faults, expected) = (Vec::new(), Expected::Trained);
        let mut scenario = Self {
            seed,
            ps,
            shards,
            workers,
            sync,
            steps,
            deterministic,
            save_steps,
            latency,
            faults,
            expected,
        };
        // One worker stays, so that the job has a worker at any time.
        let survivor = random.between(0, u64::from(workers) - 1) as u32;
        for _ in 0..random.between(0, 4) {
            let fault = scenario.fault(random, survivor);
            scenario.faults.push(fault);
        }
        // One scenario in four loses a task that the job cannot do without.
        if random.one_in(4) {
            let lost = match random.between(0, u64::from(ps)) {
                0 => TaskId::CHIEF,
                index => TaskId::ps(index as u32 - 1),
            };
            let when = scenario.when(random, false);
            scenario.faults.push((when, Fault::Kill(lost, None)));
            scenario.expected = Expected::Ended;
        }
        let second = scenario.second_chief(random).map(|when| (when, Fault::SecondChief));
        scenario.faults.extend(second);
        scenario
    }

    /// Returns the same scenario without its faults.
    #[must_use]
    pub fn undisturbed(&self) -> Self {
        Self { faults: Vec::new(), expected: Expected::Trained, ..self.clone() }
    }

    /// Returns whether the job must end with the bits of the undisturbed job: all of its workers push
    /// gradients from the first step to the last.
    pub fn keeps_bits(&self) -> bool {
        let leaves = |fault: &Fault| match fault {
            Fault::Kill(task, _) => task.job == JobName::Worker,
            other => other.is_long(),
        };
        self.deterministic && !self.faults.iter().any(|(_, fault)| leaves(fault))
    }

    /// Returns whether every task must end without an error.
    pub fn loses_no_task(&self) -> bool {
        let harmless = |fault: &Fault| !matches!(fault, Fault::Kill(..)) && !fault.is_long();
        self.faults.iter().all(|(_, fault)| harmless(fault))
    }

    /// Returns whether the chief is never killed.
    pub fn keeps_chief(&self) -> bool {
        !self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Kill(TaskId::CHIEF, _)))
    }

    /// Returns a random fault that the job must survive.
    fn fault(&self, random: &mut Random, survivor: u32) -> (When, Fault) {
        let worker = TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32);
        let ps = TaskId::ps(random.between(0, u64::from(self.ps) - 1) as u32);
        let pairs = [(worker, ps), (worker, TaskId::CHIEF), (TaskId::CHIEF, ps)];
        let (mut one, mut other) = pairs[random.between(0, 2) as usize];
        if random.one_in(2) {
            (one, other) = (other, one);
        }
        // Shorter than any time after which a peer counts as lost.
        let time = Duration::from_millis(random.between(1, 2000));
        let fault = match random.between(0, 4) {
            0 if worker.index != survivor => {
                let back = (!random.one_in(3)).then(|| Duration::from_millis(random.between(1, 5000)));
                Fault::Kill(worker, back)
            }
            1 => Fault::Block(one, other, time),
            2 => Fault::Partition(one, other, time),
            // The worker leaves when it can no longer reach its ps task, and the others finish the job.
            3 if worker.index != survivor => {
                Fault::Partition(worker, ps, LOST_AFTER + Duration::from_millis(random.between(0, 60_000)))
            }
            _ => Fault::Cut(one, other),
        };
        // A worker that is killed for good before the job begins is missed, and the job then fails.
        let begun = matches!(fault, Fault::Kill(_, None)) || fault.is_long();
        (self.when(random, begun), fault)
    }

    /// Returns when a second chief is started, if one is: while the job trains, or after the first chief was
    /// killed, as a scheduler starts it again.
    fn second_chief(&self, random: &mut Random) -> Option<When> {
        match self.faults.iter().find(|(_, fault)| matches!(fault, Fault::Kill(TaskId::CHIEF, _))) {
            Some(&(when, _)) => random.one_in(2).then(|| {
                let later = Duration::from_millis(random.between(1, 20_000));
                When { delay: when.delay + later, ..when }
            }),
            None => random.one_in(8).then(|| self.when(random, true)),
        }
    }

    /// Returns a random time: one after the job has begun if `begun` is true.
    fn when(&self, random: &mut Random, begun: bool) -> When {
        let step = (begun || random.one_in(2)).then(|| random.between(1, self.steps));
        let rounds = random.between(0, if step.is_some() { 6 } else { 40 });
        let delay = self.latency[1] * rounds as u32 + Duration::from_micros(random.between(0, 999));
        When { step, delay }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, ps, shards, workers, sync, steps, latency: [least, most], .. } = self;
        writeln!(
            f,
            "seed {seed}: {ps} ps with {shards} shard(s), {workers} worker(s), {sync}, {steps} updates, latency {least:?} to {most:?}"
        )?;
        if self.deterministic {
            writeln!(f, "  deterministic")?;
        }
        if let Some(steps) = self.save_steps {
            writeln!(f, "  a checkpoint every {steps} step(s)")?;
        }
        for (When { step, delay }, fault) in &self.faults {
            let after = step.map_or("the start".to_owned(), |step| format!("step {step}"));
            writeln!(f, "  {delay:?} after {after}: {fault:?}")?;
        }
        write!(f, "  expected: {:?}", self.expected)
    }
}
