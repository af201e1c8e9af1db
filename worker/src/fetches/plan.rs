//! Decides which tensors the steps of a worker fetch, and at which steps. This module must not depend on how
//! a step is computed.
//!
//! Wanted properties: (A) a hook gets its tensors at its steps, whatever else is fetched; (B) with several
//! devices, a fetched tensor covers the whole batch.

use pushpull_engine::{Fetch, Groups};
use pushpull_messages::graph::{GraphSpec, MetricKind, Op};
use pushpull_messages::id::{LocalStep, NodeId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::tensor::{Shape, TensorSpec};

use super::config::{FetchConfig, Target, WantedGradient};
use super::error::FetchError;
use super::metric_cost::usual_every;
use crate::metric_totals::MetricTotals;

/// The group of the graph's metrics.
const METRICS: Groups = Groups::only(0);
/// The index of the first group that belongs to a hook. Each hook gets the next group. When only the last
/// group is left, all further hooks share it.
const FIRST_HOOK: usize = 1;

/// The fetches of a worker's steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchPlan {
    fetches: Vec<Fetch>,
    /// For each device, the number of elements of each fetch.
    elements: Vec<Vec<usize>>,
    /// The interval, in steps, at which the metrics are computed; 0 for never.
    metrics_every: u64,
    /// The number of elements of all metrics together, on one device.
    metric_elements: usize,
    /// The fetches of each hook; `None` for a hook that fetches nothing.
    hooks: Vec<Option<HookFetches>>,
}

/// The fetches of one hook.
#[derive(Clone, Debug)]
struct HookFetches {
    every: u64,
    group: Groups,
    names: Vec<String>,
    sources: Vec<Source>,
}

/// The source of a value that a hook fetches.
#[derive(Clone, Debug)]
enum Source {
    /// The fetch with this index, the shape for the whole batch, and how the parts of the devices are joined.
    Tensor(usize, Shape, Join),
    /// A gradient or its norm, and its shape.
    Gradient(WantedGradient, Shape),
}

/// How the tensors of several devices become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// The rows of all devices are concatenated, in the order of the devices.
    Rows,
    /// The mean, weighted by the number of examples of each device, as for the loss.
    Mean,
    /// The sum, because the elements are counts.
    Sum,
    /// The tensors of all devices are the same, so one of them is taken.
    Same,
}

/// What one device has fetched in a step.
#[derive(Clone, Debug)]
pub(crate) struct FetchedPart {
    /// The number of examples in the device's part of the batch.
    pub examples: usize,
    /// The tensors of the step's groups, one after another. Empty if the replica fetches no tensors.
    pub values: Vec<f32>,
}

/// What all devices have fetched in a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepFetches {
    /// What each device has fetched; empty if the step fetches nothing.
    pub parts: Vec<FetchedPart>,
    /// The gradients and norms that [`FetchPlan::gradients`] returned for the step, with their elements.
    pub gradients: Vec<(WantedGradient, Vec<f32>)>,
}

/// A tensor that was fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedTensor {
    /// The name by which the tensor was requested.
    pub name: String,
    /// The shape of the tensor for the worker's whole batch.
    pub shape: Shape,
    /// The elements, row-major. They are NaN if the tensor cannot be computed for this batch.
    pub values: Vec<f32>,
}

