//! Checks certificates. Wanted properties: (A) a chain is accepted only if it is [leaf, authority], the
//! authority is the one that the join string names, and it has signed the leaf; (B) the leaf is valid now,
//! for its use; (C) every URI in the leaf is a task of this job, and it has at least one.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::TaskId;
use pushpull_messages::observe::unix_time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ConnectionCommon, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerMisbehaved, SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::authority::hash_of;
use crate::client_string::ClientString;
use crate::hex;
use crate::join_string::{HASH_BYTES, JoinString};
use crate::name::task_of;
use crate::provider::SIGNATURES;
use crate::untrusted::Untrusted;

/// Checks the certificates of a job's tasks.
#[derive(Clone, Debug)]
pub(crate) struct Verifier {
    job: String,
    authority: [u8; HASH_BYTES],
}

impl Verifier {
    pub(crate) fn new(join: &JoinString) -> Self {
        Self { job: join.job(), authority: join.authority }
    }

    /// Returns the verifier of a client.
    pub(crate) fn of_client(client: &ClientString) -> Self {
        Self { job: hex::encode(&client.job), authority: client.authority }
    }

    /// Returns the tasks that a chain of certificates names. `now` is the time since 1970.
    pub(crate) fn check(
        &self,
        chain: &[CertificateDer<'_>],
        now: Duration,
    ) -> Result<Vec<TaskId>, Untrusted> {
        let invalid = |error: webpki::Error| Untrusted::Invalid(error.to_string());
        let [leaf, authority] = chain else { return Err(Untrusted::Chain(chain.len())) };
        let key = EndEntityCert::try_from(authority).map_err(invalid)?.subject_public_key_info();
        if hash_of(key.as_ref()) != self.authority {
            return Err(Untrusted::Authority);
        }
        let anchors = [anchor_from_trusted_cert(authority).map_err(invalid)?];
        let leaf = EndEntityCert::try_from(leaf).map_err(invalid)?;
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            let time = UnixTime::since_unix_epoch(now);
            let checked = leaf.verify_for_usage(SIGNATURES.all, &anchors, &[], time, usage, None, None);
            checked.map_err(|error| match error {
                webpki::Error::CertExpired { .. } => Untrusted::Expired,
                webpki::Error::CertNotValidYet { .. } => Untrusted::NotYetValid,
                error => invalid(error),
            })?;
        }
        let tasks: Option<Vec<TaskId>> =
            leaf.valid_uri_names().map(|name| task_of(&self.job, name)).collect();
        tasks.filter(|tasks| !tasks.is_empty()).ok_or(Untrusted::OtherJob)
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

    fn check_peer(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(others).cloned().collect();
        match self.check(&chain, unix_time()) {
            Ok(_) => Ok(()),
            Err(untrusted) => {
                Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(untrusted)))))
            }
        }
    }
}

/// Checks that a server has the key of the certificate that it shows, and nothing else. The server proves by
/// other means who it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyKey;

/// TLS 1.2 is never negotiated, so there are no such signatures.
fn no_tls12() -> Error {
    Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)
}

/// The parts of a verifier of rustls that both of ours have.
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
            verify_tls13_signature(message, certificate, signed, &SIGNATURES)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            SIGNATURES.supported_schemes()
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
        self.check_peer(leaf, others).map(|()| ServerCertVerified::assertion())
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
        self.check_peer(leaf, others).map(|()| ClientCertVerified::assertion())
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
