//! The errors of sessions.

use pushpull_identity::{ClientStringError, IdentityError, TlsFilesError};
use pushpull_transport::{CallError, DialError};

/// The environment variable that can hold a client string.
pub(crate) const CLIENT_ENV: &str = "PUSHPULL_CLIENT";
/// The text before the address of a target.
const SCHEME: &str = "pushpull://";

/// An error of a session. Its text is one line.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The target is not an address.
    #[error("target '{target}' is not valid: {reason}, expected pushpull://HOST:PORT")]
    Target {
        /// The target.
        target: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server could not be reached, or refused this program.
    #[error(transparent)]
    Connect(#[from] DialError),
    /// The client string in the environment cannot be used.
    #[error("{CLIENT_ENV}: {0}")]
    Client(#[from] ClientStringError),
    /// The files of a certificate cannot be used.
    #[error(transparent)]
    Files(#[from] TlsFilesError),
    /// There are a client string and a certificate.
    #[error("a client string and a certificate both say who this client is: leave out one of the two")]
    TwoProofs,
    /// TLS cannot be used.
    #[error("cannot make the credentials of this client: {0}")]
    Credentials(#[from] IdentityError),
    /// A request was refused, or the server was lost.
    #[error("{0}")]
    Call(#[from] CallError),
    /// The server's answer does not fit the request.
    #[error("{0}")]
    Answer(String),
    /// The data of an evaluation cannot be read.
    #[error(transparent)]
    Input(#[from] pushpull_input::InputError),
    /// The model cannot be evaluated with these data or variables.
    #[error("{0}")]
    Evaluation(String),
    /// The operating system could not start a thread.
    #[error("cannot start a thread for the session: {0}")]
    Thread(#[from] std::io::Error),
}

/// Shows the same text as `Display`, because a `main` that returns an error prints its `Debug` form.
impl std::fmt::Debug for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns the address of a target. The scheme may be left out.
///
/// # Errors
/// If the target has another scheme, or no valid address.
pub(super) fn address(target: &str) -> Result<String, SessionError> {
    let address = target.strip_prefix(SCHEME).unwrap_or(target);
    let invalid =
        |reason: String| SessionError::Target { target: target.chars().take(100).collect(), reason };
    if address.contains("://") {
        return Err(invalid("the scheme is not known".into()));
    }
    let address: pushpull_messages::cluster::Address =
        address.trim_end_matches('/').parse().map_err(|error| invalid(format!("{error}")))?;
    Ok(address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_address_with_or_without_scheme() {
        for target in ["pushpull://localhost:2222", "localhost:2222", "pushpull://localhost:2222/"] {
            assert_eq!(address(target).unwrap(), "localhost:2222");
        }
        for target in ["grpc://localhost:2222", "localhost", "pushpull://", "a:b", "localhost:70000"] {
            let error = address(target).unwrap_err().to_string();
            let expected = format!("target '{target}' is not valid: ");
            assert!(
                error.starts_with(&expected) && error.ends_with("expected pushpull://HOST:PORT"),
                "{error}"
            );
        }
    }
}
