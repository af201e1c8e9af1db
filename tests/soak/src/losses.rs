//! What a trained job must not have lost: updates, gradients, bits, checkpoints, and processes that should
//! have ended. The letters are those of ARCHITECTURE.md.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pushpull_messages::sync::SyncSpec;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::MARK;
use crate::plan::Plan;

/// The time within which `pushpull checkpoint` must have examined a directory.
const TOOL_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The counts of a trained job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of updates of its last life.
    pub updates: u64,
    /// The number of pushes that all shards received in its last life.
    pub pushes: u64,
    /// The checksum of the variables.
    pub variables_crc32c: u64,
}

fn count(value: &Value, key: &str) -> anyhow::Result<u64> {
    value[key].as_u64().with_context(|| format!("{key} is no count in {value}"))
}

/// Checks the report of a trained job (V2, V3, S2): every shard has applied exactly the job's updates, and
/// every push has one verdict.
///
/// # Errors
/// Returns the first property that does not hold.
pub fn check_report(plan: &Plan, path: &Path) -> anyhow::Result<Counts> {
    let report: Value = serde_json::from_str(&fs::read_to_string(path)?).context("the report is no JSON")?;
    let (steps, began) = (count(&report, "updates_applied")?, count(&report, "began")?);
    ensure!(steps == plan.steps, "V3: {steps} updates, expected {}", plan.steps);
    ensure!(report["unsaved"].is_null(), "C1: the last step was not saved: {}", report["unsaved"]);
    let shards = report["shards"].as_array().context("the report has no shards")?;
    let expected = (plan.ps * plan.shards) as usize;
    ensure!(shards.len() == expected, "{} shards reported, expected {expected}", shards.len());
    let mut counts = Counts { updates: steps - began, ..Counts::default() };
    counts.variables_crc32c = count(&report, "variables_crc32c")?;
    for shard in shards {
        let (received, version) = (count(shard, "received")?, count(shard, "version")?);
        let mut sum = 0;
        for verdict in ["applied", "held", "stale", "stopped", "duplicate", "refused"] {
            sum += count(shard, verdict)?;
        }
        ensure!(received == sum, "V2: {received} pushes, but {sum} verdicts, in {shard}");
        ensure!(version == steps, "V3: version {version}, expected {steps}, in {shard}");
        let (applied, held) = (count(shard, "applied")?, count(shard, "held")?);
        match plan.sync {
            SyncSpec::Sync { .. } => ensure!(applied == 0 && held >= steps - began, "V3 in {shard}"),
            _ => ensure!(
                applied == steps - began && held == 0,
                "V3: a gradient is lost or came twice in {shard}"
            ),
        }
        if plan.deterministic {
            let expected = (steps - began) * u64::from(plan.workers);
            ensure!(held == expected, "S1: {held} gradients, expected {expected}, in {shard}");
        }
        if let SyncSpec::Bounded { staleness } = plan.sync {
            let behind = count(shard, "steps_behind_max")?;
            ensure!(behind <= u64::from(staleness), "S2: {behind} steps behind in {shard}");
        }
        counts.pushes += received;
    }
    Ok(counts)
}

/// Checks the checkpoints of a trained job (C1): the last step is saved, its bytes are whole, and no
/// unfinished checkpoint and no half-written file is left.
///
/// # Errors
/// Returns the first property that does not hold.
pub fn check_checkpoints(
    plan: &Plan,
    mut list: Command,
    mut verify: Command,
    dir: &Path,
) -> anyhow::Result<()> {
    if plan.save_steps.is_none() {
        return Ok(());
    }
    let listed = output(list.args(["checkpoint", "list", "--json"]).arg(dir))?;
    let listed: Value =
        serde_json::from_slice(&listed.stdout).context("`checkpoint list` printed no JSON")?;
    let listed = listed.as_array().context("`checkpoint list` printed no list")?;
    for entry in listed {
        ensure!(entry["state"] == "whole", "C1: a checkpoint is {}: {entry}", entry["state"]);
    }
    let newest = listed.iter().filter_map(|entry| entry["step"].as_u64()).max();
    ensure!(
        newest == Some(plan.steps),
        "C1: the newest checkpoint is of step {newest:?}, not {}",
        plan.steps
    );
    let verified = output(verify.args(["checkpoint", "verify"]).arg(dir))?;
    let said = String::from_utf8_lossy(&verified.stderr);
    ensure!(verified.status.success(), "C1: the newest checkpoint is not whole: {said}");
    check_names(dir)
}

/// Returns what a program that prints little has printed when it has ended, within a limit.
fn output(command: &mut Command) -> anyhow::Result<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let since = Instant::now();
    while child.try_wait()?.is_none() {
        if since.elapsed() > TOOL_ENDS_WITHIN {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} has not ended within {TOOL_ENDS_WITHIN:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child.wait_with_output()?)
}

/// Checks that a directory of checkpoints has no file that a save did not finish.
fn check_names(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The store gives a file that is being written a name with a '#'.
        let unfinished = name.contains('#') || name.starts_with("probe-");
        ensure!(!unfinished, "C1: a half-written file is left: {}", entry.path().display());
        if entry.file_type()?.is_dir() {
            check_names(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns the processes that belong to a job, each with its command line.
pub fn processes_of(dir: &Path) -> Vec<(u32, String)> {
    let mark = format!("{MARK}={}", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has ended, or belongs to another user, has no environment to read.
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

/// Kills all processes that belong to a job, with those that they start meanwhile.
pub fn kill_processes_of(dir: &Path) {
    let ids = || processes_of(dir).into_iter().filter_map(|(id, _)| Pid::from_raw(id.cast_signed()));
    let mut left: Vec<_> = ids().collect();
    while !left.is_empty() {
        for process in left {
            // An error means that the process has just ended.
            let _ = kill_process(process, Signal::KILL);
        }
        left = ids().collect();
    }
}

/// Checks that no process of a job is left.
///
/// # Errors
/// Returns the processes that are left.
pub fn check_orphans(dir: &Path) -> anyhow::Result<()> {
    match processes_of(dir).as_slice() {
        [] => Ok(()),
        left => bail!("processes are left: {left:?}"),
    }
}
