//! Writes frames to a stream. If the other end of the stream shares memory with this one, large segments are
//! lent instead of written.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_messages::message::Message;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::buffer::{Segment, payload_layout};
use crate::link::FrameSender;
use crate::local::Lender;
use crate::spin::Spin;
use crate::wire::{Envelope, FrameHead, PADDING, WireError, encode_head};

/// The largest payload, in bytes, that is copied behind its head: one buffer is written faster than several.
const COPIED_BYTES_MAX: u64 = 1 << 10;

/// The number of bytes of segments that are waited for together. A write of fewer bytes saves less time than
/// a wake-up takes from the thread that computes the next segments.
const WRITTEN_BYTES_MIN: usize = 64 << 10;

/// Writes frames to a stream.
pub(crate) struct Sender<W> {
    stream: W,
    /// Whether payloads carry a checksum.
    payload_crc: bool,
    taken: Arc<AtomicU64>,
    spin: Spin,
    /// `None` if the other end of the stream may be on another host.
    lender: Option<Lender>,
}

impl<W> Sender<W> {
    /// Returns the sender of a link to any host. Payloads carry a checksum if `payload_crc` is true.
    pub(crate) fn new(stream: W, payload_crc: bool, spin: Spin) -> Self {
        Self { stream, payload_crc, taken: Arc::default(), spin, lender: None }
    }

    /// Returns the sender of a local link.
    pub(crate) fn local(stream: W, spin: Spin, lender: Lender) -> Self {
        Self { lender: Some(lender), ..Self::new(stream, false, spin) }
    }
}

impl<W: AsyncWrite + Send + Unpin> FrameSender for Sender<W> {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            // A heartbeat has no answer.
            let answered = !matches!(envelope.message, Message::Heartbeat(_));
            if let Some(lender) = &mut self.lender {
                send_local(&mut self.stream, lender, &envelope, &self.taken).await?;
                if answered {
                    self.spin.sent();
                }
                return Ok(());
            }
            if self.payload_crc {
                // The checksum is sent before the payload, so all of the payload must be ready.
                envelope.payload.ready().await?;
            }
            let FrameHead { mut bytes, starts } = encode_head(&envelope, self.payload_crc)?;
            let segments = envelope.payload.segments();
            let end = starts.last().zip(segments.last()).map_or(0, |(start, last)| start + last.len() as u64);
            if end <= COPIED_BYTES_MAX && segments.iter().all(Segment::is_ready) {
                let head_bytes = bytes.len();
                bytes.reserve(end as usize);
                for (segment, start) in segments.iter().zip(starts) {
                    bytes.resize(head_bytes + start as usize, 0);
                    bytes.extend_from_slice(segment.as_bytes());
                }
                write_all(&mut self.stream, &mut [IoSlice::new(&bytes)], &self.taken).await?;
                if answered {
                    self.spin.sent();
                }
                return Ok(());
            }
            let mut slices = Vec::with_capacity(1 + 2 * segments.len());
            slices.push(IoSlice::new(&bytes));
            let (mut at, mut end) = (0, 0);
            while at < segments.len() {
                if !segments[at].is_ready() {
                    // Writes the segments that are ready instead of holding them back.
                    write_all(&mut self.stream, &mut slices, &self.taken).await?;
                    slices.clear();
                    last_of_write(&segments[at..]).ready().await?;
                    segments[at].ready().await?;
                }
                let (bytes, count) = Segment::adjoining(&segments[at..]);
                slices.push(IoSlice::new(&PADDING[..(starts[at] - end) as usize]));
                slices.push(IoSlice::new(bytes));
                (at, end) = (at + count, starts[at] + bytes.len() as u64);
            }
            write_all(&mut self.stream, &mut slices, &self.taken).await?;
            if answered {
                self.spin.sent();
            }
            Ok(())
        }
        .boxed()
    }

    fn taken(&self) -> Option<Arc<AtomicU64>> {
        Some(Arc::clone(&self.taken))
    }
}

/// Returns the last one of the segments that are waited for together.
///
/// # Panics
/// If there is no segment.
fn last_of_write(segments: &[Segment]) -> &Segment {
    let mut bytes = 0;
    let is_last = |segment: &&Segment| {
        bytes += segment.len();
        bytes >= WRITTEN_BYTES_MIN
    };
    segments.iter().find(is_last).unwrap_or(&segments[segments.len() - 1])
}

/// Writes an envelope to a local link, and lends what it can of the payload. Waits until all of the payload
/// is ready: to write a part of it earlier would save no time.
async fn send_local(
    stream: &mut (impl AsyncWrite + Unpin),
    lender: &mut Lender,
    envelope: &Envelope,
    taken: &AtomicU64,
) -> Result<(), WireError> {
    envelope.payload.ready().await?;
    let head = encode_head(envelope, false)?.bytes;
    let mut bytes = Vec::with_capacity(head.len() + 16);
    lender.report(&mut bytes);
    bytes.extend_from_slice(&head);
    let segments = envelope.payload.segments();
    if segments.is_empty() {
        return write_all(stream, &mut [IoSlice::new(&bytes)], taken).await;
    }
    let follows = lender.lend(&envelope.payload, &mut bytes);
    let (starts, _) =
        payload_layout(follows.iter().map(|segment| segment.len() as u64)).expect("they are in memory");
    let mut slices = Vec::with_capacity(1 + 2 * follows.len());
    slices.push(IoSlice::new(&bytes));
    let mut end = 0;
    for (segment, start) in follows.iter().zip(starts) {
        slices.push(IoSlice::new(&PADDING[..(start - end) as usize]));
        slices.push(IoSlice::new(segment.as_bytes()));
        end = start + segment.len() as u64;
    }
    write_all(stream, &mut slices, taken).await
}

async fn write_all(
    stream: &mut (impl AsyncWrite + Unpin),
    slices: &mut [IoSlice<'_>],
    taken: &AtomicU64,
) -> Result<(), WireError> {
    let mut rest = slices;
    // Drops empty slices, so that a write of 0 bytes can only mean a closed connection.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = match &*rest {
            [one] => stream.write(one).await?,
            many => stream.write_vectored(many).await?,
        };
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        taken.fetch_add(written as u64, Ordering::Relaxed);
        IoSlice::advance_slices(&mut rest, written);
    }
    // A TLS stream may hold back the last bytes; a socket holds back nothing.
    Ok(stream.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Promise;

    #[test]
    fn small_segments_are_waited_for_together() {
        // The lengths in KiB, and the position of the last segment of the write.
        let cases: [(&[usize], usize); 5] =
            [(&[100, 1], 0), (&[64, 1], 0), (&[40, 23, 1, 1], 2), (&[1, 2, 3], 2), (&[0], 0)];
        for (lengths, expected) in cases {
            let promises: Vec<Promise> = lengths.iter().map(|kib| Promise::new(kib << 10)).collect();
            let segments: Vec<Segment> =
                promises.iter().zip(lengths).map(|(promise, kib)| promise.segment(0, kib << 10)).collect();
            let last = last_of_write(&segments);
            assert!(std::ptr::eq(last, &segments[expected]), "{lengths:?}");
        }
    }
}
