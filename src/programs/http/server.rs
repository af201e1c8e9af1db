//! The HTTP server of an endpoint: its socket, its threads, and the bounds on its clients. This module must
//! not depend on routes.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use actix_web::dev::{Extensions, ServerHandle};
use actix_web::http::KeepAlive;
use actix_web::{App, HttpServer, web};
use anyhow::anyhow;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::about::About;
use super::config::EndpointConfig;
use super::connections::{CONNECTIONS_MAX, Connections, GRACE};
use super::host::names_loopback;
use super::routes::{Routes, serve};
use super::views::Views;

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
    /// The address to open in a browser on this machine.
    address: String,
    /// The address for other hosts; `None` if they cannot reach the server.
    advertised: Option<String>,
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
        let listener = TcpListener::bind(address)?;
        // Clients that connect at the same moment wait in this queue. If the queue is full, the client's
        // system retries after a second.
        rustix::net::listen(&listener, BACKLOG)?;
        let bound = listener.local_addr()?;
        let is_local = bound.ip().to_canonical().is_loopback();
        let address = match bound.ip().is_unspecified() {
            true => reached_as(about.host(), bound.port()),
            false => bound.to_string(),
        };
        // On another host, a loopback address refers to that host. A loopback address is therefore
        // advertised only if all tasks are on this machine: if there is no cluster, or if this host's name
        // in the cluster is loopback, too.
        let is_far = about.host().is_some_and(|host| !names_loopback(host));
        let advertised = (!is_local || !is_far).then(|| address.clone());
        let (token, log) = (config.token.clone(), config.log.clone());
        let span = log.span();
        let routes = Routes::new(views.clone(), token, about, log, is_local, address.clone());
        let routes = web::Data::new(routes);
        let (started, starting) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let run = move || {
            let _log = span.entered();
            actix_rt::System::new().block_on(run(listener, routes, views, &started));
            drop(end);
        };
        std::thread::Builder::new().name("http".into()).spawn(run)?;
        let handle = starting
            .recv()
            .map_err(|_| anyhow!("the thread of the endpoint panicked: see the message above"))??;
        Ok(Self { address, advertised, handle, ended })
    }

    /// Returns the address to open in a browser on this machine.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address for other hosts; `None` if they cannot reach the server.
    pub(super) fn advertised(&self) -> Option<&str> {
        self.advertised.as_deref()
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

/// Runs the server until it is stopped. First sends the server's handle to `started`, or the error if the
/// server cannot start.
async fn run(
    listener: TcpListener,
    routes: web::Data<Routes>,
    views: Views,
    started: &mpsc::Sender<std::io::Result<ServerHandle>>,
) {
    let connections = Connections::default();
    let app = move || App::new().app_data(routes.clone()).default_service(web::to(serve));
    let server = HttpServer::new(app)
        .workers(1)
        // More than `CONNECTIONS_MAX` connections may exist for a moment, until `thin_out` closes some of
        // them.
        .max_connections(2 * CONNECTIONS_MAX)
        .client_request_timeout(HEAD_TIMEOUT)
        .client_disconnect_timeout(Duration::from_secs(1))
        // With keep-alive the second request of a connection would have no time limit.
        .keep_alive(KeepAlive::Disabled)
        .shutdown_timeout(FAREWELL_S)
        .disable_signals()
        .on_connect(move |socket, extensions| {
            if let Some(socket) = socket.downcast_ref::<TcpStream>() {
                accept(socket, &connections, extensions);
            }
        })
        .listen(listener);
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

/// Sets the bounds of a new connection, and thins out the connections if there are too many.
fn accept(socket: &TcpStream, connections: &Connections, extensions: &mut Extensions) {
    limit(socket);
    if let Some(place) = connections.enter(socket, Instant::now()) {
        extensions.insert(place.end_in_time());
    }
    if connections.become_many() {
        let connections = connections.clone();
        actix_rt::spawn(async move {
            sleep(GRACE).await;
            while connections.thin_out(Instant::now()) {
                sleep(GRACE).await;
            }
        });
    }
}

/// Returns the address of a server that listens at every address of this host. The address contains the
/// host's name in the cluster or, without a cluster, the host name that the operating system reports.
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
