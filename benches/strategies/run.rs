//! Runs the job of a case as processes of this host, and reads its speed, its bytes on the wire and its
//! memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use pushpull::DatasetSpec;

use crate::case::Case;
use crate::support::usage::{children_of, name_of, peak_of};
use crate::support::{local, reported, train};

/// What a case takes.
pub(crate) struct Cost {
    /// The bytes that loopback carries for one update of all workers, over TCP.
    pub step_bytes: f64,
    /// The peak memory of the worker that takes most, in bytes.
    pub worker: f64,
    /// The sum of the peaks of all processes, in bytes.
    pub all: f64,
}

/// The numbers of updates whose difference in bytes is measured, so that the start does not count.
const STEPS: [u64; 2] = [3, 8];
/// The time between two looks at the memory of the processes.
const LOOK: Duration = Duration::from_millis(20);

/// Returns the updates per second of a whole job, with the transport that it would choose.
pub(crate) fn steps_per_second(case: &Case) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let command = command(case, case.steps(), folder.path())?;
    let examples = train(folder.path(), command)?;
    let job = case.job(1)?;
    Ok(examples / (job.step_examples() * u64::from(case.workers)) as f64)
}

/// Returns what the case takes, over TCP. No other program may use loopback meanwhile.
pub(crate) fn cost(case: &Case) -> anyhow::Result<Cost> {
    let mut bytes = [0; 2];
    let mut peaks = BTreeMap::new();
    for (steps, bytes) in STEPS.into_iter().zip(&mut bytes) {
        let folder = tempfile::tempdir()?;
        let mut command = command(case, steps, folder.path())?;
        command.arg("--transport=tcp").env("RUST_LOG", "warn");
        let before = loopback_bytes()?;
        peaks = watched(command)?;
        *bytes = loopback_bytes()? - before;
        reported(folder.path())?;
    }
    let workers = peaks.values().filter(|(name, _)| name.starts_with("pushpull-worker"));
    let worker = workers.map(|&(_, peak)| peak).max().context("no worker was seen")?;
    let all: u64 = peaks.values().map(|&(_, peak)| peak).sum();
    let step_bytes = bytes[1].saturating_sub(bytes[0]) as f64 / (STEPS[1] - STEPS[0]) as f64;
    Ok(Cost { step_bytes, worker: worker as f64, all: all as f64 })
}

fn command(case: &Case, steps: u64, folder: &Path) -> anyhow::Result<Command> {
    let file = folder.join("job.json");
    let mut job = case.job(steps)?;
    // A small test set, because evaluating takes longer than a few steps of a large model.
    if let DatasetSpec::Digits { examples, .. } = &mut job.input.test {
        *examples = 16;
    }
    fs::write(&file, job.to_json())?;
    let mut command = local(folder, &file, case.ps(), case.workers);
    command.arg("--threads=1");
    Ok(command)
}

/// Runs a command to its end. Returns the name and the peak memory of each process that it has started.
fn watched(mut command: Command) -> anyhow::Result<BTreeMap<u32, (String, u64)>> {
    let mut child = command.spawn()?;
    let mut peaks = BTreeMap::new();
    let status = loop {
        for process in children_of(child.id()) {
            if let Ok(peak) = peak_of(&process.to_string()) {
                peaks.insert(process, (name_of(process), peak));
            }
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        bail!("pushpull local ended with {status}");
    }
    Ok(peaks)
}

/// Returns the bytes that loopback has carried since the host was started.
fn loopback_bytes() -> anyhow::Result<u64> {
    let table = fs::read_to_string("/proc/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix("lo:")).context("no loopback")?;
    Ok(line.split_whitespace().next().context("a count")?.parse()?)
}
