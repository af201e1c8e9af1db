//! What a process proves its identity with: the join string, its key, and its certificate once it has one.
//! The process of the chief also has the authority.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::observe::unix_time;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::Acceptor;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConnectionCommon, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{self, Semaphore};
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, TlsStream, client, server};

use crate::authority::{Authority, LIFE};
use crate::certificate::{TaskCertificate, TaskKey, names};
use crate::configs::{self, Clients, ENROLMENT, PEERS, Servers};
use crate::enrolment::{Channel, EnrolmentError, Grants, ask, grant};
use crate::error::IdentityError;
use crate::join_string::JoinString;
use crate::process_tasks::{hosts_of, process_tasks};
use crate::secured::Secured;
use crate::verifier::Verifier;

/// The time limit for a handshake, and another one for an enrolment after it.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest number of enrolments that the chief answers at a time.
const ENROLMENTS_MAX: usize = 64;
/// Tasks have no names of hosts, but TLS demands one. It is neither sent nor checked.
pub(crate) const NO_NAME: &str = "pushpull";

/// The credentials of a process. Clones are the same credentials.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

struct Shared {
    join: JoinString,
    verifier: Verifier,
    cluster: ClusterSpec,
    task: TaskId,
    key: TaskKey,
    /// `None` except in the process of the chief.
    authority: Option<Authority>,
    current: Mutex<Arc<Current>>,
    /// Held while this task enrols, so that it enrols once and not once for each connection.
    enrolling: sync::Mutex<()>,
    places: Semaphore,
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

    /// Returns the settings of the process of the chief.
    fn of_chief(certificate: TaskCertificate, verifier: &Verifier) -> Result<Self, IdentityError> {
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
        let client = configs::client(Servers::Tasks(verifier.clone()), Some(certificate), PEERS)?;
        Ok(Self { chain, peers: Ends { server, client } })
    }
}

