//! PyTorch's all-reduce over gloo, which a program of `benches/peers` measures in the same rounds.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// The program, relative to this package.
const PROGRAM: &str = "benches/peers/torch_all_reduce.py";
/// The time limit for the program to start, beside its measurement.
const START: Duration = Duration::from_secs(120);

/// Measures an all-reduce of this many bytes, and returns the median time in microseconds.
pub(crate) async fn measure(python: &Path, processes: u32, bytes: u64, seconds: f64) -> anyhow::Result<f64> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM);
    let mut command = Command::new(python);
    command.arg(program).arg(format!("--workers={processes}"));
    command.args([format!("--bytes={bytes}"), format!("--seconds={seconds}")]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let limit = START + Duration::from_secs_f64(4.0 * seconds);
    let output = timeout(limit, command.output()).await;
    let output = output.with_context(|| format!("{PROGRAM} has not ended after {} s", limit.as_secs()))?;
    let output = output.with_context(|| format!("cannot run {}", python.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{PROGRAM} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let median = text.lines().find_map(|line| line.strip_suffix(" us"));
    median.and_then(|median| median.parse().ok()).with_context(|| format!("{PROGRAM} printed '{text}'"))
}
