//! The reading half of a socket. While its end spins, it asks the socket itself whether something has
//! arrived. The runtime asks only between two turns of its tasks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::coop::poll_proceed;

use crate::spin::Spin;

/// The reading half of a socket.
pub(crate) struct EarlyRead<R> {
    half: R,
    spin: Spin,
    /// Returns the socket of the half.
    socket: fn(&R) -> BorrowedFd<'_>,
}

impl<R> EarlyRead<R> {
    /// Wraps the reading half of an end whose spinning is `spin`.
    pub(crate) fn new<S: AsFd + 'static>(half: R, spin: Spin) -> Self
    where
        R: AsRef<S>,
    {
        Self { half, spin, socket: |half| half.as_ref().as_fd() }
    }

    /// Reads what has arrived, without waiting. Reads 0 bytes if the other end has closed the link.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; any error of the socket.
    fn read_now(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        let (read, _) = recv((self.socket)(&self.half), into.initialize_unfilled(), RecvFlags::DONTWAIT)?;
        into.advance(read);
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for EarlyRead<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.half).poll_read(context, into) {
            // The half has kept the waker, so nothing is missed. It may wake the task once more for the bytes
            // that are read here.
            Poll::Pending if self.spin.is_spinning() && into.remaining() > 0 => {
                // A peer that always has bytes must leave turns to the other tasks.
                let budget = ready!(poll_proceed(context));
                match self.read_now(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => Poll::Pending,
                    read => {
                        budget.made_progress();
                        Poll::Ready(read)
                    }
                }
            }
            polled => polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    /// Longer than any test.
    const LIMIT: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn an_end_that_spins_reads_before_the_runtime_learns_of_it() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let spin = Spin::new(LIMIT);
        let mut half = EarlyRead::new(theirs.into_split().0, spin.clone());
        let mut look = || {
            let mut bytes = [0; 8];
            let mut into = ReadBuf::new(&mut bytes);
            let polled =
                Pin::new(&mut half).poll_read(&mut Context::from_waker(std::task::Waker::noop()), &mut into);
            polled.map(|read| read.map(|()| into.filled().to_vec()).unwrap())
        };
        // The runtime has no turn before the end of this function.
        assert_eq!(ours.try_write(b"one").unwrap(), 3);
        assert_eq!(look(), Poll::Pending, "the end does not spin");
        spin.sent();
        assert_eq!(look(), Poll::Ready(b"one".to_vec()));
        assert_eq!(look(), Poll::Pending, "nothing more has arrived");
        ours.shutdown().await.unwrap();
        assert_eq!(look(), Poll::Ready(Vec::new()), "the other end has closed the link");
    }

    #[tokio::test]
    async fn a_peer_that_always_has_bytes_leaves_turns_to_others() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let spin = Spin::new(LIMIT);
        let mut half = EarlyRead::new(theirs.into_split().0, spin.clone());
        let others = tokio::spawn(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
        spin.sent();
        for _ in 0..2000 {
            ours.try_write(b"more").unwrap();
            half.read_exact(&mut [0; 4]).await.unwrap();
        }
        assert!(others.is_finished(), "it has had eight turns");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Two ends exchange messages of any lengths, and spin before some of them.
        #[test]
        fn all_bytes_arrive_in_order(
            messages in prop::collection::vec((1usize..40_000, any::<bool>()), 1..12),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (sent, (spin, mut writer)) = (messages.clone(), (Spin::new(LIMIT), ours.into_split().1));
                let mut reader = EarlyRead::new(theirs.into_split().0, spin.clone());
                let write = async {
                    for (at, &(length, spins)) in sent.iter().enumerate() {
                        if spins {
                            spin.sent();
                        }
                        writer.write_all(&vec![at as u8; length]).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                };
                let read = async {
                    for (at, &(length, _)) in messages.iter().enumerate() {
                        let mut bytes = vec![u8::MAX; length];
                        reader.read_exact(&mut bytes).await.unwrap();
                        assert!(bytes.iter().all(|&byte| byte == at as u8), "message {at}");
                    }
                };
                tokio::join!(read, write);
            });
        }
    }
}
