//! The evaluator: a separate task that watches a checkpoint store, evaluates the newest checkpoint whenever
//! there is a new one, and keeps a copy of the best checkpoint. The checkpoints contain everything that it
//! needs to know about the job, so it contacts no other task.

mod best;
mod config;
mod course;
mod error;
mod reading;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use pushpull_input::{PipelineWorker, TestSet, input_in_directory};
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;
use pushpull_storage::{
    Catalog, EVALUATIONS, EvaluationRecord, ManifestSpec, RECORD_BYTES_MAX, Store, StoreError,
};
use pushpull_transport::buffer::BufferPool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::best::{BestError, BestSpec, Goal};
pub use self::config::EvaluatorConfig;
use self::course::Course;
pub use self::error::EvaluatorError;
use self::reading::read_values;
pub use self::view::EvaluatorView;
use crate::blocking::blocking;
use crate::client::Values;
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::evaluation::evaluate_values;
use crate::fetches::FetchPlan;
use crate::preparation::{Preparation, PreparedEvaluation};
use crate::telemetry::{EndOfLife, Life};

/// The folder of the best checkpoint. Its layout is that of a checkpoint store.
const BEST: &str = "best";
/// The limit on failures of the store without a successful evaluation in between. At this number, the
/// evaluator no longer expects the store to recover.
const OUTAGES_MAX: u32 = 60;

/// An evaluator task.
pub struct Evaluator {
    config: EvaluatorConfig,
    store: Store,
    /// The list of the checkpoints in the store.
    catalog: Catalog,
    pool: BufferPool,
    /// Cancelled when a signal tells the evaluator to stop.
    interrupt: CancellationToken,
    life: Life,
    view: EvaluatorView,
    _end: EndOfLife,
}

/// The job, the test set, the devices and the metric with which the checkpoints of one job are evaluated.
/// The evaluator creates a new bench if another job writes to the same store.
struct EvaluationBench {
    job: JobSpec,
    test: Arc<TestSet>,
    devices: Devices,
    best: BestSpec,
}

/// The progress of an evaluator.
struct EvaluatorState {
    course: Course,
    bench: Option<EvaluationBench>,
    /// The evaluation record of each checkpoint in the folder of the best checkpoint.
    kept: Vec<EvaluationRecord>,
    /// The error to return if the checkpoint of the job's last step cannot be read. No checkpoint follows
    /// that one.
    broken: Option<EvaluatorError>,
    /// The number of failures of the store since the last successful evaluation.
    outages: u32,
}

impl EvaluatorState {
    /// Returns whether the evaluator should try again after this error, because the store may recover.
    fn may_recover(&mut self, error: &EvaluatorError) -> bool {
        self.outages += u32::from(error.is_outage());
        error.is_outage() && self.outages < OUTAGES_MAX
    }
}

impl Evaluator {
    /// Returns a view of the evaluator that can be read even after the evaluator has ended.
    pub fn view(&self) -> EvaluatorView {
        self.view.clone()
    }

