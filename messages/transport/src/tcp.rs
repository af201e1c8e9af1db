//! The TCP transport: a frame is written with one vectored write where possible, and a payload is read
//! directly into an aligned buffer from the pool.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

use crate::arrival::{Arrival, read_full, read_some};
use crate::buffer::{BufferPool, Credit, Payload, Share};
use crate::congestion::Congestion;
use crate::error::TransportError;
use crate::link::{Begun, FrameReceiver, FrameSender, Link};
use crate::listener::Listener;
use crate::liveness::{LOST_AFTER, LOST_AFTER_MIN};
use crate::sink::Sink;
use crate::transport::Transport;
use crate::wire::{
    Envelope, FrameHead, Incoming, Layout, Limits, PADDING, PREFIX_BYTES, Prefix, WireError, encode_head,
};

/// The size of the largest header, in bytes, for which no credit is taken from the budget of bytes in flight.
/// Such headers take little memory even if every connection has as many requests in flight as it may have.
/// The headers of most models' pushes and pulls are no larger.
const FREE_HEADER_BYTES: u32 = 4 << 10;
/// The size of the buffer through which prefixes, headers and small payloads are read; larger reads bypass
/// it.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// The number of bytes by which the memory for a header grows while the header is read. An idle connection
/// may keep this number of bytes.
const HEADER_CHUNK_BYTES: usize = 64 << 10;
/// The size of the smallest payload, in bytes, that may go into a sink. A smaller payload stays in the
/// processor's caches in any case.
const SINK_BYTES_MIN: usize = 256 << 10;

/// The TCP transport.
#[derive(Clone, Debug)]
pub struct Tcp {
    pool: BufferPool,
    payload_crc: bool,
    lost_after: Duration,
    congestion: Congestion,
}

impl Default for Tcp {
    fn default() -> Self {
        Self::new(BufferPool::default())
    }
}

impl Tcp {
    /// Returns a transport that reads payloads into buffers of `pool`.
    pub fn new(pool: BufferPool) -> Self {
        let congestion = Congestion::default();
        Self { pool, payload_crc: false, lost_after: LOST_AFTER, congestion }
    }

    /// Sends a crc32c with every payload if `on` is true. TCP has a checksum of its own, but a weak one.
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

    /// Sets the congestion control of all connections.
    #[must_use]
    pub fn with_congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// Listens on a socket that is already open, such as one from the parent process.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be used.
    pub fn listen_on(&self, socket: std::net::TcpListener) -> io::Result<Box<dyn Listener>> {
        socket.set_nonblocking(true)?;
        Ok(Box::new(self.socket(TcpListener::from_std(socket)?)?))
    }

    fn socket(&self, socket: TcpListener) -> io::Result<Socket> {
        self.congestion.choose(&socket, socket.local_addr()?.ip())?;
        Ok(Socket { socket, tcp: self.clone() })
    }

    /// Connects to the first address of a host that answers.
    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in lookup_host(address).await? {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            self.congestion.choose(&socket, address.ip())?;
            match socket.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn link(&self, stream: TcpStream, peer: String) -> io::Result<Link> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let receiver = Receiver {
            stream: BufReader::with_capacity(READ_BUFFER_BYTES, read),
            header: Vec::new(),
            limits: Limits::STRANGER,
            share: None,
            header_credit: None,
            rest: None,
            lost_after: self.lost_after,
            pool: self.pool.clone(),
        };
        let sender = Sender { stream: write, payload_crc: self.payload_crc, taken: Arc::default() };
        Ok(Link { sender: Box::new(sender), receiver: Box::new(receiver), peer })
    }
}

impl Transport for Tcp {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        async move {
            let socket = TcpListener::bind(address).await.and_then(|socket| self.socket(socket));
            let socket = socket.map_err(|error| TransportError::io(address, error))?;
            Ok(Box::new(socket) as Box<dyn Listener>)
        }
        .boxed()
    }

    fn streams(&self) -> bool {
        // The checksum of a payload is sent before the payload, so all of the payload must be ready first.
        !self.payload_crc
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        async move {
            let stream = self.connect(address).await.map_err(|error| TransportError::io(address, error))?;
            self.link(stream, address.to_owned()).map_err(|error| TransportError::io(address, error))
        }
        .boxed()
    }
}

