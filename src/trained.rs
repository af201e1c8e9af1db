//! The result of a job: its report and its variables.

use std::path::Path;
use std::sync::Arc;

use pushpull_input::Dataset;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Evaluation;
use pushpull_messages::model::ModelSpec;

use crate::best::{Best, BestKeeper, Kept};
use crate::collector::{Collected, Collector};
use crate::error::Error;
use crate::model::{Examples, Model, Predictions, TensorView};
use crate::report::Report;

/// A trained job: its report, and its model with the values of all variables.
#[derive(Debug)]
pub struct Trained {
    /// The report of the job.
    pub report: Report,
    /// The model with the values after the last update.
    latest: Model,
    /// The model with the moving averages, if the job keeps them.
    averaged: Option<Model>,
    best: Option<Best>,
}

impl Trained {
    /// Makes the result of a run. `collector` has the chief's report and the variables; `keeper` has the
    /// best evaluation, if the job keeps it.
    pub(crate) fn new(
        job: &JobSpec,
        cluster: &ClusterSpec,
        collector: Collector,
        keeper: Option<&BestKeeper>,
    ) -> Result<Self, Error> {
        let (report, Collected { values, averages }) = collector.take()?;
        let spec = ModelSpec::of(job);
        let best = keeper.map(|keeper| {
            let (evaluation, step) = (report.evaluation.clone(), report.steps.0);
            let values = Arc::clone(averages.as_ref().unwrap_or(&values));
            let Kept { step, evaluation, values } = keeper.take(Kept { step, evaluation, values });
            Best { step, evaluation, model: Model::new(spec.clone(), values) }
        });
        let averaged = averages.map(|averages| Model::new(spec.clone(), averages));
        Ok(Self {
            report: Report::new(job, cluster, &report),
            latest: Model::new(spec, values),
            averaged,
            best,
        })
    }

    /// Returns the model that the job's last evaluation used: with the moving averages if the job keeps
    /// them, and otherwise with the values after the last update.
    pub const fn model(&self) -> &Model {
        match &self.averaged {
            Some(averaged) => averaged,
            None => &self.latest,
        }
    }

    /// Returns the best of all evaluations, with the model that was evaluated; `None` unless
    /// [`Job::keep_best`](crate::Job::keep_best) was called.
    pub const fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// Returns the same model as [`model`](Self::model), and drops everything else.
    pub fn into_model(self) -> Model {
        self.averaged.unwrap_or(self.latest)
    }

    /// Returns the value of a variable after the last update; `None` if the model has no variable called
    /// `name`.
    pub fn value(&self, name: &str) -> Option<TensorView<'_>> {
        self.latest.value(name)
    }

    /// Returns the name of every variable and the variable's value after the last update, in the order of
    /// the graph.
    pub fn values(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.latest.values()
    }

    /// Returns the moving average of a variable, or its value if it has no average; `None` if the job keeps
    /// no averages, or if the model has no variable called `name`.
    pub fn average(&self, name: &str) -> Option<TensorView<'_>> {
        self.averaged.as_ref()?.value(name)
    }

    /// Computes the outputs of [`model`](Self::model) for these examples.
    ///
    /// # Errors
    /// The same as those of [`Model::predict`].
    pub fn predict(&self, examples: &Examples) -> Result<Predictions, Error> {
        self.model().predict(examples)
    }

    /// Computes the loss and every metric of [`model`](Self::model) over these examples.
    ///
    /// # Errors
    /// The same as those of [`Model::evaluate`].
    pub fn evaluate(&self, examples: &Examples) -> Result<Evaluation, Error> {
        self.model().evaluate(examples)
    }

    /// Computes the loss and every metric of [`model`](Self::model) over the examples of a data set. Only
    /// one batch is in memory at a time.
    ///
    /// # Errors
    /// The same as those of [`Model::evaluate_dataset`].
    pub fn evaluate_dataset(&self, set: impl Dataset + 'static) -> Result<Evaluation, Error> {
        self.model().evaluate_dataset(set)
    }

    /// Writes [`model`](Self::model) as a safetensors file, which [`Model::load`] reads.
    ///
    /// # Errors
    /// The same as those of [`Model::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.model().save(path)
    }
}
