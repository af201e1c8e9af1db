//! The evaluator: a task of its own that watches a store, evaluates every new checkpoint on the test set, and keeps the
//! best. Knows neither ps nor chief: what it needs to know of the job is in the checkpoints.

mod best;
mod course;
mod error;
mod reading;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
use self::course::Course;
pub use self::error::EvaluatorError;
use self::reading::read_values;
pub use self::view::EvaluatorView;
use crate::config::WorkerConfig;
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::evaluate::evaluate_values;
use crate::life::{Ends, Life};
use crate::preparation::Preparation;
use crate::values::Values;
use crate::worker::blocking;
use pushpull_input::{Mapped, input_in_directory};

/// The folder of the store that the best checkpoint is kept in, as in a store of its own.
const BEST: &str = "best";

/// The settings of an evaluator.
#[derive(Clone)]
pub struct EvaluatorConfig {
    /// How it computes, and where its data are.
    pub worker: WorkerConfig,
    /// What the best checkpoint is found by: accuracy, or the loss where the model has none, unless told otherwise.
    pub best: Option<BestSpec>,
    /// Between two looks at the store.
    pub poll_every: Duration,
    /// It ends when no new checkpoint has come for so long; `None` waits for ever.
    pub idle_timeout: Option<Duration>,
}

impl Default for EvaluatorConfig {
    fn default() -> Self {
        let worker = WorkerConfig::default();
        Self { worker, best: None, poll_every: Duration::from_secs(1), idle_timeout: None }
    }
}

/// An evaluator task.
pub struct Evaluator {
    config: EvaluatorConfig,
    store: Store,
    /// What is in it.
    catalog: Catalog,
    pool: BufferPool,
    /// Cancelled when a signal wants it to stop.
    interrupt: CancellationToken,
    life: Life,
    view: EvaluatorView,
    _ends: Ends,
}

/// What it evaluates with: made of a job once, and again where another job writes into the same store.
struct Bench {
    job: JobSpec,
    test: Mapped,
    devices: Devices,
    best: BestSpec,
}

/// What is done, and what is kept.
struct State {
    course: Course,
    bench: Option<Bench>,
    /// Of every checkpoint that is kept as the best.
    kept: Vec<EvaluationRecord>,
    /// That the job's last checkpoint cannot be read: nothing comes after it.
    broken: Option<EvaluatorError>,
}

impl Evaluator {
    /// What it shows of itself.
    pub fn view(&self) -> EvaluatorView {
        self.view.clone()
    }

    /// An evaluator of the checkpoints in `store` that is not started yet.
    ///
    /// # Errors
    /// Where a setting is out of range.
    pub fn new(
        config: EvaluatorConfig,
        store: Store,
        pool: BufferPool,
        interrupt: CancellationToken,
    ) -> Result<Self, WorkerError> {
        config.worker.validate()?;
        if config.poll_every.is_zero() {
            let (key, expected) = ("poll_every", "more than 0".to_owned());
            return Err(WorkerError::Config { key, expected, got: "0".into() });
        }
        let catalog = Catalog::new(store.clone());
        let life = Life::new("looking at the store", interrupt.clone());
        let (ends, view) = (life.ends(), EvaluatorView::new(life.clone()));
        Ok(Self { config, store, catalog, pool, interrupt, life, view, _ends: ends })
    }

