//! Steps per second of two stages in one process.

use std::sync::Arc;
use std::time::Duration;

use pushpull::nn::{Layer, dense};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, GraphError, GraphSpec, InputSpec, JobProgress, JobSpec, SyncSpec,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const STEPS: u64 = 30;

/// Returns an MLP of two equal halves, each on a stage.
fn mlp() -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.device("/job:worker/task:0", |g| {
        let x = g.reshape(images, [784]);
        let x = dense("dense1", 64).relu().apply(g, x);
        dense("dense2", 64).relu().apply(g, x)
    });
    let loss = g.device("/job:worker/task:1", |g| {
        let x = dense("dense3", 64).relu().apply(g, x);
        let logits = dense("logits", 10).apply(g, x);
        g.softmax_cross_entropy(logits, labels)
    });
    g.finish(loss, &[])
}

/// Trains with each stage computing for `step_ms` milliseconds in each step, and returns the steps per
/// second. The time is divided equally among the passes of a stage. The last stage runs forward and backward
/// in one pass.
pub(crate) fn steps_per_second(step_ms: u64, micro_batches: u32) -> anyhow::Result<f64> {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let job = JobSpec {
        batch_size: 64,
        micro_batches,
        sync: SyncSpec::SYNC,
        ..JobSpec::new(mlp()?, InputSpec::new(digits(1, 2000), digits(2, 64)), STEPS)
    };
    let mut cluster = Embedded::new(1, 2);
    cluster.worker_config.threads = 1;
    cluster.worker_config.before_pass = Some(Arc::new(move |pass| {
        let passes = if pass.stage + 1 == pass.stages { 1 } else { 2 };
        std::thread::sleep(Duration::from_millis(step_ms) / (passes * pass.micro_batches));
    }));
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    let report = actix_rt::System::new().block_on(run)?;
    Ok(report.updates_timed as f64 / report.training.as_secs_f64())
}