impl FetchPlan {
    /// Plans the fetches of a valid job and of hooks. `parts` contains, for each device, the number of
    /// examples in its part of a batch.
    ///
    /// # Errors
    /// If a hook's fetches are not valid for the job's graph.
    pub(crate) fn new(
        job: &JobSpec,
        parts: &[usize],
        hooks: &[Option<FetchConfig>],
    ) -> Result<Self, FetchError> {
        let graph = &job.graph;
        let mut plan = Self { metrics_every: metrics_every(job), ..Self::default() };
        if plan.metrics_every > 0 {
            let fetch = |node| Fetch { node, groups: METRICS };
            plan.fetches = graph.metrics.iter().map(|metric| fetch(metric.node)).collect();
            plan.metric_elements = MetricTotals::kinds(graph).map(MetricTotals::elements).sum();
        }
        let mut shapes = None;
        for (position, config) in hooks.iter().enumerate() {
            let number = (FIRST_HOOK + position).min(Groups::MAX as usize - 1);
            let group = Groups::only(number as u32);
            let mut hook = |config| {
                let shapes = shapes.get_or_insert_with(|| Shapes::of(graph, job.batch_size as usize));
                plan.hook(graph, shapes, parts.len(), config, group)
            };
            let hook = config.as_ref().map(&mut hook).transpose()?;
            plan.hooks.push(hook);
        }
        // An error in the shapes is reported when the graph is compiled.
        let infer = |&examples: &usize| graph.infer(examples).unwrap_or_default();
        let elements = |examples: &usize| {
            let tensors = infer(examples);
            let of = |fetch: &Fetch| tensors.get(fetch.node.index()).map_or(0, |own| own.shape.elements());
            plan.fetches.iter().map(of).collect()
        };
        plan.elements = parts.iter().map(elements).collect();
        Ok(plan)
    }

    /// Adds the fetches of a hook.
    fn hook(
        &mut self,
        graph: &GraphSpec,
        shapes: &Shapes,
        devices: usize,
        config: &FetchConfig,
        group: Groups,
    ) -> Result<HookFetches, FetchError> {
        let mut sources = Vec::with_capacity(config.names.len());
        for target in config.targets(graph, shapes.own.as_deref())? {
            sources.push(match target {
                Target::Gradient(wanted) => {
                    let shape = match wanted.whole {
                        true => graph.variables[wanted.variable.index()].shape.clone(),
                        false => Shape::scalar(),
                    };
                    Source::Gradient(wanted, shape)
                }
                Target::Tensor(node) => {
                    let (shape, join) = shapes.whole(graph, node);
                    let join = match join {
                        Some(join) => join,
                        // One device has the whole tensor.
                        None if devices == 1 => Join::Rows,
                        None => {
                            let name = graph.label(node);
                            return Err(FetchError::Apart { name, shape, devices });
                        }
                    };
                    self.fetches.push(Fetch { node, groups: group });
                    Source::Tensor(self.fetches.len() - 1, shape, join)
                }
            });
        }
        Ok(HookFetches { every: config.every, group, names: config.names.clone(), sources })
    }

    /// Returns all fetches, in the order in which a device returns them.
    pub(crate) fn fetches(&self) -> &[Fetch] {
        &self.fetches
    }

    /// Returns the groups that a step of this worker fetches.
    pub(crate) fn groups(&self, step: LocalStep) -> Groups {
        let metrics = if is_due(self.metrics_every, step) { METRICS } else { Groups::NONE };
        self.due(step).fold(metrics, |groups, hook| groups.with(hook.group))
    }

    /// Returns the gradients and norms that the step needs, each once.
    pub(crate) fn gradients(&self, step: LocalStep) -> Vec<WantedGradient> {
        let mut all = Vec::new();
        for source in self.due(step).flat_map(|hook| &hook.sources) {
            if let Source::Gradient(wanted, _) = source
                && !all.contains(wanted)
            {
                all.push(*wanted);
            }
        }
        all
    }

    /// Returns what the hooks fetch at this step.
    fn due(&self, step: LocalStep) -> impl Iterator<Item = &HookFetches> {
        self.hooks.iter().flatten().filter(move |hook| is_due(hook.every, step))
    }

