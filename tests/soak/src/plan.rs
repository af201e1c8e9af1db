//! The plan of one job: the cluster, the settings of the job, and how much happens to it. All of it follows
//! from a seed.

use std::fmt;
use std::time::Duration;

use pushpull_messages::sync::SyncSpec;

use crate::random::Random;

/// The plan of a job.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which everything follows, as far as it does not depend on the speed of the machine.
    pub seed: u64,
    /// The number of ps tasks.
    pub ps: u32,
    /// The number of shards of each ps task.
    pub shards: u32,
    /// The number of workers.
    pub workers: u32,
    /// The synchronisation policy.
    pub sync: SyncSpec,
    /// Whether the job must end with the bits of the same job undisturbed.
    pub deterministic: bool,
    /// The number of updates.
    pub steps: u64,
    /// The number of steps between two checkpoints; `None` if the job makes none.
    pub save_steps: Option<u64>,
    /// The time that the network takes in each direction.
    pub latency: Duration,
    /// The number of faults. When all of them have happened, the job is left alone.
    pub faults: u32,
    /// Whether all processes are started by `pushpull local`, on a network that is good.
    pub local: bool,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let workers = random.between(1, 4) as u32;
        let (sync, deterministic) = match random.between(0, 5) {
            0 => (SyncSpec::ASYNC, false),
            1 => (SyncSpec::Bounded { staleness: random.between(0, 3) as u32 }, false),
            2 => (SyncSpec::Sync { aggregate: Some(random.between(1, u64::from(workers)) as u32) }, false),
            3 => (SyncSpec::SYNC, false),
            _ => (SyncSpec::SYNC, true),
        };
        Self {
            seed,
            ps: random.between(1, 3) as u32,
            shards: random.between(1, 2) as u32,
            workers,
            sync,
            deterministic,
            steps: random.between(200, 1500),
            save_steps: (!random.one_in(6)).then(|| random.between(5, 100)),
            latency: Duration::from_micros(random.between(0, 1500)),
            faults: random.between(2, 10) as u32,
            local: random.one_in(5),
        }
    }

    /// Returns the same plan without anything that disturbs the job.
    pub fn undisturbed(&self) -> Self {
        Self { faults: 0, latency: Duration::ZERO, local: false, ..self.clone() }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, ps, shards, workers, sync, steps, latency, faults, .. } = self;
        write!(
            f,
            "seed {seed}: {ps} ps with {shards} shard(s), {workers} worker(s), {sync}, {steps} updates"
        )?;
        if self.deterministic {
            f.write_str(", deterministic")?;
        }
        if let Some(steps) = self.save_steps {
            write!(f, ", a checkpoint every {steps}")?;
        }
        match self.local {
            true => f.write_str(", by `pushpull local`")?,
            false => write!(f, ", latency {latency:?}")?,
        }
        write!(f, ", {faults} fault(s)")
    }
}
