//! Reads frames from a stream. If the other end of the stream shares memory with this one, large segments are
//! borrowed instead of read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};

use crate::arrival::{Arrival, read_full, read_some};
use crate::buffer::{BufferPool, Credit, Payload, Segment, Share, payload_layout};
use crate::link::{Begun, FrameReceiver};
use crate::liveness::LazyTimer;
use crate::local::Borrower;
use crate::sink::Sink;
use crate::spin::Spin;
use crate::wire::{Envelope, Incoming, Layout, Limits, PADDING, PREFIX_BYTES, Prefix, WireError};

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
/// The smallest mean size of the segments, in bytes, of a payload that may go into a sink. A sink gets each
/// segment with a read of its own, and many small ones arrive faster in one read.
const SINK_SEGMENT_BYTES_MIN: usize = 32 << 10;

/// The first bytes of the answer of a task that demands TLS: an alert. No frame begins with them.
const TLS_ALERT: &[u8] = &[0x15, 0x03];

/// Reads frames from a stream.
pub(crate) struct Receiver<R> {
    stream: BufReader<R>,
    header: Vec<u8>,
    limits: Limits,
    share: Option<Share>,
    /// The credit for the header of the last frame.
    header_credit: Option<Credit>,
    /// What is still to be read of the frame that was begun.
    rest: Option<Rest>,
    lost_after: Duration,
    silence: LazyTimer,
    spin: Spin,
    pool: BufferPool,
    /// `None` if the other end of the stream may be on another host.
    borrower: Option<Borrower>,
}

impl<R: AsyncRead> Receiver<R> {
    /// Returns the receiver of a link to any host. Payloads are read into buffers of `pool`. A peer that is
    /// silent for `lost_after` counts as lost.
    pub(crate) fn new(stream: R, pool: BufferPool, lost_after: Duration, spin: Spin) -> Self {
        Self {
            stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream),
            header: Vec::new(),
            limits: Limits::STRANGER,
            share: None,
            header_credit: None,
            rest: None,
            lost_after,
            silence: LazyTimer::default(),
            spin,
            pool,
            borrower: None,
        }
    }

    /// Returns the receiver of a local link.
    pub(crate) fn local(
        stream: R,
        pool: BufferPool,
        lost_after: Duration,
        spin: Spin,
        borrower: Borrower,
    ) -> Self {
        Self { borrower: Some(borrower), ..Self::new(stream, pool, lost_after, spin) }
    }
}

/// The rest of a frame that has been read up to its payload.
struct Rest {
    layout: Layout,
    /// The credit for the payload.
    credit: Option<Credit>,
    arrival: Arrival,
}

impl<R: AsyncRead + Send + Unpin> FrameReceiver for Receiver<R> {
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
            // The checksum is known to be right only when all of the payload has arrived. What is borrowed
            // does not arrive in parts.
            let small = SINK_BYTES_MIN.max(SINK_SEGMENT_BYTES_MIN * rest.layout.lengths.len());
            let whole = rest.layout.crc.is_some() || self.borrower.is_some();
            if rest.layout.bytes < small || whole {
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

impl<R: AsyncRead + Send + Unpin> Receiver<R> {
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
        if self.borrower.is_some() && !self.take_back().await? {
            return Ok(None);
        }
        let mut prefix_bytes = [0; PREFIX_BYTES];
        if !self.read_first(&mut prefix_bytes).await? {
            return Ok(None);
        }
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

    /// Reads the first bytes of a frame. Returns false if the other end has closed the link before the frame.
    async fn read_first(&mut self, bytes: &mut [u8]) -> Result<bool, WireError> {
        // Between two frames, the limit for a silent peer applies instead of the limit for a frame that does
        // not get on. An idle peer is not silent: it sends heartbeats.
        let read = self.spin.wait(self.stream.read(bytes));
        let first = match self.silence.limit(self.lost_after, read).await {
            Some(first) => first?,
            None => return Err(WireError::Silent(self.lost_after.as_secs())),
        };
        if first == 0 {
            return Ok(false);
        }
        if self.borrower.is_none() && bytes[..first].starts_with(TLS_ALERT) {
            return Err(WireError::TlsDemanded);
        }
        let mut arrival = Arrival::begin(&self.limits, bytes.len() as u64);
        read_full(&mut self.stream, &mut bytes[first..], &mut arrival).await?;
        Ok(true)
    }

    /// Takes back what the other end of a local link returns before a frame. Returns false if it has closed
    /// the link.
    async fn take_back(&mut self) -> Result<bool, WireError> {
        let mut count = [0; 4];
        if !self.read_first(&mut count).await? {
            return Ok(false);
        }
        let mut ids = vec![0; 8 * Borrower::decode_returned(count)?];
        let mut arrival = Arrival::begin(&self.limits, ids.len() as u64);
        read_full(&mut self.stream, &mut ids, &mut arrival).await?;
        self.borrower.as_ref().map_or(Ok(()), |borrower| borrower.take_back(&ids))?;
        Ok(true)
    }

    /// Reads all of a payload, into one buffer unless it is lent.
    async fn read_payload(&mut self, rest: Rest) -> Result<Payload, WireError> {
        if let Some(borrower) = self.borrower.as_ref().filter(|_| !rest.layout.lengths.is_empty()) {
            return borrow_payload(&mut self.stream, &self.pool, borrower, rest).await;
        }
        let Rest { layout, credit, mut arrival } = rest;
        let buffer = self.pool.take_private(layout.bytes);
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

/// Reads a payload from a local link: borrows what the other end lends, and reads the rest into one buffer.
async fn borrow_payload(
    stream: &mut (impl AsyncRead + Unpin),
    pool: &BufferPool,
    borrower: &Borrower,
    Rest { layout, mut credit, mut arrival }: Rest,
) -> Result<Payload, WireError> {
    let mut id = [0; 8];
    read_full(stream, &mut id, &mut arrival).await?;
    let borrowing = borrower.borrow(id);
    let mut segments = vec![None; layout.lengths.len()];
    if let Some(borrowing) = &borrowing {
        let mut places = vec![0; 8 * segments.len()];
        read_full(stream, &mut places, &mut arrival).await?;
        for ((segment, place), &bytes) in segments.iter_mut().zip(places.chunks_exact(8)).zip(&layout.lengths)
        {
            *segment = borrowing.segment(place, bytes)?;
        }
    }
    let missing = || segments.iter().zip(&layout.lengths).filter(|(segment, _)| segment.is_none());
    let (starts, bytes) = payload_layout(missing().map(|(_, &bytes)| bytes)).expect("a part of a payload");
    let mut buffer = pool.take_private(bytes as usize);
    if let Some(part) = credit.as_mut().and_then(|credit| credit.split(bytes)) {
        buffer = buffer.with_credit(part);
    }
    read_full(stream, buffer.as_bytes_mut(), &mut arrival).await?;
    if let Some(borrowing) = borrowing {
        borrowing.hold(credit);
    }
    let (buffer, mut starts) = (Arc::new(buffer), starts.into_iter());
    let mut read = |bytes: u64| {
        let start = starts.next().expect("each segment that is not lent has a start");
        Segment::new(Arc::clone(&buffer), start as usize, bytes as usize)
    };
    let segments = segments.into_iter().zip(&layout.lengths);
    Ok(Payload::new(segments.map(|(segment, &bytes)| segment.unwrap_or_else(|| read(bytes))).collect()))
}
