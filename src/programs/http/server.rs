//! The HTTP server of an endpoint: its socket, its threads, and the bounds on its clients. This module must
//! not depend on routes.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use actix_http::error::DispatchError;
use actix_http::{HttpService, KeepAlive};
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::dev::{self, AppConfig, Extensions, ServerHandle};
use actix_web::{App, web};
use anyhow::{Context, anyhow};
use pushpull_identity::{Credentials, HttpsServer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::about::About;
use super::access::Access;
use super::attempts::Client;
use super::config::EndpointConfig;
use super::connections::{CONNECTIONS_MAX, Connections, GRACE, Place};
use super::host::Hosts;
use super::protection::Protection;
use super::routes::{FirstRequest, Routes, serve};
use super::socket::Socket;
use super::views::Views;
use crate::programs::loopback::names_loopback;

/// The time within which the head of a request must arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// The time, in milliseconds, for which a client may leave data unread or unacknowledged. After that, the
/// connection is closed.
#[cfg(target_os = "linux")]
const UNREAD_MS_MAX: u32 = 10_000;
/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The number of bytes that the system buffers for a client that reads slowly.
const SEND_BUFFER: usize = 64 << 10;
/// The time limit, in seconds, for unfinished responses when the endpoint ends.
const FAREWELL_S: u64 = 1;

/// A running server.
pub(super) struct Server {
    /// The address to open in a browser on this machine, as `host:port`.
    address: String,
    /// The address for other hosts; `None` if they cannot reach the server.
    advertised: Option<String>,
    protection: Protection,
    handle: ServerHandle,
    ended: oneshot::Receiver<()>,
}

impl Server {
    /// Begins to listen at `address`, and answers requests on a thread of its own.
    pub(super) fn start(
        address: &str,
        config: &EndpointConfig,
        views: Views,
        about: About,
    ) -> anyhow::Result<Self> {
        let listener = listen(address).with_context(|| {
            format!("--http-addr: cannot listen at {address}; set another --http-addr, or --http-addr none")
        })?;
        let bound = listener.local_addr()?;
        let is_local = bound.ip().to_canonical().is_loopback();
        let protection = config.protected(address, is_local)?;
        let https = match &config.credentials {
            Some(credentials) if protection == Protection::Https => Some(HttpsServer::new(credentials)?),
            _ => None,
        };
        let address = address_of(bound, protection, about.host());
        // On another host, a loopback address refers to that host. A loopback address is therefore
        // advertised only if all tasks are on this machine: if there is no cluster, or if this host's name
        // in the cluster is loopback, too.
        let is_far = about.host().is_some_and(|host| !names_loopback(host));
        let listed = match protection {
            Protection::Https => format!("https://{address}"),
            _ => address.clone(),
        };
        let advertised = (!is_local || !is_far).then(|| listed.clone());
        let log = config.log.clone();
        let span = log.span();
        let hosts = hosts(config, bound.ip(), about.host());
        if protection == Protection::Nothing {
            views.exposure().expose();
        }
        let (connections, token) = (Connections::default(), config.any_token());
        let access = Access::new(protection, token, hosts, bound.port(), connections.clone());
        let certifies = config.credentials.as_ref().is_some_and(Credentials::has_authority);
        let routes = web::Data::new(Routes::new(views.clone(), access, about, log, listed, certifies));
        let door = Door { connections, https };
        let (started, starting) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let run = move || {
            let _log = span.entered();
            actix_rt::System::new().block_on(run(listener, door, routes, views, &started));
            drop(end);
        };
        std::thread::Builder::new().name("http".into()).spawn(run)?;
        let handle = starting
            .recv()
            .map_err(|_| anyhow!("the thread of the endpoint panicked: see the message above"))??;
        Ok(Self { address, advertised, protection, handle, ended })
    }

    /// Returns the URL to open in a browser on this machine, without a path.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.protection.scheme(), self.address)
    }

    /// Returns the address for other hosts; `None` if they cannot reach the server.
    pub(super) fn advertised(&self) -> Option<&str> {
        self.advertised.as_deref()
    }

    /// Returns true if other hosts can reach the server, and nothing protects it.
    pub(super) fn is_unprotected(&self) -> bool {
        self.protection == Protection::Nothing
    }

    /// Ends the server, and waits until it has ended.
    pub(super) async fn end(mut self) {
        drop(self.handle.stop(true));
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The call of `stop` already asks the server to end, and the server ends on its own thread. The
        // returned future can therefore be dropped.
        drop(self.handle.stop(false));
    }
}

/// Begins to listen.
fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // Clients that connect at the same moment wait in this queue. If the queue is full, the client's
    // system retries after a second.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Returns the hosts that requests may name. `host` is the host name of the task in its cluster.
fn hosts(config: &EndpointConfig, bound: IpAddr, host: Option<&str>) -> Hosts {
    let given = config.hosts.iter().map(String::as_str);
    if bound.to_canonical().is_loopback() {
        return Hosts::of_loopback().with(given);
    }
    let system = rustix::system::uname();
    let own = host.into_iter().chain(system.nodename().to_str().ok());
    Hosts::of_network().with(given.chain(own)).with([bound.to_string().as_str()])
}

