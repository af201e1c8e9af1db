//! Certificates that an attacker shows: those that it makes with a stolen or a foreign authority's key, and
//! the one that it got with the join string.

use std::path::Path;
use std::time::{Duration, SystemTime};

use pushpull_identity::{Authority, JoinString};
use pushpull_messages::id::TaskId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// The time between the first and the last moment of a certificate.
const LIFE: Duration = Duration::from_secs(3600);

/// A chain of certificates, and a key, which may belong to another certificate.
pub(super) struct Certificate {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivatePkcs8KeyDer<'static>,
}

/// The key of an authority in the hands of an attacker.
pub(super) struct Forger {
    pub(super) join: JoinString,
    issuer: Issuer<'static, KeyPair>,
    own: CertificateDer<'static>,
}

/// Returns a new key of the kind that tasks have.
pub(super) fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("the system has random numbers")
}

fn private(key: &KeyPair) -> PrivatePkcs8KeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der())
}

impl Certificate {
    pub(super) fn new(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Self {
        Self { chain, key: private(key) }
    }

    /// Returns the same chain, with the key of somebody else.
    pub(super) fn without_its_key(&self) -> Self {
        Self::new(self.chain.clone(), &key())
    }
}

impl Forger {
    /// Reads the file of an authority.
    pub(super) fn of(authority: &Path) -> Self {
        let join = Authority::read(authority).expect("the file was just written").join().clone();
        let text = std::fs::read_to_string(authority).expect("the file was just read");
        let (_, pem) = text.split_once('\n').expect("a join string and a key");
        let key = KeyPair::from_pem_and_sign_algo(pem, &rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name = named(&format!("pushpull job {}", join.job()));
        let own = params.self_signed(&key).expect("a certificate can be made").der().clone();
        Self { join, issuer: Issuer::new(params, key), own }
    }

    /// Makes the certificate of a task that becomes valid `begins` after 1970.
    fn made(&self, job: &str, task: TaskId, begins: Duration) -> Certificate {
        let since_1970 = |time: Duration| date_time_ymd(1970, 1, 1) + time;
        let mut params = CertificateParams::default();
        params.not_before = since_1970(begins);
        params.not_after = since_1970(begins + LIFE);
        params.distinguished_name = named(&task.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let uri = format!("pushpull://{job}/{}/{}", task.job, task.index);
        params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a URI"))];
        let key = key();
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate can be made");
        Certificate::new(vec![leaf.der().clone(), self.own.clone()], &key)
    }

    /// Returns a certificate of a task that is valid now.
    pub(super) fn certificate(&self, task: TaskId) -> Certificate {
        self.made(&self.join.job(), task, now() - LIFE / 2)
    }

    /// Returns a certificate whose last moment was a minute ago.
    pub(super) fn expired(&self, task: TaskId) -> Certificate {
        self.made(&self.join.job(), task, now() - LIFE - Duration::from_secs(60))
    }

    /// Returns a certificate whose first moment is an hour from now.
    pub(super) fn early(&self, task: TaskId) -> Certificate {
        self.made(&self.join.job(), task, now() + LIFE)
    }

    /// Returns a certificate of the same task of another job.
    pub(super) fn of_job(&self, job: &str, task: TaskId) -> Certificate {
        self.made(job, task, now() - LIFE / 2)
    }

    /// Returns the certificate of the authority, as if the authority were a task.
    pub(super) fn own(&self) -> Certificate {
        Certificate::new(vec![self.own.clone(), self.own.clone()], self.issuer.key())
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().expect("the clock is after 1970")
}
