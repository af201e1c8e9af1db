//! The host to which a connection counts, in bounds and in logs.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Returns the host to which a connection counts. `peer` is the address `host:port` of its other end. A
/// network of IPv6 addresses that belongs to one customer counts as one host. Returns `None` for a peer
/// without an IP address, such as a task of this process.
pub(crate) fn host_of(peer: &str) -> Option<IpAddr> {
    let address: SocketAddr = peer.parse().ok()?;
    Some(match address.ip().to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
