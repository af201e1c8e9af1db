//! Decides which clients may use an endpoint: it was meant for this host, it has the token or the cookie of a
//! session, and it has not guessed too often. This module must not depend on what the endpoint serves.

use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};
use parking_lot::Mutex;

use super::answers::refusal;
use super::attempts::{Attempts, Client};
use super::connections::Connections;
use super::cookie::Cookie;
use super::host::Hosts;
use super::origin::Origin;
use super::protection::Protection;
use super::refusals::{Reason, Refusals};
use super::sessions::{Sessions, new_id};
use super::socket::ReachedAt;
use super::token::{TOKEN_ENV, Token, bearer};

/// The response that refuses a request.
pub(super) type Refused = Box<HttpResponse>;

/// The proof that a client has the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// It has sent the token with this request.
    Token,
    /// It has the cookie of a session, which began with the token and ends at this time.
    Session(Instant),
}

/// The reason why a client has not shown that it has the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unproved {
    /// The token or the cookie is missing or wrong.
    Refused(Reason),
    /// The client has to wait this long before its next attempt counts.
    TooMany(Duration),
}

/// The clients that may use one endpoint.
pub(super) struct Access {
    protection: Protection,
    token: Option<Token>,
    hosts: Hosts,
    cookie: Cookie,
    sessions: Mutex<Sessions>,
    attempts: Mutex<Attempts>,
    refusals: Refusals,
    connections: Connections,
}

impl Access {
    pub(super) fn new(
        protection: Protection,
        token: Option<Token>,
        hosts: Hosts,
        port: u16,
        connections: Connections,
    ) -> Self {
        Self {
            protection,
            token,
            hosts,
            cookie: Cookie::new(port, protection == Protection::Https),
            sessions: Mutex::default(),
            attempts: Mutex::default(),
            refusals: Refusals::default(),
            connections,
        }
    }

