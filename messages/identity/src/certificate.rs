//! The key and the certificate of a process. They are never written to a file from here.

use std::fmt;
use std::sync::Arc;

use pushpull_messages::id::TaskId;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::authority::AuthorityError;
use crate::provider::{KEYS, provider};

/// The largest number of tasks that a log line names.
const NAMES_MAX: usize = 8;

/// The key of a process. It is made when the process starts, and never leaves the process.
pub(crate) struct TaskKey(KeyPair);

impl TaskKey {
    pub(crate) fn new() -> Result<Self, AuthorityError> {
        Ok(Self(KeyPair::generate_for(KEYS)?))
    }

    /// Returns the public key: an uncompressed point of P-256.
    pub(crate) fn public(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }

    /// Returns a certificate that proves only that its owner has this key.
    pub(crate) fn self_signed(&self) -> Result<TaskCertificate, AuthorityError> {
        let chain = vec![CertificateParams::default().self_signed(&self.0)?.der().clone()];
        Ok(TaskCertificate { chain, key: self.private() })
    }

    /// Returns the certificate with this chain.
    pub(crate) fn certified(&self, chain: Vec<CertificateDer<'static>>) -> TaskCertificate {
        TaskCertificate { chain, key: self.private() }
    }
}

impl fmt::Debug for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskKey(hidden)")
    }
}

/// A certificate chain, with the key of its first certificate.
pub(crate) struct TaskCertificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl TaskCertificate {
    /// Returns the certificate in the form in which a TLS server chooses among several.
    pub(crate) fn certified_key(&self) -> Result<Arc<CertifiedKey>, rustls::Error> {
        let key = provider().key_provider.load_private_key(self.key.clone_key())?;
        Ok(Arc::new(CertifiedKey::new(self.chain.clone(), key)))
    }
}

impl Clone for TaskCertificate {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for TaskCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCertificate").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// Returns the names of tasks, for logs and errors, such as `worker/0 and ps/0`.
pub(crate) fn names(tasks: &[TaskId]) -> String {
    let mut names: Vec<String> = tasks.iter().take(NAMES_MAX).map(ToString::to_string).collect();
    if tasks.len() > NAMES_MAX {
        names.push(format!("{} more", tasks.len() - NAMES_MAX));
    }
    names.join(" and ")
}
