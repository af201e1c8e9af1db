//! Checks certificates. Wanted properties: (A) a chain is accepted only if an authority that is trusted has
//! signed it, as `trust` says; (B) it is valid now, for its use; (C) every URI of pushpull in the leaf is a
//! task of this job, or exactly one is, and it is a client of this job. Other names in it do not matter.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::excerpt::excerpt;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::unix_time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ConnectionCommon, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerMisbehaved, SignatureScheme,
};
use webpki::EndEntityCert;

use crate::client_role::ClientRole;
use crate::client_string::ClientString;
use crate::hex;
use crate::join_string::JoinString;
use crate::name::{client_of, is_ours, task_of};
use crate::provider::SIGNATURES;
use crate::trust::{Trust, Use};
use crate::untrusted::Untrusted;

/// The longest name that an error quotes, in characters.
const NAME_CHARS_MAX: usize = 100;

/// Checks the certificates of a job's tasks, and of its clients.
#[derive(Clone, Debug)]
pub(crate) struct Verifier {
    job: String,
    trust: Trust,
}

impl Verifier {
    pub(crate) fn new(join: &JoinString) -> Self {
        Self { job: join.job(), trust: Trust::Authority(join.authority) }
    }

    /// Returns the verifier of a client.
    pub(crate) fn of_client(client: &ClientString) -> Self {
        Self { job: hex::encode(&client.job), trust: Trust::Authority(client.authority) }
    }

    /// Returns the verifier of a job whose certificates are made elsewhere.
    pub(crate) const fn of_job(job: String, trust: Trust) -> Self {
        Self { job, trust }
    }

    /// Returns the name of the job.
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// Returns the tasks that a chain of certificates names. `now` is the time since 1970.
    pub(crate) fn check(
        &self,
        chain: &[CertificateDer<'_>],
        now: Duration,
    ) -> Result<Vec<TaskId>, Untrusted> {
        let leaf = self.trust.check(chain, now, Use::Task)?;
        let tasks: Option<Vec<TaskId>> = own_uris(&leaf).map(|name| task_of(&self.job, name)).collect();
        tasks.filter(|tasks| !tasks.is_empty()).ok_or_else(|| self.misnamed(&leaf, Use::Task))
    }

    /// Returns the role of the client that a chain of certificates names. `now` is the time since 1970.
    pub(crate) fn check_client(
        &self,
        chain: &[CertificateDer<'_>],
        now: Duration,
    ) -> Result<ClientRole, Untrusted> {
        let leaf = self.trust.check(chain, now, Use::Client)?;
        let mut uris = own_uris(&leaf);
        let role = uris.next().and_then(|name| client_of(&self.job, name));
        role.filter(|_| uris.next().is_none()).ok_or_else(|| self.misnamed(&leaf, Use::Client))
    }

    /// Returns the reason why the names of a certificate are not accepted.
    fn misnamed(&self, leaf: &EndEntityCert<'_>, used: Use) -> Untrusted {
        if let Trust::Authority(_) = self.trust {
            return Untrusted::OtherJob;
        }
        let job = &self.job;
        let (expected, wrong) = match used {
            Use::Task => {
                let wrong = own_uris(leaf).find(|name| task_of(job, name).is_none());
                (format!("only tasks of the job '{job}', such as pushpull://{job}/worker/0"), wrong)
            }
            Use::Client => {
                let uris = own_uris(leaf);
                let wrong = uris.filter(|name| client_of(job, name).is_none()).last();
                (
                    format!("either pushpull://{job}/client/run or pushpull://{job}/client/read"),
                    wrong.or_else(|| own_uris(leaf).last()),
                )
            }
        };
        let got = wrong.map_or_else(|| "no URI of pushpull".to_owned(), |name| excerpt(name, NAME_CHARS_MAX));
        Untrusted::Names { got, expected }
    }

    /// Returns the tasks that the certificate at the other end of a connection names. It must be valid after
    /// `later`.
    pub(crate) fn check_connection<D>(
        &self,
        peer: &ConnectionCommon<D>,
        later: Duration,
    ) -> Result<Vec<TaskId>, Untrusted> {
        self.check(peer.peer_certificates().unwrap_or_default(), unix_time() + later)
    }

    /// Returns the role of the client at the other end of a connection.
    pub(crate) fn check_client_connection<D>(
        &self,
        peer: &ConnectionCommon<D>,
    ) -> Result<ClientRole, Untrusted> {
        self.check_client(peer.peer_certificates().unwrap_or_default(), unix_time())
    }

    fn check_peer(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        used: Use,
    ) -> Result<(), Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(others).cloned().collect();
        let checked = match used {
            Use::Task => self.check(&chain, unix_time()).map(drop),
            Use::Client => self.check_client(&chain, unix_time()).map(drop),
        };
        checked.map_err(|untrusted| {
            Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(untrusted))))
        })
    }

    fn signatures(&self) -> &'static WebPkiSupportedAlgorithms {
        self.trust.signatures()
    }
}

/// Returns the URIs of a certificate that have the scheme of pushpull.
pub(crate) fn own_uris<'a>(leaf: &EndEntityCert<'a>) -> impl Iterator<Item = &'a str> {
    leaf.valid_uri_names().filter(|name| is_ours(name))
}

/// Checks the certificates of a job's clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientVerifier(pub(crate) Verifier);

impl ClientVerifier {
    fn signatures(&self) -> &'static WebPkiSupportedAlgorithms {
        self.0.signatures()
    }
}

/// Checks that a server has the key of the certificate that it shows, and nothing else. The server proves by
/// other means who it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyKey;

impl AnyKey {
    fn signatures(self) -> &'static WebPkiSupportedAlgorithms {
        &SIGNATURES
    }
}

/// TLS 1.2 is never negotiated, so there are no such signatures.
fn no_tls12() -> Error {
    Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)
}

/// The parts of a verifier of rustls that all of ours have.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(no_tls12())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signed, self.signatures())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.signatures().supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_peer(leaf, others, Use::Task).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_peer(leaf, others, Use::Task).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.check_peer(leaf, others, Use::Client).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
