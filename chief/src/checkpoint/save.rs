//! One checkpoint: every shard writes its part, all of them of one version, and the manifest is put there last, when all
//! parts are seen. Knows no other checkpoint. Wanted property: (C1) without a manifest nothing counts, and with one
//! everything that it names is there.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec, WorkerRecord};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::SaveResult;
use pushpull_messages::placement::Placement;
use pushpull_storage::{FORMAT, ManifestSpec, StoreError};
use tokio::time::Instant;

use crate::ps_tasks::PsTasks;
use pushpull_storage::{Catalog, missing_file};

/// How checkpoints of one life of the chief are made.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    catalog: Catalog,
    job: JobSpec,
    cluster: ClusterSpec,
    life: Incarnation,
}

/// One that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub name: CheckpointName,
    /// Since 1970.
    pub saved_ms: u64,
    /// Of the shards' files.
    pub bytes: u64,
    /// The slowest shard's writing, and putting the manifest there.
    pub took: Duration,
}

/// Why one was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotSaved {
    /// A shard is beyond that version, at this one.
    Late(Version),
    /// For this reason.
    Failed(String),
}

impl Save {
    pub(crate) const fn new(catalog: Catalog, job: JobSpec, cluster: ClusterSpec, life: Incarnation) -> Self {
        Self { catalog, job, cluster, life }
    }

    pub(super) const fn life(&self) -> Incarnation {
        self.life
    }

    pub(super) const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Makes the checkpoint of that version, when all shards get there.
    pub(super) async fn run(
        &self,
        ps: &PsTasks,
        placement: &Placement,
        at: Version,
    ) -> Result<Committed, NotSaved> {
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
                    known.into_iter().for_each(|record| remember(&mut workers, record));
                }
                Ok(SaveResult::Written { file, .. }) => {
                    return failed(format!("{shard} says that it has written the file of {}", file.shard));
                }
                Ok(SaveResult::Past(version)) => return Err(NotSaved::Late(version)),
                Ok(SaveResult::Replaced) => {
                    return failed(format!("{shard} was told to make another one instead"));
                }
                Ok(SaveResult::Failed(reason)) => return failed(reason),
                Err(error) => return failed(error),
            }
        }
        files.sort_unstable_by_key(|file| file.shard);
        // Also of those who have not pushed yet: a record of each tells how many there are.
        for worker in 0..self.cluster.addresses(JobName::Worker).len() as u32 {
            workers.entry(worker).or_insert(WorkerRecord::new(worker, 0));
        }
        let manifest = ManifestSpec {
            format: FORMAT,
            step: name.step,
            saved_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            job: self.job.clone(),
            placement: placement.clone(),
            files,
            workers: workers.into_values().collect(),
        };
        let committing = Instant::now();
        self.commit(name, &manifest).await?;
        Ok(Committed {
            name,
            saved_ms: manifest.saved_ms,
            bytes: manifest.files.iter().map(|file| file.bytes).sum(),
            took: took + committing.elapsed(),
        })
    }

    async fn commit(&self, name: CheckpointName, manifest: &ManifestSpec) -> Result<(), NotSaved> {
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
        let host = self.cluster.address(task).map(|address| format!(" at {address}")).unwrap_or_default();
        format!(
            "{task}{host} has written {} in {location}, and the chief does not see it there ({reason}): all hosts have to share that directory",
            file.name
        )
    }
}

/// Shards may have met pushes of several workers in another order: the latest of each counts.
fn remember(workers: &mut BTreeMap<u32, WorkerRecord>, record: WorkerRecord) {
    let known = workers.entry(record.worker).or_insert(record);
    let drawn = known.drawn.max(record.drawn);
    if (record.incarnation, record.sequence) > (known.incarnation, known.sequence) {
        *known = record;
    }
    known.drawn = drawn;
}

fn failure(reason: impl std::fmt::Display) -> NotSaved {
    NotSaved::Failed(reason.to_string())
}

fn failed<T>(reason: impl std::fmt::Display) -> Result<T, NotSaved> {
    Err(failure(reason))
}
