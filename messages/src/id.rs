//! Newtypes for every id and every kind of step. Because each has a type of its own, the compiler rejects
//! code that uses one kind in place of another.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::job_name::{JOB_NAME_BYTES_MAX, JobLabel, JobName, JobNameError, UnknownJob};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl $name {
            /// Returns the id or step that follows this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

number!(
    /// The number of an incarnation of a task. A task begins a new incarnation when its process starts. A
    /// worker also begins one without a restart, when it registers again because its job has rolled back.
    Incarnation(u64)
);

impl Incarnation {
    /// The difference between the numbers of two successive incarnations of the same process: 2^52 µs, or
    /// about 142 years.
    const AGAIN: u64 = 1 << 52;

    /// Returns the next incarnation of the same process. When a process starts, its incarnation takes its
    /// number from the clock, in microseconds since 1970. The number returned here is about 142 years later,
    /// so no process that starts takes the same number.
    #[must_use]
    pub const fn again(self) -> Self {
        Self(self.0.wrapping_add(Self::AGAIN))
    }

    /// Returns the time at which the process was started, in microseconds since 1970. The result is correct
    /// only if the first incarnation of the process took its number from the clock.
    pub const fn started_us(self) -> u64 {
        self.0 % Self::AGAIN
    }
}

number!(
    /// The sequence number of a push within one incarnation of a worker, starting at 1.
    Sequence(u64)
);
number!(
    /// A step of one worker: the number of steps that the worker has taken.
    LocalStep(u64)
);
number!(
    /// A step of the job: the number of updates that the job has applied.
    GlobalStep(u64)
);
number!(
    /// A version of a shard: the number of updates that the shard has applied.
    Version(u64)
);
number!(
    /// The epoch of a placement: a number that increases whenever slices move to other shards.
    PlacementEpoch(u64)
);
number!(
    /// The id of a request on one connection; the reply to the request carries the same id.
    RequestId(u64)
);
number!(
    /// The position of a variable in the graph's list of variables.
    VariableId(u32)
);
number!(
    /// The position of a slice in the placement's list of slices.
    SliceId(u32)
);
number!(
    /// The position of a node in the graph's list of nodes.
    NodeId(u32)
);

impl VariableId {
    /// Returns the id as an index into the graph's variables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl SliceId {
    /// Returns the id as an index into the placement's slices.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// Returns the id as an index into the graph's nodes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id of a task, such as `worker/1`: its role, and its index among the tasks of this role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The role.
    pub job: JobName,
    /// The position of the task in the job's list of addresses, from 0.
    pub index: u32,
}

impl TaskId {
    /// Returns the id of task `index` of `job`.
    pub const fn new(job: JobName, index: u32) -> Self {
        Self { job, index }
    }

    /// Returns the id of a ps task.
    pub const fn ps(index: u32) -> Self {
        Self::new(JobName::Ps, index)
    }

    /// Returns the id of a worker.
    pub const fn worker(index: u32) -> Self {
        Self::new(JobName::Worker, index)
    }

    /// The id of the chief; a cluster has at most one.
    pub const CHIEF: Self = Self::new(JobName::Chief, 0);
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}

/// The id of a shard, such as `ps/0/shard/1`. A shard is an actor that owns slices of variables; each ps
/// task runs one or more shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// The index of the ps task.
    pub ps: u32,
    /// The index of the shard in the task.
    pub shard: u32,
}

impl ShardId {
    /// Returns the id of shard `shard` of ps task `ps`.
    pub const fn new(ps: u32, shard: u32) -> Self {
        Self { ps, shard }
    }

    /// Returns the task that runs the shard.
    pub const fn task(self) -> TaskId {
        TaskId::ps(self.ps)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ps/{}/shard/{}", self.ps, self.shard)
    }
}
