//! The connections of an endpoint. If there are too many, the connections that have been silent for longest
//! are closed. A client with a request is therefore answered even if many other clients connect and stay
//! silent. This module must not depend on requests.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::net::{Shutdown, shutdown};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The number of connections above which silent connections are closed. It is low enough to bound the memory
/// and the open files of all connections.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// The minimum time that a client gets to send its request. Even if there are too many connections, none is
/// closed earlier.
pub(super) const GRACE: Duration = Duration::from_millis(50);
/// The time after which a connection is closed, unless it receives events. It is longer than the sum of the
/// time limits for the request, its body, the tasks' replies and the reading of the response. Without this
/// bound a client could keep a connection for ever, for example with a body in endless chunks.
pub(super) const LIFE: Duration = Duration::from_secs(20);

/// The connections of one endpoint.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    came: u64,
    open: Vec<Connection>,
    /// True while an async task is closing surplus connections.
    is_thinned: bool,
    /// The number of connections that have ended without a whole request.
    unasked: u64,
}

struct Connection {
    /// The serial number of this connection; later connections have greater numbers.
    came: u64,
    /// The time of the last request on the connection. Before the first request, it is the time at which the
    /// connection was opened.
    asked: Instant,
    /// A duplicate of the connection's socket, through which it can be closed.
    socket: OwnedFd,
    /// True if the connection receives events.
    stays: bool,
}

/// The registration of one connection. Dropping it removes the connection from the list.
pub(super) struct Place {
    came: u64,
    all: Connections,
    /// The async task that closes the connection after [`LIFE`].
    end: Option<AbortHandle>,
    /// True after the first whole request.
    has_asked: Cell<bool>,
}

impl Connections {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Adds a connection. Returns `None` if its socket cannot be duplicated, for example because the process
    /// has too many open files.
    pub(super) fn enter(&self, socket: impl AsFd, now: Instant) -> Option<Place> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let mut known = self.known();
        known.came += 1;
        let came = known.came;
        known.open.push(Connection { came, asked: now, socket, stays: false });
        Some(Place { came, all: self.clone(), end: None, has_asked: Cell::new(false) })
    }

    /// Returns the number of connections that have ended without a whole request: the head came too slowly,
    /// was too large or was no HTTP, the handshake failed, or the client sent nothing.
    pub(super) fn unasked(&self) -> u64 {
        self.known().unasked
    }

    /// Closes the connection with this serial number at once, unless it receives events. This function is
    /// called [`LIFE`] after the connection was opened.
    fn end(&self, came: u64) {
        let mut known = self.known();
        if let Some(at) = known.open.iter().position(|own| own.came == came && !own.stays) {
            let _ = shutdown(known.open.swap_remove(at).socket, Shutdown::Both);
        }
    }

    /// Returns true if there are too many connections and no async task is closing surplus ones yet. If it
    /// returns true, the caller must call `thin_out` until `thin_out` returns false.
    pub(super) fn become_many(&self) -> bool {
        let mut known = self.known();
        let many = known.open.len() > CONNECTIONS_MAX;
        many && !std::mem::replace(&mut known.is_thinned, true)
    }

    /// Closes silent connections until the limit is met, or until no other connection may be closed. Returns
    /// true if there are still too many connections.
    ///
    /// Wanted properties: (A) if more than [`CONNECTIONS_MAX`] connections remain after `thin_out`, each of
    /// them was used within [`GRACE`] or receives events; (B) `thin_out` closes a connection only if there
    /// are too many connections, if the connection was last used at least [`GRACE`] ago, and if no other
    /// closable connection has been silent for longer; (C) a connection that receives events is not closed;
    /// (D) every other connection is closed [`LIFE`] after it was opened, or earlier.
    pub(super) fn thin_out(&self, now: Instant) -> bool {
        let mut known = self.known();
        let too_many = known.open.len().saturating_sub(CONNECTIONS_MAX);
        let silent = |own: &Connection| !own.stays && now.saturating_duration_since(own.asked) >= GRACE;
        // Connections are closed from the end of this order. It begins with the connections that may not be
        // closed, and ends with the one that has been silent for longest.
        known.open.sort_by_key(|own| (silent(own), std::cmp::Reverse((own.asked, own.came))));
        for _ in 0..too_many {
            if let Some(own) = known.open.pop_if(|own| silent(own)) {
                let _ = shutdown(own.socket, Shutdown::Both);
            }
        }
        known.is_thinned = known.open.len() > CONNECTIONS_MAX;
        known.is_thinned
    }
}

