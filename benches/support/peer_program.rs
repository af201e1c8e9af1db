//! Programs of `benches/peers`, which measure other systems in the same rounds.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// Runs a program of `benches/peers` with the Python of an environment, for at most `limit`, and returns what
/// it prints.
pub(crate) async fn run_peer(
    python: &Path,
    program: &str,
    args: &[String],
    limit: Duration,
) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers").join(program);
    let mut command = Command::new(python);
    command.arg(path).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(limit, command.output()).await;
    let output = output.with_context(|| format!("{program} has not ended after {} s", limit.as_secs()))?;
    let output = output.with_context(|| format!("cannot run {}", python.display()))?;
    if !output.status.success() {
        bail!("{program} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
