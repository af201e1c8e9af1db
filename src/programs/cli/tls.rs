//! The flags of a certificate that was made elsewhere, for tasks and for clients of servers.

use std::path::PathBuf;

use clap::Args;
use pushpull_identity::TlsFiles;

use crate::programs::exit::Failure;

/// The flags of a certificate that was made elsewhere.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct TlsArgs {
    /// File with the certificates of the authorities that have signed those of all tasks and clients, as PEM.
    /// With --tls-cert and --tls-key, it takes the place of a join string or a client string
    #[arg(long, env = TlsFiles::CA_ENV, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// File with the certificate of this program, as PEM, followed by those of intermediate authorities. It
    /// names each task of the process with a URI such as pushpull://JOB/worker/0, or a client with
    /// pushpull://JOB/client/run or pushpull://JOB/client/read. Files that change are read again by tasks
    #[arg(long, env = TlsFiles::CERTIFICATE_ENV, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// File with the key of that certificate, as PEM; only its owner, and its group for reading, may use it
    #[arg(long, env = TlsFiles::KEY_ENV, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Returns the three files; `None` if none is given. `others` are the flags and variables that say in
    /// another way who the program is, with whether they are given.
    ///
    /// # Errors
    /// Returns an error if one or two of the files are given, or one of the `others` as well.
    pub(super) fn files(&self, others: &[(&str, bool)]) -> Result<Option<TlsFiles>, Failure> {
        let Self { tls_ca, tls_cert, tls_key } = self.clone();
        let Some(files) = TlsFiles::of(tls_ca, tls_cert, tls_key).map_err(Failure::usage)? else {
            return Ok(None);
        };
        match others.iter().find(|(_, given)| *given) {
            None => Ok(Some(files)),
            Some((other, _)) => Err(Failure::Usage(format!(
                "--tls-cert and {other} both say who this program is: leave out one of the two"
            ))),
        }
    }

    #[cfg(test)]
    pub(super) fn of(files: Option<TlsFiles>) -> Self {
        files.map_or_else(Self::default, |TlsFiles { ca, certificate, key }| Self {
            tls_ca: Some(ca),
            tls_cert: Some(certificate),
            tls_key: Some(key),
        })
    }
}