    /// Returns all of `parts` if the step computed the metrics, which are then the first values of each part.
    /// Otherwise returns an empty slice. `groups` are the groups that the step fetched.
    pub(crate) fn metrics<'a>(&self, groups: Groups, parts: &'a [FetchedPart]) -> &'a [FetchedPart] {
        // A replica that does not run pushpull's engine may fetch nothing.
        let all = parts.iter().all(|own| own.values.len() >= self.metric_elements);
        if groups.meets(METRICS) && all { parts } else { &[] }
    }

    /// Returns the tensors that the hook with this index has fetched at a step, in the order in which the
    /// hook requested them. Returns `None` if the hook fetches nothing at this step.
    ///
    /// # Errors
    /// If a device has not returned a tensor, because the worker's engine cannot fetch tensors.
    pub(crate) fn of_hook(
        &self,
        hook: usize,
        step: LocalStep,
        fetched: &StepFetches,
    ) -> Result<Option<Vec<FetchedTensor>>, FetchError> {
        let Some(own) = self.hooks.get(hook).and_then(Option::as_ref).filter(|own| is_due(own.every, step))
        else {
            return Ok(None);
        };
        let groups = self.groups(step);
        let tensor = |(name, source): (&String, &Source)| {
            let (shape, values) = match source {
                Source::Tensor(fetch, shape, join) => {
                    let missing = || FetchError::NotReturned { name: name.clone() };
                    let values = self.joined(*fetch, *join, groups, &fetched.parts).ok_or_else(missing)?;
                    (shape.clone(), values)
                }
                Source::Gradient(wanted, shape) => {
                    let found = fetched.gradients.iter().find(|(own, _)| own == wanted);
                    (shape.clone(), found.map(|(_, values)| values.clone()).unwrap_or_default())
                }
            };
            Ok(FetchedTensor { name: name.clone(), shape, values })
        };
        own.names.iter().zip(&own.sources).map(tensor).collect::<Result<_, _>>().map(Some)
    }

    /// Returns the elements of a fetch for the whole batch; `None` if a device has not returned them.
    fn joined(&self, fetch: usize, join: Join, groups: Groups, parts: &[FetchedPart]) -> Option<Vec<f32>> {
        let examples: usize = parts.iter().map(|part| part.examples).sum();
        let mut joined: Option<Vec<f32>> = None;
        for (part, elements) in parts.iter().zip(&self.elements) {
            let before = self.fetches[..fetch].iter().zip(elements);
            let start: usize =
                before.filter(|(own, _)| own.groups.meets(groups)).map(|(_, count)| count).sum();
            let own = part.values.get(start..start + elements[fetch])?;
            let weight = part.examples as f32 / examples as f32;
            match (&mut joined, join) {
                (None, Join::Mean) if parts.len() > 1 => {
                    joined = Some(own.iter().map(|&value| value * weight).collect());
                }
                (None, _) => joined = Some(own.to_vec()),
                (Some(all), Join::Rows) => all.extend_from_slice(own),
                (Some(all), Join::Mean) => {
                    all.iter_mut().zip(own).for_each(|(sum, own)| *sum += own * weight)
                }
                (Some(all), Join::Sum) => all.iter_mut().zip(own).for_each(|(sum, own)| *sum += own),
                (Some(_), Join::Same) => {}
            }
        }
        joined
    }
}

/// Returns the interval, in steps, at which the metrics of a job are computed; 0 for never.
fn metrics_every(job: &JobSpec) -> u64 {
    match job.metrics_every {
        _ if job.graph.metrics.is_empty() => 0,
        Some(every) => every,
        None => usual_every(&job.graph, job.batch_size as usize),
    }
}

/// Returns true if an action with the interval `every`, in steps, is due at `step`. With the interval 0 it
/// is never due.
const fn is_due(every: u64, step: LocalStep) -> bool {
    every > 0 && step.0.is_multiple_of(every)
}

/// The tensors of a graph, for batches of two sizes. Their shapes show how a tensor depends on the batch
/// size.
struct Shapes {
    batch: usize,
    /// The tensors for a batch of the worker; `None` if the shapes cannot be inferred, which is reported
    /// when the graph is compiled.
    own: Option<Vec<TensorSpec>>,
    /// The tensors for a batch with one more example; `None` if the graph does not fit such a batch.
    larger: Option<Vec<TensorSpec>>,
}

impl Shapes {
    fn of(graph: &GraphSpec, batch: usize) -> Self {
        let infer = |batch| graph.infer(batch).ok();
        Self { batch, own: infer(batch), larger: infer(batch + 1) }
    }