    /// Creates an evaluator of the checkpoints in `store`. [`run`](Self::run) starts it.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(
        config: EvaluatorConfig,
        store: Store,
        pool: BufferPool,
        interrupt: CancellationToken,
    ) -> Result<Self, WorkerError> {
        config.validate()?;
        let catalog = Catalog::new(store.clone());
        let life = Life::new("reading the store", interrupt.clone());
        let (end, view) = (life.end(), EvaluatorView::new(life.clone()));
        Ok(Self { config, store, catalog, pool, interrupt, life, view, _end: end })
    }

    /// Evaluates every checkpoint that appears, or only the newest if the evaluator falls behind. Calls
    /// `told` after every evaluation. Returns when the checkpoint of the job's last step has been evaluated,
    /// when no new checkpoint has appeared within the idle timeout, or when the evaluator is interrupted.
    ///
    /// # Errors
    /// If the model or its test set cannot be used; if the store cannot be read at the start; if the store
    /// cannot be written and has failed 60 times since the last successful evaluation; if the checkpoint of
    /// the job's last step cannot be read.
    ///
    /// # Panics
    /// If called outside an actix system.
    // Returns a boxed future, because the code of this future is then compiled only in this crate, and not
    // again in each program that awaits it.
    pub fn run(
        self,
        told: impl FnMut(&EvaluationRecord) + 'static,
    ) -> LocalBoxFuture<'static, Result<(), EvaluatorError>> {
        self.run_boxed(Box::new(told))
    }

    fn run_boxed(
        self,
        told: Box<dyn FnMut(&EvaluationRecord)>,
    ) -> LocalBoxFuture<'static, Result<(), EvaluatorError>> {
        Box::pin(self.watch_until_interrupted(told))
    }

    async fn watch_until_interrupted(
        self,
        mut told: Box<dyn FnMut(&EvaluationRecord)>,
    ) -> Result<(), EvaluatorError> {
        tokio::select! {
            biased;
            result = self.watch(&mut *told) => result,
            () = self.interrupt.cancelled() => {
                tracing::info!("interrupted; the evaluations so far are in the store");
                Ok(())
            }
        }
    }

    async fn watch(&self, told: &mut dyn FnMut(&EvaluationRecord)) -> Result<(), EvaluatorError> {
        tracing::info!("waiting for checkpoints in {}", self.store.location());
        let mut state = self.restore().await?;
        self.life.ready();
        let (mut last_new, mut newest) = (Instant::now(), None);
        if self.is_all_done(&state).await? {
            tracing::info!("the checkpoint of the job's last step has already been evaluated");
            return Ok(());
        }
        loop {
            if let Some((name, there)) = self.next(&state.course).await {
                if newest.replace(name) != Some(name) {
                    last_new = Instant::now();
                }
                self.life.doing("reading");
                match self.read(name).await {
                    Ok((manifest, values)) => match self
                        .process(name, &manifest, &values, &mut state, told)
                        .await
                    {
                        Ok(()) => {
                            state.outages = 0;
                            state.course.evaluated(name, &there);
                            if manifest.step >= manifest.job.last_step {
                                tracing::info!("evaluated the checkpoint of the job's last step");
                                return Ok(());
                            }
                            continue;
                        }
                        Err(error) if state.may_recover(&error) => {
                            tracing::warn!("could not store the evaluation of {name}; trying again: {error}");
                        }
                        Err(error) => return Err(error),
                    },
                    Err(error) => self.pass_over(name, error, &there, &mut state).await,
                }
            } else if let Some(error) = state.broken.take() {
                return Err(error);
            }
            if let Some(limit) = self.config.idle_timeout.filter(|&limit| last_new.elapsed() >= limit) {
                let seconds = limit.as_secs();
                if state.bench.is_none() && state.course.is_empty() {
                    let location = self.store.location().to_owned();
                    return Err(EvaluatorError::Nothing { seconds, location });
                }
                tracing::warn!(
                    "no new checkpoint appeared within {seconds} s; \
                     the evaluator ended before the job's last step"
                );
                return Ok(());
            }
            self.life.doing("waiting for checkpoints");
            tokio::time::sleep(self.config.poll_every).await;
        }
    }

    /// Restores the progress that earlier runs of the evaluator recorded in this store.
    async fn restore(&self) -> Result<EvaluatorState, EvaluatorError> {
        let there = self.catalog.names().await?;
        let mut course = Course::default();
        let files = self.store.files(EVALUATIONS).await?;
        for name in files.iter().filter_map(|file| EvaluationRecord::checkpoint_of(file)) {
            course.evaluated(name, &there);
        }
        let mut kept = Vec::new();
        let best = Catalog::new(self.store.folder(BEST));
        for name in best.names().await? {
            if best.is_committed(name).await? {
                kept.extend(self.record(name).await?);
            }
        }
        Ok(EvaluatorState { course, bench: None, kept, broken: None, outages: 0 })
    }

    /// Returns the record of an earlier evaluation of this checkpoint; `None` if there is no record, or if
    /// the record cannot be decoded.
    async fn record(&self, name: CheckpointName) -> Result<Option<EvaluationRecord>, EvaluatorError> {
        let file = EvaluationRecord::file(name);
        let bytes = match self.store.get(&file, RECORD_BYTES_MAX).await {
            Err(StoreError::Missing { .. }) => return Ok(None),
            other => other?,
        };
        match EvaluationRecord::decode(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                tracing::warn!(%file, %error, "ignored an unreadable evaluation record");
                Ok(None)
            }
        }
    }

    /// Returns true if the newest checkpoint is that of the job's last step, and an earlier run of the
    /// evaluator has evaluated it.
    async fn is_all_done(&self, state: &EvaluatorState) -> Result<bool, EvaluatorError> {
        let there = self.catalog.names().await?;
        if !state.course.candidates(&there).is_empty() {
            return Ok(false);
        }
        let Some(&newest) = Course::default().candidates(&there).first() else { return Ok(false) };
        // If the manifest cannot be read, the job's last step is unknown.
        let manifest = self.catalog.manifest(newest).await;
        Ok(manifest.is_ok_and(|manifest| manifest.step >= manifest.job.last_step))
    }

    /// Returns the newest committed checkpoint that should be evaluated, and the names of all checkpoint
    /// folders.
    async fn next(&self, course: &Course) -> Option<(CheckpointName, Vec<CheckpointName>)> {
        let look = async {
            let there = self.catalog.names().await?;
            for name in course.candidates(&there) {
                if self.catalog.is_committed(name).await? {
                    return Ok(Some((name, there)));
                }
            }
            Ok::<_, StoreError>(None)
        };
        look.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not list the checkpoints; trying again");
            None
        })
    }

    async fn read(&self, name: CheckpointName) -> Result<(ManifestSpec, Arc<Values>), EvaluatorError> {
        let manifest = self.catalog.manifest(name).await?;
        let values = read_values(&self.store, name, &manifest, &self.pool).await?;
        Ok((manifest, values))
    }

    /// Evaluates a checkpoint that was read, keeps the checkpoint if it is the best, and calls `told`.
    async fn process(
        &self,
        name: CheckpointName,
        manifest: &ManifestSpec,
        values: &Arc<Values>,
        state: &mut EvaluatorState,
        told: &mut dyn FnMut(&EvaluationRecord),
    ) -> Result<(), EvaluatorError> {
        self.life.doing("evaluating");
        let record = self.evaluate(name, manifest, values, state).await?;
        self.keep_best(manifest, &record, state).await?;
        told(&record);
        Ok(())
    }

    async fn evaluate(
        &self,
        name: CheckpointName,
        manifest: &ManifestSpec,
        values: &Arc<Values>,
        state: &mut EvaluatorState,
    ) -> Result<EvaluationRecord, EvaluatorError> {
        let bench = self.bench(&manifest.job, state.bench.take()).await?;
        let EvaluationBench { job, test, devices, .. } = state.bench.insert(bench);
        let began = Instant::now();
        let evaluation = evaluate_values(values, devices, test, job, self.config.worker.hung_after).await?;
        let took = began.elapsed();
        let numbers: Vec<String> = evaluation
            .metrics
            .iter()
            .map(|metric| format!(", {} {:.4}", metric.name, metric.value))
            .collect();
        tracing::info!(
            "step {} of {}: loss {:.4}{}",
            manifest.step,
            manifest.job.last_step,
            evaluation.loss,
            numbers.concat()
        );
        let at_ms = self.config.wall_clock.unix_ms();
        let record = EvaluationRecord { checkpoint: name, step: manifest.step, evaluation, at_ms };
        self.store.put(&EvaluationRecord::file(name), record.encode()).await?;
        self.view.evaluated(&record, took);
        Ok(record)
    }

    /// Returns the existing bench if it is for `job`, or creates a new one.
    async fn bench(
        &self,
        job: &JobSpec,
        old: Option<EvaluationBench>,
    ) -> Result<EvaluationBench, EvaluatorError> {
        let mut job = job.clone();
        if let Some(directory) = &self.config.worker.data_dir {
            job.input = input_in_directory(&job.input, directory).map_err(WorkerError::from)?;
        }
        let same = |old: &EvaluationBench| {
            (&old.job.graph, &old.job.input, old.job.batch_size) == (&job.graph, &job.input, job.batch_size)
        };
        if let Some(old) = old.filter(same) {
            return Ok(old);
        }
        let best = self.config.best.clone().unwrap_or_else(|| BestSpec::usual(&job.graph));
        best.check(&job.graph)?;
        let task = TaskId::new(JobName::Evaluator, 0);
        let (config, resume) = (self.config.worker.clone(), Resume::default());
        let fetches = FetchPlan::default();
        let group = None;
        let preparation =
            Preparation { config, job: job.clone(), task, part: PipelineWorker::ALL, resume, fetches, group };
        let own_threads = self.config.worker.own_threads;
        let prepared = blocking(own_threads, "preparation", move || preparation.evaluation()).await?;
        let PreparedEvaluation { test, examples, replicas } = prepared;
        let test = Arc::new(test);
        let parts = vec![0..1; replicas.len()];
        let devices = Devices::start(replicas, own_threads, parts, &job.graph);
        self.life.devices(devices.meters());
        tracing::info!(
            "ready: model '{}', {examples} test examples, best checkpoint by {best}",
            job.graph.name
        );
        Ok(EvaluationBench { job, test, devices, best })
    }

    /// Copies the checkpoint if it is better than the best so far, and then deletes the copy of the previous
    /// best.
    async fn keep_best(
        &self,
        manifest: &ManifestSpec,
        record: &EvaluationRecord,
        state: &mut EvaluatorState,
    ) -> Result<(), EvaluatorError> {
        let best = &state.bench.as_ref().expect("a checkpoint was just evaluated").best;
        let mut so_far = None;
        for kept in &state.kept {
            if best.is_better(&kept.evaluation, so_far) {
                so_far = Some(&kept.evaluation);
            }
        }
        if !best.is_better(&record.evaluation, so_far) {
            return Ok(());
        }
        let (name, to) = (record.checkpoint, self.store.folder(BEST));
        let files = manifest.files.iter().map(|file| name.file(&file.name));
        for file in files.chain([name.manifest()]) {
            match self.store.copy(&file, &format!("{BEST}/{file}")).await {
                Ok(()) => {}
                Err(error @ StoreError::Missing { .. }) => {
                    tracing::warn!(
                        "{name} is the best checkpoint, but was deleted before it could be copied: {error}"
                    );
                    return Ok(to.delete_folder(&name.to_string()).await?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let value = best.value(&record.evaluation).expect("a better value is a number");
        tracing::info!(
            "the checkpoint of step {} is the best so far: {} {value:.4}",
            record.step,
            best.metric
        );
        for former in Catalog::new(to.clone()).names().await?.into_iter().filter(|&former| former != name) {
            to.delete_folder(&former.to_string()).await?;
        }
        state.kept = vec![record.clone()];
        Ok(())
    }

    /// Records a failed attempt to read a checkpoint, and skips the checkpoint after several failures. The
    /// checkpoint may have been deleted, or be damaged, or not yet be completely visible. A failure of the
    /// store counts as a failed attempt only after [`OUTAGES_MAX`] failures without a successful evaluation.
    async fn pass_over(
        &self,
        name: CheckpointName,
        error: EvaluatorError,
        there: &[CheckpointName],
        state: &mut EvaluatorState,
    ) {
        if state.may_recover(&error) || !state.course.failed(name, there) {
            tracing::warn!("could not evaluate {name}; trying again: {error}");
            return;
        }
        tracing::warn!("skipped {name}: {error}");
        self.view.failed();
        let last_step = match self.catalog.manifest(name).await {
            Ok(manifest) => Some(manifest.job.last_step),
            Err(_) => state.bench.as_ref().map(|bench| bench.job.last_step),
        };
        if last_step.is_some_and(|last| name.step >= last) {
            state.broken = Some(EvaluatorError::Last { checkpoint: name, reason: error.to_string() });
        }
    }
}