impl Place {
    fn change(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(own) = self.all.known().open.iter_mut().find(|own| own.came == self.came) {
            change(own);
        }
    }

    /// Starts an async task on the current runtime, which closes the connection after [`LIFE`].
    pub(super) fn end_in_time(mut self) -> Self {
        let (all, came) = (self.all.clone(), self.came);
        let end = async move {
            sleep(LIFE).await;
            all.end(came);
        };
        self.end = Some(actix_rt::spawn(end).abort_handle());
        self
    }

    /// Records the time of a request on the connection.
    pub(super) fn asks(&self, now: Instant) {
        self.has_asked.set(true);
        self.change(|own| own.asked = now);
    }

    /// Records that the connection receives events from now on, and must not be closed. At most
    /// `CLIENTS_MAX` connections receive events.
    pub(super) fn stays(&self) {
        self.change(|own| own.stays = true);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end.iter().for_each(AbortHandle::abort);
        let mut known = self.all.known();
        known.open.retain(|connection| connection.came != self.came);
        known.unasked += u64::from(!self.has_asked.get());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    /// Returns true when the server has not closed the client's connection.
    fn is_open(mut client: &UnixStream) -> bool {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    struct Guest {
        place: Place,
        client: UnixStream,
        _server: UnixStream,
        asked: Instant,
        stays: bool,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Checks that connections are closed until few enough are left or all of those left are in use (A),
        /// that a connection that has been silent for longer is closed earlier (B), and that those with
        /// events stay open (C).
        #[test]
        fn the_longest_silent_are_closed_first(
            turns in prop::collection::vec((0u8..16, any::<prop::sample::Index>(), 0u64..4), 1..300),
        ) {
            let connections = Connections::default();
            let mut now = Instant::now();
            let mut guests: Vec<Guest> = Vec::new();
            let mut thins = false;
            for (what, which, wait) in turns {
                now += Duration::from_millis(wait);
                let at = which.index(guests.len().max(1));
                match what {
                    0..=2 if !guests.is_empty() => {
                        guests[at].place.asks(now);
                        guests[at].asked = now;
                    }
                    3 if guests.iter().filter(|guest| guest.stays).count() < CONNECTIONS_MAX / 2 && !guests.is_empty() => {
                        guests[at].place.stays();
                        guests[at].stays = true;
                    }
                    4 if !guests.is_empty() => drop(guests.swap_remove(at)),
                    5 => {
                        let before = guests.len();
                        thins = connections.thin_out(now);
                        prop_assert_eq!(thins, connections.known().open.len() > CONNECTIONS_MAX);
                        let (stay, gone): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| is_open(&guest.client));
                        let may_go = |guest: &Guest| !guest.stays && now - guest.asked >= GRACE;
                        let has_room = stay.len() <= CONNECTIONS_MAX;
                        prop_assert!(has_room || !stay.iter().any(may_go), "(A)");
                        prop_assert!(gone.is_empty() || stay.len() >= CONNECTIONS_MAX && before > CONNECTIONS_MAX, "(B)");
                        prop_assert!(gone.iter().all(may_go), "(B) and (C)");
                        let latest = gone.iter().map(|guest| guest.asked).max();
                        prop_assert!(stay.iter().filter(|guest| may_go(guest)).all(|guest| Some(guest.asked) >= latest), "(B)");
                        guests = stay;
                    }
                    _ => {
                        let (client, server) = UnixStream::pair().unwrap();
                        let place = connections.enter(&server, now).unwrap();
                        guests.push(Guest { place, client, _server: server, asked: now, stays: false });
                    }
                }
                prop_assert_eq!(connections.known().open.len(), guests.len(), "a place is free again");
                // `become_many` returns true to only one caller at a time.
                let become_many = connections.become_many();
                prop_assert_eq!(become_many, !thins && guests.len() > CONNECTIONS_MAX);
                thins |= become_many;
            }
        }
    }
}