    /// Returns the shape of a tensor for the whole batch, and how the tensors of several devices become one.
    ///
    /// The [`Join`] is `None` if the tensors cannot be joined: their shape depends on the size of the batch,
    /// but they do not have one row for each example.
    fn whole(&self, graph: &GraphSpec, node: NodeId) -> (Shape, Option<Join>) {
        let Some(tensors) = &self.own else { return (Shape::scalar(), Some(Join::Same)) };
        let (own, batch) = (&tensors[node.index()].shape, self.batch);
        let larger = self.larger.as_ref().map_or(own, |tensors| &tensors[node.index()].shape);
        let rows = |shape: &Shape, batch| shape.0.first() == Some(&batch);
        let join = match graph.nodes[node.index()].op {
            Op::Variable { .. } | Op::Constant { .. } => Some(Join::Same),
            _ if rows(own, batch) && rows(larger, batch + 1) => {
                (own.0[1..] == larger.0[1..]).then_some(Join::Rows)
            }
            _ if own != larger => None,
            _ if graph.metric_kind(node) != MetricKind::Mean => Some(Join::Sum),
            _ => Some(Join::Mean),
        };
        (own.clone(), join)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    const BATCH: usize = 6;

    /// Returns a job whose graph multiplies the input x `[B, 2]` by the variable kernel `[2]`. If `metrics`
    /// is true, the loss is also a metric.
    fn job(metrics_every: Option<u64>, metrics: bool) -> JobSpec {
        let mut g = GraphBuilder::new("small");
        let x = g.input("x", [2]);
        let kernel = g.variable("kernel", [2], InitializerSpec::Zeros);
        let y = g.mul(x, kernel);
        let loss = g.mean_squared_error(y, x);
        let all: &[(&str, _)] = if metrics { &[("error", loss)] } else { &[] };
        let set = || DatasetSpec::Digits { seed: 1, examples: 1 };
        let job = JobSpec::new(g.finish(loss, all).unwrap(), InputSpec::new(set(), set()), 1);
        JobSpec { metrics_every, batch_size: BATCH as u32, ..job }
    }

    fn plan(job: &JobSpec, parts: &[usize], hooks: &[(&[&str], u64)]) -> FetchPlan {
        let config = |&(names, every): &(&[&str], u64)| Some(FetchConfig::new(names.to_vec(), every));
        FetchPlan::new(job, parts, &hooks.iter().map(config).collect::<Vec<_>>()).unwrap()
    }

    /// Returns what the devices fetch in a step if device i computes `parts[i]` examples. In x and in the
    /// product, each element is the index of its example; the kernel is 7, and the loss of a device is the
    /// mean of its examples' indices.
    fn fetched(plan: &FetchPlan, job: &JobSpec, parts: &[usize], step: LocalStep) -> StepFetches {
        let (groups, mut first, mut all) = (plan.groups(step), 0, Vec::new());
        for &examples in parts {
            let own = first..first + examples;
            let due = plan.fetches().iter().filter(|fetch| fetch.groups.meets(groups));
            let values = due.flat_map(|fetch| match job.graph.nodes[fetch.node.index()].name.as_str() {
                "kernel" => vec![7.0; 2],
                "mean_squared_error" => vec![own.clone().sum::<usize>() as f32 / examples as f32],
                _ => own.clone().flat_map(|example| [example as f32; 2]).collect(),
            });
            all.push(FetchedPart { examples, values: values.collect() });
            first += examples;
        }
        let gradient = |wanted: WantedGradient| (wanted, if wanted.whole { vec![8.0; 2] } else { vec![0.5] });
        let gradients = plan.gradients(step).into_iter().map(gradient).collect();
        StepFetches { parts: if groups.is_empty() { Vec::new() } else { all }, gradients }
    }

    proptest! {
        /// Checks that a hook gets its tensors at its steps, whatever else is fetched (A), and that a
        /// fetched tensor covers the whole batch (B).
        #[test]
        fn each_hook_gets_its_tensors_at_its_steps(
            hooks in prop::collection::vec((prop::collection::vec(0usize..6, 1..4), 1u64..4), 0..8),
            devices in 1usize..4,
            metrics_every in 0u64..4,
        ) {
            let names = ["x", "kernel", "mul", "loss", "kernel:grad_norm", "kernel:grad"];
            let chosen: Vec<(Vec<&str>, u64)> =
                hooks.iter().map(|(own, every)| (own.iter().map(|&name| names[name]).collect(), *every)).collect();
            let hooks: Vec<(&[&str], u64)> = chosen.iter().map(|(names, every)| (&names[..], *every)).collect();
            let job = job(Some(metrics_every), true);
            let parts: Vec<usize> = (0..devices).map(|device| if device == 0 { BATCH - devices + 1 } else { 1 }).collect();
            let plan = plan(&job, &parts, &hooks);
            let rows: Vec<f32> = (0..BATCH).flat_map(|example| [example as f32; 2]).collect();
            for step in (0..7).map(LocalStep) {
                let fetched = fetched(&plan, &job, &parts, step);
                let metrics = plan.metrics(plan.groups(step), &fetched.parts);
                prop_assert_eq!(metrics.is_empty(), !is_due(metrics_every, step));
                for (index, (names, every)) in hooks.iter().enumerate() {
                    let own = plan.of_hook(index, step, &fetched).unwrap();
                    prop_assert_eq!(own.is_some(), step.0.is_multiple_of(*every), "(A)");
                    for (tensor, name) in own.into_iter().flatten().zip(*names) {
                        prop_assert_eq!(&tensor.name, name);
                        prop_assert_eq!(tensor.shape.elements(), tensor.values.len());
                        match *name {
                            "x" | "mul" => prop_assert_eq!(&tensor.values, &rows, "(B)"),
                            "kernel" => prop_assert_eq!(&tensor.values, &[7.0; 2], "(B)"),
                            "kernel:grad" => prop_assert_eq!(&tensor.values, &[8.0; 2]),
                            "loss" => prop_assert!((tensor.values[0] - 2.5).abs() < 1e-5, "(B) {:?}", tensor),
                            _ => prop_assert_eq!(&tensor.values, &[0.5]),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn metrics_are_fetched_at_their_steps() {
        let due = |job: &JobSpec| -> Vec<u64> {
            let plan = plan(job, &[BATCH], &[]);
            assert_eq!(plan.fetches().is_empty(), plan.metrics_every == 0);
            (0..6).filter(|&step| plan.groups(LocalStep(step)).meets(METRICS)).collect()
        };
        assert_eq!(due(&job(None, true)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(due(&job(Some(3), true)), [0, 3]);
        assert!(due(&job(Some(0), true)).is_empty() && due(&job(None, false)).is_empty());
    }

    #[test]
    fn a_replica_that_fetches_nothing_is_known() {
        let job = job(None, true);
        let plan = plan(&job, &[BATCH], &[(&["x"], 1)]);
        let none = StepFetches {
            parts: vec![FetchedPart { examples: BATCH, values: Vec::new() }],
            gradients: vec![],
        };
        assert!(plan.metrics(METRICS, &none.parts).is_empty());
        let error = plan.of_hook(0, LocalStep(0), &none).unwrap_err().to_string();
        assert!(error.contains("'x'"), "{error}");
    }

    #[test]
    fn tensors_that_cannot_be_joined_need_one_device() {
        let mut g = GraphBuilder::new("pairs");
        let x = g.input("x", [2]);
        let turned = g.transpose(x, &[1, 0]);
        g.matmul(x, turned);
        let loss = g.mean_squared_error(x, x);
        let set = || DatasetSpec::Digits { seed: 1, examples: 1 };
        let job = JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(set(), set()), 1);
        let job = JobSpec { batch_size: BATCH as u32, ..job };
        for name in ["mat_mul", "transpose"] {
            let of = |parts: &[usize]| FetchPlan::new(&job, parts, &[Some(FetchConfig::new([name], 1))]);
            assert!(of(&[BATCH]).is_ok(), "{name}");
            let error = of(&[4, 2]).unwrap_err().to_string();
            assert!(error.contains("from 2 devices") && error.contains("6"), "{error}");
        }
    }
}
