//! A hook that plots the summaries that a graph declares. This module must not depend on how a step is
//! computed.

use pushpull_messages::graph::{GraphSpec, GraphSummaryKind, GraphSummarySpec, SUMMARY_TENSOR_BYTES_MAX};
use pushpull_messages::summary::{SummarySpec, SummaryValue};

use super::hook::{Fetched, Hook, HookError};
use crate::fetches::{FETCH_BYTES_MAX, FETCH_NAMES_MAX, FetchConfig};
use crate::telemetry::{Plots, histogram};

// The tensor of a single summary can be fetched.
const _: () = assert!(SUMMARY_TENSOR_BYTES_MAX <= FETCH_BYTES_MAX);

/// A hook that plots some of the summaries of a graph. Values that are not finite are left out.
pub(crate) struct ModelSummaries {
    summaries: Vec<GraphSummarySpec>,
    fetches: FetchConfig,
}

impl ModelSummaries {
    /// Returns the hooks that plot all summaries of a graph, once in every `every` steps of the worker. The
    /// summaries are divided among the hooks so that no hook fetches more bytes or tensors than it may.
    /// `batch` is the number of examples in a batch, which determines the sizes of the tensors.
    pub(crate) fn hooks(graph: &GraphSpec, batch: usize, every: u64) -> Vec<Self> {
        // An error in the shapes is reported when the graph is compiled.
        let tensors = graph.infer(batch).unwrap_or_default();
        let bytes_of = |summary: &GraphSummarySpec| {
            let elements = tensors.get(summary.node.index()).map_or(0, |tensor| tensor.shape.elements());
            elements as u64 * size_of::<f32>() as u64
        };
        let mut hooks: Vec<Self> = Vec::new();
        let mut bytes = 0;
        for summary in &graph.summaries {
            let name = graph.nodes[summary.node.index()].name.clone();
            let own = bytes_of(summary);
            match hooks.last_mut() {
                Some(last) if last.summaries.len() < FETCH_NAMES_MAX && bytes + own <= FETCH_BYTES_MAX => {
                    last.summaries.push(summary.clone());
                    last.fetches.names.push(name);
                    bytes += own;
                }
                _ => {
                    let fetches = FetchConfig::new([name], every);
                    hooks.push(Self { summaries: vec![summary.clone()], fetches });
                    bytes = own;
                }
            }
        }
        hooks
    }
}

impl Hook for ModelSummaries {
    fn fetches(&self) -> Option<FetchConfig> {
        Some(self.fetches.clone())
    }

    fn fetched(&mut self, fetched: &Fetched<'_>, plots: &Plots) -> Result<(), HookError> {
        for (summary, tensor) in self.summaries.iter().zip(fetched.tensors) {
            let value = match (summary.kind, &tensor.values[..]) {
                (GraphSummaryKind::Scalar, &[number]) if number.is_finite() => {
                    Some(SummaryValue::Scalar(number))
                }
                (GraphSummaryKind::Scalar, _) => None,
                (GraphSummaryKind::Histogram, values) => histogram(values).map(SummaryValue::Histogram),
            };
            if let Some(value) = value {
                plots.plot(SummarySpec { tag: summary.name.clone(), step: fetched.global_step, value });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
    use pushpull_messages::tensor::Shape;

    use super::*;
    use crate::fetches::FetchedTensor;

    #[test]
    fn scalars_and_histograms_are_plotted_under_their_names() {
        let mut g = GraphBuilder::new("plots");
        let x = g.input("features", [2]);
        let loss = g.l2_loss(x);
        g.summary_histogram("inputs", x);
        for number in 0..FETCH_NAMES_MAX {
            g.summary_scalar(&format!("loss{number}"), loss);
        }
        let graph = g.finish(loss, &[]).unwrap();
        let plots = Plots::default();
        let mut names = Vec::new();
        for (at, mut hook) in ModelSummaries::hooks(&graph, 2, 7).into_iter().enumerate() {
            let FetchConfig { names: nodes, every } = hook.fetches().unwrap();
            assert_eq!((nodes.len(), every), ([FETCH_NAMES_MAX, 1][at], 7));
            let tensor = |name: &String| {
                let values = if name == "features" { vec![1.0, f32::NAN, 3.0] } else { vec![0.5] };
                FetchedTensor { name: name.clone(), shape: Shape(vec![values.len()]), values }
            };
            let tensors: Vec<_> = nodes.iter().map(tensor).collect();
            let (task, local_step, global_step) = (TaskId::worker(0), LocalStep(1), GlobalStep(2));
            hook.fetched(&Fetched { task, local_step, global_step, tensors: &tensors }, &plots).unwrap();
            for summary in plots.take() {
                match &summary.value {
                    SummaryValue::Histogram(own) => assert_eq!((own.count, own.sum), (2.0, 4.0)),
                    other => assert_eq!(other, &SummaryValue::Scalar(0.5)),
                }
                names.push(summary.tag);
            }
        }
        assert_eq!(names, graph.summaries.iter().map(|summary| summary.name.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn large_histograms_are_fetched_by_several_hooks() {
        let mut g = GraphBuilder::new("plots");
        let x = g.input("features", [1 << 20]);
        let loss = g.l2_loss(x);
        (0..4).for_each(|at| g.summary_histogram(&format!("inputs{at}"), x));
        g.summary_scalar("loss", loss);
        let graph = g.finish(loss, &[]).unwrap();
        // One example takes 4 MiB, so a batch of 15 takes 60 MiB.
        let hooks = ModelSummaries::hooks(&graph, 15, 1);
        let counts: Vec<usize> = hooks.iter().map(|hook| hook.summaries.len()).collect();
        assert_eq!(counts, [1, 1, 1, 2]);
        hooks.iter().for_each(|hook| hook.fetches().unwrap().check(&graph, 15).unwrap());
    }
}