    /// Returns true if there is a token, so that clients can save or stop the job.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the number of requests that were refused, for each reason. A connection that ends without a
    /// whole request counts as one.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.refusals.counts().map(|(reason, count)| (reason.label(), count));
        counts.chain([("no_request", self.connections.unasked())])
    }

    /// Checks that the request was meant for this host. If not, the error refuses the request.
    pub(super) fn check_host(&self, request: &HttpRequest) -> Result<(), Refused> {
        let own = request.conn_data::<ReachedAt>().map(|reached| reached.0);
        let named = request.headers().get_all(header::HOST).map(|host| host.to_str().unwrap_or_default());
        if named.chain(request.uri().host()).all(|host| self.hosts.accept(host, own)) {
            return Ok(());
        }
        self.record(request, Reason::Host);
        let reason = match self.protection {
            Protection::Loopback => {
                "this endpoint answers only requests to localhost: use localhost, or start the task with \
                 --http-host NAME or a different --http-addr"
            }
            _ => {
                "this endpoint does not answer requests to this host name: use the address or the name of the \
                 task's host, or start the task with --http-host NAME"
            }
        };
        Err(refusal(StatusCode::FORBIDDEN, reason).into())
    }

    /// Checks that the client may read. If not, the error refuses the request.
    pub(super) fn check_reading(&self, request: &HttpRequest) -> Result<(), Refused> {
        if !self.protection.guards_reading() {
            return Ok(());
        }
        self.prove(request).map(drop).map_err(|unproved| self.refuse(request, unproved))
    }

    /// Returns the time at which a client that may read now may read no more; `None` if there is no such
    /// time.
    pub(super) fn reads_until(&self, request: &HttpRequest) -> Option<Instant> {
        if !self.protection.guards_reading() {
            return None;
        }
        match self.prove(request) {
            Ok(Proof::Token) => None,
            Ok(Proof::Session(end)) => Some(end),
            // The session has just ended.
            Err(_) => Some(Instant::now()),
        }
    }

    /// Returns true if the client may read the details of an answer for probes. A probe without a token is no
    /// refusal, but one with a wrong token is: it must be no other way to guess.
    pub(super) fn reads_details(&self, request: &HttpRequest) -> bool {
        if !self.protection.guards_reading() {
            return true;
        }
        match self.prove(request) {
            Ok(_) => true,
            Err(Unproved::Refused(Reason::NoToken | Reason::Session)) => false,
            Err(unproved) => {
                drop(self.refuse(request, unproved));
                false
            }
        }
    }

    /// Checks that the client may save or stop the job. If not, the error refuses the request.
    pub(super) fn check_control(&self, request: &HttpRequest) -> Result<(), Refused> {
        if !self.has_token() {
            return Err(no_token());
        }
        match self.prove(request) {
            Ok(Proof::Token) => Ok(()),
            Ok(Proof::Session(_)) if self.origin(request) == Origin::Own => Ok(()),
            Ok(Proof::Session(_)) => Err(self.refuse_page(request)),
            Err(unproved) => Err(self.refuse(request, unproved)),
        }
    }

    /// Checks that no page of another site has sent this form. If one has, the error refuses the request:
    /// such a page must not use up the attempts of the user who has opened it.
    pub(super) fn check_form(&self, request: &HttpRequest) -> Result<(), Refused> {
        match self.origin(request) {
            Origin::Own | Origin::Unknown => Ok(()),
            Origin::Other => Err(self.refuse_page(request)),
        }
    }

    fn origin(&self, request: &HttpRequest) -> Origin {
        Origin::of(request.headers(), self.protection.scheme())
    }

    /// Refuses a request that a page of another site has sent.
    fn refuse_page(&self, request: &HttpRequest) -> Refused {
        self.record(request, Reason::Origin);
        let reason =
            "a page of another site has sent this request: use the page of this endpoint, or send the token";
        refusal(StatusCode::FORBIDDEN, reason).into()
    }

    /// Begins a session of a client that has sent `given` as the token, and returns the header that gives the
    /// client its cookie.
    pub(super) fn log_in(&self, request: &HttpRequest, given: &[u8]) -> Result<HeaderValue, Refused> {
        let Some(token) = &self.token else { return Err(no_token()) };
        if let Err(unproved) = self.check(request, token, given) {
            return Err(self.refuse(request, unproved));
        }
        let failed =
            || Box::new(refusal(StatusCode::INTERNAL_SERVER_ERROR, "the system has no random numbers"));
        let id = new_id().ok_or_else(failed)?;
        let cookie = HeaderValue::from_str(&self.cookie.set(&id)).map_err(|_| failed())?;
        self.sessions.lock().begin(id, Instant::now());
        Ok(cookie)
    }

    fn prove(&self, request: &HttpRequest) -> Result<Proof, Unproved> {
        let headers = request.headers();
        let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        if let (Some(token), Some(given)) = (&self.token, given) {
            return self.check(request, token, given).map(|()| Proof::Token);
        }
        let mut ids = self.cookie.ids(headers).peekable();
        if ids.peek().is_none() {
            return Err(Unproved::Refused(Reason::NoToken));
        }
        let (sessions, now) = (self.sessions.lock(), Instant::now());
        let end = ids.filter_map(|id| sessions.end_of(id, now)).max();
        end.map(Proof::Session).ok_or(Unproved::Refused(Reason::Session))
    }

    /// Compares what a client has sent with the token. The limit on attempts never stops a client that sends
    /// the right token of a join string: it cannot be guessed, and a stranger behind the same address must
    /// not lock out a client that knows it. A token that was given to the task may be short, so at the limit
    /// it is refused even if it is right: otherwise, a client that guesses on would learn which guess is
    /// right.
    fn check(&self, request: &HttpRequest, token: &Token, given: &[u8]) -> Result<(), Unproved> {
        let is_right = token.is(given);
        if is_right && token.is_derived() {
            return Ok(());
        }
        let (client, now, mut attempts) = (client_of(request), Instant::now(), self.attempts.lock());
        match attempts.wait(client, now) {
            Some(wait) => Err(Unproved::TooMany(wait)),
            None if is_right => Ok(()),
            None => {
                attempts.fail(client, now);
                Err(Unproved::Refused(Reason::WrongToken))
            }
        }
    }

    fn refuse(&self, request: &HttpRequest, unproved: Unproved) -> Refused {
        let (reason, mut answer, name, value) = match unproved {
            Unproved::Refused(reason) => (
                reason,
                refusal(StatusCode::UNAUTHORIZED, self.expected_token()),
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer"),
            ),
            Unproved::TooMany(wait) => (
                Reason::TooMany,
                refusal(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens: try again later"),
                header::RETRY_AFTER,
                HeaderValue::from(wait.as_secs() + 1),
            ),
        };
        self.record(request, reason);
        answer.headers_mut().insert(name, value);
        answer.into()
    }

    /// Returns the reason why a request without the right token is refused, with the place of that token.
    fn expected_token(&self) -> &'static str {
        if self.token.as_ref().is_some_and(Token::is_derived) {
            "the token is missing or wrong, expected 'Authorization: Bearer TOKEN' with the token of the job's join \
             string; `pushpull join token` prints it"
        } else {
            "the token is missing or wrong, expected 'Authorization: Bearer TOKEN' with the token that the task was \
             given by --http-token-file or PUSHPULL_HTTP_TOKEN"
        }
    }

    /// Counts a request of a client that may make it, if it was answered with a status that refuses it.
    pub(super) fn count(&self, request: &HttpRequest, status: StatusCode) {
        if let Some(reason) = Reason::of(status) {
            self.record(request, reason);
        }
    }

    /// Refuses a further request on a connection.
    pub(super) fn refuse_second(&self, request: &HttpRequest) -> HttpResponse {
        self.record(request, Reason::Second);
        let reason = "a connection is for one request: open another one, without pipelining";
        refusal(StatusCode::BAD_REQUEST, reason)
    }

    fn record(&self, request: &HttpRequest, reason: Reason) {
        self.refusals.record(client_of(request), reason, Instant::now());
    }
}

/// Returns the client at the other end of the connection. Headers such as `X-Forwarded-For` are ignored,
/// because a client can set them.
fn client_of(request: &HttpRequest) -> Client {
    Client::at(request.peer_addr())
}

fn no_token() -> Refused {
    let reason = format!(
        "requests to save or stop the job are disabled: start the chief with --http-token-file FILE or {TOKEN_ENV}, \
         and send the token"
    );
    refusal(StatusCode::FORBIDDEN, &reason).into()
}
