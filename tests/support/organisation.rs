//! The authority of an organisation, which makes certificates for the tests: the files that people with
//! cert-manager, Vault or step-ca give to tasks.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// The authority of an organisation.
pub(crate) struct Organisation {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of the first authority, as PEM.
    pub(crate) pem: String,
    /// The certificates between that one and this one, as PEM.
    between: String,
}

/// The files of one process.
pub(crate) struct OwnFiles {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params, key())
}

fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("the system has random numbers")
}

impl Organisation {
    /// Makes an authority, and another one below it, which makes the certificates.
    pub(crate) fn new(name: &str) -> Self {
        let (params, root) = authority(name);
        let pem = params.self_signed(&root).expect("a certificate can be made").pem();
        let first = Issuer::new(params, root);
        let (params, key) = authority(&format!("{name} below"));
        let between = params.signed_by(&key, &first).expect("a certificate can be made").pem();
        Self { issuer: Issuer::new(params, key), pem, between }
    }

    /// Makes a certificate with these URIs, for a process on this host. Returns the chain and the key, as
    /// PEM.
    pub(crate) fn make(&self, uris: &[String]) -> (String, String) {
        let mut params = CertificateParams::default();
        let names = uris.iter().map(|uri| SanType::URI(uri.as_str().try_into().expect("a URI")));
        let host = SanType::DnsName("localhost".try_into().expect("a name"));
        let address = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
        params.subject_alt_names = names.chain([host, address]).collect();
        let key = key();
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate can be made");
        (leaf.pem() + &self.between, key.serialize_pem())
    }

    /// Writes the three files of a process into a new folder below `dir`.
    #[track_caller]
    pub(crate) fn write(&self, dir: &Path, name: &str, uris: &[String]) -> OwnFiles {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).expect("the test's directory can be written");
        let [ca, certificate, key] = ["ca.crt", "tls.crt", "tls.key"].map(|name| dir.join(name));
        let files = OwnFiles { ca, certificate, key };
        files.trust(&[self]);
        files.replace(&self.make(uris));
        files
    }
}

impl OwnFiles {
    /// Writes the authorities that are trusted from now on.
    pub(crate) fn trust(&self, organisations: &[&Organisation]) {
        let text: String = organisations.iter().map(|organisation| organisation.pem.as_str()).collect();
        std::fs::write(&self.ca, text).expect("the test's directory can be written");
    }

    /// Writes another certificate with its key.
    pub(crate) fn replace(&self, (certificate, key): &(String, String)) {
        std::fs::write(&self.certificate, certificate).expect("the test's directory can be written");
        std::fs::write(&self.key, key).expect("the test's directory can be written");
        self.allow(0o640);
    }

    /// Sets who may use the file of the key.
    pub(crate) fn allow(&self, mode: u32) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&self.key, mode).expect("its owner may");
    }

    /// Adds the flags of the files to a command.
    pub(crate) fn give(&self, command: &mut Command) {
        command.arg("--tls-ca").arg(&self.ca).arg("--tls-cert").arg(&self.certificate);
        command.arg("--tls-key").arg(&self.key);
    }

    /// Names the files in the environment of a command.
    pub(crate) fn give_by_environment(&self, command: &mut Command) {
        command.env("PUSHPULL_TLS_CA", &self.ca).env("PUSHPULL_TLS_CERT", &self.certificate);
        command.env("PUSHPULL_TLS_KEY", &self.key);
    }
}
