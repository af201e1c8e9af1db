//! Computes predictions and evaluations at given values of the variables, on the calling thread. This module
//! must not depend on connections or actors.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_engine::{Executor, Feed, Program};
use pushpull_input::{Batch, TestSet};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::message::Evaluation;

use crate::client::Values;
use crate::devices::{Compute, ReplicaError};
use crate::error::WorkerError;
use crate::evaluation::{BATCH_MAX, EvaluationTotals, by_name, checksum};

/// The maximum number of compiled graphs that are kept for later calls: one for full batches and one for the
/// last batch, each for predictions and for evaluations.
const KEPT_MAX: usize = 4;

/// What a compiled graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Prediction,
    Evaluation,
}

/// A compiled graph with its memory, and what it was compiled for.
struct Compiled {
    purpose: Purpose,
    examples: usize,
    columns: Vec<ColumnSpec>,
    executor: Executor,
}

/// A model with the values of its variables. Several threads may use it at once. The graph is compiled at its
/// first use, separately for each batch size.
pub struct Predictor {
    graph: GraphSpec,
    values: Arc<Values>,
    compute: Compute,
    /// The compiled graphs that no call uses now, the most recently used last. A call takes its graph out of
    /// the list, because no lock may be held while the threads compute. A thread that waits for the others
    /// may run another call, and that call needs the lock, too.
    kept: Mutex<Vec<Compiled>>,
}

impl Predictor {
    /// Creates a predictor that computes a valid graph at these values with `threads` threads.
    ///
    /// # Errors
    /// If the operating system cannot start the threads.
    pub fn new(graph: GraphSpec, values: Arc<Values>, threads: usize) -> Result<Self, WorkerError> {
        Ok(Self { graph, values, compute: Compute::new(threads, 1)?, kept: Mutex::default() })
    }

    /// Computes every output of the graph for all examples, in the same batches as
    /// [`evaluate`](Self::evaluate). Returns the elements of each output, row-major, in the order of the
    /// graph's outputs. Normalisations use their moving statistics, and dropout keeps all elements, as in an
    /// evaluation. The last bits of a row may depend on the size of its batch.
    ///
    /// # Errors
    /// If the data cannot be read, lack a column that an output needs, or do not fit the model.
    pub fn predict(&self, set: &TestSet, batch_size: usize) -> Result<Vec<Vec<f32>>, WorkerError> {
        let mut outputs = vec![Vec::new(); self.graph.outputs.len()];
        self.predict_each(set, batch_size, |_, batch| {
            outputs.iter_mut().zip(batch).for_each(|(all, own)| all.extend_from_slice(own));
            Ok::<(), WorkerError>(())
        })?;
        Ok(outputs)
    }

    /// Computes the same as [`predict`](Self::predict), but calls `told` for each batch, with the number of
    /// its examples and the elements of each output. Only one batch of outputs is in memory at a time.
    ///
    /// # Errors
    /// Those of [`predict`](Self::predict), and the first error that `told` returns; this error ends the
    /// prediction.
    pub fn predict_each<E: From<WorkerError>>(
        &self,
        set: &TestSet,
        batch_size: usize,
        mut told: impl FnMut(usize, &[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        for batch in set.batches(batch_size.min(BATCH_MAX)).map_err(WorkerError::from)? {
            let batch = batch.map_err(WorkerError::from)?;
            let mut result = Ok(());
            self.run(Purpose::Prediction, &batch, set.columns(), |elements, mut results| {
                let outputs = elements.into_iter().map(|elements| {
                    let (own, others) = results.split_at(elements);
                    results = others;
                    own
                });
                result = told(batch.examples, &outputs.collect::<Vec<_>>());
            })
            .map_err(WorkerError::from)?;
            result?;
        }
        Ok(())
    }

    /// Computes the loss and every metric over all examples, in batches of `batch_size` examples, or of 250
    /// if `batch_size` is greater. With the batch size of a job, the results have the same bits as the job's
    /// own evaluation on a processor of the same kind.
    ///
    /// # Errors
    /// If the data cannot be read, lack an input of the graph, or do not fit the model.
    pub fn evaluate(&self, set: &TestSet, batch_size: usize) -> Result<Evaluation, WorkerError> {
        let mut totals = EvaluationTotals::new(&self.graph);
        for batch in set.batches(batch_size.min(BATCH_MAX))? {
            let batch = batch?;
            let add = |_: Vec<usize>, results: &[f32]| totals.add(results, batch.examples);
            self.run(Purpose::Evaluation, &batch, set.columns(), add)?;
        }
        Ok(totals.evaluation(&self.graph, checksum(&by_name(&self.graph), &self.values, &BTreeMap::new())))
    }

    /// Runs the graph on one batch. Calls `told` with the number of elements of each result, and with the
    /// elements of all results.
    fn run(
        &self,
        purpose: Purpose,
        batch: &Batch,
        columns: &[ColumnSpec],
        told: impl FnOnce(Vec<usize>, &[f32]),
    ) -> Result<(), ReplicaError> {
        let examples = batch.examples;
        let mut compiled = match self.take(purpose, examples, columns) {
            Some(compiled) => compiled,
            None => self.compile(purpose, examples, columns)?,
        };
        let elements = compiled.executor.program().result_elements().collect();
        let feed = Feed::whole(&batch.columns, examples);
        let results = self.compute.run(|| compiled.executor.evaluate(feed, &*self.values))?;
        told(elements, results);
        let mut kept = self.kept.lock();
        kept.push(compiled);
        if kept.len() > KEPT_MAX {
            kept.remove(0);
        }
        Ok(())
    }

    /// Removes a graph from `kept` and returns it, if `kept` has one that was compiled for these arguments.
    fn take(&self, purpose: Purpose, examples: usize, columns: &[ColumnSpec]) -> Option<Compiled> {
        let mut kept = self.kept.lock();
        let fits = |own: &Compiled| {
            (own.purpose, own.examples) == (purpose, examples) && own.columns.as_slice() == columns
        };
        let position = kept.iter().position(fits)?;
        Some(kept.remove(position))
    }

    fn compile(
        &self,
        purpose: Purpose,
        examples: usize,
        columns: &[ColumnSpec],
    ) -> Result<Compiled, ReplicaError> {
        let compile = match purpose {
            Purpose::Prediction => Program::prediction,
            Purpose::Evaluation => Program::evaluation,
        };
        let executor = Executor::new(compile(&self.graph, examples, columns, self.compute.threads())?);
        Ok(Compiled { purpose, examples, columns: columns.to_vec(), executor })
    }
}
