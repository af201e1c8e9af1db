//! How a program ends: the last line that it prints, and its exit status.

use std::io::{Write, stderr};
use std::process::ExitCode;

use super::logging;

/// The reason why a program failed or ended early.
#[derive(Debug)]
pub enum Failure {
    /// The flags were wrong. The exit status is 2.
    Usage(String),
    /// The program failed. The exit status is 1.
    Error(anyhow::Error),
    /// A signal ended the program before its job was done. As in shells, the exit status is 128 + the
    /// signal's number.
    Signal {
        /// A description of the work that was not finished.
        reason: String,
        /// The signal's number.
        number: u8,
    },
}

/// The result of a program.
pub type Outcome = Result<(), Failure>;

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(reason) | Self::Signal { reason, .. } => f.write_str(reason),
            Self::Error(error) => f.write_str(&with_causes(error)),
        }
    }
}

/// Returns the text of an error and of its causes. Leaves out a cause that the text already has behind a
/// colon, because many errors quote theirs.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |told, cause| {
        match told.contains(&format!(": {cause}")) {
            true => told,
            false => format!("{told}: {cause}"),
        }
    })
}

impl Failure {
    /// Makes a [`Failure::Usage`] from an error whose text has one line.
    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Prints the failure on one line, and returns the exit status.
pub(crate) fn finish(outcome: Outcome) -> ExitCode {
    ExitCode::from(told(outcome))
}

/// Prints the failure on one line, and ends the process with the exit status.
pub(crate) fn exit_process(outcome: Outcome) -> ! {
    std::process::exit(told(outcome).into())
}

/// Prints the failure, if there is one, and returns the exit status.
fn told(outcome: Outcome) -> u8 {
    let Err(failure) = outcome else { return 0 };
    // An error of `writeln` means that the reader of standard error is gone.
    match &failure {
        _ if logging::is_json() => tracing::error!("{failure}"),
        Failure::Usage(_) | Failure::Error(_) => drop(writeln!(stderr(), "error: {failure}")),
        Failure::Signal { .. } => drop(writeln!(stderr(), "{failure}")),
    }
    match failure {
        Failure::Usage(_) => 2,
        Failure::Error(_) => 1,
        Failure::Signal { number, .. } => 128 + number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Wrong {
        #[error("no checkpoints: {0}")]
        Quoting(#[source] std::io::Error),
        #[error("no checkpoints")]
        Plain(#[source] std::io::Error),
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || std::io::Error::other("the disk is full");
        for wrong in [Wrong::Quoting(cause()), Wrong::Plain(cause())] {
            let failure = Failure::Error(anyhow::Error::from(wrong).context("cannot train"));
            assert_eq!(failure.to_string(), "cannot train: no checkpoints: the disk is full");
        }
        let failure = Failure::Error(anyhow::Error::msg("7").context("no shard 17"));
        assert_eq!(failure.to_string(), "no shard 17: 7");
    }
}
