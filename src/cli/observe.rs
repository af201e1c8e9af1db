//! Flags of how a process can be observed: over HTTP, and by its log.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use pushpull_messages::cluster::Address;

use super::flags::absolute;
use crate::exit::Failure;
use crate::http::{EndpointConfig, TOKEN_ENV, Token};
use crate::logging::LogFormat;

/// Where to listen, or nowhere.
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
        // An address of a cluster has a port; here it may be any that is free.
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

/// How a process can be observed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Observing")]
pub(crate) struct ObserveArgs {
    /// Where this process can be observed over HTTP: with port 0 at any that is free, or none
    #[arg(long, value_name = "HOST:PORT|none", default_value = "127.0.0.1:0")]
    http_addr: HttpAddress,
    /// Who knows the word in that file may have the job save or stop over HTTP; PUSHPULL_HTTP_TOKEN may hold it, too
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Keep answering over HTTP for so long when the job has ended, in seconds, or until a signal
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    http_linger_s: u64,
    /// How log lines are written
    #[arg(long, value_enum, default_value = "human")]
    log_format: LogFormat,
}

impl ObserveArgs {
    /// Where and how.
    pub(super) fn endpoint(&self) -> Result<EndpointConfig, Failure> {
        let env = std::env::var(TOKEN_ENV).ok();
        self.check()?;
        Ok(EndpointConfig {
            address: match &self.http_addr {
                HttpAddress::Nowhere => None,
                HttpAddress::At(address) => Some(address.clone()),
            },
            token: Token::read(self.http_token_file.as_deref(), env.as_deref()).map_err(unusable)?,
            linger: Duration::from_secs(self.http_linger_s),
        })
    }

    /// Flags that nothing comes of are a mistake.
    fn check(&self) -> Result<(), Failure> {
        let useless = match &self.http_addr {
            HttpAddress::At(_) => None,
            HttpAddress::Nowhere if self.http_token_file.is_some() => Some("--http-token-file"),
            HttpAddress::Nowhere if self.http_linger_s > 0 => Some("--http-linger-s"),
            HttpAddress::Nowhere => None,
        };
        match useless {
            Some(flag) => {
                Err(Failure::Usage(format!("{flag} is of no use with --http-addr none: say one of the two")))
            }
            None => Ok(()),
        }
    }

    pub(super) const fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// The same as flags for the chief of a cluster on this machine, and for every other task: there any port will do.
    pub(super) fn to_flags(&self) -> Result<(Vec<String>, Vec<String>), Failure> {
        self.check()?;
        let (own, others) = match &self.http_addr {
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
        if let Some(path) = &self.http_token_file {
            chief.push(format!("--http-token-file={}", absolute(path)?.display()));
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
    fn the_chief_of_a_local_cluster_is_told_all_and_the_others_take_any_port() {
        let flags =
            ["--http-addr=0.0.0.0:80", "--log-format=json", "--http-linger-s=9", "--http-token-file=/t"];
        let Ok((chief, others)) = read(&flags).unwrap().to_flags() else { panic!("they are flags") };
        assert_eq!(chief, flags);
        assert_eq!(others, ["--http-addr=127.0.0.1:0", "--log-format=json"]);
        let Ok((chief, others)) = read(&["--http-addr=none"]).unwrap().to_flags() else {
            panic!("they are flags")
        };
        assert_eq!((&*chief[0], &*others[0]), ("--http-addr=none", "--http-addr=none"));
    }

    #[test]
    fn a_token_file_that_is_not_there_is_one_line() {
        let Err(Failure::Usage(error)) = read(&["--http-token-file=/none/token"]).unwrap().endpoint() else {
            panic!("it is not there")
        };
        assert!(error.starts_with("cannot read the token file /none/token: "), "{error}");
    }

    #[test]
    fn flags_that_nothing_comes_of_are_refused() {
        for flag in ["--http-token-file=/t", "--http-linger-s=1"] {
            let args = read(&["--http-addr=none", flag]).unwrap();
            for refused in [args.endpoint().map(drop), args.to_flags().map(drop)] {
                let Err(Failure::Usage(error)) = refused else { panic!("{flag} is taken") };
                assert!(flag.starts_with(error.split_once(' ').unwrap().0), "{error}");
            }
        }
    }
}
