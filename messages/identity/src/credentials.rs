//! What a process proves its identity with. Its certificate comes from the authority of a join string, or is
//! in files that were made elsewhere.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::TaskId;
use rustls::server::Acceptor;
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::{LazyConfigAcceptor, TlsStream, server};

use crate::authority::Authority;
use crate::enrolment::{Channel, EnrolmentError, admit};
use crate::error::IdentityError;
use crate::handshake::{check_protocol, handshake, limited};
use crate::join_string::JoinString;
use crate::joined::Joined;
use crate::place::Place;
use crate::proven::Proven;
use crate::reloaded::Reloaded;
use crate::secured::Secured;
use crate::settings::{Settings, Wanted};
use crate::tls_files::{TlsFiles, TlsFilesError};

/// The time within which a peer that only looks whether the port is open closes its connection.
const LOOK: Duration = Duration::from_millis(500);
/// The time after which a look at the files is not waited for any more.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How often the files of a certificate are looked at if there are no new connections.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(30);

/// The credentials of a process. Clones are the same credentials.
#[derive(Clone)]
pub struct Credentials(Arc<Origin>);

/// Where the certificate of a process comes from.
enum Origin {
    /// From the authority of its join string.
    Joined(Box<Joined>),
    /// From files.
    Files(Arc<Reloaded>),
}

impl Credentials {
    /// Returns the credentials of a process that trains and does not run the chief. It gets its certificate
    /// later.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_task(join: JoinString, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Joined::without_authority(join, Place::in_training(cluster, task)).map(Self::joined)
    }

    /// Returns the credentials of the process that runs the chief, in the task `task`. It makes its own
    /// certificate.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_chief(authority: Authority, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Joined::with_authority(authority, Place::in_training(cluster, task)).map(Self::joined)
    }

    /// Returns the credentials of a server of sessions that is not the first task of its cluster. It asks the
    /// first one for its certificate.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_server(join: JoinString, cluster: ClusterSpec, task: TaskId) -> Result<Self, IdentityError> {
        Joined::without_authority(join, Place::of_server(cluster, task)).map(Self::joined)
    }

    /// Returns the credentials of the server of sessions that is the first task of its cluster. It makes its
    /// own certificate, and gives the other servers theirs.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub fn of_first_server(authority: Authority, cluster: ClusterSpec) -> Result<Self, IdentityError> {
        let first = cluster.first_task();
        Joined::with_authority(authority, Place::of_server(cluster, first)).map(Self::joined)
    }

    /// Returns the credentials of a process that trains and has a certificate in files. If the files change,
    /// they are read again.
    ///
    /// # Errors
    /// Returns an error if the files cannot be used, or if the certificate does not name all tasks that the
    /// process runs.
    pub fn of_task_with_files(
        files: TlsFiles,
        cluster: ClusterSpec,
        task: TaskId,
    ) -> Result<Self, TlsFilesError> {
        Reloaded::new(files, Place::in_training(cluster, task)).map(Self::in_files)
    }

    /// Returns the credentials of a server of sessions that has a certificate in files. If the files change,
    /// they are read again.
    ///
    /// # Errors
    /// Returns an error if the files cannot be used, or if the certificate does not name the server's task.
    pub fn of_server_with_files(
        files: TlsFiles,
        cluster: ClusterSpec,
        task: TaskId,
    ) -> Result<Self, TlsFilesError> {
        Reloaded::new(files, Place::of_server(cluster, task)).map(Self::in_files)
    }

    fn joined(joined: Joined) -> Self {
        Self(Arc::new(Origin::Joined(Box::new(joined))))
    }

    fn in_files(files: Reloaded) -> Self {
        Self(Arc::new(Origin::Files(Arc::new(files))))
    }

    /// Returns whether this process has the authority, which gives the other tasks their certificates.
    pub fn has_authority(&self) -> bool {
        matches!(&*self.0, Origin::Joined(joined) if joined.has_authority())
    }

    /// Returns the join string of the job; `None` if the job's certificates are made elsewhere.
    pub fn join_string(&self) -> Option<&JoinString> {
        match &*self.0 {
            Origin::Joined(joined) => Some(&joined.join),
            Origin::Files(_) => None,
        }
    }

    /// Returns how often [`enrol`](Self::enrol) must be called for files that may change; `None` if the
    /// certificate is not in files.
    pub fn look_every(&self) -> Option<Duration> {
        matches!(&*self.0, Origin::Files(_)).then_some(LOOKED_AT_EVERY)
    }

    /// Returns true if this task needs no certificate before it connects: it has one that is still valid, or
    /// it is not one that asks.
    pub fn is_enrolled(&self) -> bool {
        match &*self.0 {
            Origin::Joined(joined) => joined.is_enrolled(),
            Origin::Files(_) => true,
        }
    }

    /// Returns true if this task has a certificate from another one, and less than a quarter of its life is
    /// left.
    pub fn expires_soon(&self) -> bool {
        matches!(&*self.0, Origin::Joined(joined) if joined.expires_soon())
    }

    /// Returns the certificate that HTTP endpoints show now.
    pub(crate) fn shown(&self) -> Result<Arc<CertifiedKey>, IdentityError> {
        Ok(Arc::clone(&self.current()?.shown))
    }

    /// Enrols at the task that has the authority, if this task is one that asks, and has no certificate or
    /// one that has less than half of its life left. A ps task of a training job never asks: the chief
    /// connects to it. `connect` connects to an address. After an error, a certificate that is still valid
    /// stays in use. A task whose certificate is in files looks at them, and never asks.
    ///
    /// # Errors
    /// Returns an error if the other task cannot be reached, does not have the authority of this job, or
    /// refuses.
    pub async fn enrol<S, F>(&self, connect: impl FnOnce(String) -> F) -> Result<(), IdentityError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = io::Result<S>>,
    {
        match &*self.0 {
            Origin::Joined(joined) => joined.enrol(connect).await,
            Origin::Files(files) => {
                if let Some(look) = files.begin_look() {
                    let _ = timeout(LOOK_MAX, look).await;
                }
                files.check_time(Instant::now());
                Ok(())
            }
        }
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
        let stream = handshake(Arc::clone(&certified.peers.client), stream).await;
        let stream = stream.map_err(|error| match error {
            IdentityError::PeerHasNone if self.look_every().is_some() => IdentityError::PeerWaits,
            error => error,
        })?;
        let tasks = current.verifier.check_connection(stream.get_ref().1, Duration::ZERO)?;
        Ok(Secured { stream: TlsStream::Client(stream), proven: Proven::Tasks(tasks) })
    }

    /// Returns whether the other end needs a new certificate from this process, which must have the
    /// authority.
    pub fn must_renew<S>(&self, peer: &Secured<S>) -> bool {
        match (&*self.0, &peer.stream) {
            (Origin::Joined(joined), TlsStream::Client(stream)) => joined.must_renew(stream.get_ref().1),
            _ => false,
        }
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
        match &*self.0 {
            Origin::Joined(joined) => joined.enrol_peer(stream).await,
            Origin::Files(_) => Err(EnrolmentError::Message("this task grants nothing").into()),
        }
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
        let current = self.current()?;
        let Some((mut stream, wanted)) = limited(self.begin(&current, stream)).await? else {
            return Ok(None);
        };
        let peer = stream.get_ref().1;
        let proven = match (wanted, &*self.0) {
            (Wanted::Peers, _) => Proven::Tasks(current.verifier.check_connection(peer, Duration::ZERO)?),
            (Wanted::CertifiedClient, _) => Proven::Client(current.verifier.check_client_connection(peer)?),
            (Wanted::Client, Origin::Joined(joined)) => {
                let channel = Channel::of(peer)?;
                let admitted = async { Ok(admit(&mut stream, channel, &joined.join).await?) };
                Proven::Client(limited(admitted).await.map_err(of_client)?)
            }
            (Wanted::Enrolment, Origin::Joined(joined)) => {
                joined.accept_enrolment(stream).await?;
                return Ok(None);
            }
            (Wanted::Client | Wanted::Enrolment, Origin::Files(_)) => return Err(refused(wanted, false)),
        };
        Ok(Some(Secured { stream: TlsStream::Server(stream), proven }))
    }

    /// Performs the handshake of a connection that was accepted. Returns what the connection is for.
    async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        current: &Settings,
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
        let serves = self.place().serves_clients();
        let Some((config, protocol)) = current.door(wanted, serves) else {
            if let Some(config) = current.refusal() {
                // The handshake tells the peer that this task does not have its protocol, or not yet.
                let _ = start.into_stream(config).await;
            }
            return if current.certified.is_none() { Ok(None) } else { Err(refused(wanted, serves)) };
        };
        let begun = start.into_stream(config).await.map_err(IdentityError::from);
        let stream = if wanted.is_client() { begun.map_err(of_client)? } else { begun? };
        check_protocol(stream.get_ref().1.alpn_protocol(), protocol)?;
        Ok(Some((stream, wanted)))
    }

    fn place(&self) -> &Place {
        match &*self.0 {
            Origin::Joined(joined) => &joined.place,
            Origin::Files(files) => &files.place,
        }
    }

    /// Returns the current settings. Before that, renews the certificate if this process can do so alone.
    fn current(&self) -> Result<Arc<Settings>, IdentityError> {
        match &*self.0 {
            Origin::Joined(joined) => joined.current(),
            Origin::Files(files) => Ok(files.current()),
        }
    }
}

