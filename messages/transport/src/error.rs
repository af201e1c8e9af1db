//! The errors of listening, dialling and calling.

use std::io;

use pushpull_identity::IdentityError;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::Refusal;

/// The reason why a transport could not listen or dial.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address is in use by another listener.
    #[error("address {address} is already in use")]
    InUse {
        /// The address to listen on or to dial.
        address: String,
    },
    /// One of the two ends does not prove who it is, and another attempt cannot succeed.
    #[error("{address}: {error}")]
    Untrusted {
        /// The address that was dialled.
        address: String,
        /// The reason.
        error: IdentityError,
    },
    /// The operating system reported an error.
    #[error("{address}: {source}")]
    Io {
        /// The address to listen on or to dial.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl TransportError {
    /// Wraps an error of the operating system that occurred at `address`, or the [`IdentityError`] in it.
    pub fn io(address: &str, source: io::Error) -> Self {
        let address = address.to_owned();
        let source = match source.downcast::<IdentityError>() {
            Ok(error) if error.is_final() => return Self::Untrusted { address, error },
            Ok(error) => io::Error::other(error),
            Err(source) => source,
        };
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            _ => Self::Io { address, source },
        }
    }
}

/// The reason why a peer could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The peer did not answer before the deadline.
    #[error("{to} at {address} did not come up in time: {reason}")]
    Missing {
        /// The peer that was dialled or called.
        to: TaskId,
        /// The peer's address.
        address: String,
        /// The reason why the last attempt failed.
        reason: String,
    },
    /// The peer answered, but refused this task.
    #[error("{to} refused this task: {refusal}")]
    Refused {
        /// The peer that was dialled or called.
        to: TaskId,
        /// The peer's reason.
        refusal: Refusal,
    },
    /// No task answered a client program before the deadline.
    #[error("no server at {address} answered in time: {reason}")]
    Unreachable {
        /// The address that was dialled.
        address: String,
        /// The reason why the last attempt failed.
        reason: String,
    },
    /// A task answered, but refused this client program.
    #[error("the task at {address} refused this client: {refusal}")]
    GuestRefused {
        /// The address that was dialled.
        address: String,
        /// The task's reason.
        refusal: Refusal,
    },
    /// The transport failed while the peer was being dialled.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// The reason why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer refused the request.
    #[error("{peer}: {refusal}")]
    Refused {
        /// The peer that was dialled or called.
        peer: TaskId,
        /// The peer's reason.
        refusal: Refusal,
    },
    /// The connection is lost. It is unknown whether the request was carried out.
    #[error("the connection to {peer} is lost: {reason}")]
    Lost {
        /// The peer that was dialled or called.
        peer: TaskId,
        /// The reason why the connection is lost.
        reason: String,
    },
    /// The reply is of a kind that does not fit the request.
    #[error("{peer} replied with {got}, but {expected} was expected")]
    Unexpected {
        /// The peer that was dialled or called.
        peer: TaskId,
        /// The kind of reply that fits the request.
        expected: &'static str,
        /// The kind of reply that arrived.
        got: &'static str,
    },
}
