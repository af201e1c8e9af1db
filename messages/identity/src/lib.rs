//! Proves which task is at the other end of a connection: join strings, the authority of a job, certificates
//! that are made elsewhere, and TLS 1.3. Sockets and messages are the matter of the transport.
//!
//! A process has [`Credentials`]. Every connection between two tasks is secured by them, and each end learns
//! the tasks that the other end's certificate names. A client of servers has [`ClientCredentials`], and the
//! server learns its role.

#![forbid(unsafe_code)]

mod authority;
mod blocking;
mod certificate;
mod client_credentials;
mod client_role;
mod client_string;
mod configs;
mod credentials;
mod enrolment;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
mod hex;
mod https;
mod join_string;
mod joined;
mod name;
mod place;
mod proven;
mod provider;
mod reloaded;
mod secret_file;
mod secured;
mod settings;
#[cfg(test)]
mod tests;
mod tls_files;
mod trust;
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
pub use secret_file::{SecretFileError, read as read_secret_file};
pub use secured::Secured;
pub use tls_files::{TlsFiles, TlsFilesError};
pub use untrusted::Untrusted;
