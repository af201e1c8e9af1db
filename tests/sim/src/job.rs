//! The jobs that are simulated: a linear model on generated points, so that a step takes microseconds.

use pushpull::nn::{Layer, dense};
use pushpull::{DatasetSpec, GraphBuilder, InputSpec, OptimizerSpec, PlacementSpec};
use pushpull_messages::distribution::DistributionSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::sync::SyncSpec;

use crate::scenario::Scenario;

/// Returns the job of a scenario.
///
/// # Panics
/// If the graph is invalid, which is a bug.
pub fn job(scenario: &Scenario) -> JobSpec {
    let mut g = GraphBuilder::new("simulated");
    let features = g.input("features", [3]);
    let labels = g.input("labels", []);
    // If the variables are split into many slices, every shard gets one, in a large cluster too.
    let x = dense("hidden", scenario.ps.max(4) as usize).relu().apply(&mut g, features);
    let x = dense("plane", 1).apply(&mut g, x);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let graph = g.finish(loss, &[]).expect("the graph is valid");
    let points = |seed| DatasetSpec::Linear {
        seed,
        examples: (4 * scenario.workers).max(64).into(),
        weights: vec![3.0, -2.0, 0.5],
        bias: 1.0,
        noise: 0.1,
    };
    JobSpec {
        batch_size: 4,
        optimizer: OptimizerSpec::sgd(0.04 / scenario.workers.max(4) as f32),
        placement: PlacementSpec { partitioner: scenario.partitioner, ..Default::default() },
        compression: scenario.compression.clone(),
        strategy: (scenario.layout.workers_host_ps && scenario.sync == SyncSpec::SYNC)
            .then_some(DistributionSpec::MultiWorkerMirrored),
        sync: scenario.sync,
        communication: scenario.communication,
        pipeline: scenario.pipeline,
        deterministic: scenario.deterministic,
        seed: scenario.seed,
        ..JobSpec::new(graph, InputSpec::new(points(1), points(2)), scenario.steps)
    }
}
