//! A trained model in this process: the values of its variables, predictions, evaluations and its file. This
//! module needs no cluster.

mod examples;
mod file;
mod predictions;
mod tensor_view;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use pushpull_input::{Dataset, TestSet};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::{MapSpec, StreamSpec};
#[cfg(feature = "programs")]
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Evaluation;
use pushpull_messages::model::ModelSpec;
use pushpull_worker::{Predictor, Values};

pub use self::examples::Examples;
#[cfg(feature = "programs")]
pub(crate) use self::file::located;
pub use self::predictions::Predictions;
#[cfg(feature = "programs")]
pub(crate) use self::predictions::greatest;
pub use self::tensor_view::TensorView;
use crate::error::Error;
use crate::threads::threads_per_worker;

/// A model with the values of its variables. It can be shared between threads, but only one thread predicts
/// at a time.
pub struct Model {
    spec: ModelSpec,
    values: Arc<Values>,
    /// The predictor. It is created at its first use, because it starts threads.
    predictor: OnceLock<Predictor>,
}

impl Model {
    pub(crate) const fn new(spec: ModelSpec, values: Arc<Values>) -> Self {
        Self { spec, values, predictor: OnceLock::new() }
    }

    /// Reads a model that [`save`](Self::save) has written.
    ///
    /// # Errors
    /// Returns an error if the file is missing or damaged, or was not written by pushpull. Use
    /// [`load_with`](Self::load_with) for a file that another program has written.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        file::load(path.as_ref(), file::Source::File)
    }

    /// Reads the values of `graph` from a safetensors file. The file must have one `F32` tensor for each
    /// variable, with the variable's name and shape. Other tensors are ignored.
    ///
    /// # Errors
    /// Returns an error if the graph is invalid, or if the file is missing, damaged, or lacks a variable.
    pub fn load_with(graph: GraphSpec, path: impl AsRef<Path>) -> Result<Self, Error> {
        graph.validate(1)?;
        file::load(path.as_ref(), file::Source::Graph(graph))
    }

    /// Reads the model of a valid job from a safetensors file. If the file contains a description of its
    /// model, as files of [`save`](Self::save) do, uses this description; otherwise uses the job's.
    #[cfg(feature = "programs")]
    pub(crate) fn load_of(job: &JobSpec, path: &Path) -> Result<Self, Error> {
        file::load(path, file::Source::Job(ModelSpec::of(job)))
    }

    /// Returns the parts in which the model differs from a job's model: `graph`, `map stages`, both, or
    /// none.
    #[cfg(feature = "programs")]
    pub(crate) fn differences(&self, job: &JobSpec) -> Vec<&'static str> {
        let graph = (self.spec.graph != job.graph).then_some("graph");
        let map = (self.spec.map != job.input.map).then_some("map stages");
        graph.into_iter().chain(map).collect()
    }

    /// Writes the model as a safetensors file: one `F32` tensor for each variable. The file's metadata
    /// contain the graph, so that [`load`](Self::load) needs nothing else. The file is replaced only when
    /// the new one is complete.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        file::save(self, path.as_ref())
    }

    /// Returns the graph.
    pub const fn graph(&self) -> &GraphSpec {
        &self.spec.graph
    }

    /// Returns the value of the variable called `name`, such as `dense1/kernel`; `None` if the model has no
    /// such variable.
    pub fn value(&self, name: &str) -> Option<TensorView<'_>> {
        self.values().find(|(own, _)| *own == name).map(|(_, tensor)| tensor)
    }

    /// Returns the name and the value of every variable, in the order of the graph.
    pub fn values(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.graph().variables.iter().zip(0..).map(|(variable, id)| {
            let values = self.values.variable(VariableId(id));
            (variable.name.as_str(), TensorView::new(&variable.shape.0, values))
        })
    }

    /// Computes the graph's outputs for these examples. The examples first pass through the map stages of
    /// the job's input; random stages are skipped. The examples need no labels. The outputs have the same
    /// bits as in an evaluation of the same examples. The last bits of an example's outputs may depend on
    /// the examples that are predicted with it.
    ///
    /// # Errors
    /// Returns an error if the graph has no output, or if the examples do not fit the model.
    pub fn predict(&self, examples: &Examples) -> Result<Predictions, Error> {
        let set = self.to_predict(examples.dataset())?;
        let outputs = self.predictor()?.predict(&set, self.spec.batch_size as usize)?;
        Predictions::new(self.graph(), outputs.into_iter(), examples.len())
    }

    /// Computes the same as [`predict`](Self::predict), but calls `told` with the predictions of each batch.
    /// Only one batch of predictions is in memory at a time.
    ///
    /// # Errors
    /// The same as those of [`predict`](Self::predict), and the first error that `told` returns, which ends
    /// the prediction.
    pub fn predict_each(
        &self,
        examples: &Examples,
        told: impl FnMut(Predictions) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.predict_dataset(examples.dataset(), told)
    }

    /// Computes the same as [`predict_each`](Self::predict_each) for the examples of a data set. Reads them
    /// batch by batch, so that only one batch of examples is in memory at a time.
    ///
    /// # Errors
    /// The same as those of [`predict_each`](Self::predict_each), and the errors of reading the set. In case
    /// of an error, `told` has been called for every batch before the one that failed.
    pub fn predict_dataset(
        &self,
        set: impl Dataset + 'static,
        mut told: impl FnMut(Predictions) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let set = self.to_predict(set)?;
        self.predictor()?.predict_each(&set, self.spec.batch_size as usize, |examples, outputs| {
            let outputs = outputs.iter().map(|elements| elements.to_vec());
            told(Predictions::new(self.graph(), outputs, examples)?)
        })
    }

    /// Applies the map stages to examples that are to be predicted. Returns an error if the graph has no
    /// output.
    fn to_predict(&self, set: impl Dataset + 'static) -> Result<TestSet, Error> {
        let graph = self.graph();
        if graph.outputs.is_empty() {
            let text = format!(
                "the model '{}' has no output to predict: name one with GraphBuilder::output before the graph is \
                 finished",
                graph.name
            );
            return Err(Error::Model(text));
        }
        self.mapped(set)
    }

    /// Computes the loss and every metric over these examples. With the job's test set, the results have the
    /// same bits as those in the job's report.
    ///
    /// # Errors
    /// Returns an error if the examples do not fit the model.
    pub fn evaluate(&self, examples: &Examples) -> Result<Evaluation, Error> {
        self.evaluate_dataset(examples.dataset())
    }

    /// Computes the same as [`evaluate`](Self::evaluate) over the examples of a data set. Reads them batch by
    /// batch, so that only one batch of examples is in memory at a time.
    ///
    /// # Errors
    /// Returns an error if the set cannot be read, has no end, or does not fit the model.
    pub fn evaluate_dataset(&self, set: impl Dataset + 'static) -> Result<Evaluation, Error> {
        let set = self.mapped(set)?;
        Ok(self.predictor()?.evaluate(&set, self.spec.batch_size as usize)?)
    }

    fn predictor(&self) -> Result<&Predictor, Error> {
        if let Some(predictor) = self.predictor.get() {
            return Ok(predictor);
        }
        let (graph, values) = (self.spec.graph.clone(), Arc::clone(&self.values));
        let new = Predictor::new(graph, values, threads_per_worker(1)).map_err(Error::model)?;
        // Another thread may have been faster. Its predictor is then used, and this one is dropped.
        Ok(self.predictor.get_or_init(|| new))
    }

    /// Applies the map stages to the columns that the examples have. The set is read only once, so it is
    /// streamed unless it is in memory already.
    fn mapped(&self, set: impl Dataset + 'static) -> Result<TestSet, Error> {
        let has = |stage: &&MapSpec| set.columns().iter().any(|column| column.name == stage.column);
        let map: Vec<MapSpec> = self.spec.map.iter().filter(has).cloned().collect();
        Ok(TestSet::of(Arc::new(set), &map, StreamSpec::Always)?)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model('{}', {} variables)", self.graph().name, self.graph().variables.len())
    }
}
