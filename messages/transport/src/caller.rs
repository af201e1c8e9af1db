//! The dialling end of a connection: a task of a cluster that dials another one, or a client program.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use pushpull_identity::{IdentityError, Proven};
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Hello, Refusal, Welcome};

use crate::error::{DialError, TransportError};
use crate::guest::Guest;
use crate::handshake::Identity;

/// The dialling end of a connection. It is displayed as the task that it dials.
#[derive(Clone, Copy)]
pub(crate) enum Caller<'a> {
    /// A task that dials the task `to` of its cluster.
    Member {
        /// The dialling task.
        identity: &'a Identity,
        /// The task that it expects to reach.
        to: TaskId,
    },
    /// A client program, which does not know the task that it dials.
    Guest(&'a Guest),
}

impl Caller<'_> {
    /// Returns the first message that this end sends.
    pub fn hello(&self) -> Hello {
        match self {
            Self::Member { identity, to } => identity.hello(*to),
            Self::Guest(guest) => guest.hello(),
        }
    }

    /// Returns the task at the other end, after the handshake.
    pub const fn reached(&self, welcome: &Welcome) -> TaskId {
        match self {
            Self::Member { to, .. } => *to,
            Self::Guest(_) => welcome.task,
        }
    }

    /// Checks that the certificate at the other end names the task that is dialled. `proven` is `None` if the
    /// link needs no proof. A client program accepts any task of its cluster.
    ///
    /// # Errors
    /// Returns an error if another task answered at `address`.
    pub fn check_reached(&self, address: &str, proven: Option<&Proven>) -> Result<(), DialError> {
        let (Self::Member { to, .. }, Some(proven)) = (self, proven) else { return Ok(()) };
        let tasks = match proven {
            Proven::Tasks(tasks) => &tasks[..],
            Proven::Client(_) => &[],
        };
        if tasks.contains(to) {
            return Ok(());
        }
        let got: Vec<String> = tasks.iter().map(ToString::to_string).collect();
        let error = IdentityError::WrongTask { expected: to.to_string(), got: got.join(" and ") };
        Err(TransportError::Untrusted { address: address.to_owned(), error }.into())
    }

    /// Returns the error for a peer that demands TLS, if this end has no secret.
    pub const fn demanded(&self) -> IdentityError {
        match self {
            Self::Member { .. } => IdentityError::Demanded,
            Self::Guest(_) => IdentityError::ClientDemanded,
        }
    }

    /// Returns the error for a refusal by the task at `address`.
    pub fn refused(&self, address: &str, refusal: Refusal) -> DialError {
        match self {
            Self::Member { identity, to } => {
                DialError::Refused { to: *to, refusal: identity.explain(*to, refusal) }
            }
            Self::Guest(_) => DialError::GuestRefused { address: address.to_owned(), refusal },
        }
    }

    /// Returns the error for a task that did not answer in time. `reason` says why the last attempt failed.
    pub fn missing(&self, address: &str, reason: String) -> DialError {
        let address = address.to_owned();
        match self {
            Self::Member { to, .. } => DialError::Missing { to: *to, address, reason },
            Self::Guest(_) => DialError::Unreachable { address, reason },
        }
    }

    /// Returns a seed for the pauses between attempts to dial `address`. Different callers have different
    /// seeds, so that they do not all dial at once.
    pub fn pause_seed(&self, address: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Member { identity, to } => (identity.task, identity.incarnation, *to).hash(&mut hasher),
            Self::Guest(guest) => (guest.task(), guest.incarnation, address).hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl fmt::Display for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member { to, .. } => fmt::Display::fmt(to, f),
            Self::Guest(_) => f.write_str("a server"),
        }
    }
}
