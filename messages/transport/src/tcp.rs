//! The TCP transport: frames on a TCP connection, encrypted if the job has a join string. Between tasks of
//! one host and one user, it uses a Unix socket and shared memory instead, if it may.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use pushpull_identity::{ClientCredentials, Credentials, IdentityError, Proven, Secured};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use crate::accepted::Accepted;
use crate::buffer::BufferPool;
use crate::congestion::Congestion;
use crate::error::TransportError;
use crate::link::Link;
use crate::listener::Listener;
use crate::liveness::{LOST_AFTER, LOST_AFTER_MIN};
#[cfg(target_os = "linux")]
use crate::local;
use crate::renewal::{EVERY, RETRY, Renewal, Renewed};
use crate::retry::dial_pauses;
use crate::secure::{SecureRead, over};
use crate::spin::{SPIN, Spin};
#[cfg(target_os = "linux")]
use crate::stream::EarlyRead;
use crate::stream::{Receiver, Sender};
use crate::transport::Transport;
use crate::wire::WireError;

/// The time between two log lines of a task that waits for its certificate.
const LOG_EVERY: Duration = Duration::from_secs(3);

/// The time within which the certificate of one task is renewed.
const RENEWAL_MAX: Duration = Duration::from_secs(20);
/// The largest number of certificates that are renewed at a time.
const RENEWALS_MAX: usize = 8;

/// The error for a socket that strangers can reach.
const EXPOSED: &str = "other hosts can reach this address, and peers need no proof of identity: run `pushpull join new --authority \
                       FILE > JOIN`, give the chief --authority FILE and every other task --join-file JOIN, or give \
                       every task its certificate with --tls-ca, --tls-cert and --tls-key, or admit every program with --insecure";

/// The TCP transport. Without credentials, it listens only on loopback, unless it is told otherwise.
#[derive(Clone, Debug)]
pub struct Tcp {
    pool: BufferPool,
    payload_crc: bool,
    lost_after: Duration,
    spin: Duration,
    congestion: Congestion,
    local: bool,
    /// `None` if tasks need not prove who they are.
    credentials: Option<Credentials>,
    /// Whether other hosts may reach a task that demands no proof.
    insecure: bool,
    /// `None` unless this program is a client of servers that demand a proof.
    client: Option<ClientCredentials>,
    pub(crate) renewal: Arc<Renewal>,
}

impl Default for Tcp {
    fn default() -> Self {
        Self::new(BufferPool::default())
    }
}

