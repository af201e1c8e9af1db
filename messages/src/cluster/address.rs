//! The address of a task, `host:port`. It is checked once and stored in a canonical spelling. Host names are
//! not resolved here, because a host may not exist yet when the cluster spec is written.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::quote::quote;

/// The maximum number of bytes in an address; a DNS name alone may have 253.
pub const ADDRESS_BYTES_MAX: usize = 255;
const TOO_LONG: &str = "expected at most 255 bytes";
const _: () = assert!(ADDRESS_BYTES_MAX == 255, "TOO_LONG names the bound");
/// The maximum number of bytes between two dots of a DNS name: RFC 1035, section 2.3.4.
const LABEL_BYTES_MAX: usize = 63;

/// An address `host:port`, where the host is a DNS name, an IPv4 address or an IPv6 address in brackets.
///
/// Host names are converted to lower case, and leading zeros of numbers are removed, so that equal addresses
/// have equal text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    // A `Box<str>` takes less memory than a `String`: a cluster, or a message from a stranger, may contain
    // thousands of addresses.
    text: Box<str>,
    port: u16,
}

/// The error for a text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not host:port, {expected}")]
pub struct AddressError {
    /// The text that was given, shortened.
    given: String,
    /// The part of the message that says what was expected.
    expected: &'static str,
}

impl Address {
    /// Returns the canonical `host:port`, which is used for connecting and in logs.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let host = self.text.rsplit_once(':').map_or("", |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the port, which is at least 1.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

/// Returns whether all addresses name the same host. One host may have several names, which are not compared.
pub fn on_one_host<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> bool {
    let mut hosts = addresses.into_iter().map(Address::host);
    hosts.next().is_none_or(|first| hosts.all(|host| host == first))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |expected| AddressError { given: quote(text), expected };
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(error(TOO_LONG));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| error("expected a port, as in 'ps0:2222'"))?;
        let host = canonical_host(host).map_err(error)?;
        // `u16::from_str` would accept '+1'.
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = Some(port).filter(|_| digits).and_then(|port| port.parse().ok()).filter(|&port| port > 0);
        let port: u16 = port.ok_or_else(|| error("expected a port from 1 to 65535 after the last ':'"))?;
        Ok(Self { text: format!("{host}:{port}").into(), port })
    }
}

fn canonical_host(host: &str) -> Result<String, &'static str> {
    if host.is_empty() {
        return Err("expected a host before the ':'");
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let ip: Ipv6Addr = inner.parse().map_err(|_| "expected an IPv6 address within the brackets")?;
        return Ok(format!("[{ip}]"));
    }
    if host.contains(':') {
        return Err("expected one ':', and an IPv6 address in brackets, as in '[::1]:2222'");
    }
    // No DNS name ends in a label of digits only, so '10.0.0.256' is a mistyped IPv4 address and not a name.
    let labels = host.strip_suffix('.').unwrap_or(host);
    if labels.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        let ip: Ipv4Addr = host.parse().map_err(|_| "expected a DNS name or four numbers from 0 to 255")?;
        return Ok(ip.to_string());
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let valid = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !labels.split('.').all(valid) {
        return Err(
            "expected a host of letters, digits, '-', '_' and single dots, at most 63 bytes between two dots",
        );
    }
    Ok(host.to_ascii_lowercase())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.text.into()
    }
}
