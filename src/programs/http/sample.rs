//! A job for tests of the endpoint. It never runs.

use std::sync::Arc;

use pushpull_chief::{Chief, ChiefConfig, JobProgress};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_transport::{Identity, InProcess};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Returns the chief of a small job that never runs.
pub(super) fn chief_that(config: ChiefConfig) -> Chief {
    let mut graph = GraphBuilder::new("plane");
    let x = graph.input("features", [1]);
    let loss = graph.l2_loss(x);
    let points = || DatasetSpec::Linear { seed: 0, examples: 9, weights: vec![1.0], bias: 0.0, noise: 0.0 };
    let job =
        JobSpec::new(graph.finish(loss, &[]).expect("a valid graph"), InputSpec::new(points(), points()), 5);
    let cluster = cluster();
    let identity = Identity {
        task: TaskId::CHIEF,
        incarnation: Incarnation(1),
        cluster,
        graph: None,
        http: None,
        nonce: 0,
    };
    let (progress, transport) = (watch::channel(JobProgress::default()).0, Arc::new(InProcess::new()));
    Chief::new(config, identity, transport, job, progress, CancellationToken::new())
}

/// Returns a cluster with one task of each job.
pub(super) fn cluster() -> ClusterSpec {
    let one = |host: &str| vec![format!("{host}:1")];
    ClusterSpec::new([(JobName::Chief, one("c")), (JobName::Ps, one("p")), (JobName::Worker, one("w"))])
        .expect("a valid cluster")
}
