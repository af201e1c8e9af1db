//! The job file of a plan: a small model on generated points, so that processes and messages cost more than
//! the steps.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::placement::{PartitionerSpec, PlacementSpec};
use pushpull_messages::variable::InitializerSpec;

use crate::plan::Plan;

/// The number of hidden units.
const UNITS: usize = 64;

/// Returns the job of a plan.
///
/// # Panics
/// If the graph is invalid, which is a bug.
pub fn job(plan: &Plan) -> JobSpec {
    let mut g = GraphBuilder::new("soak");
    let features = g.input("features", [3]);
    let labels = g.input("labels", []);
    let hidden = g.variable("hidden", [3, UNITS], InitializerSpec::GlorotUniform);
    let plane = g.variable("plane", [UNITS, 1], InitializerSpec::GlorotUniform);
    let x = g.matmul(features, hidden);
    let x = g.relu(x);
    let x = g.matmul(x, plane);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let graph = g.finish(loss, &[]).expect("the graph is valid");
    let points = |seed, examples| DatasetSpec::Linear {
        seed,
        examples,
        weights: vec![3.0, -2.0, 0.5],
        bias: 1.0,
        noise: 0.1,
    };
    // Every shard gets a slice of each variable.
    let partitioner = PartitionerSpec::Fixed { slices: plan.ps * plan.shards };
    JobSpec {
        batch_size: 8,
        optimizer: OptimizerSpec::sgd(0.01 / plan.workers as f32),
        placement: PlacementSpec { partitioner, ..Default::default() },
        sync: plan.sync,
        deterministic: plan.deterministic,
        seed: plan.seed,
        ..JobSpec::new(graph, InputSpec::new(points(1, 1024), points(2, 64)), plan.steps)
    }
}
