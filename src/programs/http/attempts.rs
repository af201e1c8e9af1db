//! Limits how often a client may send a wrong token. Clients behind one address share its limit. The caller
//! decides whom the limit stops, and supplies the time. This module must not depend on HTTP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// The number of failed attempts that a client may make at once.
pub(super) const BURST: u32 = 10;
/// The time after which a client may fail once more: 10 times a minute.
pub(super) const EVERY: Duration = Duration::from_secs(6);
/// The maximum number of clients whose failed attempts are remembered.
const CLIENTS_MAX: usize = 1024;
/// The prefix of an IPv6 address that identifies a client: its network, because a host has all addresses of
/// its network.
const NETWORK: u128 = !0 << 64;

/// A client: its IPv4 address, or the network of its IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Client(pub(super) IpAddr);

impl Client {
    /// Returns the client at the other end of a connection. If the system does not know its address, it is
    /// the same client as all others without one.
    pub(super) fn at(address: Option<SocketAddr>) -> Self {
        Self::of(address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip()))
    }

    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }
}

/// The recent failed attempts of all clients; `None` stands for all clients that do not fit. For each client,
/// this is the time at which they are all forgotten: each failed attempt delays it by [`EVERY`].
///
/// Wanted properties: (A) in any time t, at most [`BURST`] + t / [`EVERY`] attempts of a client are looked
/// at, and at most [`CLIENTS_MAX`] + 1 times as many of all clients together; (B) a client that has not
/// failed for [`BURST`] times [`EVERY`] has its whole burst again; (C) at most [`CLIENTS_MAX`] clients are
/// told apart. If that many have failed recently, all others share the attempts of one client.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<Option<Client>, Instant>);

impl Attempts {
    /// Returns how long a client has to wait before its next attempt is looked at; `None` if it may try now.
    pub(super) fn wait(&mut self, client: Client, now: Instant) -> Option<Duration> {
        let who = self.place_of(client, now);
        let forgotten = self.0.get(&who)?.saturating_duration_since(now);
        forgotten.checked_sub(EVERY * (BURST - 1)).filter(|wait| !wait.is_zero())
    }

    /// Records a failed attempt.
    pub(super) fn fail(&mut self, client: Client, now: Instant) {
        let who = self.place_of(client, now);
        let forgotten = self.0.entry(who).or_insert(now);
        *forgotten = now.max(*forgotten) + EVERY;
    }

    /// Returns the client under which the attempts of a client are counted.
    fn place_of(&mut self, client: Client, now: Instant) -> Option<Client> {
        let who = Some(client);
        if self.0.contains_key(&who) || self.0.len() < CLIENTS_MAX {
            return who;
        }
        self.0.retain(|_, forgotten| *forgotten > now);
        who.filter(|_| self.0.len() < CLIENTS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(number: u32) -> Client {
        Client::of(IpAddr::from(number.to_be_bytes()))
    }

    proptest! {
        /// Checks (A) and (B).
        #[test]
        fn guesses_are_limited_and_forgiven(waits in prop::collection::vec(0u64..8_000, 1..200)) {
            let (mut now, mut attempts) = (Instant::now(), Attempts::default());
            let mut looked_at = Vec::new();
            for wait in waits {
                now += Duration::from_millis(wait);
                if attempts.wait(client(1), now).is_none() {
                    attempts.fail(client(1), now);
                    looked_at.push(now);
                }
                prop_assert_eq!(attempts.wait(client(2), now), None, "another client is not limited");
            }
            for (first, begin) in looked_at.iter().enumerate() {
                for (more, end) in looked_at[first..].iter().enumerate() {
                    let earned = end.duration_since(*begin).as_secs_f64() / EVERY.as_secs_f64();
                    prop_assert!((more + 1) as f64 <= f64::from(BURST) + earned + 1e-6, "(A)");
                }
            }
            now += EVERY * BURST;
            for _ in 0..BURST {
                prop_assert_eq!(attempts.wait(client(1), now), None, "(B)");
                attempts.fail(client(1), now);
            }
            prop_assert!(attempts.wait(client(1), now).is_some_and(|wait| wait <= EVERY), "(A)");
        }
    }

    /// Checks (A) and (C).
    #[test]
    fn clients_that_do_not_fit_share_their_attempts() {
        let (now, mut attempts) = (Instant::now(), Attempts::default());
        let mut looked_at = 0;
        for number in 0..5 * CLIENTS_MAX as u32 {
            for _ in 0..2 * BURST {
                if attempts.wait(client(number), now).is_none() {
                    attempts.fail(client(number), now);
                    looked_at += 1;
                }
            }
            assert!(attempts.0.len() <= CLIENTS_MAX + 1);
        }
        assert_eq!(looked_at, (CLIENTS_MAX + 1) * BURST as usize, "(A)");
        let [first, other] = [0, 10_000].map(|number| attempts.wait(client(number), now));
        assert!(first.is_some() && other.is_some(), "no client is forgotten");
        let later = now + EVERY * BURST;
        assert_eq!(attempts.wait(client(10_000), later), None, "(B)");
        attempts.fail(client(10_000), later);
        assert!(attempts.0.len() <= 2, "those that count no more are forgotten");
    }

    #[test]
    fn all_addresses_of_a_network_are_one_client() {
        let client = |text: &str| Client::of(text.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
    }
}
