//! The connections of an endpoint. If there are too many, those of the client with the most are closed, the
//! longest silent ones first. A client with a request is therefore answered even if others open many
//! connections and stay silent. This module must not depend on requests.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::net::{Shutdown, shutdown};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::attempts::Client;

/// The number of connections above which silent connections are closed. It is low enough to bound the memory
/// and the open files of all connections.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// The minimum time that a client with many connections gets to send its request. Even if there are too many
/// connections, none is closed earlier.
pub(super) const GRACE: Duration = Duration::from_millis(50);
/// The minimum time for a client with at most [`CROWD`] connections. A request over HTTPS comes a round trip
/// after its connection, and that takes longer than [`GRACE`] between continents.
const GRACE_OF_FEW: Duration = Duration::from_millis(300);
/// The number of connections above which a client gets only [`GRACE`] for each of them.
const CROWD: usize = CONNECTIONS_MAX / 4;
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
    /// The client at the other end.
    client: Client,
    /// The time of the last request on the connection. Before the first request, it is the time at which the
    /// connection was opened, or its handshake was over.
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
    pub(super) fn enter(&self, socket: impl AsFd, client: Client, now: Instant) -> Option<Place> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let mut known = self.known();
        known.came += 1;
        let came = known.came;
        known.open.push(Connection { came, client, asked: now, socket, stays: false });
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
    /// Connections that receive events are not counted for their client. The grace of a connection is
    /// [`GRACE_OF_FEW`], or [`GRACE`] if its client has more than [`CROWD`] connections.
    ///
    /// Wanted properties: (A) if more than [`CONNECTIONS_MAX`] connections remain after `thin_out`, each
    /// connection of the clients with the most of them was used within its grace; (B) `thin_out` closes a
    /// connection only if there are too many connections, if no other client has more of them, if the
    /// connection was last used at least its grace ago, and if no other such connection has been silent for
    /// longer; (C) a connection that receives events is not closed; (D) every other connection is closed
    /// [`LIFE`] after it was opened, or earlier.
    pub(super) fn thin_out(&self, now: Instant) -> bool {
        let mut known = self.known();
        let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
        for own in known.open.iter().filter(|own| !own.stays) {
            *counts.entry(own.client).or_default() += 1;
        }
        while known.open.len() > CONNECTIONS_MAX {
            let most = counts.values().copied().max().unwrap_or_default();
            let grace = if most > CROWD { GRACE } else { GRACE_OF_FEW };
            let may_go = |own: &Connection| {
                !own.stays
                    && counts.get(&own.client) == Some(&most)
                    && now.saturating_duration_since(own.asked) >= grace
            };
            let silent = known.open.iter().enumerate().filter(|(_, own)| may_go(own));
            let longest = silent.min_by_key(|(_, own)| (own.asked, own.came)).map(|(at, _)| at);
            let Some(longest) = longest else { break };
            let own = known.open.swap_remove(longest);
            counts.entry(own.client).and_modify(|count| *count -= 1);
            let _ = shutdown(own.socket, Shutdown::Both);
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

    /// Records the time at which the handshake of the connection was over.
    pub(super) fn has_shaken_hands(&self, now: Instant) {
        self.change(|own| own.asked = now);
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

    fn client(number: u8) -> Client {
        Client::of([10, 0, 0, number].into())
    }

    struct Guest {
        place: Place,
        stream: UnixStream,
        _server: UnixStream,
        client: Client,
        asked: Instant,
        stays: bool,
    }

    impl Guest {
        fn new(connections: &Connections, client: Client, now: Instant) -> Self {
            let (stream, server) = UnixStream::pair().unwrap();
            let place = connections.enter(&server, client, now).unwrap();
            Self { place, stream, _server: server, client, asked: now, stays: false }
        }
    }

    /// Returns the number of connections of each client that do not receive events.
    fn counts(guests: &[Guest]) -> BTreeMap<Client, usize> {
        let mut counts = BTreeMap::new();
        for guest in guests.iter().filter(|guest| !guest.stays) {
            *counts.entry(guest.client).or_default() += 1;
        }
        counts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Checks that connections are closed until few enough are left or all that may be closed are in use
        /// (A), that they are those of the clients with the most, the longest silent ones first (B), and that
        /// those with events stay open (C).
        #[test]
        fn the_longest_silent_of_the_most_are_closed(
            turns in prop::collection::vec((0u8..16, 0u8..4, any::<prop::sample::Index>(), 0u64..12), 1..300),
        ) {
            let connections = Connections::default();
            let mut now = Instant::now();
            let mut guests: Vec<Guest> = Vec::new();
            let mut thins = false;
            for (what, who, which, wait) in turns {
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
                        let had = counts(&guests);
                        thins = connections.thin_out(now);
                        prop_assert_eq!(thins, connections.known().open.len() > CONNECTIONS_MAX);
                        let (stay, gone): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| is_open(&guest.stream));
                        let has = counts(&stay);
                        let most = has.values().copied().max().unwrap_or_default();
                        let silence = |guest: &Guest| now - guest.asked;
                        if stay.len() > CONNECTIONS_MAX {
                            let grace = if most > CROWD { GRACE } else { GRACE_OF_FEW };
                            let mut of_most = stay.iter().filter(|guest| !guest.stays && has[&guest.client] == most);
                            prop_assert!(of_most.all(|guest| silence(guest) < grace), "(A)");
                        }
                        prop_assert!(gone.is_empty() || stay.len() >= CONNECTIONS_MAX && before > CONNECTIONS_MAX, "(B)");
                        for guest in &gone {
                            prop_assert!(!guest.stays, "(C)");
                            let grace = if had[&guest.client] > CROWD { GRACE } else { GRACE_OF_FEW };
                            prop_assert!(silence(guest) >= grace, "(B)");
                            prop_assert!(had[&guest.client] >= most, "(B)");
                            let its = stay.iter().filter(|other| !other.stays && other.client == guest.client);
                            prop_assert!(its.into_iter().all(|other| other.asked >= guest.asked), "(B)");
                        }
                        guests = stay;
                    }
                    // Most connections are those of one client.
                    _ => guests.push(Guest::new(&connections, client(if what < 12 { 0 } else { who }), now)),
                }
                prop_assert_eq!(connections.known().open.len(), guests.len(), "a place is free again");
                // `become_many` returns true to only one caller at a time.
                let become_many = connections.become_many();
                prop_assert_eq!(become_many, !thins && guests.len() > CONNECTIONS_MAX);
                thins |= become_many;
            }
        }
    }

    /// A client far away needs more than [`GRACE`] for its request, while another one opens connections as
    /// fast as they are closed.
    #[test]
    fn a_flood_of_one_client_closes_only_its_own() {
        let (connections, mut now) = (Connections::default(), Instant::now());
        let far = Guest::new(&connections, client(1), now);
        let mut flood: Vec<Guest> = Vec::new();
        for _ in 0..100 {
            now += GRACE / 5;
            flood.extend((0..13).map(|_| Guest::new(&connections, client(2), now)));
            connections.thin_out(now);
            flood.retain(|guest| is_open(&guest.stream));
            assert!(is_open(&far.stream), "after {:?}", now - far.asked);
            assert!(flood.len() <= 2 * CONNECTIONS_MAX, "{}", flood.len());
        }
    }

    #[test]
    fn many_clients_with_few_connections_have_time() {
        let (connections, begin) = (Connections::default(), Instant::now());
        let number = CONNECTIONS_MAX as u8 + 10;
        let guests: Vec<_> = (0..number).map(|at| Guest::new(&connections, client(at), begin)).collect();
        assert!(connections.thin_out(begin + GRACE_OF_FEW - Duration::from_millis(1)), "there are too many");
        assert!(guests.iter().all(|guest| is_open(&guest.stream)));
        guests[0].place.has_shaken_hands(begin + GRACE);
        assert!(!connections.thin_out(begin + GRACE_OF_FEW));
        let open: Vec<_> = guests.iter().map(|guest| is_open(&guest.stream)).collect();
        assert_eq!(open.iter().filter(|open| **open).count(), CONNECTIONS_MAX);
        assert!(open[0] && !open[1], "the one with the handshake has been silent for less time");
    }
}
