//! Who is connected to an endpoint. Where there are too many, those have to go who have asked for nothing for the longest time: so
//! somebody who asks finds room soon, however many connect and say nothing. And nobody stays for long. Knows no request.
//!
//! Wanted properties: (A) after each look at most [`CONNECTIONS_MAX`] stay, and those who came, or asked, less than [`GRACE`] ago;
//! (B) nobody has to go before that, nor while there is room, nor before another one who has said nothing for longer; (C) who is
//! told events stays; (D) all others have to go [`LIFE`] after they came.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Connections at a time. With what each may hold, little memory and few files.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// So long everybody may take to ask for something, however many there are.
pub(super) const GRACE: Duration = Duration::from_millis(50);
/// So long a connection lives. That is for a request, its body, an answer by the tasks, and reading that, with all that each of
/// these may take; beyond that a client can hold on by what has no end, such as a body in chunks.
pub(super) const LIFE: Duration = Duration::from_secs(20);

/// All of one endpoint.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    came: u64,
    open: Vec<Connection>,
    /// Somebody thins them out.
    is_thinned: bool,
}

struct Connection {
    /// As which.
    came: u64,
    /// When it asked last, or came.
    asked: Instant,
    /// The same socket once more, to close it by.
    socket: OwnedFd,
    stays: bool,
}

/// One connection's place; dropped with the connection.
pub(super) struct Place {
    came: u64,
    all: Connections,
    /// Whoever sees to it that it does not stay for ever.
    end: Option<AbortHandle>,
}

impl Connections {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more has come. `None` where it cannot be known, since the process may have no more files.
    pub(super) fn enter(&self, socket: impl AsFd, now: Instant) -> Option<Place> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let mut known = self.known();
        known.came += 1;
        let came = known.came;
        known.open.push(Connection { came, asked: now, socket, stays: false });
        Some(Place { came, all: self.clone(), end: None })
    }

    /// That one has had its time.
    fn end(&self, came: u64) {
        let mut known = self.known();
        if let Some(at) = known.open.iter().position(|own| own.came == came && !own.stays) {
            let _ = shutdown(known.open.swap_remove(at).socket, Shutdown::Both);
        }
    }

    /// Whether there are too many of a sudden: whoever is told so has to thin them out, again and again while it is told to.
    pub(super) fn become_many(&self) -> bool {
        let mut known = self.known();
        let many = known.open.len() > CONNECTIONS_MAX;
        many && !std::mem::replace(&mut known.is_thinned, true)
    }

    /// Has those go who have to; whether there are too many still. Their connections end by that, and with them their places.
    pub(super) fn thin_out(&self, now: Instant) -> bool {
        let mut known = self.known();
        let too_many = known.open.len().saturating_sub(CONNECTIONS_MAX);
        let silent = |own: &Connection| !own.stays && now.saturating_duration_since(own.asked) >= GRACE;
        // The last ones in this order have to go first.
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

    /// It ends after its time, by a task of the current runtime.
    pub(super) fn end_in_time(mut self) -> Self {
        let (all, came) = (self.all.clone(), self.came);
        let end = async move {
            sleep(LIFE).await;
            all.end(came);
        };
        self.end = Some(actix_rt::spawn(end).abort_handle());
        self
    }

    /// It asks for something.
    pub(super) fn asks(&self, now: Instant) {
        self.change(|own| own.asked = now);
    }

    /// It is told events from now on: others bound how many are.
    pub(super) fn stays(&self) {
        self.change(|own| own.stays = true);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end.iter().for_each(AbortHandle::abort);
        self.all.known().open.retain(|connection| connection.came != self.came);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    /// Whether the client still has its connection.
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

        /// (A)–(C).
        #[test]
        fn who_has_said_nothing_for_longest_has_to_go(
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
                // Nobody is told to thin them out while another one does.
                let become_many = connections.become_many();
                prop_assert_eq!(become_many, !thins && guests.len() > CONNECTIONS_MAX);
                thins |= become_many;
            }
        }
    }
}