#[cfg(test)]
impl Credentials {
    pub(crate) fn of_join(&self) -> &Joined {
        match &*self.0 {
            Origin::Joined(joined) => joined,
            Origin::Files(_) => panic!("it has no join string"),
        }
    }

    pub(crate) fn of_files(&self) -> &Reloaded {
        match &*self.0 {
            Origin::Joined(_) => panic!("it has no files"),
            Origin::Files(files) => files,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (origin, task): (&dyn fmt::Debug, _) = match &*self.0 {
            Origin::Joined(joined) => (&joined.join, joined.place.task()),
            Origin::Files(files) => (&**files, files.place.task()),
        };
        f.debug_struct("Credentials").field("origin", origin).field("task", &task).finish_non_exhaustive()
    }
}

/// Returns the reason why a task with a certificate has nothing for a connection. `serves` is true if it
/// serves clients.
const fn refused(wanted: Wanted, serves: bool) -> IdentityError {
    match wanted {
        Wanted::Enrolment => IdentityError::NothingToGrant,
        Wanted::Client | Wanted::CertifiedClient if !serves => IdentityError::NoServer,
        Wanted::Client => IdentityError::ClientString,
        Wanted::CertifiedClient | Wanted::Peers => IdentityError::ClientCertificate,
    }
}

/// Returns the error of an admission as the user of a server understands it.
fn of_client(error: IdentityError) -> IdentityError {
    match error {
        IdentityError::NotTrusted => IdentityError::ClientDistrusts,
        error => error,
    }
}
