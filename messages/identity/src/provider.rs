//! The cryptography of all connections: TLS 1.3 by aws-lc-rs. It is always passed explicitly, because the
//! program may have other providers, and rustls panics if it has to choose one.

use std::sync::{Arc, LazyLock};

use rcgen::SignatureAlgorithm;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{SignatureScheme, SupportedProtocolVersion};

/// The algorithm of all keys: ECDSA with P-256 and SHA-256.
pub(crate) const KEYS: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
/// The size of a public key in bytes: an uncompressed point of P-256.
pub(crate) const PUBLIC_KEY_BYTES: usize = 65;
/// The signatures that certificates and handshakes may have.
pub(crate) const SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::aws_lc_rs::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::aws_lc_rs::ECDSA_P256_SHA256])],
};
/// The signatures of certificates that are made elsewhere: RSA, ECDSA and Ed25519, as authorities make them.
pub(crate) static ALL_SIGNATURES: LazyLock<WebPkiSupportedAlgorithms> =
    LazyLock::new(|| default_provider().signature_verification_algorithms);
/// The version of TLS.
pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Returns the provider. AES-128-GCM comes first, because processors have instructions for it.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
        signature_verification_algorithms: SIGNATURES,
        ..default_provider()
    })
}

/// Returns the same, for an end that checks certificates as the TLS library does.
pub(crate) fn usual_provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { signature_verification_algorithms: *ALL_SIGNATURES, ..(*provider()).clone() })
}
