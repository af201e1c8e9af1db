//! Evaluates a model in a session: runs the loss and the metrics of its graph over a test set, with the
//! values of the variables that the servers hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_input::{Batch, Column, TestSet};
use pushpull_messages::device::OpDeviceSpec;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::{NodeId, TaskId};
use pushpull_messages::input::{ColumnSpec, StreamSpec};
use pushpull_messages::message::{Described, Evaluation};
use pushpull_messages::tensor::{Elements, Tensor};
use pushpull_worker::EvaluationTotals;

use super::{Session, SessionError};
use crate::model::Examples;

/// The maximum number of examples in a batch, as in other evaluations.
const BATCH_MAX: usize = 250;

impl Session {
    /// Computes the loss and every metric of a training graph over these examples, in batches of `batch_size`
    /// examples, or of 250 if `batch_size` is greater. Uses the variables in the session's container, on the
    /// tasks where they are. Normalisations use their moving statistics, and dropout keeps all elements. The
    /// result has no checksum of the variables: it is 0.
    ///
    /// # Errors
    /// If the container lacks a variable of the graph, if the examples do not fit the graph, or if a run
    /// fails.
    pub fn evaluate(
        &self,
        graph: &GraphSpec,
        examples: &Examples,
        batch_size: usize,
    ) -> Result<Evaluation, SessionError> {
        let set = TestSet::of(Arc::new(examples.dataset()), &[], StreamSpec::Never)?;
        self.evaluate_set(graph, &set, batch_size, u64::MAX)
    }

    /// Computes the same as [`evaluate`](Self::evaluate) over the first `batches_max` batches of a test set.
    pub(crate) fn evaluate_set(
        &self,
        graph: &GraphSpec,
        set: &TestSet,
        batch_size: usize,
        batches_max: u64,
    ) -> Result<Evaluation, SessionError> {
        let graph = located(graph, &self.describe()?, &self.shared.options.container)?;
        let metrics = graph.metrics.iter().map(|metric| metric.node);
        let fetches: Vec<NodeId> = std::iter::once(graph.loss).chain(metrics).collect();
        let inputs = inputs(&graph, &fetches, set.columns())?;
        let mut totals = EvaluationTotals::new(&graph);
        let mut batches = set.batches(batch_size.clamp(1, BATCH_MAX))?;
        for _ in 0..batches_max {
            let Some(batch) = batches.next().transpose()? else { break };
            let feed =
                |&(node, column): &(NodeId, usize)| (node, fed(&set.columns()[column], &batch, column));
            let feeds: Vec<(NodeId, Tensor)> = inputs.iter().map(feed).collect();
            let fetched = self.run(&graph, &feeds, &fetches)?;
            let results: Vec<f32> = fetched.iter().filter_map(Tensor::f32s).flatten().copied().collect();
            totals.add(&results, batch.examples);
        }
        Ok(totals.evaluation(&graph, 0))
    }
}

/// Returns the graph with each variable on the task that has it. A run would create a variable elsewhere,
/// with its initial value.
///
/// # Errors
/// If no task has a variable, or several tasks have it.
fn located(graph: &GraphSpec, described: &Described, container: &str) -> Result<GraphSpec, SessionError> {
    let mut held: BTreeMap<&str, Vec<TaskId>> = BTreeMap::new();
    for task in &described.tasks {
        for own in task.containers.iter().filter(|own| own.name == container) {
            own.variables.iter().for_each(|own| held.entry(&own.name).or_default().push(task.task));
        }
    }
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        let Op::Variable { variable } = node.op else { continue };
        let name = graph.variables[variable.index()].name.as_str();
        let task = match held.get(name).map(Vec::as_slice) {
            Some([task]) => *task,
            Some([first, second, ..]) => {
                let reason = format!(
                    "variable '{name}' of container '{container}' is on {first} and on {second}, expected one \
                     task: reset the container, and train again with the same devices"
                );
                return Err(SessionError::Evaluation(reason));
            }
            _ => {
                let unreached = described.tasks.iter().filter(|task| task.error.is_some());
                let unreached: Vec<String> = unreached.map(|task| task.task.to_string()).collect();
                let tasks = match unreached.as_slice() {
                    [] => "no task".to_owned(),
                    unreached => format!("no task that answers (without {})", unreached.join(", ")),
                };
                let reason = format!(
                    "{tasks} has variable '{name}' in container '{container}': expected the container that the \
                     model was trained in"
                );
                return Err(SessionError::Evaluation(reason));
            }
        };
        node.device = Some(OpDeviceSpec { job: Some(task.job), task: Some(task.index), device: None });
    }
    Ok(graph)
}

