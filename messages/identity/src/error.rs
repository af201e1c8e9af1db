//! The reasons why a connection is not secured, or why a task has no certificate.

use std::io;
use std::time::Duration;

use pushpull_messages::id::TaskId;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

use crate::authority::AuthorityError;
use crate::certificate::names;
use crate::enrolment::EnrolmentError;
use crate::untrusted::Untrusted;

/// The reason why a connection is not secured, or why a task has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// This task has no certificate yet.
    #[error("this task has no certificate yet: it gets one from the task that has the authority")]
    NoCertificate,
    /// The peer has no certificate yet.
    #[error("the peer has no certificate yet: it gets one from the task that has the authority")]
    PeerHasNone,
    /// The peer's certificate is not accepted.
    #[error("the peer is not trusted: {0}")]
    Untrusted(#[from] Untrusted),
    /// The peer does not accept the certificate of this task.
    #[error(
        "the peer does not trust this task: its join string or its certificate is probably that of another job, or of \
         another authority"
    )]
    NotTrusted,
    /// The client does not accept the certificate of this task.
    #[error(
        "the client does not trust this server: its client string or its certificate is probably that of another cluster"
    )]
    ClientDistrusts,
    /// The peer does not speak TLS.
    #[error(
        "the peer does not speak TLS: it was probably started without the job's join string or a certificate, or \
         without a client string"
    )]
    NotTls,
    /// The peer demands TLS, and this task has no join string.
    #[error(
        "the peer demands TLS: give this task the job's join string with --join-file FILE, or its certificate with \
         --tls-ca, --tls-cert and --tls-key"
    )]
    Demanded,
    /// The server demands TLS, and this client has neither a client string nor a certificate.
    #[error(
        "the server demands a client string: print one with `pushpull join client`, and give it with --client-file FILE \
         or in PUSHPULL_CLIENT; or give a certificate with --tls-ca, --tls-cert and --tls-key"
    )]
    ClientDemanded,
    /// The server is one of another cluster than the client string names.
    #[error(
        "the server is one of another cluster than the client string names; print a client string of its cluster with \
         `pushpull join client`"
    )]
    OtherCluster,
    /// The server serves no clients, or not yet.
    #[error(
        "the server has no certificate yet, it expects a client string instead of a certificate or the other way round, \
         or it is a task of a training job, which serves no clients"
    )]
    NotServing,
    /// A client has connected to a task that serves none.
    #[error("a client of sessions has connected, but this task is no pushpull-server")]
    NoServer,
    /// A task has asked for a certificate, and this one has no authority.
    #[error(
        "the peer asks for a certificate, but those of this job come from --tls-cert: give the peer --tls-ca, --tls-cert \
         and --tls-key instead of a join string"
    )]
    NothingToGrant,
    /// This task has a join string, and the peer a certificate from elsewhere.
    #[error(
        "the peer gives and takes no certificates, because it has one from --tls-cert: give this task --tls-ca, \
         --tls-cert and --tls-key instead of a join string"
    )]
    NotEnrolling,
    /// This task has a certificate from elsewhere, and the peer a join string.
    #[error(
        "the peer waits for a certificate, because it has a join string: give it --tls-ca, --tls-cert and --tls-key \
         instead, as this task has"
    )]
    PeerWaits,
    /// A client has a client string, and this server expects certificates.
    #[error("a client with a client string has connected, expected one with a certificate")]
    ClientString,
    /// A client has a certificate, and this server expects client strings.
    #[error("a client with a certificate has connected, expected one with a client string")]
    ClientCertificate,
    /// The task with the authority cannot be reached.
    #[error("cannot reach {name} at {address} for a certificate: {error}")]
    NoAuthority {
        /// The task, such as `the chief`.
        name: String,
        /// The address of the task.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The peer is another task than the one that is expected here.
    #[error("the certificate of the peer names {got}, expected {expected}")]
    WrongTask {
        /// The task that is expected.
        expected: String,
        /// The tasks that the certificate names.
        got: String,
    },
    /// The exchange in which a task gets its certificate has failed.
    #[error(transparent)]
    Enrolment(EnrolmentError),
    /// The handshake took too long.
    #[error("the peer did not prove who it is within {} s", .0.as_secs())]
    Late(Duration),
    /// The peer closed the connection before it had begun a handshake. The value is the time after which this
    /// counts as a fault.
    #[error("the peer was silent for more than {} ms, and closed the connection", .0.as_millis())]
    Silent(Duration),
    /// A record cannot be decrypted.
    #[error("a TLS record cannot be decrypted: it is not what the peer has sent on this connection")]
    Changed,
    /// The authority could not make a certificate.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The handshake has failed for another reason. The value is that of the TLS library.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// The operating system reported an error.
    #[error(
        "the connection ended during the TLS handshake: {0}; the peer may have no join string and no certificate, or it refuses \
             connections of this host for now: see its log"
    )]
    Io(io::Error),
}

impl IdentityError {
    /// Returns true if the peer needs a new certificate from the process with the authority.
    pub const fn needs_certificate(&self) -> bool {
        matches!(self, Self::PeerHasNone | Self::Untrusted(Untrusted::Expired | Untrusted::NotYetValid))
    }

    /// Returns true if another attempt cannot succeed, because the two ends were
    /// started with settings that do not fit together.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Untrusted(untrusted) => untrusted.is_final(),
            _ => self.is_misfit(),
        }
    }

    const fn is_misfit(&self) -> bool {
        matches!(
            self,
            Self::Demanded
                | Self::ClientDemanded
                | Self::OtherCluster
                | Self::WrongTask { .. }
                | Self::NotEnrolling
                | Self::Enrolment(
                    EnrolmentError::Refused(_)
                        | EnrolmentError::AuthorityProof
                        | EnrolmentError::ClientRefused(_)
                )
        )
    }
}

impl From<Error> for IdentityError {
    fn from(error: Error) -> Self {
        match &error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                match inner.downcast_ref::<Untrusted>() {
                    Some(untrusted) => Self::Untrusted(untrusted.clone()),
                    None => Self::Tls(error.to_string()),
                }
            }
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::PeerHasNone,
            Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown,
            ) => Self::NotTrusted,
            Error::InvalidMessage(_) => Self::NotTls,
            Error::DecryptError => Self::Changed,
            _ => Self::Tls(error.to_string()),
        }
    }
}

impl From<EnrolmentError> for IdentityError {
    fn from(error: EnrolmentError) -> Self {
        match error {
            // In TLS 1.3, a server refuses the certificate of its client only after the client's handshake.
            EnrolmentError::Io(error) => match Self::from(error) {
                Self::Io(error) => Self::Enrolment(EnrolmentError::Io(error)),
                refused => refused,
            },
            error => Self::Enrolment(error),
        }
    }
}

impl From<io::Error> for IdentityError {
    fn from(error: io::Error) -> Self {
        // The TLS library wraps its own errors in those of the system.
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(tls) => tls.clone().into(),
            None => Self::Io(error),
        }
    }
}

/// Returns the error for a peer that is not the task `expected`.
pub(crate) fn wrong_task(expected: TaskId, got: &[TaskId]) -> IdentityError {
    IdentityError::WrongTask { expected: expected.to_string(), got: names(got) }
}
