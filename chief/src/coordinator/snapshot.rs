//! The state of the coordinator at one moment, for observers. Data only.

use std::collections::BTreeMap;

use pushpull_messages::placement::Placement;

use crate::job::JobStatus;
use crate::monitor::{LatestReport, WorkerReport};
use crate::report::JobProgress;

/// A snapshot of the coordinator.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoordinatorSnapshot {
    pub status: JobStatus,
    pub progress: JobProgress,
    /// The latest report of each worker.
    pub latest: BTreeMap<u32, LatestReport>,
    /// The reports of each worker since the previous snapshot.
    pub reports: BTreeMap<u32, WorkerReport>,
    /// The placement; present only in the first snapshot after it was decided.
    pub placement: Option<Placement>,
}