struct Socket {
    socket: TcpListener,
    tcp: Tcp,
}

impl Listener for Socket {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Link>> {
        async move {
            let (stream, peer) = self.socket.accept().await?;
            self.tcp.link(stream, peer.to_string())
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.socket.local_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
    }
}

struct Sender {
    stream: OwnedWriteHalf,
    payload_crc: bool,
    taken: Arc<AtomicU64>,
}

impl FrameSender for Sender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            if self.payload_crc {
                // The checksum is sent before the payload, so all of the payload must be ready.
                envelope.payload.ready().await?;
            }
            let FrameHead { bytes, starts } = encode_head(&envelope, self.payload_crc)?;
            let segments = envelope.payload.segments();
            let mut slices = Vec::with_capacity(1 + 2 * segments.len());
            slices.push(IoSlice::new(&bytes));
            let mut end = 0;
            for (segment, start) in segments.iter().zip(starts) {
                if !segment.is_ready() {
                    // Writes the segments that are ready instead of holding them back.
                    write_all(&mut self.stream, &mut slices, &self.taken).await?;
                    slices.clear();
                    segment.ready().await?;
                }
                slices.push(IoSlice::new(&PADDING[..(start - end) as usize]));
                slices.push(IoSlice::new(segment.as_bytes()));
                end = start + segment.len() as u64;
            }
            write_all(&mut self.stream, &mut slices, &self.taken).await
        }
        .boxed()
    }

    fn taken(&self) -> Option<Arc<AtomicU64>> {
        Some(Arc::clone(&self.taken))
    }
}

async fn write_all(
    stream: &mut OwnedWriteHalf,
    slices: &mut [IoSlice<'_>],
    taken: &AtomicU64,
) -> Result<(), WireError> {
    let mut rest = slices;
    // Drops empty slices, so that a write of 0 bytes can only mean a closed connection.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = stream.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        taken.fetch_add(written as u64, Ordering::Relaxed);
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

struct Receiver {
    stream: BufReader<OwnedReadHalf>,
    header: Vec<u8>,
    limits: Limits,
    share: Option<Share>,
    /// The credit for the header of the last frame.
    header_credit: Option<Credit>,
    /// What is still to be read of the frame that was begun.
    rest: Option<Rest>,
    lost_after: Duration,
    pool: BufferPool,
}

/// The rest of a frame that has been read up to its payload.
struct Rest {
    layout: Layout,
    /// The credit for the payload.
    credit: Option<Credit>,
    arrival: Arrival,
}

impl FrameReceiver for Receiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        async move {
            let Some((envelope, rest)) = self.read_head().await? else { return Ok(None) };
            Ok(Some(Envelope { payload: self.read_payload(rest).await?, ..envelope }))
        }
        .boxed()
    }

    fn begin(&mut self) -> BoxFuture<'_, Result<Option<Begun>, WireError>> {
        async move {
            let Some((envelope, rest)) = self.read_head().await? else { return Ok(None) };
            // The checksum is known to be right only when all of the payload has arrived.
            if rest.layout.bytes < SINK_BYTES_MIN || rest.layout.crc.is_some() {
                let payload = self.read_payload(rest).await?;
                return Ok(Some(Begun::Whole(Envelope { payload, ..envelope })));
            }
            let lengths = rest.layout.lengths.clone();
            self.rest = Some(rest);
            Ok(Some(Begun::Head { envelope, lengths }))
        }
        .boxed()
    }

    fn finish(&mut self, sink: Option<Box<dyn Sink>>) -> BoxFuture<'_, Result<Payload, WireError>> {
        async move {
            let Some(mut rest) = self.rest.take() else { return Ok(Payload::EMPTY) };
            // The time limit begins again here, because the wait for a sink is not the peer's fault.
            rest.arrival = Arrival::begin(&self.limits, rest.layout.bytes as u64);
            match sink {
                Some(sink) => self.drain_payload(rest, sink).await.map(|()| Payload::TAKEN),
                None => self.read_payload(rest).await,
            }
        }
        .boxed()
    }

    fn trust(&mut self, limits: Limits, share: Option<Share>) {
        self.limits = limits;
        self.share = share;
    }

    fn take_header_credit(&mut self) -> Option<Credit> {
        self.header_credit.take()
    }
}