impl Tcp {
    /// Returns a transport that reads payloads into buffers of `pool`.
    pub fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            payload_crc: false,
            lost_after: LOST_AFTER,
            spin: SPIN,
            congestion: Congestion::default(),
            local: false,
            credentials: None,
            insecure: false,
            client: None,
            renewal: Arc::default(),
        }
    }

    /// Sends a crc32c with every payload if `on` is true. TCP has a checksum of its own, but a weak one. All
    /// connections then use TCP.
    #[must_use]
    pub fn with_payload_crc(mut self, on: bool) -> Self {
        self.payload_crc = on;
        self
    }

    /// Sets how long a peer may be silent before it counts as lost. A time below [`LOST_AFTER_MIN`] is
    /// raised to that minimum. An idle peer sends a heartbeat every second.
    #[must_use]
    pub fn with_lost_after(mut self, lost_after: Duration) -> Self {
        self.lost_after = lost_after.max(LOST_AFTER_MIN);
        self
    }

    /// Sets for how long an end of a link looks for the next message before its thread sleeps; zero for not
    /// at all. Spinning makes small messages faster. An end spins rarely while that finds nothing.
    #[must_use]
    pub fn with_spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Sets the congestion control of all connections.
    #[must_use]
    pub fn with_congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// Uses a Unix socket between two tasks of one host and one user, if `on` is true for both. A task then
    /// reads large payloads in the memory of the other, if the other's pool is [shared](BufferPool::shared).
    /// Has no effect except on Linux.
    #[must_use]
    pub fn with_local(mut self, on: bool) -> Self {
        self.local = on;
        self
    }

    /// Encrypts all TCP connections, and demands that both ends prove who they are. Links within the host
    /// need no proof, because the kernel says who is at their other end.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Lets a task without credentials listen where other hosts can reach it, if `insecure` is true.
    #[must_use]
    pub fn with_insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Connects as a client of servers, which proves its role on each connection.
    #[must_use]
    pub fn with_client(mut self, client: Option<ClientCredentials>) -> Self {
        self.client = client;
        self
    }

    /// Returns whether tasks must prove who they are.
    pub const fn demands_proof(&self) -> bool {
        self.credentials.is_some()
    }

    /// Listens on a socket that is already open, such as one from the parent process.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be used, or if strangers can reach it.
    pub fn listen_on(&self, socket: std::net::TcpListener) -> io::Result<Box<dyn Listener>> {
        socket.set_nonblocking(true)?;
        self.listener(TcpListener::from_std(socket)?)
    }

    fn listener(&self, socket: TcpListener) -> io::Result<Box<dyn Listener>> {
        let address = socket.local_addr()?;
        if self.credentials.is_none() && !self.insecure && !address.ip().to_canonical().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, EXPOSED));
        }
        self.choose_congestion(&socket, address)?;
        if self.credentials.is_some() {
            self.keep_renewed();
        }
        let tcp = Socket { socket, tcp: self.clone() };
        #[cfg(target_os = "linux")]
        if self.is_local() {
            match local::Listening::new(address, self.local_config()) {
                Ok(unix) => return Ok(Box::new(Both { tcp, unix, unix_first: false })),
                Err(error) => {
                    tracing::debug!(%error, "cannot listen on a Unix socket; tasks of this host use TCP")
                }
            }
        }
        Ok(Box::new(tcp))
    }

    #[cfg(target_os = "linux")]
    fn choose_congestion(&self, socket: impl std::os::fd::AsFd, address: SocketAddr) -> io::Result<()> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("congestion control {}: {error}", self.congestion))
        };
        self.congestion.choose(socket, address.ip()).map_err(named)
    }

    #[cfg(not(target_os = "linux"))]
    fn choose_congestion<S>(&self, socket: S, address: SocketAddr) -> io::Result<()> {
        self.congestion.choose(socket, address.ip())
    }

    /// Returns whether links within the host may be local.
    #[cfg(target_os = "linux")]
    const fn is_local(&self) -> bool {
        self.local && !self.payload_crc
    }

    #[cfg(target_os = "linux")]
    fn local_config(&self) -> local::LocalConfig {
        local::LocalConfig { pool: self.pool.clone(), lost_after: self.lost_after, spin: self.spin }
    }

    /// Connects to the first address of a host that answers.
    async fn connect(&self, host: &str) -> io::Result<Link> {
        if let Some(credentials) = &self.credentials {
            self.enrol_once(credentials).await.map_err(io::Error::other)?;
            self.keep_renewed();
        }
        let mut last = no_address();
        for address in lookup_host(host).await? {
            match self.link_to(address, host).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Gets the certificate of this process if it has none that is valid.
    async fn enrol_once(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        if credentials.is_enrolled() {
            return Ok(());
        }
        credentials.enrol(|address| async move { self.connect_to_host(&address).await }).await
    }

    /// Renews certificates from now on, before they expire.
    fn keep_renewed(&self) {
        let every = self.credentials.as_ref().and_then(Credentials::look_every).unwrap_or(EVERY);
        let tcp = self.detached();
        self.renewal.start(every, RETRY, move |addresses| {
            let tcp = tcp.clone();
            async move { tcp.renew(addresses).await }.boxed()
        });
    }

    /// Waits until this process has its certificate, if it needs one, and keeps it valid from then on. Logs
    /// every few seconds why it waits. A task that dials need not call this; a server does, because clients
    /// may come first.
    ///
    /// # Errors
    /// Returns an error if another attempt cannot succeed.
    pub async fn enrol(&self) -> Result<(), IdentityError> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let mut pauses = dial_pauses(u64::from(std::process::id()));
        let mut log_at = Instant::now() + LOG_EVERY;
        loop {
            let error = match self.enrol_once(credentials).await {
                Ok(()) => {
                    self.keep_renewed();
                    return Ok(());
                }
                Err(error) if error.is_final() => return Err(error),
                Err(error) => error,
            };
            if Instant::now() >= log_at {
                tracing::info!(reason = %error, "waiting for the certificate of this task");
                log_at = Instant::now() + LOG_EVERY;
            }
            tokio::time::sleep(pauses.next().expect("the pauses never end")).await;
        }
    }

    async fn link_to(&self, address: SocketAddr, host: &str) -> io::Result<Link> {
        if let Some(client) = &self.client {
            let secured = client.connect(self.connect_to(address).await?).await;
            return Ok(self.secured_link(secured.map_err(io::Error::other)?, host.to_owned()));
        }
        let secured = match &self.credentials {
            // The process with the authority gives the task at the other end its certificate, even if their
            // own link stays within the host: tasks of other hosts need that certificate.
            Some(credentials) if credentials.has_authority() => {
                let secured = self.secure(credentials, address).await?;
                self.renewal.remember(address);
                Some(secured)
            }
            _ => None,
        };
        #[cfg(target_os = "linux")]
        if self.is_local()
            && let Some(link) = local::connect(address, &self.local_config()).await
        {
            return Ok(link);
        }
        match (secured, &self.credentials) {
            (Some(secured), _) => Ok(self.secured_link(secured, host.to_owned())),
            (None, Some(credentials)) => {
                Ok(self.secured_link(self.secure(credentials, address).await?, host.to_owned()))
            }
            (None, None) => Ok(self.plain_link(self.connect_to(address).await?, host.to_owned())),
        }
    }

    /// Connects to a task, and proves who both ends are. The process with the authority gives the task a
    /// certificate if it needs one.
    async fn secure(&self, credentials: &Credentials, address: SocketAddr) -> io::Result<Secured<TcpStream>> {
        match credentials.connect(self.connect_to(address).await?).await {
            Ok(secured) if !credentials.must_renew(&secured) => return Ok(secured),
            Err(error) if credentials.has_authority() && error.needs_certificate() => {}
            Err(error) => return Err(io::Error::other(error)),
            Ok(_) => {}
        }
        let enrolled = credentials.enrol_peer(self.connect_to(address).await?);
        enrolled.await.map_err(io::Error::other)?;
        credentials.connect(self.connect_to(address).await?).await.map_err(io::Error::other)
    }

    /// Returns the same transport, except that it remembers no addresses.
    pub(crate) fn detached(&self) -> Self {
        Self { renewal: Arc::default(), ..self.clone() }
    }

    /// Renews the certificate of this task if it needs that. The process with the authority does so for the
    /// tasks at `addresses`.
    pub(crate) async fn renew(&self, addresses: Vec<SocketAddr>) -> Renewed {
        let Some(credentials) = &self.credentials else { return Renewed::default() };
        let own = credentials.enrol(|address| async move { self.connect_to_host(&address).await }).await;
        if credentials.expires_soon() {
            let reason =
                own.as_ref().err().map_or("the chief did not connect".to_owned(), ToString::to_string);
            tracing::warn!(reason, "the certificate of this task expires soon, and it is not renewed");
        }
        let renewed = stream::iter(addresses).map(|address| async move {
            let renewed = timeout(RENEWAL_MAX, self.secure(credentials, address)).await;
            let error = match renewed {
                Ok(Ok(_)) => return None,
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            // The task may have ended. If it is lost, others notice.
            tracing::debug!(%error, %address, "looked at no certificate");
            Some(address)
        });
        let failed = renewed.buffer_unordered(RENEWALS_MAX).filter_map(std::future::ready).collect().await;
        Renewed { is_own_late: own.is_err(), failed }
    }

    /// Opens a TCP connection to the first address of a host that answers.
    async fn connect_to_host(&self, host: &str) -> io::Result<TcpStream> {
        let mut last = no_address();
        for address in lookup_host(host).await? {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        self.choose_congestion(&socket, address)?;
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns a link over a connection that was accepted.
    fn accepted(&self, stream: TcpStream, peer: String) -> io::Result<Accepted> {
        stream.set_nodelay(true)?;
        let Some(credentials) = self.credentials.clone() else {
            return Ok(self.plain_link(stream, peer).into());
        };
        let (tcp, address) = (self.clone(), peer.clone());
        let open = async move {
            match credentials.accept(stream).await {
                Ok(Some(secured)) => tcp.secured_link(secured, address),
                Ok(None) => over(address, None),
                Err(error) => over(address, Some(WireError::Identity(error.to_string()))),
            }
        };
        Ok(Accepted::Opening { peer, open: open.boxed() })
    }

    fn secured_link(&self, Secured { stream, proven }: Secured<TcpStream>, peer: String) -> Link {
        let (read, write) = split(stream);
        self.link(SecureRead(read), write, Spin::new(self.spin), (peer, Some(proven)))
    }

    fn plain_link(&self, stream: TcpStream, peer: String) -> Link {
        let (read, write) = stream.into_split();
        let spin = Spin::new(self.spin);
        #[cfg(target_os = "linux")]
        let read = EarlyRead::new(read, spin.clone());
        self.link(read, write, spin, (peer, None))
    }

    fn link(
        &self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
        spin: Spin,
        (peer, proven): (String, Option<Proven>),
    ) -> Link {
        let receiver = Receiver::new(read, self.pool.clone(), self.lost_after, spin.clone());
        let sender = Sender::new(write, self.payload_crc, spin);
        Link { sender: Box::new(sender), receiver: Box::new(receiver), peer, proven }
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host has no address")
}

impl Transport for Tcp {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        async move {
            let socket = TcpListener::bind(address).await.and_then(|socket| self.listener(socket));
            socket.map_err(|error| TransportError::io(address, error))
        }
        .boxed()
    }

    fn streams(&self) -> bool {
        // The checksum of a payload is sent before the payload, so all of the payload must be ready first.
        !self.payload_crc
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        async move { self.connect(address).await.map_err(|error| TransportError::io(address, error)) }.boxed()
    }
}

struct Socket {
    socket: TcpListener,
    tcp: Tcp,
}

impl Listener for Socket {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            let (stream, peer) = self.socket.accept().await?;
            self.tcp.accepted(stream, peer.to_string())
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.socket.local_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
    }
}

/// Listens for tasks of any host, and for tasks of this one.
#[cfg(target_os = "linux")]
struct Both {
    tcp: Socket,
    unix: local::Listening,
    /// Whether a connection from this host is accepted first, if there is one of each.
    unix_first: bool,
}

/// Waits for the first of two results. If both are ready, takes `one`.
#[cfg(target_os = "linux")]
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        one = one => one,
        other = other => other,
    }
}

