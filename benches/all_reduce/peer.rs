//! PyTorch's all-reduce over gloo, which a program of `benches/peers` measures in the same rounds.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::peer_program::run_peer;

const PROGRAM: &str = "torch_all_reduce.py";
/// The time limit for the program to start, beside its measurement.
const START: Duration = Duration::from_secs(120);

/// Measures an all-reduce of this many bytes, and returns the median time in microseconds.
pub(crate) async fn measure(python: &Path, processes: u32, bytes: u64, seconds: f64) -> anyhow::Result<f64> {
    let args = [format!("--workers={processes}"), format!("--bytes={bytes}"), format!("--seconds={seconds}")];
    let text = run_peer(python, PROGRAM, &args, START + Duration::from_secs_f64(4.0 * seconds)).await?;
    let median = text.lines().find_map(|line| line.strip_suffix(" us"));
    median.and_then(|median| median.parse().ok()).with_context(|| format!("{PROGRAM} printed '{text}'"))
}
