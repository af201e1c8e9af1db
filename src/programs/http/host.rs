//! Checks that a request was meant for this host. An endpoint on loopback trusts every program on this
//! machine. But a web page of another site must not be able to read the endpoint, for example through a host
//! name of that site that resolves to loopback (DNS rebinding).

use std::net::IpAddr;

/// Returns true when a `Host` header names this machine's loopback.
pub(super) fn is_loopback(header: &str) -> bool {
    let host = match header.strip_prefix('[') {
        Some(bracketed) => match bracketed.split_once(']') {
            Some((host, port)) if port.is_empty() || port.starts_with(':') => host,
            _ => return false,
        },
        None => header.split_once(':').map_or(header, |(host, _)| host),
    };
    names_loopback(host)
}

/// Returns true when a host name or address is loopback. An IPv6 address must have no brackets.
pub(super) fn names_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let name = host.eq_ignore_ascii_case("localhost")
        || host.len() > ".localhost".len() && host.to_ascii_lowercase().ends_with(".localhost");
    name || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_accepted() {
        let taken = [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.9.9.9:1234",
            "[::1]",
            "[::1]:80",
            "page.localhost:1",
        ];
        for host in taken {
            assert!(is_loopback(host), "{host}");
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
            assert!(!is_loopback(host), "{host}");
        }
        assert!(names_loopback("::1") && names_loopback("localhost") && !names_loopback("w0"));
    }
}
