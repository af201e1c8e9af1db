//! Bounds what peers can take before they have proved who they are. This module opens and closes no
//! connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wire::WireError;

/// The largest number of connections of one host that have not proved who they are.
const HOST_OPEN_MAX: u32 = 64;
/// The largest number of such connections of all hosts.
const OPEN_MAX: u32 = 1024;
/// The number of attempts of one host that may fail in a row.
const HOST_FAILURES_MAX: u32 = 64;
/// The time after which one more attempt of a host may fail.
const FAILURE_EVERY: Duration = Duration::from_millis(125);
/// The largest number of hosts that are remembered. There is room for each host with an open connection.
const HOSTS_MAX: usize = 2 * OPEN_MAX as usize;

/// The reason why a connection is closed before anything is read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    /// The host has too many connections.
    #[error("{HOST_OPEN_MAX} connections of this host have not proved who they are; try again later")]
    OfHost,
    /// All hosts together have too many connections.
    #[error("{OPEN_MAX} connections have not proved who they are; try again later")]
    OfAll,
    /// Too many attempts of the host have failed.
    #[error(
        "too many attempts of this host have failed: one more may fail every {} ms; try again later",
        FAILURE_EVERY.as_millis()
    )]
    Failed,
}

impl From<TooMany> for WireError {
    fn from(too_many: TooMany) -> Self {
        Self::TooMany(too_many.to_string())
    }
}

/// The connections of a port that have not proved who they are.
#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<Hosts>);

/// A connection that has not proved who it is. If this guard is dropped, the attempt counts as failed.
#[derive(Debug)]
pub(crate) struct Stranger {
    /// The table and the host; `None` if the peer needs no bound, or if it is no stranger any more.
    of: Option<(Arc<Strangers>, IpAddr)>,
}

/// The hosts with such connections, and those whose attempts have failed.
///
/// Wanted properties: (A) at most [`HOST_OPEN_MAX`] connections of a host and [`OPEN_MAX`] in all are open;
/// (B) in a time t, at most [`HOST_FAILURES_MAX`] + [`HOST_OPEN_MAX`] + t / [`FAILURE_EVERY`] attempts of a
/// host fail; (C) at most [`HOSTS_MAX`] hosts are remembered; (D) a host whose attempts did not fail has as
/// much room as the other hosts leave.
#[derive(Debug, Default)]
struct Hosts {
    known: BTreeMap<IpAddr, Host>,
    open: u32,
}

#[derive(Debug)]
struct Host {
    open: u32,
    failures: u32,
    /// The time since which `failures` have not become fewer.
    since: Instant,
}

impl Host {
    /// Forgets the failures that are long past.
    fn recover(&mut self, now: Instant) {
        let times = (now - self.since).as_nanos() / FAILURE_EVERY.as_nanos();
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        if times >= self.failures {
            (self.failures, self.since) = (0, now);
        } else {
            self.failures -= times;
            self.since += FAILURE_EVERY * times;
        }
    }
}

impl Hosts {
    fn enter(&mut self, host: IpAddr, now: Instant) -> Result<(), TooMany> {
        if let Some(known) = self.known.get_mut(&host) {
            known.recover(now);
            if known.failures >= HOST_FAILURES_MAX {
                return Err(TooMany::Failed);
            }
            if known.open >= HOST_OPEN_MAX {
                return Err(TooMany::OfHost);
            }
        }
        if self.open >= OPEN_MAX {
            return Err(TooMany::OfAll);
        }
        self.make_room(host, now);
        self.open += 1;
        self.known.entry(host).or_insert(Host { open: 0, failures: 0, since: now }).open += 1;
        Ok(())
    }

    /// Forgets hosts until there is room for `host`: first those that have nothing to remember, then the one
    /// with the fewest failures.
    fn make_room(&mut self, host: IpAddr, now: Instant) {
        if self.known.len() < HOSTS_MAX || self.known.contains_key(&host) {
            return;
        }
        self.known.retain(|_, host| {
            host.recover(now);
            host.open > 0 || host.failures > 0
        });
        let idle = self.known.iter().filter(|(_, host)| host.open == 0);
        let least = idle.min_by_key(|(_, host)| host.failures).map(|(&host, _)| host);
        if self.known.len() >= HOSTS_MAX
            && let Some(least) = least
        {
            self.known.remove(&least);
        }
    }

    fn leave(&mut self, host: IpAddr, failed: bool, now: Instant) {
        let known = self.known.get_mut(&host).expect("a host with an open connection is remembered");
        known.recover(now);
        known.open -= 1;
        known.failures += u32::from(failed);
        self.open -= 1;
        if known.open == 0 && known.failures == 0 {
            self.known.remove(&host);
        }
    }
}

/// Returns the host to which a connection counts. A network of IPv6 addresses that belongs to one customer
/// counts as one host.
fn host_of(peer: &str) -> Option<IpAddr> {
    let address: SocketAddr = peer.parse().ok()?;
    Some(match address.ip().to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    })
}

