//! Counts the connections that have not proved who they are, and the attempts of each host that have failed.
//! The caller supplies the time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::bounds::{Bounds, FAILURE_EVERY};
use super::too_many::TooMany;

/// The hosts with such connections, and those whose attempts have failed.
///
/// Wanted properties: (A) at most `host_open_max` connections of a host and `open_max` in all are open; (B)
/// in a time t, at most `host_failures_max` + `host_open_max` + t / [`FAILURE_EVERY`] attempts of a host
/// fail; (C) at most `hosts_max` hosts are remembered; (D) a host is refused only because of its own
/// connections and attempts: if all hosts together have too many connections, the oldest connection of the
/// host with the most has to close.
#[derive(Debug)]
pub(super) struct Hosts {
    bounds: Bounds,
    known: BTreeMap<IpAddr, Host>,
    /// The open connections by age, the oldest first.
    open: BTreeMap<u64, Open>,
    next: u64,
}

#[derive(Debug)]
struct Host {
    open: u32,
    failures: u32,
    /// The time since which `failures` have not become fewer.
    since: Instant,
}

/// An open connection of a host.
#[derive(Debug)]
struct Open {
    host: IpAddr,
    /// Notifies the owner of the connection that it has to close.
    displaced: Arc<Notify>,
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
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self { bounds, known: BTreeMap::new(), open: BTreeMap::new(), next: 0 }
    }

    /// Counts a new connection. Returns its number, and what notifies its owner if it has to close.
    pub(super) fn enter(&mut self, host: IpAddr, now: Instant) -> Result<(u64, Arc<Notify>), TooMany> {
        if let Some(known) = self.known.get_mut(&host) {
            known.recover(now);
            if known.failures >= self.bounds.host_failures_max {
                return Err(TooMany::Failed);
            }
            if known.open >= self.bounds.host_open_max {
                return Err(TooMany::OfHost);
            }
        }
        if self.open.len() >= self.bounds.open_max {
            self.displace(now);
        }
        self.make_room(host, now);
        self.known.entry(host).or_insert(Host { open: 0, failures: 0, since: now }).open += 1;
        let (number, displaced) = (self.next, Arc::<Notify>::default());
        self.next += 1;
        self.open.insert(number, Open { host, displaced: Arc::clone(&displaced) });
        Ok((number, displaced))
    }

    /// Ends the count of a connection, unless it has ended already because the connection was displaced.
    pub(super) fn leave(&mut self, number: u64, failed: bool, now: Instant) {
        if let Some(Open { host, .. }) = self.open.remove(&number) {
            self.count_out(host, failed, now);
        }
    }

    /// Ends the count of the oldest connection of the host with the most. It counts as one that has failed.
    fn displace(&mut self, now: Instant) {
        let most = self.known.values().map(|host| host.open).max().unwrap_or(0);
        let oldest = self.open.iter().find(|(_, open)| self.known[&open.host].open == most);
        if let Some((&number, open)) = oldest {
            open.displaced.notify_one();
            self.leave(number, true, now);
        }
    }

    fn count_out(&mut self, host: IpAddr, failed: bool, now: Instant) {
        let known = self.known.get_mut(&host).expect("a host with an open connection is remembered");
        known.recover(now);
        known.open -= 1;
        known.failures += u32::from(failed);
        if known.open == 0 && known.failures == 0 {
            self.known.remove(&host);
        }
    }

    /// Forgets hosts until there is room for `host`: first those that have nothing to remember, then the one
    /// with the fewest failures.
    fn make_room(&mut self, host: IpAddr, now: Instant) {
        if self.known.len() < self.bounds.hosts_max || self.known.contains_key(&host) {
            return;
        }
        self.known.retain(|_, host| {
            host.recover(now);
            host.open > 0 || host.failures > 0
        });
        let idle = self.known.iter().filter(|(_, host)| host.open == 0);
        let least = idle.min_by_key(|(_, host)| host.failures).map(|(&host, _)| host);
        if self.known.len() >= self.bounds.hosts_max
            && let Some(least) = least
        {
            self.known.remove(&least);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    const FEW: Bounds = Bounds { host_open_max: 4, open_max: 9, host_failures_max: 5, hosts_max: 12 };

    fn ip(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    /// A host as the test sees it.
    #[derive(Default)]
    struct Seen {
        open: Vec<(u64, Arc<Notify>)>,
        failed: Vec<Instant>,
    }

    impl Seen {
        /// Returns the failures that are not forgotten: since any time, one is forgotten in each period.
        fn failures(&self, now: Instant) -> i128 {
            let since = |at: usize| {
                let forgotten = (now - self.failed[at]).as_nanos() / FAILURE_EVERY.as_nanos();
                (self.failed.len() - at) as i128 - forgotten as i128
            };
            (0..self.failed.len()).map(since).max().unwrap_or(0)
        }
    }

    proptest! {
        /// Checks (A), (B) and (D).
        #[test]
        fn strangers_take_no_more_than_their_share(
            turns in prop::collection::vec((0u32..5, 0u8..4, 0u64..60), 1..600),
        ) {
            let (begin, mut hosts) = (Instant::now(), Hosts::new(FEW));
            let mut now = begin;
            let mut seen: [Seen; 5] = Default::default();
            for (host, what, wait) in turns {
                now += Duration::from_millis(wait);
                let at = host as usize;
                if what < 2 {
                    let before = seen.each_ref().map(|seen| seen.open.len());
                    match hosts.enter(ip(host), now) {
                        Ok(opened) => {
                            for (at, host) in seen.iter_mut().enumerate() {
                                let is_closed = |closing: &Notify| closing.notified().now_or_never().is_some();
                                let Some(oldest) = host.open.iter().position(|(_, closing)| is_closed(closing))
                                else { continue };
                                host.open.remove(oldest);
                                host.failed.push(now);
                                prop_assert_eq!(before.iter().sum::<usize>(), FEW.open_max, "(D)");
                                prop_assert_eq!(Some(&before[at]), before.iter().max(), "(D)");
                                prop_assert_eq!(oldest, 0, "(D)");
                            }
                            seen[at].open.push(opened);
                        }
                        Err(TooMany::OfHost) => prop_assert_eq!(before[at], FEW.host_open_max as usize),
                        // The count forgets from its first failure on, and is at most one behind.
                        Err(_) => prop_assert!(
                            seen[at].failures(now) + 1 >= i128::from(FEW.host_failures_max),
                            "(D)"
                        ),
                    }
                } else if !seen[at].open.is_empty() {
                    let (number, _) = seen[at].open.remove(0);
                    hosts.leave(number, what == 2, now);
                    if what == 2 {
                        seen[at].failed.push(now);
                    }
                }
                let open = seen.iter().map(|seen| seen.open.len());
                prop_assert!(open.clone().all(|open| open <= FEW.host_open_max as usize), "(A)");
                prop_assert!(open.clone().sum::<usize>() <= FEW.open_max, "(A)");
                prop_assert_eq!(hosts.open.len(), open.sum::<usize>());
                let often = ((now - begin).as_millis() / FAILURE_EVERY.as_millis()) as u32 + 1;
                let most = FEW.host_failures_max + FEW.host_open_max + often;
                prop_assert!(seen.iter().all(|seen| seen.failed.len() <= most as usize), "(B)");
            }
        }
    }

    /// Checks (A), (C) and (D).
    #[test]
    fn many_hosts_shut_no_other_host_out() {
        let (now, mut hosts) = (Instant::now(), Hosts::new(Bounds::USUAL));
        for number in 0..20_000 {
            hosts.enter(ip(number / 2), now).unwrap();
            assert!(hosts.known.len() <= Bounds::USUAL.hosts_max);
            assert!(hosts.open.len() <= Bounds::USUAL.open_max);
        }
    }

    #[test]
    fn a_host_with_few_connections_is_not_displaced() {
        let (now, mut hosts) = (Instant::now(), Hosts::new(FEW));
        let (_, quiet) = hosts.enter(ip(0), now).unwrap();
        let others: Vec<_> = (0..8).map(|turn| hosts.enter(ip(1 + turn / 4), now).unwrap()).collect();
        // Then every host has one.
        for number in 3..9 {
            hosts.enter(ip(number), now).unwrap();
        }
        assert_eq!(quiet.notified().now_or_never(), None);
        assert!(others[0].1.notified().now_or_never().is_some(), "the oldest of a host with many");
    }

    #[test]
    fn failures_are_forgotten_with_time() {
        let (mut now, mut hosts) = (Instant::now(), Hosts::new(FEW));
        let enter = |hosts: &mut Hosts, host, now| hosts.enter(ip(host), now).map(|(number, _)| number);
        for _ in 0..FEW.host_failures_max {
            let number = enter(&mut hosts, 1, now).unwrap();
            hosts.leave(number, true, now);
        }
        assert_eq!(enter(&mut hosts, 1, now), Err(TooMany::Failed));
        assert!(enter(&mut hosts, 2, now).is_ok(), "another host");
        now += FAILURE_EVERY;
        let number = enter(&mut hosts, 1, now).unwrap();
        hosts.leave(number, true, now);
        assert_eq!(enter(&mut hosts, 1, now), Err(TooMany::Failed));
        now += FAILURE_EVERY * FEW.host_failures_max;
        assert!(enter(&mut hosts, 1, now).is_ok());
    }
}
