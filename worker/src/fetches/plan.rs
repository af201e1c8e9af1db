//! Decides which tensors the steps of a worker fetch, and at which steps. This module must not depend on how
//! a step is computed.

use pushpull_engine::{Fetch, Groups};
use pushpull_messages::id::LocalStep;
use pushpull_messages::job::JobSpec;

use super::metric_cost::usual_every;
use crate::metric_totals::MetricTotals;

/// The group of the graph's metrics.
const METRICS: Groups = Groups::only(0);

/// The fetches of a worker's steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchPlan {
    fetches: Vec<Fetch>,
    /// The number of steps from one to the next in which the metrics are computed; 0 for never.
    metrics_every: u64,
    /// The number of elements that the metrics of one device have together.
    metric_elements: usize,
}

/// What one device has fetched in a step.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// The number of examples in the device's part of the batch.
    pub examples: usize,
    /// The tensors of the step's groups, one after another. Empty if the replica fetches no tensors.
    pub values: Vec<f32>,
}

impl FetchPlan {
    /// Plans the fetches of a job that is valid.
    pub(crate) fn new(job: &JobSpec) -> Self {
        let graph = &job.graph;
        let metrics_every = match job.metrics_every {
            _ if graph.metrics.is_empty() => 0,
            Some(every) => every,
            None => usual_every(graph, job.batch_size as usize),
        };
        if metrics_every == 0 {
            return Self::default();
        }
        let fetch = |node| Fetch { node, groups: METRICS };
        Self {
            fetches: graph.metrics.iter().map(|metric| fetch(metric.node)).collect(),
            metrics_every,
            metric_elements: MetricTotals::kinds(graph).map(MetricTotals::elements).sum(),
        }
    }

    /// Returns all fetches, in the order in which a device returns them.
    pub(crate) fn fetches(&self) -> &[Fetch] {
        &self.fetches
    }

    /// Returns the groups that a step of this worker fetches.
    pub(crate) const fn groups(&self, step: LocalStep) -> Groups {
        match self.metrics_every {
            0 => Groups::NONE,
            every if step.0.is_multiple_of(every) => METRICS,
            _ => Groups::NONE,
        }
    }

    /// Returns the part of what devices have fetched that begins with the metrics; empty if the step did not
    /// compute them. `groups` are the groups of the step.
    pub(crate) fn metrics<'a>(&self, groups: Groups, fetched: &'a [Fetched]) -> &'a [Fetched] {
        // A replica that does not run pushpull's engine may fetch nothing.
        let all = fetched.iter().all(|own| own.values.len() >= self.metric_elements);
        if groups.meets(METRICS) && all { fetched } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};

    use super::*;

    fn job(metrics_every: Option<u64>, metrics: bool) -> JobSpec {
        let mut g = GraphBuilder::new("small");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let all: &[(&str, _)] = if metrics { &[("half", loss)] } else { &[] };
        let set = || DatasetSpec::Digits { seed: 1, examples: 1 };
        JobSpec {
            metrics_every,
            ..JobSpec::new(g.finish(loss, all).unwrap(), InputSpec::new(set(), set()), 1)
        }
    }

    #[test]
    fn metrics_are_fetched_at_their_steps() {
        let due = |job: &JobSpec| -> Vec<u64> {
            let plan = FetchPlan::new(job);
            assert_eq!(plan.fetches().is_empty(), plan.metrics_every == 0);
            (0..6).filter(|&step| plan.groups(LocalStep(step)).meets(METRICS)).collect()
        };
        assert_eq!(due(&job(None, true)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(due(&job(Some(3), true)), [0, 3]);
        assert!(due(&job(Some(0), true)).is_empty() && due(&job(None, false)).is_empty());
    }

    #[test]
    fn a_replica_that_fetches_nothing_has_no_metrics() {
        let plan = FetchPlan::new(&job(None, true));
        let fetched = |values| [Fetched { examples: 2, values }];
        assert_eq!(plan.metrics(METRICS, &fetched(vec![0.5])).len(), 1);
        assert!(plan.metrics(METRICS, &fetched(vec![])).is_empty());
        assert!(plan.metrics(Groups::NONE, &fetched(vec![0.5])).is_empty());
    }
}
