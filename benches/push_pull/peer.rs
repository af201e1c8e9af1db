//! TensorFlow's parameter server, which a program of `benches/peers` measures in the same rounds: a push and
//! a pull of as many variables of the same size, between one worker and one ps over loopback.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::case::{Case, Direction, Variables, Wire};
use crate::peer_program::run_peer;

const PROGRAM: &str = "tensorflow_ps.py";
/// The time limit for the program to start, beside its measurements.
const START: Duration = Duration::from_secs(300);

/// The throughput of TensorFlow in one round, in Gbit/s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub push: f64,
    pub pull: f64,
}

impl Peer {
    /// Returns the throughput to compare a case with; `None` if the program does not measure the same.
    pub(crate) fn of(&self, case: &Case) -> Option<f64> {
        let same =
            case.variables == Variables::Dense && case.workers == 1 && case.in_flight == 1 && !case.adam;
        match (case.direction, case.transport) {
            (Direction::Push, Wire::Tcp | Wire::Shared) if same => Some(self.push),
            (Direction::Pull, Wire::Tcp | Wire::Shared) if same => Some(self.pull),
            _ => None,
        }
    }
}

/// Measures TensorFlow for about this time in each direction. `python` is the Python of an environment that
/// has TensorFlow.
pub(crate) async fn measure(python: &Path, seconds: f64) -> anyhow::Result<Peer> {
    let args = ["dense".to_owned(), format!("--seconds={seconds}")];
    let text = run_peer(python, PROGRAM, &args, START + Duration::from_secs_f64(4.0 * seconds)).await?;
    Ok(Peer { push: gbit_s(&text, "push")?, pull: gbit_s(&text, "pull")? })
}

/// Returns the N of the line `direction N Gbit/s`.
fn gbit_s(text: &str, direction: &str) -> anyhow::Result<f64> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = lines.find_map(|words| match words[..] {
        [first, number, "Gbit/s"] if first == direction => number.parse().ok(),
        _ => None,
    });
    found.with_context(|| format!("expected '{direction} N Gbit/s' from {PROGRAM}, found: {text}"))
}
