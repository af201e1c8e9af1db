//! Tells which hosts are this machine itself, for flags, URLs and `Host` headers. What a name resolves to is
//! checked where a socket is bound.

use std::net::IpAddr;

/// Returns true if a host name or address is loopback. An IPv6 address may have brackets.
pub(super) fn names_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let name = host.eq_ignore_ascii_case("localhost")
        || host.len() > ".localhost".len() && host.to_ascii_lowercase().ends_with(".localhost");
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    name || bare.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_names_and_addresses() {
        for host in [
            "localhost",
            "LOCALHOST",
            "localhost.",
            "page.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(names_loopback(host), "{host}");
        }
        for host in
            ["", ".", ".localhost", "w0", "10.0.0.1", "127.0.0.1.example", "localhost.example", "::2", "[::1"]
        {
            assert!(!names_loopback(host), "{host}");
        }
    }
}
