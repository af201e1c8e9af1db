//! The congestion control of TCP connections. A host's choice suits its network, but BBR also paces what
//! never leaves the host: over loopback, it costs about a quarter of the throughput.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// What [`Congestion::Automatic`] uses on loopback instead of BBR. Every Linux kernel has it, and every user
/// may choose it by default.
#[cfg(target_os = "linux")]
const ON_LOOPBACK: &str = "reno";

/// The longest name of a congestion control, in bytes.
const NAME_BYTES_MAX: usize = 15;

/// Which congestion control the TCP connections of a task use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// That of the host, but Reno instead of BBR on loopback.
    #[default]
    Automatic,
    /// That of the host.
    Host,
    /// The one with this name, such as `cubic`.
    Named(String),
}

/// The error for a congestion control that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the congestion control '{name}' ({cause}), expected auto, host{}", offered.as_ref().map_or_else(String::new, |names| format!(", or one of net.ipv4.tcp_allowed_congestion_control: {names}")))]
pub struct CongestionError {
    name: String,
    cause: io::Error,
    /// `None` if it is unknown.
    offered: Option<String>,
}

impl FromStr for Congestion {
    type Err = CongestionError;

    /// Parses `auto`, `host`, or the name of a congestion control, and checks that this host offers it.
    fn from_str(name: &str) -> Result<Self, CongestionError> {
        match name {
            "auto" => return Ok(Self::Automatic),
            "host" => return Ok(Self::Host),
            _ => {}
        }
        let named = Self::Named(name.to_owned());
        let tried = match name.len() {
            1..=NAME_BYTES_MAX => named.try_out(),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "no such name is possible")),
        };
        match tried {
            Ok(()) => Ok(named),
            Err(cause) => {
                let cause = match cause.kind() {
                    io::ErrorKind::NotFound => io::Error::other("this host does not have it"),
                    _ => cause,
                };
                Err(CongestionError { name: name.to_owned(), cause, offered: offered() })
            }
        }
    }
}

/// Shows the text from which the value can be parsed.
impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "auto",
            Self::Host => "host",
            Self::Named(name) => name,
        })
    }
}

impl Congestion {
    fn try_out(&self) -> io::Result<()> {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        self.choose(&socket, Ipv4Addr::LOCALHOST.into())
    }

    /// Sets the congestion control of a socket whose connections reach `ip`, or are accepted there. Must be
    /// called before the socket is connected, because BBR leaves its pacing on a connection. Connections that
    /// a listening socket accepts inherit the setting.
    ///
    /// # Errors
    /// Returns an error if a congestion control that was named cannot be set.
    #[cfg(target_os = "linux")]
    pub fn choose(&self, socket: impl std::os::fd::AsFd, ip: IpAddr) -> io::Result<()> {
        use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
        match self {
            Self::Host => Ok(()),
            Self::Named(name) => Ok(set_tcp_congestion(socket, name)?),
            Self::Automatic => {
                // A sandbox may not know the option.
                let paces = || tcp_congestion(&socket).is_ok_and(|name| name.starts_with("bbr"));
                let paces = ip.to_canonical().is_loopback() && paces();
                if paces && let Err(error) = set_tcp_congestion(socket, ON_LOOPBACK) {
                    tracing::debug!(%error, "cannot choose {ON_LOOPBACK} on loopback; the host's choice stays");
                }
                Ok(())
            }
        }
    }

    /// Has no effect, except on Linux.
    ///
    /// # Errors
    /// Returns an error if a congestion control was named.
    #[cfg(not(target_os = "linux"))]
    pub fn choose<S>(&self, _: S, _: IpAddr) -> io::Result<()> {
        match self {
            Self::Named(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Automatic | Self::Host => Ok(()),
        }
    }
}

/// Returns the names that a user without privileges may choose; `None` if the system does not say.
fn offered() -> Option<String> {
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    allowed.ok().map(|names| names.trim().to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};

    use super::*;

    fn socket() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    #[test]
    fn names_are_checked() {
        assert_eq!("auto".parse::<Congestion>().unwrap(), Congestion::Automatic);
        assert_eq!("host".parse::<Congestion>().unwrap(), Congestion::Host);
        assert_eq!("reno".parse::<Congestion>().unwrap(), Congestion::Named("reno".to_owned()));
        for name in ["auto", "host", "reno"] {
            assert_eq!(name.parse::<Congestion>().unwrap().to_string(), name);
        }
        for wrong in ["", "no_such_thing", "a_name_that_no_kernel_has"] {
            let error = wrong.parse::<Congestion>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{wrong}'")) && error.contains("reno"), "{error}");
        }
    }

    #[test]
    fn only_loopback_is_changed_unless_a_name_is_given() {
        let away = IpAddr::from([192, 0, 2, 1]);
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let host = tcp_congestion(socket()).unwrap();
        for (congestion, ip) in
            [(Congestion::Automatic, away), (Congestion::Host, here), (Congestion::Host, away)]
        {
            let socket = socket();
            congestion.choose(&socket, ip).unwrap();
            assert_eq!(tcp_congestion(&socket).unwrap(), host, "{congestion:?} to {ip}");
        }
        let socket = socket();
        Congestion::Named(ON_LOOPBACK.to_owned()).choose(&socket, away).unwrap();
        assert_eq!(tcp_congestion(&socket).unwrap(), ON_LOOPBACK);
    }

    #[test]
    fn bbr_is_replaced_on_loopback() {
        let socket = socket();
        if set_tcp_congestion(&socket, "bbr").is_err() {
            println!("SKIPPED: this host does not offer BBR, so its replacement on loopback is NOT tested.");
            return;
        }
        Congestion::Automatic.choose(&socket, Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(tcp_congestion(&socket).unwrap(), ON_LOOPBACK);
    }
}