impl Receiver {
    /// Waits for the credit that a frame needs. Returns the credit for the payload, and stores the credit for
    /// the header in `header_credit`. Takes both in one step, so that no frame holds credit while it waits
    /// for more.
    async fn take_credit(&mut self, prefix: &Prefix) -> Option<Credit> {
        self.header_credit = None;
        let header = Some(prefix.header_bytes).filter(|&bytes| bytes > FREE_HEADER_BYTES);
        let header = u64::from(header.unwrap_or(0));
        let share = self.share.as_mut().filter(|_| header + prefix.payload_bytes > 0)?;
        let mut credit = share.take(header + prefix.payload_bytes).await;
        if prefix.payload_bytes == 0 {
            self.header_credit = Some(credit);
            return None;
        }
        if header > 0 {
            self.header_credit = credit.split(header);
        }
        Some(credit)
    }

    /// Reads a frame up to its payload. Returns `None` if the other end has closed the link before the frame.
    async fn read_head(&mut self) -> Result<Option<(Envelope, Rest)>, WireError> {
        let mut prefix_bytes = [0; PREFIX_BYTES];
        // Between two frames, the limit for a silent peer applies instead of the limit for a frame that does
        // not get on. An idle peer is not silent: it sends heartbeats.
        let first = match timeout(self.lost_after, self.stream.read(&mut prefix_bytes)).await {
            Ok(first) => first?,
            Err(_) => return Err(WireError::Silent(self.lost_after.as_secs())),
        };
        if first == 0 {
            return Ok(None);
        }
        let mut arrival = Arrival::begin(&self.limits, PREFIX_BYTES as u64);
        read_full(&mut self.stream, &mut prefix_bytes[first..], &mut arrival).await?;
        let prefix = Prefix::decode(&prefix_bytes, &self.limits)?;
        let credit = self.take_credit(&prefix).await;
        // The time limit begins again here, because the wait for credit is not the peer's fault.
        let mut arrival = Arrival::begin(&self.limits, u64::from(prefix.header_bytes) + prefix.payload_bytes);
        self.read_header(prefix.header_bytes as usize, &mut arrival).await?;
        let incoming = Incoming::decode(&prefix_bytes, prefix, &self.header, &self.limits);
        // An idle connection must not keep the memory of a large header.
        self.header.clear();
        self.header.shrink_to(HEADER_CHUNK_BYTES);
        let (envelope, layout) = incoming?.into_parts();
        Ok(Some((envelope, Rest { layout, credit, arrival })))
    }

    /// Reads all of a payload into one buffer.
    async fn read_payload(&mut self, rest: Rest) -> Result<Payload, WireError> {
        let Rest { layout, credit, mut arrival } = rest;
        let buffer = self.pool.take(layout.bytes);
        let mut buffer = match credit {
            Some(credit) => buffer.with_credit(credit),
            None => buffer,
        };
        read_full(&mut self.stream, buffer.as_bytes_mut(), &mut arrival).await?;
        layout.payload(buffer)
    }

    /// Reads a payload into a sink.
    async fn drain_payload(&mut self, rest: Rest, mut sink: Box<dyn Sink>) -> Result<(), WireError> {
        let Rest { layout, credit, mut arrival } = rest;
        credit.into_iter().for_each(|credit| sink.hold(credit));
        let mut skipped = [0; PADDING.len()];
        for (padding, mut missing) in layout.segments() {
            read_full(&mut self.stream, &mut skipped[..padding], &mut arrival).await?;
            while missing > 0 {
                let read = read_some(&mut self.stream, sink.space(), &mut arrival).await?;
                sink.filled(read);
                missing -= read;
            }
        }
        sink.finish();
        Ok(())
    }

    /// Reads a header. Memory is allocated as bytes arrive: a prefix alone must not cause a large allocation.
    async fn read_header(&mut self, bytes: usize, arrival: &mut Arrival) -> Result<(), WireError> {
        debug_assert!(self.header.is_empty(), "a frame that was not read whole ends its connection");
        while self.header.len() < bytes {
            let start = self.header.len();
            self.header.resize(bytes.min(start + HEADER_CHUNK_BYTES), 0);
            read_full(&mut self.stream, &mut self.header[start..], arrival).await?;
        }
        Ok(())
    }
}
