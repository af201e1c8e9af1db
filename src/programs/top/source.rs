//! Fetches snapshots from the chief's HTTP endpoint, with bounds on time and size. This module must not
//! depend on how snapshots are shown.

use std::time::Duration;

use pushpull_identity::{HttpsClient, JoinString};
use pushpull_messages::observe::ChiefSnapshot;
use ureq::Agent;
use ureq::http::Uri;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

use super::https::HttpsConnector;
use crate::programs::format::clean;
use crate::programs::http::Token;
use crate::programs::loopback::names_loopback;

/// The time limit for the whole answer to arrive.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The maximum size of an answer, in bytes. The snapshot of a job with thousands of tasks is smaller.
const BYTES_MAX: u64 = 32 << 20;

/// The error for a text that is not the address of a chief's HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is not the address of a chief: {reason}; expected HOST:PORT, http://HOST:PORT or https://HOST:PORT, the address that the chief logs at its start"
)]
pub(super) struct BadAddress {
    given: String,
    reason: String,
}

/// The reason why no snapshot could be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    /// The address does not answer.
    #[error(
        "{url} does not answer: {reason}; expected the HTTP address that a running chief logs at its start"
    )]
    Unreachable {
        /// The URL that was requested.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The chief demands a token.
    #[error(
        "{url} demands a token, and it is missing or wrong; give the job's join string with --join-file FILE, or \
         the chief's token with --http-token-file FILE"
    )]
    NotPermitted {
        /// The URL that was requested.
        url: String,
    },
    /// A server answers, but it is not a chief.
    #[error(
        "{url} does not show a job: {reason}; expected the HTTP address that a running chief logs at its start"
    )]
    NoChief {
        /// The URL that was requested.
        url: String,
        /// What went wrong.
        reason: String,
    },
}

/// What a client has to show to an endpoint that other hosts can reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pass {
    /// The join string of the job.
    pub(crate) join: Option<JoinString>,
    /// The end of HTTPS that trusts the authorities in a file, if the job has no join string.
    pub(crate) authorities: Option<HttpsClient>,
    /// The token, if it is not that of the join string.
    pub(crate) token: Option<Token>,
}

/// The HTTP endpoint of a chief.
#[derive(Debug)]
pub(super) struct Source {
    agent: Agent,
    url: String,
    token: Option<Token>,
    /// True if the client knows the authority of the job.
    is_identified: bool,
}

