//! Checks that a request was meant for this host. A web page of another site must not be able to use the
//! endpoint through a host name of that site that resolves to an address of this host (DNS rebinding). A
//! browser says in the `Host` header which name it was given.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::programs::loopback::names_loopback;

/// The names and addresses under which an endpoint may be used, beside those of loopback.
pub(super) struct Hosts {
    /// Names in lower case, without a dot at the end.
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Whether the address at which a connection has arrived is accepted, too.
    takes_own: bool,
}

impl Hosts {
    /// Returns the hosts of an endpoint that only this machine can reach.
    pub(super) fn of_loopback() -> Self {
        Self { names: BTreeSet::new(), addresses: BTreeSet::new(), takes_own: false }
    }

    /// Returns the hosts of an endpoint that other hosts can reach.
    pub(super) fn of_network() -> Self {
        Self { takes_own: true, ..Self::of_loopback() }
    }

    /// Adds host names and addresses. An IPv6 address may have brackets.
    #[must_use]
    pub(super) fn with<'a>(mut self, hosts: impl IntoIterator<Item = &'a str>) -> Self {
        for host in hosts {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            match bare.parse::<IpAddr>() {
                Ok(address) => self.addresses.insert(address.to_canonical()),
                Err(_) => self.names.insert(normal(host)),
            };
        }
        self
    }

    /// Returns true when a `Host` header names this host. `own` is the address at which the connection has
    /// arrived.
    pub(super) fn accept(&self, header: &str, own: Option<IpAddr>) -> bool {
        let Some(host) = host_of(header) else { return false };
        if names_loopback(host) {
            return true;
        }
        match host.parse::<IpAddr>() {
            Ok(address) => {
                let (address, own) = (address.to_canonical(), own.map(|own| own.to_canonical()));
                self.addresses.contains(&address) || self.takes_own && own == Some(address)
            }
            Err(_) => self.names.contains(&normal(host)),
        }
    }
}

/// Returns a host name as it is compared.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns the host in a `Host` header, without the port and without brackets.
fn host_of(header: &str) -> Option<&str> {
    match header.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']')?;
            (port.is_empty() || port.starts_with(':')).then_some(host)
        }
        None => Some(header.split_once(':').map_or(header, |(host, _)| host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: [&str; 7] =
        ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1234", "[::1]", "[::1]:80", "page.localhost:1"];

    #[test]
    fn only_names_of_loopback_are_accepted() {
        let (hosts, own) = (Hosts::of_loopback(), "10.0.0.1".parse().ok());
        for host in LOOPBACK {
            assert!(hosts.accept(host, own), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.1",
            "[::2]",
            "[::1]x",
            "[::1",
            ".localhost",
        ] {
            assert!(!hosts.accept(host, own), "{host}");
        }
    }

    #[test]
    fn an_endpoint_has_the_names_of_its_host() {
        let hosts = Hosts::of_network().with(["W0.pushpull", "10.0.0.7", "[2001:db8::7]", "proxy.example."]);
        let own = "::ffff:10.0.0.1".parse().ok();
        let others = [
            "w0.pushpull:9090",
            "w0.pushpull.",
            "10.0.0.7:1",
            "[2001:DB8::7]:1",
            "PROXY.example",
            "10.0.0.1",
            "[::ffff:10.0.0.1]:2",
        ];
        for host in LOOPBACK.into_iter().chain(others) {
            assert!(hosts.accept(host, own), "{host}");
        }
        for host in ["", "w0", "w0.pushpull.example", "10.0.0.2", "[2001:db8::8]", "10.0.0.1.example", "."] {
            assert!(!hosts.accept(host, own), "{host}");
        }
        assert!(!hosts.accept("10.0.0.1", None));
        assert!(Hosts::of_loopback().with(["ssh.example"]).accept("ssh.example:1", None));
    }
}
