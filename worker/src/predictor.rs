//! Computes predictions and evaluations at given values of the variables, on the calling thread. This module
//! must not depend on connections or actors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use pushpull_engine::{Executor, Feed, Program};
use pushpull_input::{Mapped, in_order};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::message::Evaluation;

use crate::client::Values;
use crate::devices::{Compute, ReplicaError};
use crate::error::WorkerError;
use crate::evaluation::{BATCH_MAX, EvaluationTotals};

/// What a compiled graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Prediction,
    Evaluation,
}

/// A model with the values of its variables. The graph is compiled at its first use, separately for each
/// batch size.
pub struct Predictor {
    graph: GraphSpec,
    values: Arc<Values>,
    compute: Compute,
    /// The columns that the executors were compiled for.
    columns: Vec<ColumnSpec>,
    executors: BTreeMap<(Purpose, usize), Executor>,
}

impl Predictor {
    /// Creates a predictor of a valid graph at these values, which computes with `threads` threads.
    ///
    /// # Errors
    /// If the operating system cannot start the threads.
    pub fn new(graph: GraphSpec, values: Arc<Values>, threads: usize) -> Result<Self, WorkerError> {
        let compute = Compute::new(threads, 1)?;
        Ok(Self { graph, values, compute, columns: Vec::new(), executors: BTreeMap::new() })
    }

    /// Computes every output of the graph for all examples, in batches of at most 250 examples. Returns the
    /// elements of each output, row-major, in the order of the graph's outputs. Normalisations use their
    /// moving statistics, and dropout keeps all elements, as in an evaluation.
    ///
    /// # Errors
    /// If the data lack a column that an output needs, or do not fit the model.
    pub fn predict(&mut self, set: &Mapped) -> Result<Vec<Vec<f32>>, WorkerError> {
        let mut outputs = vec![Vec::new(); self.graph.outputs.len()];
        for batch in in_order(set, set.len().min(BATCH_MAX))? {
            let (executor, values, compute) =
                self.prepared(Purpose::Prediction, batch.examples, set.columns())?;
            let elements: Vec<usize> = executor.program().result_elements().collect();
            let feed = Feed::whole(&batch.columns, batch.examples);
            let computed = compute.run(|| executor.evaluate(feed, values)).map_err(ReplicaError::from)?;
            let mut rest = computed;
            for (output, elements) in outputs.iter_mut().zip(elements) {
                let (own, others) = rest.split_at(elements);
                output.extend_from_slice(own);
                rest = others;
            }
        }
        Ok(outputs)
    }

    /// Computes the loss and every metric over all examples, in batches of `batch_size` examples, or of 250
    /// if `batch_size` is greater. With the batch size of a job, the results have the same bits as the job's
    /// own evaluation.
    ///
    /// # Errors
    /// If the data lack an input of the graph, or do not fit the model.
    pub fn evaluate(&mut self, set: &Mapped, batch_size: usize) -> Result<Evaluation, WorkerError> {
        let mut totals = EvaluationTotals::new(&self.graph);
        for batch in in_order(set, batch_size.min(BATCH_MAX))? {
            let (executor, values, compute) =
                self.prepared(Purpose::Evaluation, batch.examples, set.columns())?;
            let feed = Feed::whole(&batch.columns, batch.examples);
            let results = compute.run(|| executor.evaluate(feed, values)).map_err(ReplicaError::from)?;
            totals.add(results, batch.examples);
        }
        Ok(totals.evaluation(&self.graph, &self.values))
    }

    /// Returns the executor for batches of this size, and what it computes with.
    fn prepared(
        &mut self,
        purpose: Purpose,
        examples: usize,
        columns: &[ColumnSpec],
    ) -> Result<(&mut Executor, &Values, &Compute), ReplicaError> {
        if self.columns != columns {
            self.executors.clear();
            self.columns = columns.to_vec();
        }
        let executor = match self.executors.entry((purpose, examples)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let compile = match purpose {
                    Purpose::Prediction => Program::prediction,
                    Purpose::Evaluation => Program::evaluation,
                };
                entry.insert(Executor::new(compile(&self.graph, examples, columns, self.compute.threads())?))
            }
        };
        Ok((executor, &self.values, &self.compute))
    }
}
