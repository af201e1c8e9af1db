//! Checks by Prometheus' own tool where it is installed; otherwise that is reported loudly.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `promtool` with `input` on its standard input and returns its output. Panics with the output if it
/// fails.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!(
                "!!! SKIPPED: 'promtool {}' is NOT run, as it is not installed !!!",
                arguments.join(" ")
            );
            return None;
        }
        child => child.expect("promtool can be run"),
    };
    // One that does not read it may end before.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}\n{input}");
    Some(said)
}
