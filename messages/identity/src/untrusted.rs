//! The reasons why a certificate proves nothing.

use webpki::Error;

/// The largest number of certificates in a chain: that of the task, and those of intermediate authorities.
pub(crate) const CHAIN_MAX: usize = 4;

/// Returns what is wrong with a certificate, in words. The library's errors have only the names of its code.
pub(crate) fn fault(error: &Error) -> String {
    let words = match error {
        Error::CaUsedAsEndEntity => {
            "it is that of an authority, expected one that an authority has signed for a task"
        }
        Error::EndEntityUsedAsCa => "one of the authorities above it is no authority: it has no CA:TRUE",
        Error::BadDer
        | Error::BadDerTime
        | Error::TrailingData(_)
        | Error::ExtensionValueInvalid
        | Error::MalformedExtensions => "it is damaged: a part of it cannot be read",
        Error::InvalidCertValidity => "it ends before it begins",
        Error::InvalidSerialNumber => "its serial number is not valid",
        Error::EmptyEkuExtension => "its extended key usages are empty",
        Error::NameConstraintViolation => "its authority may not sign for its names",
        Error::InvalidNetworkMaskConstraint | Error::MalformedNameConstraint | Error::UnsupportedNameType => {
            "its authority has name constraints that cannot be checked"
        }
        Error::PathLenConstraintViolated => "its authority may not have authorities below it (pathlen)",
        Error::MaximumPathDepthExceeded
        | Error::MaximumPathBuildCallsExceeded
        | Error::MaximumSignatureChecksExceeded
        | Error::MaximumNameConstraintComparisonsExceeded => {
            "its chain of authorities takes too long to check"
        }
        Error::UnsupportedCertVersion => "its version is not 3",
        Error::UnsupportedCriticalExtension => "it has a critical extension that is unknown here",
        Error::UnknownIssuer => "no authority that is trusted here has signed it",
        Error::InvalidSignatureForPublicKey => "its signature is wrong",
        Error::SignatureAlgorithmMismatch
        | Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            "its signature is of a kind that is not accepted, expected RSA, ECDSA or Ed25519 with SHA-2"
        }
        error => return format!("it cannot be used ({error})"),
    };
    words.to_owned()
}

/// The reason why a peer's certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// The peer shows the wrong number of certificates. The value is that number.
    #[error("it shows {0} certificates, expected its own and that of the job's authority")]
    Chain(usize),
    /// The peer's certificate is that of another authority.
    #[error(
        "its certificate is from another authority than the join string names; give all tasks of the job \
             the same join string"
    )]
    Authority,
    /// No authority that is trusted here has signed the certificate.
    #[error(
        "no authority that is trusted here has signed its certificate; give all tasks certificates of one \
             authority, with those of intermediate ones behind them, and that authority as --tls-ca"
    )]
    Signer,
    /// The peer shows too many certificates, or none. The value is their number.
    #[error(
        "it shows {0} certificates, expected 1 to {CHAIN_MAX}: its own, and those of intermediate authorities"
    )]
    Chains(usize),
    /// The certificate is not for the use that is made of it.
    #[error(
        "its certificate is for another use: its extended key usages must be serverAuth and clientAuth for a \
             task, and clientAuth for a client"
    )]
    Usage,
    /// The certificate is not valid any more.
    #[error("its certificate has expired; compare the clocks of the hosts, or give the task a new one")]
    Expired,
    /// The certificate is not valid yet.
    #[error("its certificate is not valid yet; compare the clocks of the hosts")]
    NotYetValid,
    /// The certificate cannot be read, its signature is wrong, or it is for another purpose. The value says
    /// which.
    #[error("its certificate is not valid: {0}")]
    Invalid(String),
    /// The certificate names no task of this job.
    #[error("its certificate names no task of this job; give all tasks of the job the same join string")]
    OtherJob,
    /// The certificate has other names than those that are expected here.
    #[error("its certificate names {got}, expected {expected}")]
    Names {
        /// What the certificate names.
        got: String,
        /// What is expected.
        expected: String,
    },
}

impl Untrusted {
    /// Returns true if the peer would be refused again, whatever the time.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::Chain(_) | Self::Chains(_) | Self::Authority | Self::Signer | Self::Usage => true,
            Self::OtherJob | Self::Names { .. } => true,
            Self::Expired | Self::NotYetValid | Self::Invalid(_) => false,
        }
    }
}
