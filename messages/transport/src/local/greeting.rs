//! How the two ends of a Unix socket begin: each checks that the other belongs to the same user, sends its
//! memory, and says whether it can read the other's.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::loans::{Borrower, Lender, Loans, Returned};
use crate::buffer::{BufferPool, Region};

/// How long the other end may take.
const GREETING: Duration = Duration::from_secs(2);
/// What each end sends first, before a byte that says whether its memory comes along. The last byte is the
/// version of local links.
const MAGIC: [u8; 8] = *b"pushpul\x01";
/// What an end answers if it can read the other's memory, or if the other has none.
const CAN_BORROW: u8 = 1;

/// Both halves of what a local link needs besides its stream.
pub(crate) struct Local {
    pub lender: Lender,
    pub borrower: Borrower,
    /// The other end, for logs.
    pub peer: String,
}

/// What an end sends with its first bytes.
struct Offer {
    memory: OwnedFd,
    tether: OwnedFd,
}

/// Begins a local link. What this task lends is in the arena of `pool`, if it has one.
///
/// # Errors
/// Returns an error if the other end belongs to another user, does not answer in time, or is no task.
pub(crate) async fn greet(stream: &mut UnixStream, pool: &BufferPool) -> io::Result<Local> {
    timeout(GREETING, exchange(stream, pool)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn exchange(stream: &mut UnixStream, pool: &BufferPool) -> io::Result<Local> {
    let other = stream.peer_cred()?;
    if other.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other end belongs to another user"));
    }
    let loans = match pool.arena() {
        Some(arena) => {
            let (end, tether) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            let offer = Offer { memory: arena.file().try_clone_to_owned()?, tether };
            // The tether is closed here after this, so that only the other end holds it.
            stream.async_io(Interest::WRITABLE, || send(stream, Some(&offer))).await?;
            Some(Loans::new(Arc::clone(arena), end))
        }
        None => {
            stream.async_io(Interest::WRITABLE, || send(stream, None)).await?;
            None
        }
    };
    let offer = stream.async_io(Interest::READABLE, || receive(stream)).await?;
    let (mut can_borrow, mut region, mut tether) = (true, None, None);
    if let Some(offer) = offer {
        match Region::map(&offer.memory) {
            Ok(mapped) => (region, tether) = (Some(mapped), Some(offer.tether)),
            Err(error) => {
                tracing::debug!(%error, "cannot map the memory of another task of this host");
                can_borrow = false;
            }
        }
    }
    stream.write_all(&[u8::from(can_borrow)]).await?;
    let lends = stream.read_u8().await? == CAN_BORROW;
    let loans = loans.filter(|_| lends).map(Arc::new);
    let returned = Arc::new(Returned::new(tether));
    let pid = other.pid().map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
    Ok(Local {
        lender: Lender { loans: loans.clone(), returned: Arc::clone(&returned), pool: pool.clone(), last: 0 },
        borrower: Borrower { loans, region, returned },
        peer: format!("{pid} of this host"),
    })
}

fn send(stream: &UnixStream, offer: Option<&Offer>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = offer.map(|offer| [offer.memory.as_fd(), offer.tether.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let offers = [u8::from(offer.is_some())];
    let bytes = [IoSlice::new(&MAGIC), IoSlice::new(&offers)];
    let sent = rustix::net::sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    // The socket is new, so it has space for a few bytes.
    if sent == MAGIC.len() + offers.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive(stream: &UnixStream) -> io::Result<Option<Offer>> {
    let (mut magic, mut offers) = ([0; MAGIC.len()], [0]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut magic), IoSliceMut::new(&mut offers)];
    let received = rustix::net::recvmsg(stream, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            files.extend(sent);
        }
    }
    if received.bytes != MAGIC.len() + offers.len() || magic != MAGIC {
        return Err(io::Error::other("the other end is no task of this version"));
    }
    let mut files = files.into_iter();
    match (offers, files.next(), files.next()) {
        ([1], Some(memory), Some(tether)) => Ok(Some(Offer { memory, tether })),
        ([0], None, _) => Ok(None),
        // The system drops files that this process may not open any more.
        _ => Err(io::Error::other("the other task's memory did not arrive: too many open files?")),
    }
}
