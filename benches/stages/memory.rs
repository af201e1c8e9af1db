//! The peak memory of workers, as real processes.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use pushpull::nn::{Layer, dense};
use pushpull::{ClusterSpec, DatasetSpec, GraphBuilder, GraphError, GraphSpec, InputSpec, JobSpec, SyncSpec};
use pushpull_messages::id::{JobName, TaskId};

use crate::ports::free_address;
use crate::usage::peak_of;

const MIB: f64 = (1 << 20) as f64;

/// Returns an MLP of two halves that are almost equal. If `cut` is true, each is on a stage.
fn mlp(width: usize, cut: bool) -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let stage = |index: u32| format!("/job:worker/task:{}", if cut { index } else { 0 });
    let x = g.device(&stage(0), |g| {
        let x = g.reshape(images, [784]);
        let x = dense("dense1", width).relu().apply(g, x);
        dense("dense2", width).relu().apply(g, x)
    });
    let loss = g.device(&stage(1), |g| {
        let x = dense("dense3", width).relu().apply(g, x);
        let x = dense("dense4", width / 4).relu().apply(g, x);
        let logits = dense("logits", 10).apply(g, x);
        g.softmax_cross_entropy(logits, labels)
    });
    g.finish(loss, &[])
}

/// The processes of a job. They are killed when this value is dropped.
struct Processes(Vec<(TaskId, Child)>);

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the largest resident memory of a process so far, in MiB; `None` if the process has ended.
fn peak(child: &Child) -> Option<f64> {
    Some(peak_of(&child.id().to_string()).ok()? as f64 / MIB)
}

/// Trains a few steps, and returns the peak of each worker in MiB.
pub(crate) fn peaks(width: usize, cut: bool) -> anyhow::Result<Vec<f64>> {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let job = JobSpec {
        batch_size: 32,
        sync: SyncSpec::SYNC,
        ..JobSpec::new(mlp(width, cut)?, InputSpec::new(digits(1, 640), digits(2, 64)), 8)
    };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("job.json");
    fs::write(&file, job.to_json())?;
    let workers = if cut { 2 } else { 1 };
    let addresses = |count| (0..count).map(|_| free_address()).collect::<Vec<String>>();
    let jobs =
        [(JobName::Chief, addresses(1)), (JobName::Ps, addresses(1)), (JobName::Worker, addresses(workers))];
    let cluster = ClusterSpec::new(jobs)?;
    let mut processes = Processes(Vec::new());
    for (task, _) in cluster.tasks() {
        let program = match task.job {
            JobName::Chief => env!("CARGO_BIN_EXE_pushpull-chief"),
            JobName::Ps => env!("CARGO_BIN_EXE_pushpull-ps"),
            _ => env!("CARGO_BIN_EXE_pushpull-worker"),
        };
        let mut command = Command::new(program);
        command.env("TF_CONFIG", cluster.to_tf_config(task)).env("RUST_LOG", "warn").stdout(Stdio::null());
        match task.job {
            JobName::Chief => _ = command.arg(format!("--job={}", file.display())),
            JobName::Worker => _ = command.arg("--threads=1"),
            _ => {}
        }
        processes.0.push((task, command.spawn()?));
    }
    let mut peaks = vec![0.0f64; workers];
    loop {
        for (task, child) in &processes.0 {
            if task.job == JobName::Worker {
                let own = &mut peaks[task.index as usize];
                *own = peak(child).unwrap_or_default().max(*own);
            }
        }
        let (_, chief) = &mut processes.0[0];
        match chief.try_wait()? {
            Some(status) if status.success() => break,
            Some(status) => bail!("the chief ended with {status}"),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    for (task, child) in &mut processes.0 {
        let status = child.wait().with_context(|| task.to_string())?;
        if !status.success() {
            bail!("{task} ended with {status}");
        }
    }
    Ok(peaks)
}
