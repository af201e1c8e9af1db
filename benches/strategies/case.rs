//! A case: a model, a number of workers, and the way in which they train it synchronously.

use std::fmt;

use clap::ValueEnum;
use pushpull::{GraphSpec, JobSpec, OptimizerSpec, SyncSpec};
use pushpull_messages::communication::CommunicationSpec;
use pushpull_messages::distribution::DistributionSpec;

use crate::support::{job_of, models};

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// The MLP 784-512-512-10, whose values take 2.7 MB.
    Mlp,
    /// The CNN 32C3-P2-64C3-P2-128-10, whose values take 0.9 MB.
    Cnn,
    /// The MLP 784-9600-9600-10, whose values take 400 MB.
    Large,
}

/// Who stores the variables, and how gradients get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One ps task, with direct communication.
    Ps,
    /// The workers, with this communication.
    Mirrored(CommunicationSpec),
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub model: Model,
    pub workers: u32,
    pub way: Way,
}

impl Way {
    /// Returns the ways that differ for this number of workers.
    pub(crate) fn all(workers: u32) -> impl Iterator<Item = Self> {
        let ways = [
            Self::Ps,
            Self::Mirrored(CommunicationSpec::Direct),
            Self::Mirrored(CommunicationSpec::Ring),
            Self::Mirrored(CommunicationSpec::HalvingDoubling),
        ];
        ways.into_iter().take(if workers > 1 { 4 } else { 2 })
    }
}

impl Case {
    /// Returns the job of the case, with so many updates.
    pub(crate) fn job(&self, steps: u64) -> anyhow::Result<JobSpec> {
        let graph: GraphSpec = match self.model {
            Model::Mlp => models::mlp(512)?,
            Model::Cnn => models::cnn()?,
            Model::Large => models::mlp(9600)?,
        };
        let job = job_of(graph, OptimizerSpec::sgd(0.01), SyncSpec::SYNC, steps);
        let (strategy, communication) = match self.way {
            Way::Ps => (DistributionSpec::ParameterServer, CommunicationSpec::Direct),
            Way::Mirrored(communication) => (DistributionSpec::MultiWorkerMirrored, communication),
        };
        let batch_size = if self.model == Model::Large { 4 } else { job.batch_size };
        Ok(JobSpec { strategy: Some(strategy), communication, batch_size, ..job })
    }

    /// Returns the number of ps tasks in the cluster.
    pub(crate) const fn ps(&self) -> u32 {
        matches!(self.way, Way::Ps) as u32
    }

    /// Returns the number of updates over which the speed is measured: enough for several seconds, because
    /// the first updates of a job are slower.
    pub(crate) const fn steps(&self) -> u64 {
        match self.model {
            Model::Mlp => 2000,
            Model::Cnn => 400,
            Model::Large => 30,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = match self.model {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
            Model::Large => "large",
        };
        write!(f, "{model} {} ", self.workers)?;
        match self.way {
            Way::Ps => f.write_str("ps"),
            Way::Mirrored(communication) => write!(f, "{communication}"),
        }
    }
}
