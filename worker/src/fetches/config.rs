//! The fetches of a hook. A fetch names tensors, and this module finds the node or the variable that each
//! name stands for. It must not depend on how a step is computed.

use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::{DType, TensorSpec};

use super::error::FetchError;
use super::limits::{FETCH_BYTES_MAX, FETCH_NAMES_MAX};
use super::similar::similar;

/// The part of a name that stands for a variable's gradient.
const GRAD: &str = "grad";
/// The part of a name that stands for the norm of a variable's gradient.
const GRAD_NORM: &str = "grad_norm";

/// The tensors that a hook fetches, and how often; the counterpart of TensorFlow's `SessionRunArgs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchConfig {
    /// The names of the tensors, 1 to [`FETCH_NAMES_MAX`]. A name is looked up among the nodes, the outputs
    /// of the graph, the metrics, the word `loss`, and the layers and scopes, in this order. A layer or
    /// scope stands for the last operation in it. `VARIABLE:grad` is a variable's gradient over the worker's
    /// whole batch, before the gradients are clipped, and `VARIABLE:grad_norm` is the Euclidean norm of this
    /// gradient. If a step computes gradients of several batches, a fetched tensor comes from the last
    /// batch, and a fetched gradient is the mean over all batches.
    pub names: Vec<String>,
    /// The number of steps of the worker from one fetch to the next; at least 1. The first fetch is made at
    /// the worker's first step.
    pub every: u64,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Tensor(NodeId),
    Gradient(WantedGradient),
}

/// A gradient, or its norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedGradient {
    pub variable: VariableId,
    /// True for all elements of the gradient, false for its Euclidean norm.
    pub whole: bool,
}

impl FetchConfig {
    /// Creates the config that fetches these names every `every` steps.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>, every: u64) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), every }
    }

    /// Checks that each name stands for a gradient or for a float tensor of the graph, and that no tensor is
    /// too large to be fetched for a batch of `batch` examples.
    ///
    /// # Errors
    /// Returns the first fault. If a name is unknown, the error lists similar names.
    pub fn check(&self, graph: &GraphSpec, batch: usize) -> Result<(), FetchError> {
        // An error in the shapes is reported when the graph is compiled.
        self.targets(graph, graph.infer(batch).ok().as_deref()).map(drop)
    }

    /// Returns what each name stands for. `tensors` describes the graph's tensors for one batch; it is `None`
    /// if their shapes are unknown.
    pub(super) fn targets(
        &self,
        graph: &GraphSpec,
        tensors: Option<&[TensorSpec]>,
    ) -> Result<Vec<Target>, FetchError> {
        if !(1..=FETCH_NAMES_MAX).contains(&self.names.len()) {
            return Err(FetchError::Names(self.names.len()));
        }
        if self.every == 0 {
            return Err(FetchError::Never);
        }
        let targets = self.names.iter().map(|name| target(graph, name)).collect::<Result<Vec<_>, _>>()?;
        tensors.map_or(Ok(()), |tensors| self.check_tensors(graph, &targets, tensors))?;
        Ok(targets)
    }

    /// Checks the type of each tensor, and the total size of all tensors.
    fn check_tensors(
        &self,
        graph: &GraphSpec,
        targets: &[Target],
        tensors: &[TensorSpec],
    ) -> Result<(), FetchError> {
        let (mut bytes, mut largest) = (0u64, (0, ""));
        for (name, target) in self.names.iter().zip(targets) {
            let elements = match *target {
                Target::Tensor(node) => {
                    let tensor = &tensors[node.index()];
                    if tensor.dtype != DType::F32 {
                        return Err(FetchError::NotFloats { name: name.clone(), tensor: tensor.clone() });
                    }
                    tensor.shape.elements()
                }
                Target::Gradient(WantedGradient { whole: false, .. }) => 1,
                Target::Gradient(WantedGradient { variable, .. }) => {
                    graph.variables[variable.index()].shape.elements()
                }
            };
            let own = elements as u64 * size_of::<f32>() as u64;
            bytes = bytes.saturating_add(own);
            largest = largest.max((own, name));
        }
        if bytes > FETCH_BYTES_MAX {
            return Err(FetchError::TooLarge { name: largest.1.to_owned(), bytes });
        }
        Ok(())
    }
}

/// Returns what a name stands for.
fn target(graph: &GraphSpec, name: &str) -> Result<Target, FetchError> {
    if let Some(node) = tensor(graph, name) {
        return Ok(Target::Tensor(node));
    }
    match name.rsplit_once(':') {
        Some((variable, GRAD)) => gradient(graph, name, variable, true),
        Some((variable, GRAD_NORM)) => gradient(graph, name, variable, false),
        Some(_) => Err(FetchError::Suffix { name: name.to_owned() }),
        None => {
            let outputs = graph.outputs.iter().map(|output| output.name.as_str());
            let metrics = graph.metrics.iter().map(|metric| metric.name.as_str());
            let nodes = graph.nodes.iter().map(|node| node.name.as_str());
            let scopes = nodes.clone().filter_map(|name| Some(name.rsplit_once('/')?.0));
            let names = outputs.chain(metrics).chain(["loss"]).chain(scopes).chain(nodes);
            Err(FetchError::Unknown { name: name.to_owned(), what: "tensor", near: similar(name, names) })
        }
    }
}

