//! When a program starts a run, it can add two things to the chief: a function that reads the trained
//! variables, and a handle that stops the job.

use std::sync::Arc;

use pushpull_chief::{Chief, JobEnd};
use pushpull_messages::job::JobSpec;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Transport};

use crate::collector::Collector;
use crate::stop::StopHandle;

/// The additions to the chief of a run; empty by default.
#[derive(Clone, Default)]
pub(crate) struct Attached {
    /// Receives the outcome of the job, and the trained variables.
    pub collector: Option<Collector>,
    /// Stops the job.
    pub stop: Option<StopHandle>,
}

impl Attached {
    /// Adds the collector and the handle to `chief`, which runs `job` in the cluster of `identity`.
    pub(crate) fn add_to(
        &self,
        mut chief: Chief,
        job: &JobSpec,
        identity: &Identity,
        transport: Arc<dyn Transport>,
        pool: BufferPool,
    ) -> Chief {
        if let Some(collector) = &self.collector {
            chief = chief.with_before_stop(collector.before_stop(job, identity, transport, pool));
        }
        match &self.stop {
            Some(stop) => chief.with_stop(stop.receiver()),
            None => chief,
        }
    }

    /// Records how the job ended.
    pub(crate) fn ended(&self, end: &JobEnd) {
        if let Some(collector) = &self.collector {
            collector.ended(end.clone());
        }
    }
}
