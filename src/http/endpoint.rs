//! The server: a socket, threads of its own, and what bounds its clients. It ends with the role. Knows no route.

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use actix_web::http::KeepAlive;
use actix_web::{App, HttpServer, web};
use anyhow::{Context, anyhow};
use pushpull_chief::ChiefView;
use pushpull_messages::observe::Observed;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::about::About;
use super::connections::{CONNECTIONS_MAX, Connections, GRACE};
use super::host::names_loopback;
use super::routes::{Routes, serve};
use super::token::Token;
use super::views::Views;

/// So long a request's head may take to come.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// So long a client may leave unread, or unacknowledged, what was sent to it.
#[cfg(target_os = "linux")]
const UNREAD_MS_MAX: u32 = 10_000;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Bytes that the system keeps for a client that reads slowly.
const SEND_BUFFER: usize = 64 << 10;
/// So long what is being answered may take when the endpoint ends.
const FAREWELL_S: u64 = 1;

/// Where and how a process can be observed.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointConfig {
    /// Where to listen; nowhere without one. Port 0 is any that is free.
    pub address: Option<String>,
    /// Who may have the job save or stop; nobody without one.
    pub token: Option<Token>,
    /// So long it keeps answering when its tasks have ended.
    pub linger: Duration,
}

/// Where a process can be observed. Dropped, it answers no more.
#[derive(Default)]
pub(crate) struct Endpoint {
    views: Views,
    linger: Duration,
    server: Option<Server>,
}

struct Server {
    /// Where it is, for people on this machine and their browsers.
    address: String,
    /// Where tasks and people elsewhere reach it, if they do.
    advertised: Option<String>,
    handle: ServerHandle,
    ended: oneshot::Receiver<()>,
}

impl Endpoint {
    /// Listens from now on, where the settings name an address.
    ///
    /// # Errors
    /// Where nobody can listen there.
    pub(crate) fn bind(config: &EndpointConfig, about: About) -> anyhow::Result<Self> {
        let views = Views::default();
        let server = config.address.as_deref().map(|address| {
            Server::start(address, config.token.clone(), views.clone(), about).with_context(|| {
                format!("cannot be observed at {address}: say another --http-addr, or --http-addr none")
            })
        });
        Ok(Self { views, linger: config.linger, server: server.transpose()? })
    }

    /// Where the job's other tasks and those who watch them reach it, as `host:port`, if they can at all.
    pub(crate) fn advertised(&self) -> Option<String> {
        self.server.as_ref().and_then(|server| server.advertised.clone())
    }

    /// Logs where it is: the same line for every process, and one more where the job's page is.
    pub(crate) fn announce(&self, leads: bool) {
        let Some(Server { address, .. }) = &self.server else { return };
        tracing::info!("observe this task at http://{address}");
        if leads {
            tracing::info!("the job's page is http://{address}/");
        }
    }

    /// Whether it keeps answering for a while when its tasks have ended.
    pub(crate) const fn lingers(&self) -> bool {
        self.server.is_some() && !self.linger.is_zero()
    }

    /// What it shows; whoever has a clone may add to that.
    pub(crate) fn views(&self) -> Views {
        self.views.clone()
    }

    /// One more task can be observed.
    pub(crate) fn add(&self, task: Arc<dyn Observed>) {
        self.views.add(task);
    }

    /// The chief of the job is in this process.
    pub(crate) fn lead(&self, chief: ChiefView) {
        self.views.lead(chief);
    }

    /// The tasks have ended: it keeps answering for a while, if it was told so, then it ends. Not for longer than until
    /// `interrupt` is cancelled.
    pub(crate) async fn close(self, interrupt: &CancellationToken) {
        let Some(server) = self.server else { return };
        if !self.linger.is_zero() && !interrupt.is_cancelled() {
            let (address, seconds) = (&server.address, self.linger.as_secs());
            tracing::info!("it is over; http://{address} still answers for {seconds} s, or until a signal");
            tokio::select! {
                () = sleep(self.linger) => {}
                () = interrupt.cancelled() => {}
            }
        }
        server.end().await;
    }
}

impl Server {
    fn start(address: &str, token: Option<Token>, views: Views, about: About) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // Those who come all at once wait here; whoever finds no room asks again after a second.
        rustix::net::listen(&listener, BACKLOG)?;
        let bound = listener.local_addr()?;
        let is_local = bound.ip().to_canonical().is_loopback();
        let address = match bound.ip().is_unspecified() {
            true => reached_as(about.host(), bound.port()),
            false => bound.to_string(),
        };
        // Loopback is another machine's own there.
        let is_far = about.host().is_some_and(|host| !names_loopback(host));
        let advertised = (!is_local || !is_far).then(|| address.clone());
        let routes = web::Data::new(Routes::new(views.clone(), token, about, is_local, address.clone()));
        let connections = Connections::default();
        let (started, starting) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let run = move || {
            actix_rt::System::new().block_on(async move {
                let app = move || App::new().app_data(routes.clone()).default_service(web::to(serve));
                let server = HttpServer::new(app)
                    .workers(1)
                    // Those that are too many may stay for a moment, and then have to go.
                    .max_connections(2 * CONNECTIONS_MAX)
                    .client_request_timeout(HEAD_TIMEOUT)
                    .client_disconnect_timeout(Duration::from_secs(1))
                    // The second request of a connection would have no time limit.
                    .keep_alive(KeepAlive::Disabled)
                    .shutdown_timeout(FAREWELL_S)
                    .disable_signals()
                    .on_connect(move |socket, bears| {
                        if let Some(socket) = socket.downcast_ref::<TcpStream>() {
                            limit(socket);
                            let place = connections.enter(socket, Instant::now());
                            place.map(|place| bears.insert(place.end_in_time()));
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
                    tracing::warn!("this process can be observed no more: {error}");
                }
            });
            drop(end);
        };
        std::thread::Builder::new().name("http".into()).spawn(run)?;
        let handle = starting.recv().map_err(|_| anyhow!("its thread has panicked: see above"))??;
        Ok(Self { address, advertised, handle, ended })
    }

    async fn end(mut self) {
        drop(self.handle.stop(true));
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is told at once, and ends by itself.
        drop(self.handle.stop(false));
    }
}

/// What listens at every address of this host is reached by its name: the cluster's, or its own.
fn reached_as(host: Option<&str>, port: u16) -> String {
    let system = rustix::system::uname();
    let host = host.unwrap_or_else(|| system.nodename().to_str().unwrap_or("localhost"));
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Bounds what a client can hold.
fn limit(stream: &TcpStream) {
    // Where the system knows no such bounds, it has others.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, UNREAD_MS_MAX);
}
