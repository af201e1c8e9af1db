//! How a program ends: what it prints last, and its exit status.

use std::process::ExitCode;

use crate::logging;

/// Why a program did not do what it was started for.
#[derive(Debug)]
pub enum Failure {
    /// It was called wrongly: status 2.
    Usage(String),
    /// It went wrong: status 1.
    Error(anyhow::Error),
    /// A signal ended it before its job was done: status 128 + the signal's number, as shells have it.
    Signal {
        /// What was left undone.
        reason: String,
        /// Which one.
        number: u8,
    },
}

/// How a program ends.
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
            Self::Error(error) => write!(f, "{error:#}"),
        }
    }
}

impl Failure {
    /// A wrong call, from an error that is one line.
    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Prints the failure, on one line, and gives the status.
pub(crate) fn finish(outcome: Outcome) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    match &failure {
        _ if logging::is_json() => tracing::error!("{failure}"),
        Failure::Usage(_) | Failure::Error(_) => eprintln!("error: {failure}"),
        Failure::Signal { .. } => eprintln!("{failure}"),
    }
    ExitCode::from(match failure {
        Failure::Usage(_) => 2,
        Failure::Error(_) => 1,
        Failure::Signal { number, .. } => 128 + number,
    })
}