impl Credentials {
    /// Returns the credentials of a process that does not run the chief. It gets its certificate later.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_task(join: JoinString, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        let (key, verifier) = (TaskKey::new()?, Verifier::new(&join));
        let current = Current::of_task(&key, &verifier, None)?;
        Ok(Self::with(join, verifier, cluster, task, key, None, current))
    }

    /// Returns the credentials of the process that runs the chief, in the task `task`. It makes its own
    /// certificate.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_chief(authority: Authority, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        let (key, join) = (TaskKey::new()?, authority.join().clone());
        let verifier = Verifier::new(&join);
        let current = Current::of_chief(certify(&authority, &cluster, task, &key)?, &verifier)?;
        Ok(Self::with(join, verifier, cluster, task, key, Some(authority), current))
    }

    fn with(
        join: JoinString,
        verifier: Verifier,
        cluster: ClusterSpec,
        task: TaskId,
        key: TaskKey,
        authority: Option<Authority>,
        current: Current,
    ) -> Self {
        let (current, places) = (Mutex::new(Arc::new(current)), Semaphore::new(ENROLMENTS_MAX));
        let enrolling = sync::Mutex::default();
        Self(Arc::new(Shared { join, verifier, cluster, task, key, authority, current, enrolling, places }))
    }

    /// Returns whether this process runs the chief, which gives the other tasks their certificates.
    pub fn is_chief(&self) -> bool {
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

    /// Enrols at the chief, if this task is one that asks the chief, and has no certificate or one that has
    /// less than half of its life left. A ps task never asks: the chief connects to it. `connect` connects to
    /// an address. If the task has a certificate that is still valid, a failure has no effect.
    ///
    /// # Errors
    /// Returns an error if the chief cannot be reached, is not the chief of this job, or refuses.
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
        let chief = self.0.cluster.address(self.0.cluster.chief_host()).map(ToString::to_string);
        let chief = chief.unwrap_or_default();
        let unreachable = |error| IdentityError::NoChief { chief: chief.clone(), error };
        let enrolled = async { self.ask(connect(chief.clone()).await.map_err(unreachable)?).await };
        match enrolled.await {
            Err(error) if self.is_certified(Duration::ZERO) => {
                tracing::debug!(%error, "the certificate is not renewed");
                Ok(())
            }
            enrolled => enrolled,
        }
    }

    /// Returns whether this task has to ask the chief for a certificate.
    fn asks(&self) -> bool {
        !self.is_chief() && self.0.task.job != JobName::Ps && !self.is_certified(LIFE / 2)
    }

    /// Returns whether this task has a certificate that is valid after `later`.
    fn is_certified(&self, later: Duration) -> bool {
        let current = self.0.current.lock().clone();
        let valid =
            |certified: &Certified| self.0.verifier.check(&certified.chain, unix_time() + later).is_ok();
        current.certified.as_ref().is_some_and(valid)
    }

    /// Asks the chief at the other end of a new connection for a certificate.
    async fn ask<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<(), IdentityError> {
        let config = Arc::clone(&self.current()?.enrolment.client);
        let mut stream = handshake(config, stream).await?;
        let channel = self.chief_channel(stream.get_ref().1)?;
        self.ask_on(&mut stream, channel).await
    }

    /// Asks on a connection whose other end has proved that it is the chief.
    async fn ask_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        channel: Channel,
    ) -> Result<(), IdentityError> {
        let Shared { join, task, key, .. } = &*self.0;
        let chain = limited(async { Ok(ask(stream, channel, join, *task, key.public()).await?) }).await?;
        self.install(chain)?;
        tracing::info!("the chief has given this task a certificate");
        Ok(())
    }

    /// Uses a certificate from now on, which must name this task.
    pub(crate) fn install(&self, chain: Vec<CertificateDer<'static>>) -> Result<(), IdentityError> {
        let Shared { verifier, task, key, current, .. } = &*self.0;
        let tasks = verifier.check(&chain, unix_time())?;
        if !tasks.contains(task) {
            return Err(wrong_task(*task, &tasks));
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
        let tasks = self.peer_tasks(stream.get_ref().1, Duration::ZERO)?;
        Ok(Secured { stream: TlsStream::Client(stream), tasks })
    }

    /// Returns whether the other end needs a new certificate from this process, which must run the chief.
    pub fn must_renew<S>(&self, peer: &Secured<S>) -> bool {
        let TlsStream::Client(stream) = &peer.stream else { return false };
        self.is_chief() && self.peer_tasks(stream.get_ref().1, LIFE / 2).is_err()
    }

    /// Gives the task at the other end of a new connection a certificate. This process must run the chief.
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
        let Shared { authority, cluster, .. } = &*self.0;
        let authority = authority.as_ref().ok_or(EnrolmentError::Message("this task grants nothing"))?;
        let grants = Grants { authority, cluster, now: unix_time() };
        let tasks = limited(grant(stream, channel, grants)).await?;
        tracing::info!("gave {} a certificate", names(&tasks));
        Ok(())
    }

    /// Accepts a new connection. Returns `None` if it is over: it was an enrolment, or it came before this
    /// task has a certificate.
    ///
    /// # Errors
    /// Returns an error if the other end does not prove in time that it is a task of this job.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Option<Secured<S>>, IdentityError> {
        let Some((mut stream, enrols)) = limited(self.begin(stream)).await? else { return Ok(None) };
        if !enrols {
            let tasks = self.peer_tasks(stream.get_ref().1, Duration::ZERO)?;
            return Ok(Some(Secured { stream: TlsStream::Server(stream), tasks }));
        }
        let _place = self.0.places.try_acquire().map_err(|_| EnrolmentError::Busy)?;
        if self.is_chief() {
            let channel = Channel::of(stream.get_ref().1)?;
            self.grant_on(&mut stream, channel).await?;
        } else {
            let channel = self.chief_channel(stream.get_ref().1)?;
            self.ask_on(&mut stream, channel).await?;
        }
        Ok(None)
    }

    /// Performs the handshake of a connection that was accepted. Returns whether its purpose is an enrolment.
    async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<Option<(server::TlsStream<S>, bool)>, IdentityError> {
        let start = match LazyConfigAcceptor::new(Acceptor::default(), stream).await {
            Ok(start) => start,
            // Most likely, somebody only looked whether the port is open.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let enrols =
            start.client_hello().alpn().is_some_and(|mut wanted| wanted.any(|name| name == ENROLMENT));
        let current = self.current()?;
        let (config, protocol) = match (&current.certified, enrols) {
            (Some(certified), false) => (&certified.peers.server, PEERS),
            (None, false) => {
                // The handshake tells the peer that this task has only the other protocol so far.
                let _ = start.into_stream(Arc::clone(&current.enrolment.server)).await;
                return Ok(None);
            }
            (_, true) => (&current.enrolment.server, ENROLMENT),
        };
        let stream = start.into_stream(Arc::clone(config)).await?;
        check_protocol(stream.get_ref().1.alpn_protocol(), protocol)?;
        Ok(Some((stream, enrols)))
    }

    /// Returns the current settings. Before that, the chief makes itself a new certificate if it needs one.
    fn current(&self) -> Result<Arc<Current>, IdentityError> {
        let Shared { authority, cluster, task, key, verifier, current, .. } = &*self.0;
        if let Some(authority) = authority
            && !self.is_certified(LIFE / 2)
        {
            let renewed = Current::of_chief(certify(authority, cluster, *task, key)?, verifier)?;
            *current.lock() = Arc::new(renewed);
        }
        Ok(Arc::clone(&current.lock()))
    }

    /// Returns the tasks that the certificate of the other end names. It must be valid after `later`.
    fn peer_tasks<D>(
        &self,
        peer: &ConnectionCommon<D>,
        later: Duration,
    ) -> Result<Vec<TaskId>, IdentityError> {
        let chain = peer.peer_certificates().unwrap_or_default();
        Ok(self.0.verifier.check(chain, unix_time() + later)?)
    }

    /// Returns the number of a connection, if its other end has proved that it runs the chief.
    fn chief_channel<D>(&self, peer: &ConnectionCommon<D>) -> Result<Channel, IdentityError> {
        let tasks = self.peer_tasks(peer, Duration::ZERO)?;
        if !tasks.contains(&TaskId::CHIEF) {
            return Err(wrong_task(TaskId::CHIEF, &tasks));
        }
        Ok(Channel::of(peer)?)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { join, task, .. } = &*self.0;
        f.debug_struct("Credentials").field("join", join).field("task", task).finish_non_exhaustive()
    }
}