impl Strangers {
    /// Counts a new connection of the peer at this address. A peer without an IP address is not counted: it
    /// belongs to this process or to this user.
    ///
    /// # Errors
    /// Returns an error if there are too many. The connection must then be closed at once.
    pub(crate) fn enter(self: &Arc<Self>, peer: &str) -> Result<Stranger, TooMany> {
        let of = match host_of(peer) {
            Some(host) => {
                self.0.lock().enter(host, Instant::now())?;
                Some((Arc::clone(self), host))
            }
            None => None,
        };
        Ok(Stranger { of })
    }
}

impl Stranger {
    /// Ends the count of a connection that has proved who it is, or that has ended without a fault of its
    /// own.
    pub(crate) fn pass(mut self) {
        self.leave(false);
    }

    fn leave(&mut self, failed: bool) {
        if let Some((strangers, host)) = self.of.take() {
            strangers.0.lock().leave(host, failed, Instant::now());
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.leave(true);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn ip(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    proptest! {
        /// Checks (A), (B) and (D).
        #[test]
        fn strangers_take_no_more_than_their_share(
            turns in prop::collection::vec((0u32..3, 0u8..4, 0u64..60), 1..1500),
        ) {
            let (begin, mut hosts) = (Instant::now(), Hosts::default());
            let mut now = begin;
            let (mut open, mut failed) = ([0u32; 3], [0u32; 3]);
            for (host, what, wait) in turns {
                now += Duration::from_millis(wait);
                let at = host as usize;
                if what < 2 {
                    match hosts.enter(ip(host), now) {
                        Ok(()) => open[at] += 1,
                        Err(TooMany::OfHost) => prop_assert_eq!(open[at], HOST_OPEN_MAX),
                        Err(TooMany::Failed) => prop_assert!(failed[at] >= HOST_FAILURES_MAX, "(D)"),
                        Err(TooMany::OfAll) => prop_assert!(false, "(D)"),
                    }
                } else if open[at] > 0 {
                    hosts.leave(ip(host), what == 2, now);
                    (open[at], failed[at]) = (open[at] - 1, failed[at] + u32::from(what == 2));
                }
                prop_assert!(open.iter().all(|&open| open <= HOST_OPEN_MAX), "(A)");
                prop_assert_eq!(hosts.open, open.iter().sum::<u32>());
                let often = ((now - begin).as_millis() / FAILURE_EVERY.as_millis()) as u32 + 1;
                let most = HOST_FAILURES_MAX + HOST_OPEN_MAX + often;
                prop_assert!(failed.iter().all(|&failed| failed <= most), "(B)");
            }
        }
    }

    /// Checks (A) and (C).
    #[test]
    fn many_hosts_are_bounded_too() {
        let (now, mut hosts) = (Instant::now(), Hosts::default());
        let mut open = VecDeque::new();
        for number in 0..20_000 {
            if hosts.enter(ip(number), now).is_ok() {
                open.push_back(number);
            } else {
                assert_eq!(hosts.open, OPEN_MAX);
                hosts.leave(ip(open.pop_front().unwrap()), true, now);
            }
            assert!(hosts.known.len() <= HOSTS_MAX && hosts.open <= OPEN_MAX);
        }
    }

    #[test]
    fn failures_are_forgotten_with_time() {
        let (mut now, mut hosts) = (Instant::now(), Hosts::default());
        for _ in 0..HOST_FAILURES_MAX {
            hosts.enter(ip(1), now).unwrap();
            hosts.leave(ip(1), true, now);
        }
        assert_eq!(hosts.enter(ip(1), now), Err(TooMany::Failed));
        assert_eq!(hosts.enter(ip(2), now), Ok(()), "another host");
        now += FAILURE_EVERY;
        assert_eq!(hosts.enter(ip(1), now), Ok(()));
        hosts.leave(ip(1), true, now);
        assert_eq!(hosts.enter(ip(1), now), Err(TooMany::Failed));
        now += FAILURE_EVERY * HOST_FAILURES_MAX;
        assert_eq!(hosts.enter(ip(1), now), Ok(()));
    }

    #[test]
    fn a_host_is_an_address_or_a_network() {
        let same = [
            ("10.0.0.1:5", "10.0.0.1:6"),
            ("[::ffff:10.0.0.1]:5", "10.0.0.1:6"),
            ("[2001:db8::1]:5", "[2001:db8::2]:5"),
        ];
        for (one, other) in same {
            assert!(host_of(one).is_some() && host_of(one) == host_of(other), "{one} {other}");
        }
        assert_ne!(host_of("10.0.0.1:5"), host_of("10.0.0.2:5"));
        assert_ne!(host_of("[2001:db8:0:1::1]:5"), host_of("[2001:db8:0:2::1]:5"));
        assert_eq!(host_of("this process"), None);
    }

    #[test]
    fn a_peer_of_this_process_is_no_stranger() {
        let strangers = Arc::new(Strangers::default());
        let peers: Vec<_> = (0..2 * OPEN_MAX).map(|_| strangers.enter("this process").unwrap()).collect();
        drop(peers);
        let open: Vec<_> = (0..HOST_OPEN_MAX).map(|_| strangers.enter("10.0.0.1:5").unwrap()).collect();
        assert!(strangers.enter("10.0.0.1:6").is_err());
        open.into_iter().for_each(Stranger::pass);
        strangers.enter("10.0.0.1:6").unwrap().pass();
        assert!(strangers.0.lock().known.is_empty());
    }
}
