//! The settings of TLS that belong to the certificate that a process has now.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::{TaskCertificate, TaskKey};
use crate::configs::{self, CERTIFIED_CLIENT, CLIENT, Clients, ENROLMENT, PEERS, Servers};
use crate::error::IdentityError;
use crate::tls_files::Material;
use crate::verifier::Verifier;

/// What a connection that was accepted is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A task talks to this one.
    Peers,
    /// A task enrols, or enrols this one.
    Enrolment,
    /// A client with a client string talks to this server.
    Client,
    /// A client with a certificate talks to this server.
    CertifiedClient,
}

impl Wanted {
    /// Returns the purpose that the offered protocols name.
    pub(crate) fn by(mut offered: impl Iterator<Item = impl AsRef<[u8]>>) -> Self {
        let named = |name: &[u8]| match name {
            name if name == ENROLMENT => Some(Self::Enrolment),
            name if name == CLIENT => Some(Self::Client),
            name if name == CERTIFIED_CLIENT => Some(Self::CertifiedClient),
            _ => None,
        };
        offered.find_map(|name| named(name.as_ref())).unwrap_or(Self::Peers)
    }

    const fn protocol(self) -> &'static [u8] {
        match self {
            Self::Peers => PEERS,
            Self::Enrolment => ENROLMENT,
            Self::Client => CLIENT,
            Self::CertifiedClient => CERTIFIED_CLIENT,
        }
    }

    pub(crate) const fn is_client(self) -> bool {
        matches!(self, Self::Client | Self::CertifiedClient)
    }
}

/// The settings of both ends for one protocol.
pub(crate) struct Ends {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

/// The settings that belong to the current certificate.
pub(crate) struct Settings {
    pub(crate) verifier: Verifier,
    /// The certificate and its settings; `None` if this task has none yet.
    pub(crate) certified: Option<Certified>,
    /// `None` if tasks do not enrol.
    pub(crate) enrolment: Option<Ends>,
    /// The certificate that HTTP endpoints show. If the task has none yet, it proves only that the endpoint
    /// has the key of the task.
    pub(crate) shown: Arc<CertifiedKey>,
}

pub(crate) struct Certified {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) peers: Ends,
    /// The settings for a client of this task. They are used if the task serves clients.
    clients: Arc<ServerConfig>,
    /// What a client must want.
    client: Wanted,
}

impl Settings {
    /// Returns the settings of a task that has no certificate yet or, with `chain`, has this one.
    pub(crate) fn of_task(
        key: &TaskKey,
        verifier: &Verifier,
        chain: Option<Vec<CertificateDer<'static>>>,
    ) -> Result<Self, IdentityError> {
        let (tasks, unproved) = (|| verifier.clone(), key.self_signed()?);
        let certificate = chain.map(|chain| key.certified(chain));
        let shown = certificate.as_ref().unwrap_or(&unproved).certified_key()?;
        let enrolment = Ends {
            server: configs::server(Clients::Tasks(tasks()), unproved, ENROLMENT)?,
            client: configs::client(Servers::Tasks(tasks()), None, ENROLMENT)?,
        };
        let certified =
            certificate.map(|certificate| Certified::of_join(certificate, verifier)).transpose()?;
        Ok(Self { verifier: verifier.clone(), certified, enrolment: Some(enrolment), shown })
    }

    /// Returns the settings of the process that has the authority.
    pub(crate) fn of_authority(
        certificate: TaskCertificate,
        verifier: &Verifier,
    ) -> Result<Self, IdentityError> {
        let enrolment = Ends {
            server: configs::server(Clients::Strangers, certificate.clone(), ENROLMENT)?,
            client: configs::client(Servers::Strangers, Some(certificate.clone()), ENROLMENT)?,
        };
        let (verifier, shown) = (verifier.clone(), certificate.certified_key()?);
        let certified = Some(Certified::of_join(certificate, &verifier)?);
        Ok(Self { verifier, certified, enrolment: Some(enrolment), shown })
    }

    /// Returns the settings of a process with a certificate of its own. It never enrols.
    pub(crate) fn of_files(material: Material) -> Result<Self, rustls::Error> {
        let Material { verifier, certificate, shown } = material;
        let door = (Clients::Certified(verifier.clone()), Wanted::CertifiedClient);
        let certified = Some(Certified::new(certificate, &verifier, door)?);
        Ok(Self { verifier, certified, enrolment: None, shown })
    }

    /// Returns the settings for a connection that was accepted; `None` if this task has none for it, or none
    /// yet. `serves` is true if this task serves clients.
    pub(crate) fn door(&self, wanted: Wanted, serves: bool) -> Option<(Arc<ServerConfig>, &'static [u8])> {
        let certified = self.certified.as_ref();
        let config = match wanted {
            Wanted::Enrolment => self.enrolment.as_ref().map(|ends| &ends.server),
            Wanted::Peers => certified.map(|certified| &certified.peers.server),
            Wanted::Client | Wanted::CertifiedClient => certified
                .filter(|certified| serves && certified.client == wanted)
                .map(|certified| &certified.clients),
        };
        config.map(|config| (Arc::clone(config), wanted.protocol()))
    }

    /// Returns settings with which the handshake tells a peer that this task does not have what it wants.
    pub(crate) fn refusal(&self) -> Option<Arc<ServerConfig>> {
        let enrolment = self.enrolment.as_ref().map(|ends| &ends.server);
        enrolment.or_else(|| self.certified.as_ref().map(|own| &own.peers.server)).cloned()
    }
}

impl Certified {
    fn of_join(certificate: TaskCertificate, verifier: &Verifier) -> Result<Self, rustls::Error> {
        Self::new(certificate, verifier, (Clients::Strangers, Wanted::Client))
    }

    fn new(
        certificate: TaskCertificate,
        verifier: &Verifier,
        (demanded, client): (Clients, Wanted),
    ) -> Result<Self, rustls::Error> {
        let chain = certificate.chain.clone();
        let clients = configs::server(demanded, certificate.clone(), client.protocol())?;
        let peers = Ends {
            server: configs::server(Clients::Tasks(verifier.clone()), certificate.clone(), PEERS)?,
            client: configs::client(Servers::Tasks(verifier.clone()), Some(certificate), PEERS)?,
        };
        Ok(Self { chain, peers, clients, client })
    }
}