fn wrong_task(expected: TaskId, got: &[TaskId]) -> IdentityError {
    IdentityError::WrongTask { expected: expected.to_string(), got: names(got) }
}

/// Makes the certificate of the process that runs the chief.
fn certify(
    authority: &Authority,
    cluster: &ClusterSpec,
    task: TaskId,
    key: &TaskKey,
) -> Result<TaskCertificate, IdentityError> {
    let tasks = process_tasks(cluster, task).ok_or(EnrolmentError::NotListed(task))?;
    Ok(key.certified(authority.certify(&tasks, &hosts_of(cluster, &tasks), key.public(), unix_time())?))
}

/// Performs the handshake of the end that dials.
async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    stream: S,
) -> Result<client::TlsStream<S>, IdentityError> {
    let protocol = config.alpn_protocols.first().cloned().unwrap_or_default();
    let name = ServerName::try_from(NO_NAME).map_err(|error| IdentityError::Tls(error.to_string()))?;
    limited(async {
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        check_protocol(stream.get_ref().1.alpn_protocol(), &protocol)?;
        Ok(stream)
    })
    .await
}

fn check_protocol(got: Option<&[u8]>, expected: &[u8]) -> Result<(), IdentityError> {
    if got == Some(expected) {
        return Ok(());
    }
    Err(IdentityError::Tls("the peer chose no protocol of pushpull".to_owned()))
}

async fn limited<T>(exchange: impl Future<Output = Result<T, IdentityError>>) -> Result<T, IdentityError> {
    timeout(LIMIT, exchange).await.unwrap_or(Err(IdentityError::Late(LIMIT)))
}
