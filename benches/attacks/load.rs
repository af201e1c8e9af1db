//! The attackers: threads that open connections from 127.0.0.2 at a fixed rate, to the job or to the process
//! that closes them. Each thread makes one kind of attempt.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::anybody::Anybody;

/// The address of all attackers. No task has it.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The number of connections that say nothing and are held open, for each port.
const HELD: usize = 64;
/// How long an attacker waits for an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// How often an attacker that pauses looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(20);

/// What the attackers aim at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Target {
    Nothing,
    Job,
    Sink,
    Over,
}

/// A kind of attempt.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A connection that says nothing.
    Silent,
    /// Bytes that are no TLS.
    Garbage,
    /// A handshake without a certificate.
    Handshake,
    /// A wrong token for the HTTP endpoint.
    Token,
}

const KINDS: [Kind; 4] = [Kind::Silent, Kind::Garbage, Kind::Handshake, Kind::Token];

/// The state that all attackers share.
struct Shared {
    target: AtomicU8,
    /// The number of attempts at the job and at the sink.
    made: [AtomicU64; 2],
    /// The ports of the chief and the ps task, and the endpoint of the chief.
    job: Vec<SocketAddr>,
    sink: SocketAddr,
    tls: Arc<ClientConfig>,
    /// The time between two attempts of one thread.
    every: Duration,
}

/// The attackers.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the attackers, which make `rate` attempts per second as soon as they have a target.
    pub(crate) fn start(job: &[String], sink: &str, rate: u32) -> anyhow::Result<Self> {
        let job = job.iter().map(|address| Ok(address.parse()?)).collect::<anyhow::Result<_>>()?;
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?.dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::new(Anybody));
        let mut tls = builder.with_no_client_auth();
        tls.alpn_protocols = vec![b"pushpull/1".to_vec()];
        let shared = Arc::new(Shared {
            target: AtomicU8::new(Target::Nothing as u8),
            made: Default::default(),
            job,
            sink: sink.parse()?,
            tls: Arc::new(tls),
            every: Duration::from_secs(1) * KINDS.len() as u32 / rate,
        });
        let attack = |kind| {
            let shared = Arc::clone(&shared);
            spawn(move || shared.attack(kind))
        };
        let threads = KINDS.map(attack).into();
        Ok(Self { shared, threads })
    }

    /// Aims all attackers at something else.
    pub(crate) fn aim(&self, target: Target) {
        self.shared.target.store(target as u8, Ordering::Relaxed);
    }

    /// Ends the attackers, and returns the number of attempts at the job and at the sink.
    pub(crate) fn end(self) -> [u64; 2] {
        self.aim(Target::Over);
        for thread in self.threads {
            let _ = thread.join();
        }
        self.shared.made.each_ref().map(|made| made.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn attack(&self, kind: Kind) {
        let (mut held, mut next, mut last) = (VecDeque::new(), Instant::now(), 0);
        for attempt in 0.. {
            let target = self.target.load(Ordering::Relaxed);
            if target != last {
                held.clear();
                (last, next) = (target, Instant::now());
            }
            let at = match target {
                target if target == Target::Over as u8 => return,
                target if target == Target::Job as u8 => 0,
                target if target == Target::Sink as u8 => 1,
                _ => {
                    sleep(PAUSE);
                    continue;
                }
            };
            let address = match (at, kind) {
                (1, _) => self.sink,
                (_, Kind::Token) => self.job[2],
                _ => self.job[attempt % 2],
            };
            // An attempt that fails costs the attacked task nothing, and another one follows.
            if self.attempt(kind, address, &mut held).is_ok() {
                self.made[at].fetch_add(1, Ordering::Relaxed);
            }
            // An attacker that is late leaves attempts out, and does not hurry.
            next = (next + self.every).max(Instant::now() - self.every);
            sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn attempt(
        &self,
        kind: Kind,
        address: SocketAddr,
        held: &mut VecDeque<TcpStream>,
    ) -> std::io::Result<()> {
        let mut stream = connect(address)?;
        let answer = match kind {
            Kind::Silent => {
                if held.len() == 2 * HELD {
                    held.pop_front();
                }
                held.push_back(stream);
                return Ok(());
            }
            Kind::Garbage => stream.write_all(&[0x5a; 1000]),
            Kind::Handshake => {
                let name = ServerName::try_from("pushpull").map_err(std::io::Error::other)?;
                let connection = ClientConnection::new(Arc::clone(&self.tls), name);
                let mut connection = connection.map_err(std::io::Error::other)?;
                connection.complete_io(&mut stream).map(drop)
            }
            Kind::Token => {
                let head = "POST /stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
                let token = "Authorization: Bearer guess\r\nContent-Length: 0\r\n\r\n";
                stream.write_all([head, token].concat().as_bytes())
            }
        };
        // The other end may have closed the connection already.
        let _ = answer.and_then(|()| stream.read_to_end(&mut Vec::new()));
        Ok(())
    }
}

/// Connects from the address of the attackers.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(FROM, 0))?;
    rustix::net::connect(&socket, &address)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}
