//! The authority of a job: the key that signs the certificates of the job's tasks, and its file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest;
use pushpull_messages::id::TaskId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

use crate::join_string::{HASH_BYTES, JoinString, JoinStringError};
use crate::name::uri;
use crate::provider::KEYS;
use crate::secret_file::{self, SecretFileError};

/// How long a certificate is valid. It is longer than a weekend without the chief, and short enough that a
/// stolen key is soon worthless. A task gets a new certificate after half of this time.
pub(crate) const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How far a certificate's validity begins before now: the clocks of hosts differ.
pub(crate) const CLOCKS_DIFFER: Duration = Duration::from_secs(300);
/// The size of the largest file that is read as an authority, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The authority of one job. Only the process of the chief has it.
pub struct Authority {
    join: JoinString,
    issuer: Issuer<'static, KeyPair>,
    own: CertificateDer<'static>,
    /// The same certificate as text.
    pem: String,
}

/// The reason why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The file cannot be read or written, or others can read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The join string in the file is not valid.
    #[error("{} is not an authority: {error}", path.display())]
    Join {
        /// The file.
        path: PathBuf,
        /// What is wrong with its join string.
        error: JoinStringError,
    },
    /// The key in the file is not valid, or is not the one that the join string names.
    #[error("{} is not an authority: expected a join string and the key that it names; write one with \
             `pushpull join new --authority FILE`", path.display())]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// A key or a certificate could not be made.
    #[error("cannot make a key or a certificate: {0}")]
    Make(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error.to_string())
    }
}

impl Authority {
    /// Makes the authority of a new job, with a new join string.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn new() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(KEYS)?;
        let join = JoinString::new(hash_of(&key.subject_public_key_info()));
        Self::with(
            join.ok_or_else(|| AuthorityError::Make("the system has no random numbers".to_owned()))?,
            key,
        )
    }

    fn with(join: JoinString, key: KeyPair) -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name = named(&format!("pushpull job {}", join.job()));
        let own = params.self_signed(&key)?;
        let (pem, own) = (own.pem(), own.der().clone());
        Ok(Self { join, issuer: Issuer::new(params, key), own, pem })
    }

    /// Writes the authority to a new file, which only its owner can read.
    ///
    /// # Errors
    /// Returns an error if the file exists or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), AuthorityError> {
        let text = format!("{}\n{}", self.join.text(), self.issuer.key().serialize_pem());
        Ok(secret_file::create(path, &text)?)
    }

    /// Reads the authority from a file that only its owner can read.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if others can read it, or if it is not that of an
    /// authority.
    pub fn read(path: &Path) -> Result<Self, AuthorityError> {
        Self::parse(&secret_file::read(path, FILE_BYTES_MAX)?, path)
    }

    /// Parses the text of an authority's file. `path` is the file that errors name.
    ///
    /// # Errors
    /// Returns an error if the text is not that of an authority.
    pub fn parse(text: &str, path: &Path) -> Result<Self, AuthorityError> {
        let (first, pem) = text.split_once('\n').unwrap_or((text, ""));
        let wrong = |error| AuthorityError::Join { path: path.to_owned(), error };
        let join: JoinString = first.trim().parse().map_err(wrong)?;
        let key = || AuthorityError::Key { path: path.to_owned() };
        let pair = KeyPair::from_pem_and_sign_algo(pem, KEYS).map_err(|_| key())?;
        if hash_of(&pair.subject_public_key_info()) != join.authority {
            return Err(key());
        }
        Self::with(join, pair)
    }

    /// Returns the join string that the job's tasks need.
    pub const fn join(&self) -> &JoinString {
        &self.join
    }

    /// Returns the certificate of the authority, as PEM, for programs that have no join string. With it, they
    /// check the HTTP endpoints of the job's tasks.
    pub fn certificate_pem(&self) -> String {
        self.pem.clone()
    }

    /// Returns the certificate chain of a process that runs `tasks` at the host names or addresses `hosts`,
    /// and has the key `public_key`, an uncompressed point of P-256. `now` is the time since 1970. The hosts
    /// are for clients of the process's HTTP endpoint. Tasks know each other by their roles and indices only.
    pub(crate) fn certify(
        &self,
        tasks: &[TaskId],
        hosts: &[&str],
        public_key: &[u8],
        now: Duration,
    ) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
        let since_1970 = |time: Duration| date_time_ymd(1970, 1, 1) + time;
        let (mut params, job) = (CertificateParams::default(), self.join.job());
        params.not_before = since_1970(now.saturating_sub(CLOCKS_DIFFER));
        params.not_after = since_1970(now + LIFE);
        params.distinguished_name = named(&tasks.first().map(ToString::to_string).unwrap_or_default());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let names = tasks.iter().map(|&task| Ok(SanType::URI(uri(&job, task).try_into()?)));
        params.subject_alt_names = names.collect::<Result<_, rcgen::Error>>()?;
        params.subject_alt_names.extend(hosts.iter().filter_map(|host| name_of(host)));
        let leaf = params.signed_by(&PublicKey(public_key), &self.issuer)?;
        Ok(vec![leaf.der().clone(), self.own.clone()])
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("job", &self.join.job()).finish_non_exhaustive()
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Returns the name of a host in a certificate; `None` if a certificate cannot name it.
fn name_of(host: &str) -> Option<SanType> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(address) => Some(SanType::IpAddress(address)),
        Err(_) => Some(SanType::DnsName(host.try_into().ok()?)),
    }
}

/// Returns the hash by which a join string names an authority: the SHA-256 of its SubjectPublicKeyInfo.
pub(crate) fn hash_of(public_key_info: &[u8]) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(digest::digest(&digest::SHA256, public_key_info).as_ref());
    hash
}

/// The public key of a task: an uncompressed point of P-256.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        KEYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authority");
        let authority = Authority::new().unwrap();
        authority.write(&path).unwrap();
        assert_eq!(Authority::read(&path).unwrap().join(), authority.join());
        assert!(!format!("{authority:?}").contains(&authority.join().text()[90..]));
        assert!(matches!(authority.write(&path), Err(AuthorityError::File(_))), "it is never replaced");
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, mixed] = ["one", "other", "mixed"].map(|name| dir.path().join(name));
        for path in [&one, &other] {
            Authority::new().unwrap().write(path).unwrap();
        }
        let [one, other] = [one, other].map(|path| std::fs::read_to_string(path).unwrap());
        let (join, _) = one.split_once('\n').unwrap();
        let (_, key) = other.split_once('\n').unwrap();
        for text in [format!("{join}\n{key}"), join.to_owned(), format!("{join}\nno key")] {
            let _ = std::fs::remove_file(&mixed);
            secret_file::create(&mixed, &text).unwrap();
            let error = Authority::read(&mixed).unwrap_err();
            assert!(matches!(error, AuthorityError::Key { .. }), "{error}");
            assert!(!error.to_string().contains(&join[90..]), "{error}");
        }
        let _ = std::fs::remove_file(&mixed);
        secret_file::create(&mixed, key).unwrap();
        assert!(matches!(Authority::read(&mixed), Err(AuthorityError::Join { .. })));
    }
}
