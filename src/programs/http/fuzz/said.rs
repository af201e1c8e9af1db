//! What a client has said, read from its bytes without the code of the endpoint: the line of its request, its
//! headers, and whether the token is among its bytes.

use std::net::IpAddr;

/// A request as its bytes say it. A name or a value that is no text is empty.
pub(super) struct Said<'a> {
    pub method: &'a str,
    pub target: &'a str,
    headers: Vec<(String, &'a str)>,
    bytes: &'a [u8],
}

impl<'a> Said<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let mut lines = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
        let first = text(lines.next().unwrap_or_default());
        let (method, rest) = first.split_once(' ').unwrap_or((first, ""));
        let target = rest.split(' ').find(|word| !word.is_empty()).unwrap_or("");
        let headers = lines.map(|line| {
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
            let (name, value) = line.split_at(colon);
            (text(name).trim().to_ascii_lowercase(), text(value.get(1..).unwrap_or_default()).trim())
        });
        Self { method, target, headers: headers.collect(), bytes }
    }

    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Returns the token of each `Authorization` header; `None` for those without one.
    pub fn bearers(&self) -> impl Iterator<Item = Option<&'a str>> {
        self.all("authorization").map(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_ascii())
        })
    }

    /// Returns the values of the cookies with this name.
    pub fn cookies(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let pairs = self.all("cookie").flat_map(|value| value.split(';'));
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.filter(move |(own, _)| own.trim() == name).map(|(_, value)| value.trim())
    }

    /// Returns true if the request certainly comes from a page of another site: a browser says so.
    pub fn is_foreign(&self, scheme: &str) -> bool {
        let mut sites = self.all("sec-fetch-site").peekable();
        if sites.peek().is_some() {
            return sites.all(|site| site != "same-origin");
        }
        let hosts: Vec<_> =
            self.all("host").map(|host| format!("{scheme}://{host}").to_ascii_lowercase()).collect();
        let mut origins = self.all("origin").map(str::to_ascii_lowercase).peekable();
        origins.peek().is_some() && origins.all(|origin| !hosts.contains(&origin))
    }

    /// Returns true if the request says nothing about the page that it comes from.
    pub fn is_of_no_page(&self) -> bool {
        self.all("sec-fetch-site").chain(self.all("origin")).next().is_none()
    }

    /// Returns the hosts that the request names.
    pub fn hosts(&self) -> impl Iterator<Item = &'a str> {
        let is_scheme =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        let absolute = self.target.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
        let absolute = absolute.map(|(_, rest)| {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
            authority.rsplit_once('@').map_or(authority, |(_, host)| host)
        });
        self.all("host").chain(absolute)
    }

    /// Returns true if the token begins somewhere in the bytes: at their begin, or after a byte that is no
    /// part of a word. Forms are decoded first.
    pub fn has(&self, token: &str) -> bool {
        let decoded = decoded(self.bytes);
        let mut at = decoded.windows(token.len()).enumerate().filter(|(_, part)| *part == token.as_bytes());
        at.any(|(at, _)| at == 0 || decoded[at - 1] == b'=' || !decoded[at - 1].is_ascii_graphic())
    }
}

/// Returns true if a host of a request is loopback, one of these names, or one of these addresses.
pub(super) fn is_host(host: &str, names: &[&str], addresses: &[IpAddr]) -> bool {
    let host = host.to_ascii_lowercase();
    if let Some((inner, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let ip = inner.strip_suffix('.').unwrap_or(inner).parse();
        return (port.is_empty() || port.starts_with(':'))
            && (ip.is_ok_and(|ip| is_address(ip, addresses)) || inner.parse().is_ok_and(is_loopback));
    }
    let name = host.split(':').next().unwrap_or("");
    let bare = name.strip_suffix('.').unwrap_or(name);
    let is_local =
        bare == "localhost" || bare.strip_suffix(".localhost").is_some_and(|name| !name.is_empty());
    is_local || names.contains(&bare) || bare.parse().is_ok_and(|ip| is_address(ip, addresses))
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn is_address(ip: IpAddr, addresses: &[IpAddr]) -> bool {
    is_loopback(ip) || addresses.contains(&ip.to_canonical())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Returns the bytes with `%41` and `+` decoded.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
        at += 1;
    }
    decoded
}