/// Runs the server until it is stopped. First sends the server's handle to `started`, or the error if the
/// server cannot start.
async fn run(
    listener: TcpListener,
    door: Door,
    routes: web::Data<Routes>,
    views: Views,
    started: &mpsc::Sender<io::Result<ServerHandle>>,
) {
    let service = move || {
        let (door, http) = (door.clone(), http(routes.clone(), Socket::tell));
        fn_service(move |stream| door.clone().enter(stream)).and_then(http)
    };
    let server = dev::Server::build()
        .workers(1)
        // More than `CONNECTIONS_MAX` connections may exist for a moment, until `thin_out` closes some of
        // them.
        .max_concurrent_connections(2 * CONNECTIONS_MAX)
        .shutdown_timeout(FAREWELL_S)
        .disable_signals()
        .listen("http", listener, service);
    let server = match server {
        Ok(server) => server.run(),
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    actix_rt::spawn(views.look());
    let _ = started.send(Ok(server.handle()));
    if let Err(error) = server.await {
        tracing::warn!("the endpoint stopped answering: {error}");
    }
}

/// Returns the service that reads the requests of connections, and answers them. `tell` passes what is known
/// about a connection on to its requests.
pub(super) fn http<T: AsyncRead + AsyncWrite + Unpin + 'static>(
    routes: web::Data<Routes>,
    tell: fn(&T, &mut Extensions),
) -> impl ServiceFactory<
    (T, Option<SocketAddr>),
    Config = (),
    Response = (),
    Error = DispatchError,
    InitError = (),
    Service: 'static,
    Future: 'static,
> {
    let app = App::new().app_data(routes).default_service(web::to(serve));
    let app = app.into_factory().map_err(|error: actix_web::Error| error.error_response());
    HttpService::build()
        .client_request_timeout(HEAD_TIMEOUT)
        .client_disconnect_timeout(Duration::from_secs(1))
        // With keep-alive the second request of a connection would have no time limit.
        .keep_alive(KeepAlive::Disabled)
        .on_connect_ext(move |connection, extensions| {
            extensions.insert(FirstRequest::default());
            tell(connection, extensions);
        })
        .h1(map_config(app, |()| AppConfig::default()))
}

/// The checks that a new connection passes before its first request.
#[derive(Clone)]
struct Door {
    connections: Connections,
    /// The end of HTTPS that listens; `None` if the server does not speak HTTPS.
    https: Option<HttpsServer>,
}

impl Door {
    /// Sets the bounds of a new connection, thins out the connections if there are too many, and performs the
    /// handshake.
    async fn enter(self, stream: TcpStream) -> Result<(Socket, Option<SocketAddr>), DispatchError> {
        limit(&stream);
        let client = Client::at(stream.peer_addr().ok());
        let place = self.connections.enter(&stream, client, Instant::now()).map(Place::end_in_time);
        if self.connections.become_many() {
            let connections = self.connections.clone();
            actix_rt::spawn(async move {
                sleep(GRACE).await;
                while connections.thin_out(Instant::now()) {
                    sleep(GRACE).await;
                }
            });
        }
        Ok(Socket::open(stream, place, self.https, HEAD_TIMEOUT).await?)
    }
}

/// Returns the address to open in a browser, for a server that listens at `bound`. `host` is the host name of
/// the task in its cluster.
fn address_of(bound: SocketAddr, protection: Protection, host: Option<&str>) -> String {
    // A certificate has the name of the task's host, and not each of the host's addresses.
    match bound.ip().is_unspecified() || protection == Protection::Https {
        true => reached_as(host, bound.port()),
        false => bound.to_string(),
    }
}

/// Returns the address at which other hosts reach a server by the name of this host: the name in the cluster
/// or, without a cluster, the one that the operating system reports.
fn reached_as(host: Option<&str>, port: u16) -> String {
    let system = rustix::system::uname();
    let host = host.unwrap_or_else(|| system.nodename().to_str().unwrap_or("localhost"));
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Limits the memory and the time that a client can use.
fn limit(stream: &TcpStream) {
    // Errors are ignored: a system without these options has limits of its own.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, UNREAD_MS_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_https_has_the_name_of_its_host() {
        for (bound, protection, host, address) in [
            ("10.0.0.7:9400", Protection::Https, "c0", "c0:9400"),
            ("0.0.0.0:9400", Protection::Https, "c0", "c0:9400"),
            ("[2001:db8::7]:9400", Protection::Https, "10.0.0.7", "10.0.0.7:9400"),
            ("10.0.0.7:9400", Protection::Token, "c0", "10.0.0.7:9400"),
            ("0.0.0.0:9400", Protection::Token, "c0", "c0:9400"),
            ("127.0.0.1:9400", Protection::Loopback, "c0", "127.0.0.1:9400"),
        ] {
            let told = address_of(bound.parse().unwrap(), protection, Some(host));
            assert_eq!(told, address, "{bound} {protection:?}");
        }
    }
}
