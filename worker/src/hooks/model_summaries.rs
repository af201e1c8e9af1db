//! A hook that plots the summaries that a graph declares. This module must not depend on how a step is
//! computed.

use pushpull_messages::graph::{GraphSpec, GraphSummaryKind, GraphSummarySpec};
use pushpull_messages::summary::{SummarySpec, SummaryValue};

use super::hook::{Fetched, Hook, HookError};
use crate::fetches::{FETCH_NAMES_MAX, FetchConfig};
use crate::telemetry::{Plots, histogram};

/// A hook that plots some of the summaries of a graph. Values that are not finite are left out.
pub(crate) struct ModelSummaries {
    summaries: Vec<GraphSummarySpec>,
    fetches: FetchConfig,
}

impl ModelSummaries {
    /// Returns the hooks that plot all summaries of a valid graph, in one of `every` steps of the worker.
    pub(crate) fn hooks(graph: &GraphSpec, every: u64) -> impl Iterator<Item = Self> {
        graph.summaries.chunks(FETCH_NAMES_MAX).map(move |summaries| {
            let names = summaries.iter().map(|summary| &graph.nodes[summary.node.index()].name);
            Self { summaries: summaries.to_vec(), fetches: FetchConfig::new(names, every) }
        })
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
        for (at, mut hook) in ModelSummaries::hooks(&graph, 7).enumerate() {
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
}