fn tensor(graph: &GraphSpec, name: &str) -> Option<NodeId> {
    let output = || graph.outputs.iter().find(|output| output.name == name).map(|output| output.node);
    let metric = || graph.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.node);
    let loss = || (name == "loss").then_some(graph.loss);
    let within = |node: &str| node.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let scope = || graph.nodes.iter().rposition(|node| within(&node.name)).map(|last| NodeId(last as u32));
    graph.find(name).or_else(output).or_else(metric).or_else(loss).or_else(scope)
}

fn gradient(graph: &GraphSpec, name: &str, variable: &str, whole: bool) -> Result<Target, FetchError> {
    let names = || graph.variables.iter().map(|own| own.name.as_str());
    match names().position(|own| own == variable) {
        Some(position) if graph.variables[position].trainable => {
            Ok(Target::Gradient(WantedGradient { variable: VariableId(position as u32), whole }))
        }
        Some(_) => Err(FetchError::Untrained { name: name.to_owned() }),
        None => {
            let near = similar(variable, names());
            Err(FetchError::Unknown { name: name.to_owned(), what: "variable", near })
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    fn graph() -> GraphSpec {
        let mut g = GraphBuilder::new("two layers");
        let x = g.input("features", [4]);
        let labels = g.labels("labels");
        let layer = |g: &mut GraphBuilder, name: &str, x, inputs: usize| {
            g.scope(name, |g| {
                let kernel = g.variable("kernel", [inputs, 3], InitializerSpec::Zeros);
                let bias = g.untrained("bias", [3], InitializerSpec::Zeros);
                let product = g.matmul(x, kernel);
                g.bias_add(product, bias)
            })
        };
        let hidden = layer(&mut g, "dense1", x, 4);
        let logits = layer(&mut g, "logits", hidden, 3);
        let scores = g.softmax(logits);
        g.output("scores", scores);
        let loss = g.softmax_cross_entropy(logits, labels);
        let accuracy = g.accuracy(logits, labels);
        g.finish(loss, &[("hits", accuracy)]).unwrap()
    }

    #[test]
    fn names_stand_for_nodes_outputs_metrics_and_layers() {
        let graph = graph();
        let node = |name: &str| Target::Tensor(graph.find(name).unwrap());
        let gradient =
            |variable, whole| Target::Gradient(WantedGradient { variable: VariableId(variable), whole });
        for (name, wanted) in [
            ("features", node("features")),
            ("dense1/kernel", node("dense1/kernel")),
            ("logits", node("logits/bias_add")),
            ("dense1", node("dense1/bias_add")),
            ("scores", node("softmax")),
            ("hits", node("accuracy")),
            ("loss", node("softmax_cross_entropy")),
            ("logits/kernel:grad_norm", gradient(2, false)),
            ("logits/kernel:grad", gradient(2, true)),
        ] {
            assert_eq!(FetchConfig::new([name], 1).targets(&graph, None), Ok(vec![wanted]), "{name}");
        }
    }

    #[test]
    fn a_wrong_name_is_told_with_similar_ones() {
        let graph = graph();
        let error = |names: &[&str], every, batch| {
            FetchConfig::new(names.to_vec(), every).check(&graph, batch).unwrap_err().to_string()
        };
        for (name, wanted) in [
            ("logit", "the graph has no tensor of this name; did you mean 'logits', 'logits/"),
            ("dense1/kernal:grad_norm", "no variable of this name; did you mean 'dense1/kernel'?"),
            ("logits/kernel:gradnorm", "expected a tensor, VARIABLE:grad or VARIABLE:grad_norm"),
            ("logits/bias:grad_norm", "the variable is not trained"),
            ("labels", "cannot fetch 'labels': it is i32[2], expected f32"),
        ] {
            let error = error(&["loss", name], 1, 2);
            assert!(error.contains(wanted) && error.contains(name), "{error}");
        }
        assert!(error(&[], 1, 2).starts_with("got 0 names"));
        assert!(error(&["loss"; FETCH_NAMES_MAX + 1], 1, 2).starts_with("got 65 names"));
        assert!(error(&["loss"], 0, 2).contains("every 0 steps"));
        let large = error(&["loss", "features"], 1, 1 << 23);
        assert!(large.contains("'features'") && large.contains(" 134217732 bytes"), "{large}");
    }
}
