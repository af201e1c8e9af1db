//! What a process proves its identity with: the join string, its key, and its certificate once it has one.
//! One process of the cluster also has the authority: that of the chief, or the first server of sessions.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::unix_time;
use rustls::pki_types::CertificateDer;
use rustls::server::Acceptor;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConnectionCommon, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync;
use tokio::time::Instant;
use tokio_rustls::{LazyConfigAcceptor, TlsStream, server};

use crate::authority::{Authority, LIFE};
use crate::certificate::{TaskCertificate, TaskKey, names};
use crate::configs::{self, CLIENT, Clients, ENROLMENT, PEERS, Servers};
use crate::enrolment::{Channel, EnrolmentError, Grants, admit, ask, grant};
use crate::error::IdentityError;
use crate::handshake::{check_protocol, handshake, limited};
use crate::join_string::JoinString;
use crate::place::Place;
use crate::proven::Proven;
use crate::secured::Secured;
use crate::verifier::Verifier;

/// The time within which a peer that only looks whether the port is open closes its connection.
const LOOK: Duration = Duration::from_millis(500);

/// The credentials of a process. Clones are the same credentials.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

struct Shared {
    join: JoinString,
    verifier: Verifier,
    place: Place,
    key: TaskKey,
    /// `None` except in one process of the cluster.
    authority: Option<Authority>,
    current: Mutex<Arc<Current>>,
    /// Held while this task enrols, so that it enrols once and not once for each connection.
    enrolling: sync::Mutex<()>,
}

/// The settings that belong to the current certificate.
struct Current {
    /// The certificate and its settings; `None` if this task has none yet.
    certified: Option<Certified>,
    enrolment: Ends,
    /// The certificate that HTTP endpoints show. If the task has none yet, it proves only that the endpoint
    /// has the key of the task.
    shown: Arc<CertifiedKey>,
}

struct Certified {
    chain: Vec<CertificateDer<'static>>,
    peers: Ends,
    /// The settings for a client of this task. They are used if the task serves clients.
    clients: Arc<ServerConfig>,
}

/// What a connection that was accepted is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A task talks to this one.
    Peers,
    /// A task enrols, or enrols this one.
    Enrolment,
    /// A client talks to this server.
    Client,
}

impl Wanted {
    /// Returns the purpose that the offered protocols name.
    fn by(mut offered: impl Iterator<Item = impl AsRef<[u8]>>) -> Self {
        let named = |name: &[u8]| match name {
            name if name == ENROLMENT => Some(Self::Enrolment),
            name if name == CLIENT => Some(Self::Client),
            _ => None,
        };
        offered.find_map(|name| named(name.as_ref())).unwrap_or(Self::Peers)
    }
}

/// The settings of both ends for one protocol.
struct Ends {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Current {
    /// Returns the settings of a task that has no certificate yet or, with `chain`, has this one.
    fn of_task(
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
        let certified = certificate.map(|certificate| Certified::new(certificate, verifier)).transpose()?;
        Ok(Self { certified, enrolment, shown })
    }

    /// Returns the settings of the process that has the authority.
    fn of_authority(certificate: TaskCertificate, verifier: &Verifier) -> Result<Self, IdentityError> {
        let enrolment = Ends {
            server: configs::server(Clients::Strangers, certificate.clone(), ENROLMENT)?,
            client: configs::client(Servers::Strangers, Some(certificate.clone()), ENROLMENT)?,
        };
        let shown = certificate.certified_key()?;
        Ok(Self { certified: Some(Certified::new(certificate, verifier)?), enrolment, shown })
    }
}

impl Certified {
    fn new(certificate: TaskCertificate, verifier: &Verifier) -> Result<Self, IdentityError> {
        let chain = certificate.chain.clone();
        let server = configs::server(Clients::Tasks(verifier.clone()), certificate.clone(), PEERS)?;
        let clients = configs::server(Clients::Strangers, certificate.clone(), CLIENT)?;
        let client = configs::client(Servers::Tasks(verifier.clone()), Some(certificate), PEERS)?;
        Ok(Self { chain, peers: Ends { server, client }, clients })
    }
}

impl Credentials {
    /// Returns the credentials of a process that trains and does not run the chief. It gets its certificate
    /// later.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_task(join: JoinString, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Self::without_authority(join, Place::in_training(cluster, task))
    }

