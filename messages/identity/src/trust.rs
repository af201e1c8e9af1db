//! Which chains of certificates a task trusts: those that the authority of a join string has signed, or those
//! that lead to one of the authorities in a file. Wanted properties: (A) with a join string, a chain is
//! [leaf, authority], the authority is the one that the join string names, and it has signed the leaf; (B)
//! with a file, the chain leads to an authority in the file, over at most [`CHAIN_MAX`] certificates; (C) all
//! certificates of the chain but the authority's are valid now, and the leaf is for its use.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

use crate::authority::hash_of;
use crate::join_string::HASH_BYTES;
use crate::provider::{ALL_SIGNATURES, SIGNATURES};
use crate::untrusted::{CHAIN_MAX, Untrusted, fault};

/// What a certificate is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A task listens and dials.
    Task,
    /// A client only dials.
    Client,
}

/// The authorities that a task trusts.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// The one whose public key has this SHA-256. A join string names it.
    Authority([u8; HASH_BYTES]),
    /// Those in a file.
    Anchors(Arc<[TrustAnchor<'static>]>),
}

impl Trust {
    /// Returns the trust in the authorities with these certificates.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be read.
    pub(crate) fn in_authorities(certificates: &[CertificateDer<'_>]) -> Result<Self, Error> {
        let anchors = certificates
            .iter()
            .map(|certificate| anchor_from_trusted_cert(certificate).map(|anchor| anchor.to_owned()));
        Ok(Self::Anchors(anchors.collect::<Result<_, _>>()?))
    }

    /// Returns the signatures that certificates and handshakes may have.
    pub(crate) fn signatures(&self) -> &'static WebPkiSupportedAlgorithms {
        match self {
            Self::Authority(_) => &SIGNATURES,
            Self::Anchors(_) => &ALL_SIGNATURES,
        }
    }

    /// Checks a chain, and returns its first certificate. `now` is the time since 1970.
    pub(crate) fn check<'a>(
        &self,
        chain: &'a [CertificateDer<'a>],
        now: Duration,
        used: Use,
    ) -> Result<EndEntityCert<'a>, Untrusted> {
        match self {
            Self::Authority(hash) => {
                let [leaf, authority] = chain else { return Err(Untrusted::Chain(chain.len())) };
                let key = EndEntityCert::try_from(authority).map_err(invalid)?.subject_public_key_info();
                if hash_of(key.as_ref()) != *hash {
                    return Err(Untrusted::Authority);
                }
                let anchors = [anchor_from_trusted_cert(authority).map_err(invalid)?];
                let leaf = EndEntityCert::try_from(leaf).map_err(invalid)?;
                self.check_path(&leaf, &[], &anchors, now, used).map_err(invalid)?;
                Ok(leaf)
            }
            Self::Anchors(anchors) => {
                let [leaf, between @ ..] = chain else { return Err(Untrusted::Chains(0)) };
                if chain.len() > CHAIN_MAX {
                    return Err(Untrusted::Chains(chain.len()));
                }
                let leaf = EndEntityCert::try_from(leaf).map_err(invalid)?;
                self.check_path(&leaf, between, anchors, now, used).map_err(|error| match error {
                    // Authorities may have the same name, such as two generations of one.
                    Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Untrusted::Signer,
                    error => invalid(error),
                })?;
                Ok(leaf)
            }
        }
    }

    fn check_path(
        &self,
        leaf: &EndEntityCert<'_>,
        between: &[CertificateDer<'_>],
        anchors: &[TrustAnchor<'_>],
        now: Duration,
        used: Use,
    ) -> Result<(), Error> {
        let (signatures, time) = (self.signatures().all, UnixTime::since_unix_epoch(now));
        let usages: &[KeyUsage] = match used {
            Use::Task => &[KeyUsage::server_auth(), KeyUsage::client_auth()],
            Use::Client => &[KeyUsage::client_auth()],
        };
        for &usage in usages {
            leaf.verify_for_usage(signatures, anchors, between, time, usage, None, None)?;
        }
        Ok(())
    }
}

fn invalid(error: Error) -> Untrusted {
    match error {
        Error::CertExpired { .. } => Untrusted::Expired,
        Error::CertNotValidYet { .. } => Untrusted::NotYetValid,
        Error::RequiredEkuNotFoundContext(_) => Untrusted::Usage,
        error => Untrusted::Invalid(fault(&error)),
    }
}
