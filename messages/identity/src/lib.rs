//! Proves which task is at the other end of a connection: the join string of a job, the authority that makes
//! certificates, and TLS 1.3 between tasks. Sockets and messages are the matter of the transport.
//!
//! A process has [`Credentials`]. Every connection between two tasks is secured by them, and each end learns
//! the tasks that the other end's certificate names. A client of servers has [`ClientCredentials`], and the
//! server learns its role.

#![forbid(unsafe_code)]

mod authority;
mod certificate;
mod client_credentials;
mod client_role;
mod client_string;
mod configs;
mod credentials;
mod enrolment;
mod error;
mod handshake;
mod hex;
mod https;
mod join_string;
mod name;
mod place;
mod proven;
mod provider;
mod secret_file;
mod secured;
#[cfg(test)]
mod tests;
mod untrusted;
mod verifier;

pub use authority::{Authority, AuthorityError};
pub use client_credentials::ClientCredentials;
pub use client_role::{ClientRole, UnknownClientRole};
pub use client_string::{ClientString, ClientStringError};
pub use credentials::Credentials;
pub use enrolment::EnrolmentError;
pub use error::IdentityError;
pub use https::{HttpsClient, HttpsClientStream, HttpsServer, HttpsStream};
pub use join_string::{JoinString, JoinStringError};
pub use proven::Proven;
pub use secret_file::SecretFileError;
pub use secured::Secured;
pub use untrusted::Untrusted;