#[cfg(target_os = "linux")]
impl Listener for Both {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            // They take turns: a port that is never idle would shut out the tasks of this host.
            self.unix_first = !self.unix_first;
            let (tcp, unix) = (self.tcp.accept(), self.unix.accept().map(|link| link.map(Accepted::from)));
            if self.unix_first { first(unix, tcp).await } else { first(tcp, unix).await }
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.tcp.address()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[tokio::test]
    async fn strangers_are_let_in_only_if_that_is_said() {
        let tcp = Tcp::default();
        for loopback in ["127.0.0.1:0", "[::ffff:127.0.0.1]:0"] {
            assert!(tcp.listen(loopback).await.is_ok(), "{loopback}");
        }
        let error = tcp.listen("0.0.0.0:0").await.err().unwrap().to_string();
        assert!(
            error.contains("--join-file") && error.contains("--authority") && error.contains("--insecure"),
            "{error}"
        );
        let socket = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        assert_eq!(tcp.listen_on(socket).err().unwrap().kind(), io::ErrorKind::PermissionDenied);
        assert!(tcp.with_insecure(true).listen("0.0.0.0:0").await.is_ok());
    }

    #[tokio::test]
    async fn both_ends_have_the_congestion_control_that_was_named() {
        // A kernel has at least one of the two besides its default.
        for name in ["reno", "cubic"] {
            let Ok(congestion) = name.parse::<Congestion>() else {
                println!("SKIPPED: this host does not offer {name}, so it is NOT tested.");
                continue;
            };
            let tcp = Tcp::default().with_congestion(congestion);
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            tcp.choose_congestion(&socket, address).unwrap();
            let (near, far) = tokio::join!(tcp.connect_to(address), socket.accept());
            assert_eq!(tcp_congestion(near.unwrap()).unwrap(), name);
            assert_eq!(tcp_congestion(far.unwrap().0).unwrap(), name);
        }
    }
}
