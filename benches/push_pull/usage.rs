//! The CPU time and the memory of processes, from `/proc`.

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