impl Source {
    /// Makes the source for a chief at `host:port` or at a URL. With a join string or authorities, an address
    /// that is not loopback speaks HTTPS.
    pub(super) fn new(chief: &str, pass: &Pass) -> Result<Self, BadAddress> {
        let bad = |reason: String| BadAddress { given: clean(chief), reason: clean(&reason) };
        let scheme = |secure| if secure { "https" } else { "http" };
        let url = match chief.contains("://") {
            true => chief.to_owned(),
            false => format!("{}://{chief}", scheme(pass.join.is_some() || pass.authorities.is_some())),
        };
        let uri: Uri = url.parse().map_err(|error| bad(format!("{error}")))?;
        let authority = uri.authority().ok_or_else(|| bad("it has no host".to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(bad("it contains a user name, which is not supported".to_owned()));
        }
        if authority.host().is_empty() {
            return Err(bad("it has no host".to_owned()));
        }
        if !chief.contains("://") && authority.port_u16().is_none() {
            return Err(bad("it has no port".to_owned()));
        }
        let is_secure = match uri.scheme_str() {
            // A chief on loopback speaks HTTP even if it has a join string.
            Some("https") => chief.contains("://") || !names_loopback(authority.host()),
            Some("http") => false,
            _ => return Err(bad("only http:// and https:// are supported".to_owned())),
        };
        let https = match (&pass.join, &pass.authorities) {
            _ if !is_secure => None,
            (Some(join), _) => Some(HttpsClient::new(join).map_err(|error| bad(error.to_string()))?),
            (None, Some(authorities)) => Some(authorities.clone()),
            (None, None) => {
                return Err(bad(
                    "https:// needs the job's join string, give it with --join-file FILE, or the authorities of its \
                     certificates with --tls-ca FILE"
                        .to_owned(),
                ));
            }
        };
        // The token of the join string never travels unencrypted.
        let derived = pass.join.as_ref().filter(|_| is_secure).map(Token::of);
        let token = pass.token.clone().or(derived);
        let path = uri.path().trim_end_matches('/').trim_end_matches("/job");
        let url = format!("{}://{authority}{path}/job", scheme(is_secure));
        Ok(Self {
            agent: agent(https),
            url,
            token,
            is_identified: pass.join.is_some() || pass.authorities.is_some(),
        })
    }

    /// Fetches the job's current snapshot.
    pub(super) fn fetch(&self) -> Result<ChiefSnapshot, SourceError> {
        // Control characters are removed, because the error is shown on a terminal and the server may be any
        // program.
        let url = || clean(&self.url);
        let unreachable = |error: ureq::Error| {
            let hint = match &error {
                // A TLS alert is no HTTP.
                ureq::Error::Protocol(_) if !self.url.starts_with("https") => match self.is_identified {
                    true => "; a chief that other hosts can reach speaks HTTPS, use https://HOST:PORT",
                    false => {
                        "; a chief with a join string or a certificate speaks HTTPS, give --join-file FILE or --tls-ca FILE"
                    }
                },
                _ => "",
            };
            SourceError::Unreachable { url: url(), reason: clean(&error.to_string()) + hint }
        };
        let no_chief = |reason: String| SourceError::NoChief { url: url(), reason: clean(&reason) };
        let mut request = self.agent.get(&self.url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", token.header());
        }
        let mut answer = request.call().map_err(unreachable)?;
        match answer.status().as_u16() {
            401 => return Err(SourceError::NotPermitted { url: url() }),
            429 => return Err(no_chief("this host has sent too many wrong tokens: try again later".into())),
            _ => {}
        }
        if !answer.status().is_success() {
            return Err(no_chief(format!("the status of the answer is {}", answer.status())));
        }
        let body = match answer.body_mut().with_config().limit(BYTES_MAX).read_to_vec() {
            Ok(body) => body,
            Err(ureq::Error::BodyExceedsLimit(limit)) => {
                return Err(no_chief(format!("the answer has more than {limit} bytes")));
            }
            Err(error) => return Err(unreachable(error)),
        };
        serde_json::from_slice(&body).map_err(|error| no_chief(format!("the answer cannot be read: {error}")))
    }
}

/// Returns the client that sends the requests.
fn agent(https: Option<HttpsClient>) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(ANSWER_WITHIN))
        .max_redirects(0)
        .proxy(None)
        .http_status_as_error(false)
        .build();
    match https {
        Some(https) => {
            let connector = ().chain(TcpConnector::default()).chain(HttpsConnector(https));
            Agent::with_parts(config, connector, DefaultResolver::default())
        }
        None => config.new_agent(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_urls() {
        for (given, url) in [
            ("c0:9100", "http://c0:9100/job"),
            ("[::1]:9100", "http://[::1]:9100/job"),
            ("http://c0:9100/", "http://c0:9100/job"),
            ("http://c0:9100/job", "http://c0:9100/job"),
            ("http://proxy/jobs/7/", "http://proxy/jobs/7/job"),
        ] {
            assert_eq!(Source::new(given, &Pass::default()).unwrap().url, url);
        }
        for given in [
            "",
            "c0",
            "https://c0:9100",
            "ftp://c0:1",
            "c0:port",
            "http://",
            "user@c0:9100",
            "c0:9100 x",
            "c0:99999",
        ] {
            let error = Source::new(given, &Pass::default()).unwrap_err().to_string();
            assert!(error.contains("expected HOST:PORT"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_join_string_means_https_except_on_loopback() {
        let join = Some(pushpull_identity::Authority::new().unwrap().join().clone());
        let derived = join.as_ref().map(Token::of);
        let joined = Pass { join, ..Pass::default() };
        for (given, url) in [
            ("c0:9100", "https://c0:9100/job"),
            ("https://c0/", "https://c0/job"),
            ("https://127.0.0.1:1", "https://127.0.0.1:1/job"),
            ("localhost:1", "http://localhost:1/job"),
            ("[::1]:1", "http://[::1]:1/job"),
            ("http://c0:9100", "http://c0:9100/job"),
        ] {
            let source = Source::new(given, &joined).unwrap();
            assert_eq!(source.url, url);
            // The derived token never travels unencrypted.
            let sent = derived.clone().filter(|_| url.starts_with("https"));
            assert_eq!(source.token, sent, "{given}");
        }
        let token = Token::read(None, Some("s3cret")).unwrap();
        for pass in [Pass { token: token.clone(), ..Pass::default() }, Pass { token, ..joined }] {
            let source = Source::new("c0:9100", &pass).unwrap();
            assert_eq!(source.token.as_ref().unwrap().header(), "Bearer s3cret");
            assert!(!format!("{source:?}").contains("s3cret"));
        }
    }

    /// Starts a server that replies with `answer`, and fetches a snapshot from it.
    fn answered(answer: &'static str) -> Result<ChiefSnapshot, String> {
        answered_to(&Pass::default(), answer)
    }

    fn answered_to(pass: &Pass, answer: &'static str) -> Result<ChiefSnapshot, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let length = answer.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
            let answer =
                answer.replacen("\r\n", &format!("\r\nContent-Length: {length}\r\nConnection: close\r\n"), 1);
            let _ = stream.write_all(answer.as_bytes());
        });
        let fetched = Source::new(&address, pass).unwrap().fetch().map_err(|error| error.to_string());
        server.join().unwrap();
        fetched
    }

    #[test]
    fn what_is_no_chief_is_said_in_one_line() {
        for (answer, expected) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "404"),
            ("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", "302"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", "cannot be read"),
            ("HTTP/1.1 200 OK\r\n\r\n{}", "cannot be read"),
            (
                "HTTP/1.1 200 OK\r\n\r\n{\"phase\": \"\\u001b]0;owned\\u0007\\n\\u009b2J\"}",
                "\u{fffd}]0;owned\u{fffd}",
            ),
            ("nonsense\r\n\r\n", "does not answer"),
        ] {
            let error = answered(answer).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("expected the HTTP address that a running chief logs"), "{error}");
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
        for (answer, expected) in [
            ("HTTP/1.1 401 Unauthorized\r\n\r\n", "give the job's join string with --join-file FILE"),
            ("HTTP/1.1 429 Too Many Requests\r\n\r\n", "too many wrong tokens"),
        ] {
            let error = answered(answer).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Source::new(&closed.to_string(), &Pass::default()).unwrap().fetch().unwrap_err();
        assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn a_chief_that_speaks_https_is_named() {
        let alert = "\x15\x03\x03\x00\x02\x02\x46\r\n\r\n";
        let join = Some(pushpull_identity::Authority::new().unwrap().join().clone());
        for (pass, hint) in [
            (Pass::default(), "give --join-file FILE or --tls-ca FILE"),
            (Pass { join, ..Pass::default() }, "use https://HOST:PORT"),
        ] {
            let error = answered_to(&pass, alert).unwrap_err();
            assert!(error.contains(hint) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_snapshot_is_read() {
        let json = serde_json::to_string(&ChiefSnapshot::default()).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\n\r\n{json}").leak();
        assert_eq!(answered(answer).unwrap(), ChiefSnapshot::default());
    }
}
