//! The two halves of a Unix socket. If a thread waits for a chance to write, the system wakes it each time
//! that the other end has read. So a half waits for that only while the socket is full.
#![allow(unsafe_code)]

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::task::coop::poll_proceed;

/// Reads from a socket.
pub(super) struct ReadHalf(AsyncFd<Arc<UnixStream>>);

/// Writes to a socket. When it is dropped, the other end reads the end of the stream.
pub(super) struct WriteHalf {
    socket: Arc<UnixStream>,
    /// Waits for space while the socket is full.
    full: Option<AsyncFd<Arc<UnixStream>>>,
}

/// Divides a socket into its halves. `duplicate` is another file descriptor of the same socket: a thread
/// waits for each descriptor on its own.
///
/// # Errors
/// Returns an error if the system refuses to wait for the socket.
pub(super) fn halves(
    socket: tokio::net::UnixStream,
    duplicate: OwnedFd,
) -> io::Result<(ReadHalf, WriteHalf)> {
    let read = waiting(Arc::new(socket.into_std()?), Interest::READABLE)?;
    Ok((ReadHalf(read), WriteHalf { socket: Arc::new(duplicate.into()), full: None }))
}

/// Lets the thread wait for a socket, for nothing but `interest`.
fn waiting(socket: Arc<UnixStream>, interest: Interest) -> io::Result<AsyncFd<Arc<UnixStream>>> {
    // SAFETY: a socket has its file descriptor until it is dropped, and nothing here replaces the socket.
    unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(io::Error::from)
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let space = into.initialize_unfilled();
            let wanted = space.len();
            match guard.try_io(|socket| (&**socket.get_ref()).read(space)) {
                Ok(Ok(read)) => {
                    if 0 < read && read < wanted {
                        // That was all. The system says when there is more.
                        guard.clear_ready();
                    }
                    into.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl WriteHalf {
    /// Writes with `write`, once the socket has space.
    fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&mut &UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(context));
        loop {
            let guard = match &self.full {
                Some(full) => Some(ready!(full.poll_write_ready(context))?),
                None => None,
            };
            let written = loop {
                match write(&mut &*self.socket) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    written => break written,
                }
            };
            match (written, guard) {
                (Err(error), Some(mut guard)) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                (Err(error), None) if error.kind() == ErrorKind::WouldBlock => {
                    self.full = Some(waiting(Arc::clone(&self.socket), Interest::WRITABLE)?);
                }
                (written, _) => {
                    self.full = None;
                    budget.made_progress();
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |socket| socket.write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // The other end may have closed the socket already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::fd::AsFd;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> [(ReadHalf, WriteHalf); 2] {
        let (one, other) = tokio::net::UnixStream::pair().unwrap();
        [one, other].map(|socket| {
            let duplicate = socket.as_fd().try_clone_to_owned().unwrap();
            halves(socket, duplicate).unwrap()
        })
    }

    #[tokio::test]
    async fn more_than_fits_arrives_in_both_directions() {
        let [(mut one_reads, mut one_writes), (mut other_reads, mut other_writes)] = pair();
        let sent: Vec<u8> = (0..4u32 << 20).map(|at| (at % 251) as u8).collect();
        let write = async |half: &mut WriteHalf| {
            let (head, tail) = sent.split_at(1000);
            let mut slices: &mut [_] = &mut [IoSlice::new(head), IoSlice::new(tail)];
            while !slices.is_empty() {
                let written = half.write_vectored(slices).await.unwrap();
                IoSlice::advance_slices(&mut slices, written);
            }
        };
        let read = async |half: &mut ReadHalf| {
            let mut read = vec![0; sent.len()];
            half.read_exact(&mut read).await.unwrap();
            read
        };
        let (there, back, (), ()) = tokio::join!(
            read(&mut other_reads),
            read(&mut one_reads),
            write(&mut one_writes),
            write(&mut other_writes)
        );
        assert!(there == sent && back == sent);
        assert!(one_writes.full.is_none() && other_writes.full.is_none());
    }

    #[tokio::test]
    async fn only_a_full_socket_has_a_waiting_sender() {
        let [(_reads, mut writes), (mut other_reads, _other)] = pair();
        let mut context = Context::from_waker(Waker::noop());
        let (bytes, mut filled) = ([7; 1 << 14], 0);
        writes.write_all(&bytes[..100]).await.unwrap();
        assert!(writes.full.is_none());
        while let Poll::Ready(written) = Pin::new(&mut writes).poll_write(&mut context, &bytes) {
            filled += written.unwrap();
        }
        assert!(writes.full.is_some());
        let mut read = vec![0; 100 + filled];
        other_reads.read_exact(&mut read).await.unwrap();
        let again = poll_fn(|context| Pin::new(&mut writes).poll_write(context, &bytes));
        assert_eq!(again.await.unwrap(), bytes.len());
        assert!(writes.full.is_none());
    }

    #[tokio::test]
    async fn a_dropped_half_ends_the_stream() {
        let [(mut reads, writes), (mut other_reads, mut other_writes)] = pair();
        drop(writes);
        assert_eq!(other_reads.read(&mut [0; 8]).await.unwrap(), 0);
        other_writes.write_all(b"still").await.unwrap();
        other_writes.shutdown().await.unwrap();
        let mut read = Vec::new();
        reads.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"still");
    }

    #[tokio::test]
    async fn nothing_can_be_sent_to_an_end_that_is_gone() {
        let [gone, (mut reads, mut writes)] = pair();
        drop(gone);
        assert_eq!(reads.read(&mut [0; 8]).await.unwrap(), 0);
        let error = writes.write(b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
