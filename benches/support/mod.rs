//! Code that several benchmarks share: their model, a job that trains it on generated digits, training with
//! one process per task, and printing of figures. This module must not depend on what is measured.

// Each benchmark uses only a part of this module.
#![allow(dead_code)]

pub(crate) mod models;
#[path = "../../tests/support/ports.rs"]
pub(crate) mod ports;
pub(crate) mod spread;
pub(crate) mod tasks;
pub(crate) mod training;
pub(crate) mod usage;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use models::mlp;
use pushpull::{DatasetSpec, GraphSpec, InputSpec, JobSpec, OptimizerSpec, SyncSpec};

/// Returns a job that trains the MLP of [`mlp`] on generated digits, in batches of 64.
pub(crate) fn job(
    width: usize,
    optimizer: OptimizerSpec,
    sync: SyncSpec,
    steps: u64,
) -> anyhow::Result<JobSpec> {
    Ok(job_of(mlp(width)?, optimizer, sync, steps))
}

/// Returns a job that trains a graph on generated digits, in batches of 64.
pub(crate) fn job_of(graph: GraphSpec, optimizer: OptimizerSpec, sync: SyncSpec, steps: u64) -> JobSpec {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let input = InputSpec::new(digits(1, 20_000), digits(2, 500));
    JobSpec { optimizer, sync, seed: 1, ..JobSpec::new(graph, input, steps) }
}

/// Returns the command that runs `pushpull local` with the job file `job`. The command writes its report to
/// `folder`.
pub(crate) fn local(folder: &Path, job: &Path, ps: u32, workers: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pushpull"));
    command
        .arg("local")
        .args([format!("--ps={ps}"), format!("--workers={workers}"), format!("--job={}", job.display())])
        .arg(format!("--report={}", folder.join("report.json").display()))
        .stdout(Stdio::null());
    command
}

/// Returns the examples per second in the report that a finished run wrote to the folder.
pub(crate) fn reported(folder: &Path) -> anyhow::Result<f64> {
    let report: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("report.json"))?)?;
    report["examples_per_second"].as_f64().context("the report has no examples_per_second")
}

/// Runs a command that [`local`] returned for the same folder. Waits for its end, and returns the examples
/// per second of training.
pub(crate) fn train(folder: &Path, mut local: Command) -> anyhow::Result<f64> {
    let status = local.env("RUST_LOG", "warn").status()?;
    if !status.success() {
        bail!("pushpull local ended with {status}");
    }
    reported(folder)
}

/// Prints a measurement's median, minimum and maximum on one line.
pub(crate) fn tell(name: &str, mut figures: Vec<f64>, unit: &str) {
    figures.sort_by(f64::total_cmp);
    let three = [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]];
    let digits = if three[0] < 10.0 { 3 } else { 0 };
    let [median, least, most] = three.map(|figure| format!("{figure:9.digits$}"));
    println!("{name:34} median {median}   least {least}   most {most}   {unit}");
}
