//! The reasons why the files of a certificate cannot be used.

use std::path::PathBuf;

use crate::secret_file::SecretFileError;
use crate::untrusted::Untrusted;

/// The reason why the files of a certificate cannot be used. The content of a key is never quoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFilesError {
    /// Some of the files are not given. The value has the flags that are missing.
    #[error("give {0}, too: --tls-ca, --tls-cert and --tls-key are given together or not at all")]
    Missing(String),
    /// A file cannot be read, or others can use it.
    #[error("{flag}: {error}")]
    File {
        /// The flag that names the file.
        flag: &'static str,
        /// What is wrong with it.
        error: SecretFileError,
    },
    /// A file does not have the right number of certificates.
    #[error(
        "{flag} {} has {found} certificates that can be read, expected 1 to {max}, each between BEGIN CERTIFICATE and \
         END CERTIFICATE",
        path.display()
    )]
    Certificates {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The number of certificates before the first one that cannot be read.
        found: usize,
        /// The largest number.
        max: usize,
    },
    /// A certificate cannot be decoded.
    #[error("{flag} {} has a certificate that is not valid: {reason}", path.display())]
    Certificate {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no key that can be used.
    #[error(
        "--tls-key {} has no key that can be used, expected a PEM text with an RSA, ECDSA or Ed25519 key without a password",
        .0.display()
    )]
    Key(PathBuf),
    /// The key is that of another certificate.
    #[error(
        "--tls-key {} is not the key of the first certificate in --tls-cert {}; give the two that were made together",
        key.display(),
        certificate.display()
    )]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// The certificate is not trusted by the authorities of the same task.
    #[error(
        "--tls-cert {}: a task with it is not trusted by the authorities in --tls-ca {}: {reason}",
        certificate.display(),
        ca.display()
    )]
    Untrusted {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the authorities.
        ca: PathBuf,
        /// Why it is not trusted.
        reason: Untrusted,
    },
    /// The certificate has no name of pushpull, or one that is not valid.
    #[error("--tls-cert {} names {got}, expected {expected} among its subject alternative names", path.display())]
    Names {
        /// The file of the certificate.
        path: PathBuf,
        /// What it names.
        got: String,
        /// What is expected.
        expected: String,
    },
    /// The process is no task of the cluster. The value is its task.
    #[error("{0} is not a task of the cluster")]
    NotListed(String),
    /// The TLS library refuses the certificate.
    #[error("--tls-cert {} cannot be used: {reason}", path.display())]
    Tls {
        /// The file of the certificate.
        path: PathBuf,
        /// The library's error.
        reason: String,
    },
}