/// Returns the inputs that these nodes need, each with the index of its column.
///
/// # Errors
/// If the data set has no column for an input, or one of another shape or type.
fn inputs(
    graph: &GraphSpec,
    of: &[NodeId],
    columns: &[ColumnSpec],
) -> Result<Vec<(NodeId, usize)>, SessionError> {
    let needed = graph.needed(of);
    let mut inputs = Vec::new();
    for (position, node) in graph.nodes.iter().enumerate().filter(|(position, _)| needed[*position]) {
        let Op::Input { example } = &node.op else { continue };
        let fits = |column: &ColumnSpec| column.name == node.name && column.example == *example;
        let Some(column) = columns.iter().position(fits) else {
            let (name, has) = (&node.name, ColumnSpec::list(columns));
            let reason = format!("the data set has no column '{name}' {example}; it has {has}");
            return Err(SessionError::Evaluation(reason));
        };
        inputs.push((NodeId(position as u32), column));
    }
    Ok(inputs)
}

/// Returns a column of a batch as a tensor.
fn fed(spec: &ColumnSpec, batch: &Batch, column: usize) -> Tensor {
    let elements = match &batch.columns[column] {
        Column::F32(elements) => Elements::F32(elements.clone()),
        Column::I32(elements) => Elements::I32(elements.clone()),
    };
    let shape = spec.example.shape.with_leading(batch.examples);
    Tensor::new(shape, elements).expect("a column has the elements of its examples")
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::graph::{GraphBuilder, MetricSpec};
    use pushpull_messages::id::{Incarnation, JobName};
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::message::{ContainerDescription, TaskDescription, VariableDescription};
    use pushpull_messages::optimizer::OptimizerSpec;
    use pushpull_messages::tensor::TensorSpec;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;
    use crate::{Cluster, Job, Server, SessionOptions};

    /// Returns a model y = w · x with its loss as a metric, too, and the operation that trains it.
    fn model(device: &str) -> (GraphSpec, NodeId) {
        let mut g = GraphBuilder::new("line");
        let (x, y) = (g.input("features", []), g.input("labels", []));
        let w = g.device(device, |g| g.variable("w", [], InitializerSpec::Zeros));
        let guess = g.mul(x, w);
        let loss = g.mean_squared_error(guess, y);
        let train = g.minimize(&OptimizerSpec::sgd(0.05), loss);
        let mut graph = g.finish_session().unwrap();
        graph.loss = loss;
        graph.metrics = vec![MetricSpec { name: "same".into(), node: loss }];
        (graph, train)
    }

    fn examples(count: usize) -> Examples {
        let x: Vec<f32> = (0..count).map(|number| number as f32).collect();
        let y = x.iter().map(|x| 2.0 * x).collect();
        Examples::f32("features", [], x).unwrap().with(&Examples::f32("labels", [], y).unwrap()).unwrap()
    }

    #[test]
    fn an_evaluation_weights_batches_by_their_examples() {
        let server = Server::local().unwrap();
        let options = SessionOptions { container: "lines".into(), ..SessionOptions::default() };
        let session = Session::connect_with(&server.target(), options).unwrap();
        let (graph, train) = model("");
        let error = session.evaluate(&graph, &examples(5), 2).unwrap_err().to_string();
        let expected = "no task has variable 'w' in container 'lines': expected the container that the model was \
                        trained in";
        assert_eq!(error, expected);
        let containers = &session.describe().unwrap().tasks[0].containers;
        assert!(containers.is_empty(), "an evaluation creates no variables");
        let feeds = |count| {
            let x: Vec<f32> = (0..count).map(|number| number as f32).collect();
            let y: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
            [(NodeId(0), Tensor::from(x)), (NodeId(1), Tensor::from(y))]
        };
        session.run_targets(&graph, &feeds(3), &[train]).unwrap();
        let own = session.run(&graph, &feeds(5), &[graph.loss]).unwrap()[0].f32s().unwrap()[0];
        for batch in [1, 2, 5, 1000] {
            let evaluation = session.evaluate(&graph, &examples(5), batch).unwrap();
            assert_eq!((evaluation.examples, evaluation.metrics[0].value), (5, evaluation.loss));
            assert!((evaluation.loss - own).abs() <= 1e-5 * own, "{evaluation:?}, expected {own}");
        }
        let other = Examples::f32("features", [2], vec![0.0; 4]).unwrap();
        let error = session.evaluate(&graph, &other, 2).unwrap_err().to_string();
        assert_eq!(error, "the data set has no column 'features' f32[]; it has 'features' f32[2]");
    }

    #[test]
    fn an_evaluation_equals_that_of_the_trained_model() {
        let mut g = GraphBuilder::new("digits");
        let (images, labels) = (g.input("features", [28, 28]), g.labels("labels"));
        let kernel = g.variable("kernel", [784, 10], InitializerSpec::GlorotUniform);
        let flat = g.reshape(images, [784]);
        let kept = g.dropout(flat, 0.5);
        let logits = g.matmul(kept, kernel);
        let loss = g.softmax_cross_entropy(logits, labels);
        let (accuracy, three) = (g.accuracy(logits, labels), g.top_k(logits, labels, 3));
        let graph = g.finish(loss, &[("accuracy", accuracy), ("top3", three)]).unwrap();
        let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
        let input = InputSpec::new(digits(0, 200), digits(1, 150));
        let job = Job::new(graph.clone(), input).batch_size(40).steps(10);
        let trained = job.train(Cluster::embedded(1, 1)).unwrap();

        let server = Server::local().unwrap();
        let session = server.session().unwrap();
        let mut g = GraphBuilder::new("restore");
        let own = g.variable("kernel", [784, 10], InitializerSpec::Zeros);
        let value = g.placeholder("value", TensorSpec::f32([784, 10]));
        let restore = g.assign(own, value);
        let values = trained.value("kernel").unwrap().values.to_vec();
        let fed = (value, Tensor::new([784, 10], values).unwrap());
        session.run_targets(&g.finish_session().unwrap(), &[fed], &[restore]).unwrap();

        let test = Examples::read(&digits(1, 150)).unwrap();
        let expected = trained.evaluate(&test).unwrap();
        let evaluation = session.evaluate(&graph, &test, 40).unwrap();
        assert_eq!(evaluation, Evaluation { variables_crc32c: 0, ..expected });
    }

    #[test]
    fn variables_are_evaluated_where_they_are() {
        let on = |task: u32, containers: &[&str]| {
            let variables =
                vec![VariableDescription { name: "w".into(), tensor: TensorSpec::f32([]), changes: 1 }];
            let container = |name: &&str| ContainerDescription {
                name: (*name).into(),
                variables: variables.clone(),
                left_out: 0,
            };
            let (task, incarnation) = (TaskId::ps(task), Incarnation(1));
            let containers = containers.iter().map(container).collect();
            TaskDescription { task, incarnation, cpus: 1, bytes: 4, bytes_max: 9, containers, error: None }
        };
        let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1", "p:2"])]).unwrap();
        let described = Described { cluster, tasks: vec![on(0, &["other"]), on(1, &["own", "other"])] };
        let (graph, _) = model("/job:ps/task:0");
        let moved = located(&graph, &described, "own").unwrap();
        let device = |graph: &GraphSpec| graph.nodes[graph.find("w").unwrap().index()].device.unwrap();
        assert_eq!(device(&moved).to_string(), "/job:ps/task:1");
        let error = located(&graph, &described, "other").unwrap_err().to_string();
        assert!(error.starts_with("variable 'w' of container 'other' is on ps/0 and on ps/1"), "{error}");
        let mut lost = described;
        lost.tasks[1].error = Some("gone".into());
        let error = located(&graph, &lost, "none").unwrap_err().to_string();
        assert!(error.starts_with("no task that answers (without ps/1) has variable 'w'"), "{error}");
    }
}
