//! Counts the requests that an endpoint refuses, and logs who sent them: one line for each client and
//! period, so that no client can fill the log. What a client sent is never logged. The caller supplies the
//! time.
//!
//! Wanted properties: (A) each refusal is counted; (B) in any period, at most one line is due for a client;
//! (C) at most [`CLIENTS_MAX`] clients are told apart, and all others share a line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use parking_lot::Mutex;

use super::attempts::Client;

/// The time between two lines about a client.
const PERIOD: Duration = Duration::from_secs(60);
/// The maximum number of clients that have lines of their own.
const CLIENTS_MAX: usize = 1024;

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The `Host` header names another host.
    Host,
    /// The token is wrong.
    WrongToken,
    /// There is no token, and no cookie either.
    NoToken,
    /// The cookie belongs to no session of this process, or to one that is over.
    Session,
    /// A page of another site has sent the request.
    Origin,
    /// The client has sent too many wrong tokens.
    TooMany,
    /// The endpoint does not have the path.
    Path,
    /// The path does not accept the method.
    Method,
    /// The body is too long, came too slowly, or is not what the path expects.
    Body,
    /// The connection has had a request already.
    Second,
}

impl Reason {
    pub(super) const ALL: [Self; 10] = [
        Self::Host,
        Self::WrongToken,
        Self::NoToken,
        Self::Session,
        Self::Origin,
        Self::TooMany,
        Self::Path,
        Self::Method,
        Self::Body,
        Self::Second,
    ];

    /// Returns the reason for which a request has got this status although its client may make it; `None` if
    /// the status refuses nothing.
    pub(super) fn of(status: StatusCode) -> Option<Self> {
        match status {
            StatusCode::NOT_FOUND => Some(Self::Path),
            StatusCode::METHOD_NOT_ALLOWED => Some(Self::Method),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                Some(Self::Body)
            }
            _ => None,
        }
    }

    /// Returns the label of the reason in the metric.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::WrongToken => "wrong_token",
            Self::NoToken => "no_token",
            Self::Session => "session",
            Self::Origin => "origin",
            Self::TooMany => "too_many",
            Self::Path => "path",
            Self::Method => "method",
            Self::Body => "body",
            Self::Second => "second",
        }
    }

    /// Returns the reason in words, for the log; `None` if it is no sign of an attack: a browser without a
    /// token, or with a cookie of yesterday, gets the login form, and a mistake in a request is answered.
    const fn says(self) -> Option<&'static str> {
        match self {
            Self::Host => Some("the Host header names another host"),
            Self::WrongToken => Some("the token is wrong"),
            Self::Origin => Some("it came from a page of another site"),
            Self::TooMany => Some("too many wrong tokens"),
            Self::NoToken | Self::Session | Self::Path | Self::Method | Self::Body | Self::Second => None,
        }
    }
}

/// The refusals of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; Reason::ALL.len()],
    lines: Mutex<Lines>,
}

impl Refusals {
    /// Counts a refusal, and logs it if a line is due.
    pub(super) fn record(&self, client: Client, reason: Reason, now: Instant) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        let Some(why) = reason.says() else { return };
        if let Some((who, left_out)) = self.lines.lock().due(client, now) {
            let client = who.map_or_else(|| "other clients".to_owned(), |client| client.0.to_string());
            tracing::warn!(client, left_out, "refused an HTTP request: {why}");
        }
    }

    /// Returns the number of refusals for each reason.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// The lines of the current periods, for each client; `None` stands for all clients that do not fit.
#[derive(Debug, Default)]
struct Lines(BTreeMap<Option<Client>, Line>);

#[derive(Debug)]
struct Line {
    logged: Instant,
    /// The number of refusals since then.
    left_out: u64,
}

impl Lines {
    /// Returns the client of the line that is due, and the number of refusals that were left out since its
    /// last line.
    fn due(&mut self, client: Client, now: Instant) -> Option<(Option<Client>, u64)> {
        let is_over = |line: &Line| now.saturating_duration_since(line.logged) >= PERIOD;
        let mut who = Some(client);
        if !self.0.contains_key(&who) && self.0.len() >= CLIENTS_MAX {
            self.0.retain(|_, line| !is_over(line));
            who = who.filter(|_| self.0.len() < CLIENTS_MAX);
        }
        match self.0.get_mut(&who) {
            Some(line) if !is_over(line) => {
                line.left_out += 1;
                None
            }
            before => {
                let left_out = before.map_or(0, |line| line.left_out);
                self.0.insert(who, Line { logged: now, left_out: 0 });
                Some((who, left_out))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn client(number: u32) -> Client {
        Client::of(IpAddr::from(number.to_be_bytes()))
    }

    /// Checks (A).
    #[test]
    fn each_refusal_is_counted() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for (times, reason) in Reason::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| refusals.record(client(1), reason, now));
        }
        let counts: Vec<_> = refusals.counts().collect();
        let expected: Vec<_> = Reason::ALL.into_iter().zip(0..).collect();
        assert_eq!(counts, expected);
    }

    /// Checks (B).
    #[test]
    fn a_client_has_one_line_in_a_period() {
        let (begin, mut lines) = (Instant::now(), Lines::default());
        assert_eq!(lines.due(client(1), begin), Some((Some(client(1)), 0)));
        for _ in 0..99 {
            assert_eq!(lines.due(client(1), begin), None);
        }
        assert_eq!(lines.due(client(2), begin), Some((Some(client(2)), 0)));
        assert_eq!(lines.due(client(1), begin + PERIOD), Some((Some(client(1)), 99)));
        assert_eq!(lines.due(client(1), begin + PERIOD), None);
    }

    /// Checks (C).
    #[test]
    fn the_lines_of_a_period_are_bounded() {
        let (now, mut lines) = (Instant::now(), Lines::default());
        let due = (0..10_000).filter(|&number| lines.due(client(number), now).is_some()).count();
        assert_eq!((due, lines.0.len()), (CLIENTS_MAX + 1, CLIENTS_MAX + 1));
        let others = 10_000 - due as u64;
        assert_eq!(lines.due(client(20_000), now + PERIOD), Some((Some(client(20_000)), 0)));
        assert!(others > 0 && lines.0.len() == 1, "the others are forgotten");
    }
}
