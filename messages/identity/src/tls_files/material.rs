//! What the files of a certificate hold, after it was checked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::excerpt::excerpt;
use pushpull_messages::id::TaskId;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, anchor_from_trusted_cert};

use super::error::TlsFilesError;
use super::{Contents, FILE_BYTES_MAX, TlsFiles};
use crate::certificate::TaskCertificate;
use crate::client_role::ClientRole;
use crate::name::{client_uri, job_of, uri};
use crate::secret_file;
use crate::trust::Trust;
use crate::untrusted::{CHAIN_MAX, Untrusted, fault};
use crate::verifier::{Verifier, own_uris};

/// The largest number of authorities in a file. While one replaces another, there are two.
const AUTHORITIES_MAX: usize = 64;
/// The longest list of names that an error quotes, in characters.
const NAMES_CHARS_MAX: usize = 300;

/// A certificate with its key, and the verifier that trusts the same authorities.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    pub(crate) verifier: Verifier,
    pub(crate) certificate: TaskCertificate,
    pub(crate) shown: Arc<CertifiedKey>,
}

impl Material {
    /// Checks the files of a process that runs `tasks`. `now` is the time since 1970.
    pub(crate) fn of_tasks(
        files: &TlsFiles,
        contents: &Contents,
        tasks: &[TaskId],
        now: Duration,
    ) -> Result<Self, TlsFilesError> {
        let expected = |job: &str| tasks.iter().map(|&task| uri(job, task)).collect::<Vec<_>>().join(" and ");
        let material = Self::parse(files, contents, &expected)?;
        let named = material.verifier.check(&material.certificate.chain, now);
        let named = named.map_err(|reason| untrusted(files, reason))?;
        if tasks.iter().all(|task| named.contains(task)) {
            return Ok(material);
        }
        let job = material.verifier.job();
        let got = named.iter().map(|&task| uri(job, task)).collect::<Vec<_>>().join(" and ");
        Err(misnamed(files, excerpt(&got, NAMES_CHARS_MAX), expected(job)))
    }

    /// Checks the files of a client of servers. `now` is the time since 1970.
    pub(crate) fn of_client(
        files: &TlsFiles,
        contents: &Contents,
        now: Duration,
    ) -> Result<(Self, ClientRole), TlsFilesError> {
        let expected = |job: &str| ClientRole::ALL.map(|role| client_uri(job, role)).join(" or ");
        let material = Self::parse(files, contents, &expected)?;
        let role = material.verifier.check_client(&material.certificate.chain, now);
        let role = role.map_err(|reason| untrusted(files, reason))?;
        Ok((material, role))
    }

    /// Reads the certificates and the key. Checks that they belong together, and that the certificate is of
    /// one job. `expected` returns the names that it must have in a job.
    fn parse(
        files: &TlsFiles,
        contents: &Contents,
        expected: &dyn Fn(&str) -> String,
    ) -> Result<Self, TlsFilesError> {
        let authorities = certificates("--tls-ca", &files.ca, &contents.ca, AUTHORITIES_MAX)?;
        let chain = certificates("--tls-cert", &files.certificate, &contents.certificate, CHAIN_MAX)?;
        let trust = Trust::in_authorities(&authorities).map_err(|error| TlsFilesError::Certificate {
            flag: "--tls-ca",
            path: files.ca.clone(),
            reason: fault(&error),
        })?;
        let job = job(files, &chain[0], expected)?;
        let no_key = || TlsFilesError::Key(files.key.clone());
        let key = PrivateKeyDer::from_pem_slice(contents.key.as_bytes()).map_err(|_| no_key())?;
        let certificate = TaskCertificate { chain, key };
        let shown = certificate.certified_key().map_err(|_| no_key())?;
        if shown.keys_match().is_err() {
            let (key, certificate) = (files.key.clone(), files.certificate.clone());
            return Err(TlsFilesError::OtherKey { key, certificate });
        }
        Ok(Self { verifier: Verifier::of_job(job, trust), certificate, shown })
    }
}

/// Reads the authorities in a file, for an end that checks certificates as browsers do.
pub(crate) fn roots(ca: &Path) -> Result<Arc<RootCertStore>, TlsFilesError> {
    let text = secret_file::read_public(ca, FILE_BYTES_MAX);
    let text = text.map_err(|error| TlsFilesError::File { flag: "--tls-ca", error })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("--tls-ca", ca, &text, AUTHORITIES_MAX)? {
        let anchor = anchor_from_trusted_cert(&certificate).map_err(|error| TlsFilesError::Certificate {
            flag: "--tls-ca",
            path: ca.to_owned(),
            reason: fault(&error),
        })?;
        roots.roots.push(anchor.to_owned());
    }
    Ok(Arc::new(roots))
}

/// Returns the certificates in a PEM text: at least one, and at most `max`.
fn certificates(
    flag: &'static str,
    path: &Path,
    text: &str,
    max: usize,
) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let read = CertificateDer::pem_slice_iter(text.as_bytes()).take(max + 1);
    let (mut certificates, mut is_whole) = (Vec::new(), true);
    for certificate in read {
        match certificate {
            Ok(certificate) => certificates.push(certificate),
            Err(_) => {
                is_whole = false;
                break;
            }
        }
    }
    if is_whole && (1..=max).contains(&certificates.len()) {
        return Ok(certificates);
    }
    Err(TlsFilesError::Certificates { flag, path: path.to_owned(), found: certificates.len(), max })
}

/// Returns the job that a certificate names.
fn job(
    files: &TlsFiles,
    leaf: &CertificateDer<'_>,
    expected: &dyn Fn(&str) -> String,
) -> Result<String, TlsFilesError> {
    let leaf = EndEntityCert::try_from(leaf).map_err(|error| TlsFilesError::Certificate {
        flag: "--tls-cert",
        path: files.certificate.clone(),
        reason: fault(&error),
    })?;
    let mut uris = own_uris(&leaf);
    let Some(first) = uris.next() else {
        return Err(misnamed(files, "no URI of pushpull".to_owned(), expected("JOB")));
    };
    let quoted = |text: &str| excerpt(text, NAMES_CHARS_MAX);
    let form = "a job of 1 to 64 characters a to z, 0 to 9 and -, then a task or a client, such as";
    let Some(job) = job_of(first) else {
        return Err(misnamed(files, quoted(first), format!("{form} {}", expected("JOB"))));
    };
    match uris.find(|uri| job_of(uri) != Some(job)) {
        Some(other) => Err(misnamed(files, quoted(other), format!("only names of the job '{job}'"))),
        None => Ok(job.to_owned()),
    }
}

fn misnamed(files: &TlsFiles, got: String, expected: String) -> TlsFilesError {
    TlsFilesError::Names { path: files.certificate.clone(), got, expected }
}

fn untrusted(files: &TlsFiles, reason: Untrusted) -> TlsFilesError {
    TlsFilesError::Untrusted { certificate: files.certificate.clone(), ca: files.ca.clone(), reason }
}
