//! Writes one checkpoint: every shard writes its part of the same version, and the chief writes the manifest
//! last, when all parts are in the store. Does not touch other checkpoints. Wanted property: (C1) a
//! checkpoint without a manifest is never used, and a checkpoint with a manifest has every file that the
//! manifest names.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec, WorkerRecord};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::SaveResult;
use pushpull_messages::observe::WallClock;
use pushpull_messages::placement::Placement;
use pushpull_storage::{Catalog, FORMAT, ManifestSpec, StoreError, missing_file};
use pushpull_transport::CallError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::launch::PsTasks;
use crate::report::JobProgress;

/// The writer of all checkpoints of one run of the chief.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointWriter {
    catalog: Catalog,
    job: JobSpec,
    cluster: ClusterSpec,
    life: Incarnation,
    /// The progress of the job, which has the digests of the workers' input files; `None` until `follow` is
    /// called.
    progress: Option<watch::Receiver<JobProgress>>,
    wall_clock: WallClock,
}

/// A committed checkpoint: one whose manifest has been written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommittedCheckpoint {
    pub name: CheckpointName,
    /// When the checkpoint was saved, in milliseconds since 1970.
    pub saved_ms: u64,
    /// The total size of the shards' files, in bytes.
    pub bytes: u64,
    /// The time that the slowest shard took, plus the time to write the manifest.
    pub took: Duration,
}

/// The reason why a checkpoint was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SaveError {
    /// A shard had already passed the requested version. The field is the version that the shard had
    /// reached.
    Late(Version),
    /// The save failed; the text is the reason.
    Failed(String),
    /// A ps task is lost, so every save fails until the task is back; the text says why it is lost.
    PsLost(String),
}

impl CheckpointWriter {
    pub(crate) fn new(catalog: Catalog, job: JobSpec, cluster: ClusterSpec, life: Incarnation) -> Self {
        Self { catalog, job, cluster, life, progress: None, wall_clock: WallClock::default() }
    }

    /// Sets the clock that gives the times of all later checkpoints.
    pub(super) fn dated_by(&mut self, wall_clock: WallClock) {
        self.wall_clock = wall_clock;
    }

    /// Adds the digests of the workers' input files, which `progress` has, to all later checkpoints.
    pub(super) fn follow(&mut self, progress: watch::Receiver<JobProgress>) {
        self.progress = Some(progress);
    }

    /// Gives this incarnation number to all checkpoints that are written from now on.
    pub(super) const fn renew(&mut self, life: Incarnation) {
        self.life = life;
    }

    pub(super) const fn life(&self) -> Incarnation {
        self.life
    }

    pub(super) const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Writes the checkpoint of version `at` once all shards have reached that version.
    pub(super) async fn run(
        &self,
        ps: &PsTasks,
        placement: &Placement,
        at: Version,
    ) -> Result<CommittedCheckpoint, SaveError> {
        let name = CheckpointName { step: GlobalStep(at.0), life: self.life };
        let mut answers = ps.save(name, self.catalog.store().location(), at);
        let mut files: Vec<FileSpec> = Vec::new();
        let mut workers = BTreeMap::new();
        let mut took = Duration::ZERO;
        while let Some((shard, answer)) = answers.next().await {
            match answer {
                Ok(SaveResult::Written { file, workers: known, took_ms }) if file.shard == shard => {
                    took = took.max(Duration::from_millis(took_ms));
                    files.push(file);
                    known.into_iter().for_each(|record| merge(&mut workers, record));
                }
                Ok(SaveResult::Written { file, .. }) => {
                    return failed(format!(
                        "{shard} replied with the file of {}, expected its own file",
                        file.shard
                    ));
                }
                Ok(SaveResult::Past(version)) => return Err(SaveError::Late(version)),
                Ok(SaveResult::Replaced) => {
                    return failed(format!("a later save replaced this save on {shard}"));
                }
                Ok(SaveResult::Failed(reason)) => return failed(reason),
                Err(error @ CallError::Lost { .. }) => return Err(SaveError::PsLost(error.to_string())),
                Err(error) => return failed(error),
            }
        }
        files.sort_unstable_by_key(|file| file.shard);
        // A restart reads the number of workers from the number of records, so a worker that has not pushed
        // yet also gets a record.
        for worker in 0..self.job.replicas(self.cluster.addresses(JobName::Worker).len() as u32) {
            workers.entry(worker).or_insert(WorkerRecord::new(worker, 0));
        }
        let manifest = ManifestSpec {
            format: FORMAT,
            step: name.step,
            saved_ms: self.wall_clock.unix_ms(),
            job: self.job.clone(),
            placement: placement.clone(),
            files,
            workers: workers.into_values().collect(),
            learning_rate: ps.rate_at(at),
            inputs: self.progress.as_ref().map(|now| now.borrow().inputs.clone()).unwrap_or_default(),
        };
        let committing = Instant::now();
        self.commit(name, &manifest).await?;
        Ok(CommittedCheckpoint {
            name,
            saved_ms: manifest.saved_ms,
            bytes: manifest.files.iter().map(|file| file.bytes).sum(),
            took: took + committing.elapsed(),
        })
    }

    async fn commit(&self, name: CheckpointName, manifest: &ManifestSpec) -> Result<(), SaveError> {
        manifest.validate().map_err(failure)?;
        let store = self.catalog.store();
        if let Some((file, reason)) = missing_file(store, name, manifest).await.map_err(failure)? {
            return failed(self.not_shared(file, &reason));
        }
        let bytes = manifest.encode().map_err(failure)?;
        let put: Result<(), StoreError> = store.put(&name.manifest(), bytes).await;
        put.map_err(failure)
    }

    fn not_shared(&self, file: &FileSpec, reason: &str) -> String {
        let (task, location) = (file.shard.task(), self.catalog.store().location());
        let host = self.cluster.reached_at(task).map(|address| format!(" at {address}")).unwrap_or_default();
        format!(
            "{task}{host} wrote {} in {location}, but the chief does not find the file there ({reason}): use a directory that all hosts share",
            file.name
        )
    }
}

/// Merges one shard's record of a worker into `workers`, the merged records of the other shards. Shards may
/// have received the pushes of a worker in different orders, so the record with the most drawn batches is
/// kept. Incarnations are not compared, because their numbers have no order.
fn merge(workers: &mut BTreeMap<u32, WorkerRecord>, record: WorkerRecord) {
    let known = workers.entry(record.worker).or_insert(record);
    if (record.drawn, record.sequence) > (known.drawn, known.sequence) {
        *known = record;
    }
}

fn failure(reason: impl std::fmt::Display) -> SaveError {
    SaveError::Failed(reason.to_string())
}

fn failed<T>(reason: impl std::fmt::Display) -> Result<T, SaveError> {
    Err(failure(reason))
}
