//! Newtypes for every id and every kind of step, so that two of them cannot be mixed up.
//! Knows nothing of messages, bytes or policies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
            /// The one that follows.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

number!(
    /// One life of a task: a task that is started again has another incarnation.
    Incarnation(u64)
);
number!(
    /// The number of a push within one worker's incarnation, starting at 1.
    Sequence(u64)
);
number!(
    /// The step, counted by one worker, at which a gradient was computed.
    LocalStep(u64)
);
number!(
    /// The job's step: how many updates the job has applied.
    GlobalStep(u64)
);
number!(
    /// How many updates one shard has applied.
    Version(u64)
);
number!(
    /// Goes up each time that slices move to other shards.
    PlacementEpoch(u64)
);
number!(
    /// Names a request within one connection; its reply bears the same number.
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
    /// As an index into the graph's variables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl SliceId {
    /// As an index into the placement's slices.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// As an index into the graph's nodes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a task is for. `master`, an older spelling, is read as the chief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobName {
    /// Decides for the whole job, and carries no tensors.
    Chief,
    /// Holds variables.
    Ps,
    /// Computes gradients.
    Worker,
    /// Evaluates beside the training, and is not part of the cluster that trains.
    Evaluator,
}

impl JobName {
    /// Every job, in the order in which a cluster is written down.
    pub const ALL: [Self; 4] = [Self::Chief, Self::Ps, Self::Worker, Self::Evaluator];

    /// The word that stands for it in a cluster spec.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chief => "chief",
            Self::Ps => "ps",
            Self::Worker => "worker",
            Self::Evaluator => "evaluator",
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown job '{0}': expected chief, ps, worker or evaluator")]
pub struct UnknownJob(pub String);

impl FromStr for JobName {
    type Err = UnknownJob;

    fn from_str(text: &str) -> Result<Self, UnknownJob> {
        match text {
            "chief" | "master" => Ok(Self::Chief),
            "ps" => Ok(Self::Ps),
            "worker" => Ok(Self::Worker),
            "evaluator" => Ok(Self::Evaluator),
            other => Err(UnknownJob(other.to_owned())),
        }
    }
}

/// One process of the cluster, written `worker/1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// What it is for.
    pub job: JobName,
    /// Its position in the job's list of addresses.
    pub index: u32,
}

impl TaskId {
    /// The task `index` of `job`.
    pub const fn new(job: JobName, index: u32) -> Self {
        Self { job, index }
    }

    /// A ps task.
    pub const fn ps(index: u32) -> Self {
        Self::new(JobName::Ps, index)
    }

    /// A worker task.
    pub const fn worker(index: u32) -> Self {
        Self::new(JobName::Worker, index)
    }

    /// The one chief.
    pub const CHIEF: Self = Self::new(JobName::Chief, 0);
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}

/// A ps actor that owns slices, written `ps/0/shard/1`; a ps task runs one or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// The index of the ps task.
    pub ps: u32,
    /// The shard within that task.
    pub shard: u32,
}

impl ShardId {
    /// The shard `shard` of the ps task `ps`.
    pub const fn new(ps: u32, shard: u32) -> Self {
        Self { ps, shard }
    }

    /// The task that runs it.
    pub const fn task(self) -> TaskId {
        TaskId::ps(self.ps)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ps/{}/shard/{}", self.ps, self.shard)
    }
}