    /// Evaluates every checkpoint that appears, or the newest where it falls behind, until that of the job's last step is
    /// done, no new one has come for too long, or it is interrupted. `told` hears of every evaluation.
    ///
    /// # Errors
    /// Where the model or its test set cannot be used, the store cannot be written, or the last checkpoint is broken.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(self, mut told: impl FnMut(&EvaluationRecord)) -> Result<(), EvaluatorError> {
        tokio::select! {
            result = self.watch(&mut told) => result,
            () = self.interrupt.cancelled() => {
                tracing::info!("interrupted: what has been evaluated is in the store");
                Ok(())
            }
        }
    }

    async fn watch(&self, told: &mut impl FnMut(&EvaluationRecord)) -> Result<(), EvaluatorError> {
        tracing::info!("waiting for checkpoints in {}", self.store.location());
        let mut state = self.restore().await?;
        self.life.ready();
        let mut last_new = Instant::now();
        if self.is_all_done(&state).await? {
            tracing::info!("the checkpoint of the job's last step has been evaluated before");
            return Ok(());
        }
        loop {
            if let Some((name, there)) = self.next(&state.course).await {
                last_new = Instant::now();
                self.life.doing("reading");
                match self.read(name).await {
                    Ok((manifest, values)) => {
                        self.life.doing("evaluating");
                        let record = self.evaluate(name, &manifest, &values, &mut state).await?;
                        told(&record);
                        self.keep_best(&manifest, record, &mut state).await?;
                        state.course.evaluated(name, &there);
                        if manifest.step >= manifest.job.last_step {
                            tracing::info!("the job's last step is evaluated");
                            return Ok(());
                        }
                        continue;
                    }
                    Err(error) => self.pass_over(name, error, &there, &mut state).await,
                }
            } else if let Some(error) = state.broken.take() {
                return Err(error);
            }
            if let Some(limit) = self.config.idle_timeout.filter(|&limit| last_new.elapsed() >= limit) {
                let seconds = limit.as_secs();
                if state.bench.is_none() {
                    let location = self.store.location().to_owned();
                    return Err(EvaluatorError::Nothing { seconds, location });
                }
                tracing::warn!("no new checkpoint within {seconds} s: ending before the job's last step");
                return Ok(());
            }
            self.life.doing("waiting for checkpoints");
            tokio::time::sleep(self.config.poll_every).await;
        }
    }

    /// What an earlier life of the evaluator has done in this store.
    async fn restore(&self) -> Result<State, EvaluatorError> {
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
        Ok(State { course, bench: None, kept, broken: None })
    }

    /// The record of an earlier evaluation, where there is one.
    async fn record(&self, name: CheckpointName) -> Result<Option<EvaluationRecord>, EvaluatorError> {
        let file = EvaluationRecord::file(name);
        let bytes = match self.store.get(&file, RECORD_BYTES_MAX).await {
            Err(StoreError::Missing { .. }) => return Ok(None),
            other => other?,
        };
        match EvaluationRecord::decode(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                tracing::warn!("{file} is left out: {error}");
                Ok(None)
            }
        }
    }

    /// Whether the newest checkpoint is of the job's last step, and an earlier life has evaluated it.
    async fn is_all_done(&self, state: &State) -> Result<bool, EvaluatorError> {
        let there = self.catalog.names().await?;
        if !state.course.candidates(&there).is_empty() {
            return Ok(false);
        }
        let Some(&newest) = Course::default().candidates(&there).first() else { return Ok(false) };
        // Without a manifest that can be read there is nothing to conclude.
        let manifest = self.catalog.manifest(newest).await;
        Ok(manifest.is_ok_and(|manifest| manifest.step >= manifest.job.last_step))
    }

    /// The newest committed checkpoint that is to be evaluated, and all folders that are there.
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
            tracing::warn!("looking again: {error}");
            None
        })
    }

    async fn read(&self, name: CheckpointName) -> Result<(ManifestSpec, Arc<Values>), EvaluatorError> {
        let manifest = self.catalog.manifest(name).await?;
        let values = read_values(&self.store, name, &manifest, &self.pool).await?;
        Ok((manifest, values))
    }

    async fn evaluate(
        &self,
        name: CheckpointName,
        manifest: &ManifestSpec,
        values: &Arc<Values>,
        state: &mut State,
    ) -> Result<EvaluationRecord, EvaluatorError> {
        let bench = self.bench(&manifest.job, state.bench.take()).await?;
        let Bench { job, test, devices, .. } = state.bench.insert(bench);
        let began = Instant::now();
        let evaluation = evaluate_values(values, devices, test, job).await?;
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let record = EvaluationRecord { checkpoint: name, step: manifest.step, evaluation, at_ms };
        self.store.put(&EvaluationRecord::file(name), record.encode()).await?;
        self.view.evaluated(&record, took);
        Ok(record)
    }

    /// What evaluates checkpoints of that job: what there is, where it does.
    async fn bench(&self, job: &JobSpec, old: Option<Bench>) -> Result<Bench, EvaluatorError> {
        let mut job = job.clone();
        if let Some(directory) = &self.config.worker.data_dir {
            job.input = input_in_directory(&job.input, directory).map_err(WorkerError::from)?;
        }
        let same = |old: &Bench| {
            (&old.job.graph, &old.job.input, old.job.batch_size) == (&job.graph, &job.input, job.batch_size)
        };
        if let Some(old) = old.filter(same) {
            return Ok(old);
        }
        let best = self.config.best.clone().unwrap_or_else(|| BestSpec::usual(&job.graph));
        best.check(&job.graph)?;
        let task = TaskId::new(JobName::Evaluator, 0);
        let (config, resume) = (self.config.worker.clone(), Resume::default());
        let preparation = Preparation { config, job: job.clone(), task, workers: 1, resume };
        let (test, replicas) = blocking(move || preparation.evaluation()).await?;
        let parts = vec![0..1; replicas.len()];
        let devices = Devices::start(replicas, parts);
        self.life.devices(devices.meters());
        tracing::info!("ready: model '{}', {} test examples, best by {best}", job.graph.name, test.len());
        Ok(Bench { job, test, devices, best })
    }

    /// Keeps a checkpoint that is better than the best so far, and lets go of that.
    async fn keep_best(
        &self,
        manifest: &ManifestSpec,
        record: EvaluationRecord,
        state: &mut State,
    ) -> Result<(), EvaluatorError> {
        let best = &state.bench.as_ref().expect("it has just evaluated").best;
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
                    tracing::warn!("{name} is the best, and was deleted before it could be kept: {error}");
                    return Ok(to.delete_folder(&name.to_string()).await?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let value = best.value(&record.evaluation).expect("what is better is a number");
        tracing::info!("step {} is the best: {} {value:.4}", record.step, best.metric);
        for former in Catalog::new(to.clone()).names().await?.into_iter().filter(|&former| former != name) {
            to.delete_folder(&former.to_string()).await?;
        }
        state.kept = vec![record];
        Ok(())
    }

    /// A checkpoint that cannot be read: deleted, broken, or not seen whole yet.
    async fn pass_over(
        &self,
        name: CheckpointName,
        error: EvaluatorError,
        there: &[CheckpointName],
        state: &mut State,
    ) {
        if !state.course.failed(name, there) {
            tracing::warn!("{name} cannot be evaluated yet: {error}");
            return;
        }
        tracing::warn!("{name} is passed over: {error}");
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
