//! The CPU time, the memory and the children of processes, from `/proc`.

// Each benchmark uses only a part of this module.
#![allow(dead_code)]

use std::fs;

use anyhow::Context;

/// The unit of the CPU times in `/proc`; Linux uses it on all common machines.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the CPU time that this process has used, in seconds.
pub(crate) fn cpu_of_self() -> anyhow::Result<f64> {
    cpu_of("self")
}

/// Returns the CPU time that a process has used, in seconds. `id` is its id or `self`.
pub(crate) fn cpu_of(id: &str) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name of the program, in brackets, may contain spaces. User and system time are the 12th and 13th
    // fields after it.
    let (_, rest) = stat.rsplit_once(')').context("a name in brackets")?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS_PER_SECOND)
}

/// Returns the peak resident memory of a process, in bytes. `id` is its id or `self`.
pub(crate) fn peak_of(id: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Returns the name of a process's program, of which the system keeps 15 characters; empty if the process has
/// ended.
pub(crate) fn name_of(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the processes that the main thread of a process has started, and that still run.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}
