//! The names of Unix sockets. A task that listens at a TCP address also listens at a name made of this
//! address, so that another task of the host finds it. The names are abstract: they belong to a network
//! namespace, and end with their process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns the name for a task that listens at this TCP address.
pub(crate) fn own_name(address: SocketAddr) -> String {
    // A name that begins with a zero byte is abstract.
    format!("\0pushpull/{}", SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Returns the names under which a task that can be reached at this TCP address may listen.
pub(crate) fn names_of(address: SocketAddr) -> [String; 3] {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let [v4, v6] = any.map(|ip| own_name(SocketAddr::new(ip, address.port())));
    [own_name(address), v4, v6]
}

/// Returns whether an IP address belongs to this host.
pub(crate) fn is_here(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_at_its_own_address_and_at_any() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for bound in ["127.0.0.1:5", "0.0.0.0:5", "[::]:5", "[::ffff:127.0.0.1]:5"] {
            assert!(names_of(address("127.0.0.1:5")).contains(&own_name(address(bound))), "{bound}");
        }
        for other in ["127.0.0.1:6", "127.0.0.2:5", "[::1]:5"] {
            assert!(!names_of(address("127.0.0.1:5")).contains(&own_name(address(other))), "{other}");
        }
        assert!(is_here([127, 0, 0, 1].into()));
        // An address for documentation, see RFC 5737.
        assert!(!is_here([192, 0, 2, 1].into()));
    }
}
