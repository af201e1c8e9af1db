//! The flags of a process's endpoint and of its log.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Command};
use pushpull_messages::cluster::Address;

use super::paths::absolute;
use crate::programs::exit::Failure;
use crate::programs::http::{EndpointConfig, TOKEN_ENV, Token};
use crate::programs::logging::{Log, LogFormat};
use crate::programs::settings::CalledWith;

/// The id of the endpoint's flag. The flag's parsed value also carries the settings of the whole command
/// line to the endpoint.
const CARRIER: &str = "http_addr";

/// The address to listen at, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HttpAddress {
    Nowhere,
    At(String),
}

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Nowhere);
        }
        // Port 0 is valid here, unlike in the address of a task. The system then chooses a free port.
        let (host, port) = text.rsplit_once(':').ok_or("expected HOST:PORT or none")?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port: u16 = port
            .parse()
            .ok()
            .filter(|_| digits)
            .ok_or("expected a port from 0 to 65535 after the last ':'")?;
        let address: Address = format!("{host}:1")
            .parse()
            .map_err(|_| "expected a host name or an IP address before the ':'")?;
        let host = address.as_str().strip_suffix(":1").expect("it was put there");
        Ok(Self::At(format!("{host}:{port}")))
    }
}

/// Parses a host name or an IP address, which has no port.
fn host(text: &str) -> Result<String, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let is_address = bare.parse::<IpAddr>().is_ok();
    let is_name = format!("{text}:1").parse::<Address>().is_ok() && !text.contains([':', '[']);
    let expected = "expected a host name or an IP address, without a port";
    if is_address || is_name { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// An address, and the settings of the command line that contained it.
#[derive(Clone, Debug)]
struct Listen {
    address: HttpAddress,
    called_with: CalledWith,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { address: text.parse()?, called_with: CalledWith::default() })
    }
}

/// Attaches `called_with` to the value of the endpoint's flag. The caller fills `called_with` after the
/// whole command line has been read. A command without an endpoint is returned unchanged.
pub(super) fn carry(command: Command, called_with: &CalledWith) -> Command {
    if command.get_arguments().all(|arg| arg.get_id() != CARRIER) {
        return command;
    }
    let called_with = called_with.clone();
    let parse =
        move |text: &str| text.parse().map(|address| Listen { address, called_with: called_with.clone() });
    command.mut_arg(CARRIER, |arg| arg.value_parser(parse))
}

/// The flags of a process's endpoint and of its log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Observing")]
pub(crate) struct ObserveArgs {
    /// Address of this process's HTTP endpoint; port 0 takes any free port, none disables the endpoint. At an
    /// address that other hosts can reach, every request needs the token, and a task with a join string or
    /// --tls-cert speaks HTTPS
    #[arg(long, value_name = "HOST:PORT|none", default_value = "127.0.0.1:0")]
    http_addr: Listen,
    /// File with the token that a client must send to save or stop the job over HTTP, and to read an endpoint
    /// that other hosts can reach; only its owner may be able to read the file. Without a file, the token is
    /// taken from the variable PUSHPULL_HTTP_TOKEN, or is the one that `pushpull join token` prints for the
    /// task's join string
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Further host names or addresses in the URLs of HTTP requests, such as that of a proxy, with commas
    /// between them; requests that name another host than this one are refused
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = host)]
    http_host: Vec<String>,
    /// How long to keep answering over HTTP after the job has ended, in seconds; a signal ends it earlier
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    http_linger_s: u64,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "human")]
    log_format: LogFormat,
}

impl ObserveArgs {
    /// Returns the settings of an endpoint that shows `log`.
    pub(super) fn endpoint(&self, log: &Log) -> Result<EndpointConfig, Failure> {
        let env = std::env::var(TOKEN_ENV).ok();
        self.check()?;
        Ok(EndpointConfig {
            address: match &self.http_addr.address {
                HttpAddress::Nowhere => None,
                HttpAddress::At(address) => Some(address.clone()),
            },
            token: Token::read(self.http_token_file.as_deref(), env.as_deref()).map_err(unusable)?,
            hosts: self.http_host.clone(),
            linger: Duration::from_secs(self.http_linger_s),
            called_with: self.http_addr.called_with.clone(),
            log: log.clone(),
            ..EndpointConfig::default()
        })
    }

    /// Returns an error for flags that would have no effect, because they are probably a mistake.
    fn check(&self) -> Result<(), Failure> {
        let useless = match &self.http_addr.address {
            HttpAddress::At(_) => None,
            HttpAddress::Nowhere if self.http_token_file.is_some() => Some("--http-token-file"),
            HttpAddress::Nowhere if !self.http_host.is_empty() => Some("--http-host"),
            HttpAddress::Nowhere if self.http_linger_s > 0 => Some("--http-linger-s"),
            HttpAddress::Nowhere => None,
        };
        match useless {
            Some(flag) => Err(Failure::Usage(format!(
                "{flag} has no effect with --http-addr none: leave out one of the two"
            ))),
            None => Ok(()),
        }
    }