    /// Returns the credentials of the process that runs the chief, in the task `task`. It makes its own
    /// certificate.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_chief(authority: Authority, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Self::with_authority(authority, Place::in_training(cluster, task))
    }

    /// Returns the credentials of a server of sessions that is not the first task of its cluster. It asks the
    /// first one for its certificate.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_server(join: JoinString, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Self::without_authority(join, Place::of_server(cluster, task))
    }

    /// Returns the credentials of the server of sessions that is the first task of its cluster. It makes its
    /// own certificate, and gives the other servers theirs.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_first_server(authority: Authority, cluster: ClusterSpec) -> Result<Self, IdentityError> {
        let first = cluster.first_task();
        Self::with_authority(authority, Place::of_server(cluster, first))
    }

    fn without_authority(join: JoinString, place: Place) -> Result<Self, IdentityError> {
        let (key, verifier) = (TaskKey::new()?, Verifier::new(&join));
        let current = Current::of_task(&key, &verifier, None)?;
        Ok(Self::with(join, verifier, place, key, None, current))
    }

    fn with_authority(authority: Authority, place: Place) -> Result<Self, IdentityError> {
        let (key, join) = (TaskKey::new()?, authority.join().clone());
        let verifier = Verifier::new(&join);
        let current = Current::of_authority(certify(&authority, &place, &key)?, &verifier)?;
        Ok(Self::with(join, verifier, place, key, Some(authority), current))
    }

    fn with(
        join: JoinString,
        verifier: Verifier,
        place: Place,
        key: TaskKey,
        authority: Option<Authority>,
        current: Current,
    ) -> Self {
        let (current, enrolling) = (Mutex::new(Arc::new(current)), sync::Mutex::default());
        Self(Arc::new(Shared { join, verifier, place, key, authority, current, enrolling }))
    }

    /// Returns whether this process has the authority, which gives the other tasks their certificates.
    pub fn has_authority(&self) -> bool {
        self.0.authority.is_some()
    }

    /// Returns the join string of the job.
    pub fn join_string(&self) -> &JoinString {
        &self.0.join
    }

    /// Returns the certificate that HTTP endpoints show now.
    pub(crate) fn shown(&self) -> Result<Arc<CertifiedKey>, IdentityError> {
        Ok(Arc::clone(&self.current()?.shown))
    }

    /// Enrols at the task that has the authority, if this task is one that asks, and has no certificate or
    /// one that has less than half of its life left. A ps task of a training job never asks: the chief
    /// connects to it. `connect` connects to an address. After an error, a certificate that is still valid
    /// stays in use.
    ///
    /// # Errors
    /// Returns an error if the other task cannot be reached, does not have the authority of this job, or
    /// refuses.
    pub async fn enrol<S, F>(&self, connect: impl FnOnce(String) -> F) -> Result<(), IdentityError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = io::Result<S>>,
    {
        if !self.asks() {
            return Ok(());
        }
        let _turn = self.0.enrolling.lock().await;
        if !self.asks() {
            return Ok(());
        }
        let (name, address) = (self.0.place.authority_name(), self.0.place.authority_address());
        let connected = connect(address.clone());
        let unreachable = |error| IdentityError::NoAuthority { name, address, error };
        let stream = limited(async { connected.await.map_err(unreachable) }).await?;
        self.ask(stream).await
    }

    /// Returns true if this task needs no certificate before it connects: it has one that is still valid, or
    /// it is not one that asks.
    pub fn is_enrolled(&self) -> bool {
        self.has_authority() || !self.0.place.asks() || self.is_certified(Duration::ZERO)
    }

    /// Returns true if this task has a certificate from another one, and less than a quarter of its life is
    /// left.
    pub fn expires_soon(&self) -> bool {
        let certified = self.0.current.lock().certified.is_some();
        certified && !self.has_authority() && !self.is_certified(LIFE / 4)
    }

    /// Returns whether this task has to ask for a certificate now.
    fn asks(&self) -> bool {
        !self.has_authority() && self.0.place.asks() && !self.is_certified(LIFE / 2)
    }

    /// Returns whether this task has a certificate that is valid after `later`.
    fn is_certified(&self, later: Duration) -> bool {
        let current = self.0.current.lock().clone();
        let valid =
            |certified: &Certified| self.0.verifier.check(&certified.chain, unix_time() + later).is_ok();
        current.certified.as_ref().is_some_and(valid)
    }

    /// Asks the task at the other end of a new connection for a certificate.
    async fn ask<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<(), IdentityError> {
        let config = Arc::clone(&self.current()?.enrolment.client);
        let mut stream = handshake(config, stream).await?;
        let channel = self.authority_channel(stream.get_ref().1)?;
        self.ask_on(&mut stream, channel).await
    }

    /// Asks on a connection whose other end has proved that it has the authority.
    async fn ask_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        channel: Channel,
    ) -> Result<(), IdentityError> {
        let Shared { join, place, key, .. } = &*self.0;
        let asked = async { Ok(ask(stream, channel, join, place.task(), key.public()).await?) };
        self.install(limited(asked).await?)?;
        tracing::info!("{} has given this task a certificate", place.authority_name());
        Ok(())
    }

    /// Uses a certificate from now on, which must name this task.
    pub(crate) fn install(&self, chain: Vec<CertificateDer<'static>>) -> Result<(), IdentityError> {
        let Shared { verifier, place, key, current, .. } = &*self.0;
        let tasks = verifier.check(&chain, unix_time())?;
        if !tasks.contains(&place.task()) {
            return Err(wrong_task(place.task(), &tasks));
        }
        *current.lock() = Arc::new(Current::of_task(key, verifier, Some(chain))?);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn public_key(&self) -> &[u8] {
        self.0.key.public()
    }

    /// Connects to a task over a new connection. Both ends prove who they are.
    ///
    /// # Errors
    /// Returns an error if one of the two has no certificate yet, or if the other one is not trusted.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Secured<S>, IdentityError> {
        let current = self.current()?;
        let certified = current.certified.as_ref().ok_or(IdentityError::NoCertificate)?;
        let stream = handshake(Arc::clone(&certified.peers.client), stream).await?;
        let tasks = self.0.verifier.check_connection(stream.get_ref().1, Duration::ZERO)?;
        Ok(Secured { stream: TlsStream::Client(stream), proven: Proven::Tasks(tasks) })
    }

    /// Returns whether the other end needs a new certificate from this process, which must have the
    /// authority.
    pub fn must_renew<S>(&self, peer: &Secured<S>) -> bool {
        let TlsStream::Client(stream) = &peer.stream else { return false };
        self.has_authority() && self.0.verifier.check_connection(stream.get_ref().1, LIFE / 2).is_err()
    }

    /// Gives the task at the other end of a new connection a certificate. This process must have the
    /// authority.
    ///
    /// # Errors
    /// Returns an error if the other end does not know the join string.
    pub async fn enrol_peer<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(), IdentityError> {
        let config = Arc::clone(&self.current()?.enrolment.client);
        let mut stream = handshake(config, stream).await?;
        let channel = Channel::of(stream.get_ref().1)?;
        self.grant_on(&mut stream, channel).await
    }

    async fn grant_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        channel: Channel,
    ) -> Result<(), IdentityError> {
        let Shared { authority, place, .. } = &*self.0;
        let authority = authority.as_ref().ok_or(EnrolmentError::Message("this task grants nothing"))?;
        let grants = Grants { authority, place, now: unix_time() };
        let tasks = limited(grant(stream, channel, grants)).await?;
        tracing::info!("gave {} a certificate", names(&tasks));
        Ok(())
    }

    /// Accepts a new connection. Returns `None` if it is over: it was an enrolment, or it came before this
    /// task has a certificate.
    ///
    /// # Errors
    /// Returns an error if the other end does not prove in time that it is a task of this job or, if this
    /// task is a server, a client of it.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Option<Secured<S>>, IdentityError> {
        let Some((mut stream, wanted)) = limited(self.begin(stream)).await? else { return Ok(None) };
        let proven = match wanted {
            Wanted::Peers => {
                Proven::Tasks(self.0.verifier.check_connection(stream.get_ref().1, Duration::ZERO)?)
            }
            Wanted::Client => {
                let channel = Channel::of(stream.get_ref().1)?;
                let admitted = async { Ok(admit(&mut stream, channel, &self.0.join).await?) };
                Proven::Client(limited(admitted).await.map_err(of_client)?)
            }
            Wanted::Enrolment => {
                self.accept_enrolment(stream).await?;
                return Ok(None);
            }
        };
        Ok(Some(Secured { stream: TlsStream::Server(stream), proven }))
    }

    /// Enrols the task at the other end or, if this task does not have the authority, itself.
    async fn accept_enrolment<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: server::TlsStream<S>,
    ) -> Result<(), IdentityError> {
        if self.has_authority() {
            let channel = Channel::of(stream.get_ref().1)?;
            self.grant_on(&mut stream, channel).await
        } else {
            let channel = self.authority_channel(stream.get_ref().1)?;
            self.ask_on(&mut stream, channel).await
        }
    }

    /// Performs the handshake of a connection that was accepted. Returns what the connection is for.
    async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Option<(server::TlsStream<S>, Wanted)>, IdentityError> {
        let began = Instant::now();
        let start = match LazyConfigAcceptor::new(Acceptor::default(), stream).await {
            Ok(start) => start,
            // Most likely, the peer only looked whether the port is open.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return if began.elapsed() < LOOK { Ok(None) } else { Err(IdentityError::Silent(LOOK)) };
            }
            Err(error) => return Err(error.into()),
        };
        let wanted = start.client_hello().alpn().map_or(Wanted::Peers, Wanted::by);
        let (current, serves) = (self.current()?, self.0.place.serves_clients());
        let (config, protocol) = match (&current.certified, wanted) {
            (_, Wanted::Enrolment) => (&current.enrolment.server, ENROLMENT),
            (Some(certified), Wanted::Peers) => (&certified.peers.server, PEERS),
            (Some(certified), Wanted::Client) if serves => (&certified.clients, CLIENT),
            (certified, _) => {
                // The handshake tells the peer that this task has only the other protocol so far.
                let _ = start.into_stream(Arc::clone(&current.enrolment.server)).await;
                return if certified.is_none() { Ok(None) } else { Err(IdentityError::NoServer) };
            }
        };
        let begun = start.into_stream(Arc::clone(config)).await.map_err(IdentityError::from);
        let stream = if wanted == Wanted::Client { begun.map_err(of_client)? } else { begun? };
        check_protocol(stream.get_ref().1.alpn_protocol(), protocol)?;
        Ok(Some((stream, wanted)))
    }

    /// Returns the current settings. Before that, the process with the authority makes itself a new
    /// certificate if it needs one.
    fn current(&self) -> Result<Arc<Current>, IdentityError> {
        let Shared { authority, place, key, verifier, current, .. } = &*self.0;
        if let Some(authority) = authority
            && !self.is_certified(LIFE / 2)
        {
            let renewed = Current::of_authority(certify(authority, place, key)?, verifier)?;
            *current.lock() = Arc::new(renewed);
        }
        Ok(Arc::clone(&current.lock()))
    }

    /// Returns the number of a connection, if its other end has proved that it has the authority.
    fn authority_channel<D>(&self, peer: &ConnectionCommon<D>) -> Result<Channel, IdentityError> {
        let tasks = self.0.verifier.check_connection(peer, Duration::ZERO)?;
        let authority = self.0.place.authority();
        if !tasks.contains(&authority) {
            return Err(wrong_task(authority, &tasks));
        }
        Ok(Channel::of(peer)?)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (join, task) = (&self.0.join, self.0.place.task());
        f.debug_struct("Credentials").field("join", join).field("task", &task).finish_non_exhaustive()
    }
}

fn wrong_task(expected: TaskId, got: &[TaskId]) -> IdentityError {
    IdentityError::WrongTask { expected: expected.to_string(), got: names(got) }
}

/// Returns the error of an admission as the user of a server understands it.
fn of_client(error: IdentityError) -> IdentityError {
    match error {
        IdentityError::NotTrusted => IdentityError::ClientDistrusts,
        error => error,
    }
}

/// Makes the certificate of the process that has the authority.
fn certify(authority: &Authority, place: &Place, key: &TaskKey) -> Result<TaskCertificate, IdentityError> {
    let tasks = place.own_tasks().ok_or(EnrolmentError::NotListed(place.task()))?;
    Ok(key.certified(authority.certify(&tasks, &place.hosts_of(&tasks), key.public(), unix_time())?))
}
