//! The certificate of a task or a client that was made elsewhere: three files with PEM text, and what they
//! must hold. Wanted properties: (A) files are used only if the key belongs to the certificate, the
//! authorities in the file trust it now, and it names what it is used for; (B) no content of a key is shown;
//! (C) the sizes of files and the numbers of certificates are bounded.

mod error;
mod material;

use std::path::{Path, PathBuf};

use aws_lc_rs::digest;

pub use error::TlsFilesError;
pub(crate) use material::{Material, roots};

use crate::secret_file::{self, SecretFileError};

/// The size of the largest file that is read, in bytes: a file of authorities may have comments.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The paths of three files with PEM text, which prove who a task or a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that are trusted.
    pub ca: PathBuf,
    /// The certificate, followed by those of intermediate authorities.
    pub certificate: PathBuf,
    /// The private key of the certificate. Its owner may read it, and its group, but nobody else.
    pub key: PathBuf,
}

impl TlsFiles {
    /// The environment variable that can name the file of the authorities.
    pub const CA_ENV: &str = "PUSHPULL_TLS_CA";
    /// The environment variable that can name the file of the certificate.
    pub const CERTIFICATE_ENV: &str = "PUSHPULL_TLS_CERT";
    /// The environment variable that can name the file of the key.
    pub const KEY_ENV: &str = "PUSHPULL_TLS_KEY";

    /// Returns the three files that the environment names; `None` if it names none.
    ///
    /// # Errors
    /// Returns an error if it names one or two of the three.
    pub fn from_env() -> Result<Option<Self>, TlsFilesError> {
        let path = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self::of(path(Self::CA_ENV), path(Self::CERTIFICATE_ENV), path(Self::KEY_ENV))
    }

    /// Returns the three files; `None` if none is given.
    ///
    /// # Errors
    /// Returns an error if one or two of the three are given.
    pub fn of(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>, TlsFilesError> {
        match (ca, certificate, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(certificate), Some(key)) => Ok(Some(Self { ca, certificate, key })),
            (ca, certificate, key) => {
                let given = [("--tls-ca", ca), ("--tls-cert", certificate), ("--tls-key", key)];
                let missing = given.into_iter().filter(|(_, path)| path.is_none()).map(|(flag, _)| flag);
                Err(TlsFilesError::Missing(missing.collect::<Vec<_>>().join(" and ")))
            }
        }
    }

    /// Reads the three files.
    pub(crate) fn read(&self) -> Result<Contents, TlsFilesError> {
        let Self { ca, certificate, key } = self;
        let read = |flag, read: fn(&Path, u64) -> Result<String, SecretFileError>, path: &Path| {
            read(path, FILE_BYTES_MAX).map_err(|error| TlsFilesError::File { flag, error })
        };
        Ok(Contents {
            ca: read("--tls-ca", secret_file::read_public, ca)?,
            certificate: read("--tls-cert", secret_file::read_public, certificate)?,
            key: read("--tls-key", secret_file::read_key, key)?,
        })
    }
}

/// What the files hold.
pub(crate) struct Contents {
    ca: String,
    certificate: String,
    key: String,
}

impl Contents {
    /// Returns what three files hold that are not read.
    #[cfg(feature = "fuzz")]
    pub(crate) fn of([ca, certificate, key]: [&str; 3]) -> Self {
        Self { ca: ca.to_owned(), certificate: certificate.to_owned(), key: key.to_owned() }
    }

    /// Returns a number that differs for other contents.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        for part in [&self.ca, &self.certificate, &self.key] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}