    pub(super) const fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// Returns these settings as flags for the tasks of a cluster on this machine. The first list is for the
    /// chief, and the second list is for every other task. If this process has an endpoint, each of the
    /// other tasks gets one at any free port.
    pub(super) fn to_flags(&self) -> Result<(Vec<String>, Vec<String>), Failure> {
        self.check()?;
        let (own, others) = match &self.http_addr.address {
            HttpAddress::Nowhere => ("none", "none"),
            HttpAddress::At(address) => (&**address, "127.0.0.1:0"),
        };
        let format = match self.log_format {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        };
        let usual = |address| vec![format!("--http-addr={address}"), format!("--log-format={format}")];
        let mut chief = usual(own);
        chief.push(format!("--http-linger-s={}", self.http_linger_s));
        if !self.http_host.is_empty() {
            chief.push(format!("--http-host={}", self.http_host.join(",")));
        }
        if let Some(path) = &self.http_token_file {
            chief.push(format!("--http-token-file={}", absolute("--http-token-file", path)?.display()));
        }
        Ok((chief, usual(others)))
    }
}

fn unusable(error: anyhow::Error) -> Failure {
    Failure::Usage(format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        observe: ObserveArgs,
    }

    fn read(flags: &[&str]) -> Result<ObserveArgs, clap::Error> {
        Ok(Program::try_parse_from(["program"].iter().chain(flags))?.observe)
    }

    #[test]
    fn an_address_is_a_host_and_any_port_or_none() {
        let address = |text: &str| text.parse::<HttpAddress>();
        assert_eq!(address("none"), Ok(HttpAddress::Nowhere));
        for text in ["127.0.0.1:0", "[::]:9090", "0.0.0.0:80", "localhost:65535"] {
            assert_eq!(address(text), Ok(HttpAddress::At(text.into())));
        }
        for text in ["", "9090", ":80", "a:", "a:+1", "a:65536", "a b:1", "::1:80", "127.0.0.256:1"] {
            assert!(address(text).unwrap_err().starts_with("expected "), "{text}");
        }
        let error = read(&["--http-addr=x"]).unwrap_err().to_string();
        assert!(error.contains("--http-addr") && error.contains("expected HOST:PORT or none"), "{error}");
    }

    #[test]
    fn only_the_chief_takes_the_given_address() {
        let flags = [
            "--http-addr=0.0.0.0:80",
            "--log-format=json",
            "--http-linger-s=9",
            "--http-host=proxy.example,10.0.0.7",
            "--http-token-file=/t",
        ];
        let Ok((chief, others)) = read(&flags).unwrap().to_flags() else { panic!("they are flags") };
        assert_eq!(chief, flags);
        assert_eq!(others, ["--http-addr=127.0.0.1:0", "--log-format=json"]);
        let Ok((chief, others)) = read(&["--http-addr=none"]).unwrap().to_flags() else {
            panic!("they are flags")
        };
        assert_eq!((&*chief[0], &*others[0]), ("--http-addr=none", "--http-addr=none"));
    }

    #[test]
    fn a_host_is_a_name_or_an_address() {
        let hosts = read(&["--http-host=proxy.example,10.0.0.7", "--http-host=[::1]"]).unwrap().http_host;
        assert_eq!(hosts, ["proxy.example", "10.0.0.7", "[::1]"]);
        for wrong in ["", "a:1", "a b", "http://a", "a,", "[::1]:80"] {
            let error = read(&[&format!("--http-host={wrong}")]).unwrap_err().to_string();
            assert!(error.contains("expected a host name or an IP address"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_missing_token_file_is_one_line() {
        let Err(Failure::Usage(error)) =
            read(&["--http-token-file=/none/token"]).unwrap().endpoint(&Log::default())
        else {
            panic!("it is not there")
        };
        assert!(error.starts_with("--http-token-file: cannot read /none/token: "), "{error}");
    }

    #[test]
    fn flags_without_effect_are_refused() {
        for flag in ["--http-token-file=/t", "--http-host=a", "--http-linger-s=1"] {
            let args = read(&["--http-addr=none", flag]).unwrap();
            for refused in [args.endpoint(&Log::default()).map(drop), args.to_flags().map(drop)] {
                let Err(Failure::Usage(error)) = refused else { panic!("{flag} was accepted") };
                assert!(flag.starts_with(error.split_once(' ').unwrap().0), "{error}");
            }
        }
    }
}
