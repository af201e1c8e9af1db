//! Runs checks with Prometheus' own tool. If the tool is not installed, prints that the checks were skipped.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `promtool` with `input` on its standard input and returns its output. Panics with the output if
/// promtool fails. Returns `None` if it is not installed.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!(
                "!!! SKIPPED: 'promtool {}' is NOT run, because it is not installed !!!",
                arguments.join(" ")
            );
            return None;
        }
        child => child.expect("promtool can be run"),
    };
    // An error here means that promtool has ended without reading its input.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}\n{input}");
    Some(said)
}
