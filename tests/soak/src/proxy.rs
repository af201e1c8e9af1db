//! A bad network on loopback: a proxy in front of a task that listens. It delays all bytes, holds them in one
//! direction or both, and cuts connections. The bytes themselves never change, as with TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two looks of a thread that waits.
const LOOK: Duration = Duration::from_millis(10);
/// The most bytes that are passed on at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A direction, as the task behind the proxy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From its peers.
    In,
    /// To its peers.
    Out,
}

/// A proxy, which ends with all its connections when it is dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    target: String,
    latency: Duration,
    began: Instant,
    /// For each direction: until when nothing passes, in milliseconds since the start.
    held_until_ms: [AtomicU64; 2],
    over: AtomicBool,
    /// The connections, with both sides; those that have ended are removed when the next one is made.
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    sides: [TcpStream; 2],
    over: Arc<AtomicBool>,
}

impl Connection {
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        // An error means that the connection has already ended.
        self.sides.iter().for_each(|side| drop(side.shutdown(Shutdown::Both)));
    }
}

impl Proxy {
    /// Accepts connections at `address` and passes them on to `target`, which may be started later.
    ///
    /// # Errors
    /// If the address is not free.
    pub fn start(address: &str, target: &str, latency: Duration) -> std::io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            latency,
            began: Instant::now(),
            held_until_ms: Default::default(),
            over: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        Ok(Self { shared, accepts: Some(thread::spawn(move || of_thread.accept(&socket))) })
    }

    /// Breaks all connections. Returns their number.
    pub fn cut(&self) -> usize {
        let mut connections = self.shared.connections();
        connections.iter().for_each(Connection::end);
        connections.drain(..).filter(|connection| Arc::strong_count(&connection.over) > 1).count()
    }

    /// Lets nothing pass for a time; with a way, in this direction only.
    pub fn hold(&self, way: Option<Way>, time: Duration) {
        let until = (self.shared.began.elapsed() + time).as_millis() as u64;
        for held in [Way::In, Way::Out].into_iter().filter(|&one| way.is_none_or(|way| way == one)) {
            self.shared.held_until_ms[held as usize].fetch_max(until, Ordering::Relaxed);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.cut();
        let _ = self.accepts.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self, way: Way) -> bool {
        self.began.elapsed().as_millis()
            < u128::from(self.held_until_ms[way as usize].load(Ordering::Relaxed))
    }

    fn accept(self: &Arc<Self>, socket: &TcpListener) {
        while !self.over.load(Ordering::Relaxed) {
            match socket.accept() {
                // If the task does not listen, the connection ends at once.
                Ok((near, _)) => drop(self.connect(near)),
                // Nobody has connected, or a caller has left before it was accepted.
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    fn connect(self: &Arc<Self>, near: TcpStream) -> std::io::Result<()> {
        let far = TcpStream::connect(&self.target)?;
        near.set_nonblocking(false)?;
        for side in [&near, &far] {
            side.set_nodelay(true)?;
            side.set_read_timeout(Some(LOOK))?;
            side.set_write_timeout(Some(LOOK))?;
        }
        let over = Arc::<AtomicBool>::default();
        for (from, to, way) in [(&near, &far, Way::In), (&far, &near, Way::Out)] {
            let (from, to, over) = (from.try_clone()?, to.try_clone()?, Arc::clone(&over));
            let shared = Arc::clone(self);
            thread::spawn(move || {
                if shared.pass(&from, &to, way, &over).is_err() {
                    Connection { sides: [from, to], over }.end();
                }
            });
        }
        let mut connections = self.connections();
        connections.retain(|connection| Arc::strong_count(&connection.over) > 1);
        connections.push(Connection { sides: [near, far], over });
        Ok(())
    }

    /// Passes bytes on in one direction until there are no more. The other direction then goes on.
    ///
    /// # Errors
    /// If the connection breaks.
    fn pass(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        way: Way,
        over: &AtomicBool,
    ) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let goes_on = || match over.load(Ordering::Relaxed) {
            true => Err(ErrorKind::ConnectionReset),
            false => Ok(()),
        };
        loop {
            goes_on()?;
            let bytes = match from.read(&mut chunk) {
                Ok(0) => return to.shutdown(Shutdown::Write),
                Err(error) if is_timeout(&error) => continue,
                bytes => bytes?,
            };
            thread::sleep(self.latency);
            while self.is_held(way) {
                goes_on()?;
                thread::sleep(LOOK);
            }
            let mut rest = &chunk[..bytes];
            while !rest.is_empty() {
                goes_on()?;
                match to.write(rest) {
                    Err(error) if is_timeout(&error) => {}
                    written => rest = &rest[written?..],
                }
            }
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
