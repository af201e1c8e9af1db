//! An endpoint in memory, its clients, and what must hold after each connection.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use actix_http::error::DispatchError;
use actix_service::boxed::{self, BoxService};
use actix_service::{Service, ServiceFactory};
use actix_web::web;
use async_trait::async_trait;
use pushpull_chief::checkpoint::CheckpointConfig;
use pushpull_chief::{Chief, ChiefConfig};
use pushpull_identity::Authority;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{
    ActorSnapshot, Observed, PsSnapshot, RoleSnapshot, TaskSnapshot, TaskState,
};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::about::About;
use super::super::access::Access;
use super::super::connections::Connections;
use super::super::host::Hosts;
use super::super::protection::Protection;
use super::super::routes::Routes;
use super::super::sample::{chief_that, cluster};
use super::super::server::http;
use super::super::socket::ReachedAt;
use super::super::token::Token;
use super::super::views::Views;
use super::ENDED_WITHIN;
use super::replies::{Reply, contains};
use super::said::{Said, is_host};
use super::wire::Wire;
use crate::embedded::Observers;
use crate::programs::logging::{self, Log};
use crate::programs::settings::Settings;

/// What only a client reads that may.
const SECRET: &str = "what-the-endpoint-guards";
/// What a client sends, and what is nowhere shown but in the reason of a request that is acted on.
const CANARY: &str = "what-a-client-sends";
/// A token that was given to the task. No input has it but by its byte.
const GIVEN: &str = "Zq8(the)given~token";
const PORT: u16 = 9400;
/// The guesses that a client has, and the longest line of a log.
const GUESSES: u64 = 10;
const LINE_BYTES_MAX: usize = 2000;
/// The names of the endpoint's host, and its addresses.
const NAMES: [&str; 2] = ["w0.pushpull", "proxy.example"];
const ADDRESSES: [&str; 3] = ["10.0.0.7", "2001:db8::7", "10.0.0.9"];
/// The addresses of clients: the first two are of one client, and the other ones of another.
const CLIENTS: [&str; 4] = ["10.1.0.1", "::ffff:10.1.0.1", "2001:db8:1::1", "2001:db8:1::2:1"];
/// The largest number of bytes that a client sends.
const SENT_BYTES_MAX: usize = 1 << 17;

thread_local! {
    static JOINED: (Token, String) = {
        let authority = Authority::new().expect("random numbers");
        (Token::of(authority.join()), authority.join().http_token())
    };
}

/// A task that says the secret.
struct Task;

#[async_trait]
impl Observed for Task {
    async fn observe(&self) -> TaskSnapshot {
        let actor = ActorSnapshot { name: SECRET.into(), ..Default::default() };
        TaskSnapshot {
            task: TaskId::ps(0),
            incarnation: Incarnation(1),
            state: TaskState::Ready,
            actors: vec![actor],
            role: RoleSnapshot::Ps(Box::new(PsSnapshot { chief_connected: true, ..Default::default() })),
        }
    }
}

/// An endpoint, and what its clients have got so far.
pub(super) struct Tried {
    protection: Protection,
    token: Option<String>,
    /// True if the token is that of a join string.
    is_derived: bool,
    log: Log,
    routes: web::Data<Routes>,
    service: BoxService<(Wire, Option<SocketAddr>), (), DispatchError>,
    look: AbortHandle,
    _chief: Option<Chief>,
    /// The ids of the sessions that have begun.
    ids: Vec<String>,
    /// The wrong tokens that were looked at, of each client.
    wrong: [u64; 2],
    acted: usize,
}

impl Tried {
    /// Begins an endpoint with one of the protections, without or with a token, and with or without a chief.
    pub async fn new(kind: u8, tasks: u8) -> Self {
        use Protection::{Https, Loopback, Nothing, Token as Plain};
        let protection = [Loopback, Https, Plain, Nothing][usize::from(kind) % 4];
        let given = || (Token::read(None, Some(GIVEN)).ok().flatten().expect("a token"), GIVEN.to_owned());
        let token = match (kind >> 2) % 3 {
            0 if !protection.guards_reading() => None,
            1 => Some(JOINED.with(Clone::clone)),
            _ => Some(given()),
        };
        let (token, text) = token.unzip();
        let is_derived = token.as_ref().is_some_and(Token::is_derived);
        let hosts = match protection {
            Loopback => Hosts::of_loopback().with(NAMES),
            _ => Hosts::of_network().with(NAMES.into_iter().chain(ADDRESSES).take(4)),
        };
        let (log, views) = (logging::kept("ps/0"), Views::default());
        let chief = (tasks & 1 != 0).then(|| {
            let checkpoint = Some(CheckpointConfig::new("/nowhere"));
            chief_that(ChiefConfig { checkpoint, ..ChiefConfig::default() })
        });
        views.add(Arc::new(Task));
        chief.iter().for_each(|chief| views.lead(chief.view()));
        if tasks & 2 != 0 {
            Observers::fail(&views, TaskId::ps(1), SECRET.to_owned());
        }
        log.span().in_scope(|| tracing::info!("{SECRET}"));
        let about = About::new([TaskId::ps(0)], Some(&cluster()));
        let about = about.with(Settings { program: SECRET.to_owned(), flags: Vec::new() });
        let access = Access::new(protection, token, hosts, PORT, Connections::default());
        let address = format!("{}:{PORT}", NAMES[0]);
        let routes = Routes::new(views.clone(), access, about, log.clone(), address, false);
        let routes = web::Data::new(routes);
        let service = http(routes.clone(), Wire::tell).new_service(()).await.expect("a service");
        Self {
            protection,
            token: text,
            is_derived,
            log,
            routes,
            service: boxed::service(service),
            look: tokio::task::spawn_local(views.look()).abort_handle(),
            _chief: chief,
            ids: Vec::new(),
            wrong: [0; 2],
            acted: 0,
        }
    }

    /// Lets a client send these bytes on a new connection, and checks what it gets. Returns how far it came.
    pub async fn connect(&mut self, how: u8, sent: &[u8]) -> usize {
        let client = usize::from(how) % CLIENTS.len();
        let peer = CLIENTS[client].parse::<IpAddr>().expect("an address");
        let is_local = self.protection == Protection::Loopback;
        let reached = if is_local { "127.0.0.1" } else { ADDRESSES[2] }.parse().expect("an address");
        let (sent, got) = (self.expanded(sent), Rc::<RefCell<Vec<u8>>>::default());
        let wire = Wire {
            sent: sent.clone(),
            read: 0,
            piece: [usize::MAX, 64, 7, 1][usize::from(how >> 5) % 4],
            is_silent: how & 16 != 0,
            reached: ReachedAt(reached),
            got: Rc::clone(&got),
        };
        let wrong = self.refused("wrong_token");
        let span = self.log.span();
        let served = self.service.call((wire, Some((peer, 1).into())));
        let served = tracing::Instrument::instrument(timeout(ENDED_WITHIN, served), span).await;
        let wrong = self.refused("wrong_token") - wrong;
        self.wrong[client / 2] += wrong;
        assert!(wrong <= 1 && self.wrong[client / 2] <= GUESSES, "(F) a client guesses {:?}", self.wrong);
        let (said, got) = (Said::of(&sent), got.take());
        let replies = Reply::all(&got);
        // A client may keep a connection on which it has an answer, with endless chunks, until the end of its
        // life.
        let is_over = served.is_ok() || !replies.is_empty();
        assert!(is_over, "(F) a connection gets no answer and does not end: {:?}", said.target);
        let Some((reply, others)) = replies.split_first() else { return 0 };
        for other in others {
            let is_empty = other.body.is_empty() || contains(other.body, b"a connection is for one request");
            assert!(is_empty && other.status == 400, "(F) a further request gets {:?}", other.head);
            self.check_shown(other, false);
        }
        self.check_hosts(&said, reply);
        self.check_guarded(&said, reply, self.wrong[client / 2]);
        self.check_acted(&said, reply);
        let begun = self.check_session(&said, reply);
        self.check_shown(reply, begun);
        match reply.status {
            202 => 6,
            200 if self.protection.guards_reading() && self.has_session(&said) && !self.has_token(&said) => 5,
            _ if begun => 4,
            200..400 => 3,
            400 | 408 | 431 if reply.body.is_empty() => 1,
            _ => 2,
        }
    }

    /// Returns the number of requests that were refused for this reason.
    fn refused(&self, reason: &str) -> u64 {
        self.routes.access.refused().find(|(own, _)| *own == reason).expect("a reason").1
    }

    /// Puts in what only this endpoint knows, for bytes that are no text.
    fn expanded(&self, sent: &[u8]) -> Vec<u8> {
        let end = sent.windows(4).position(|end| end == b"\r\n\r\n").map_or(sent.len(), |at| at + 4);
        let (head, body) = sent.split_at(end);
        let body = self.expanded_part(body, 0);
        let mut all = self.expanded_part(head, body.len());
        all.extend(body);
        all.truncate(SENT_BYTES_MAX);
        all
    }

    fn expanded_part(&self, part: &[u8], length: usize) -> Vec<u8> {
        let (length, name) = (length.to_string(), self.cookie());
        let token = self.token.as_deref().unwrap_or("none");
        let mut all = Vec::with_capacity(2 * part.len());
        for byte in part {
            let known = match byte {
                0xf0 => token,
                0xf1 => self.ids.last().map_or("none", String::as_str),
                0xf2 => &name,
                0xf3 => &token[1..],
                0xf4 => CANARY,
                0xf5 => &length,
                0xf6 => self.scheme(),
                _ => {
                    all.push(*byte);
                    continue;
                }
            };
            all.extend_from_slice(known.as_bytes());
        }
        all
    }

    /// Returns the name of the cookie.
    fn cookie(&self) -> String {
        let prefix = if self.protection == Protection::Https { "__Host-" } else { "" };
        format!("{prefix}pushpull-{PORT}")
    }

    fn scheme(&self) -> &'static str {
        if self.protection == Protection::Https { "https" } else { "http" }
    }

    fn has_token(&self, said: &Said<'_>) -> bool {
        self.token.is_some() && said.bearers().any(|token| token == self.token.as_deref())
    }

    fn has_session(&self, said: &Said<'_>) -> bool {
        said.cookies(&self.cookie()).any(|id| self.ids.iter().any(|own| own == id))
    }

    fn names_this_host(&self, said: &Said<'_>) -> bool {
        let addresses = ADDRESSES.map(|address| address.parse().expect("an address"));
        let addresses = if self.protection == Protection::Loopback { &[][..] } else { &addresses };
        said.hosts().all(|host| is_host(host, &NAMES, addresses))
    }

    /// Checks (D).
    fn check_hosts(&self, said: &Said<'_>, reply: &Reply<'_>) {
        let is_refused = matches!(reply.status, 400 | 403 | 408 | 431);
        let is_empty = !contains(reply.body, SECRET.as_bytes()) && reply.header("set-cookie").is_none();
        let hosts = || said.hosts().collect::<Vec<_>>();
        assert!(
            self.names_this_host(said) || is_refused && is_empty,
            "(D) a request to {:?} gets {}",
            hosts(),
            reply.status
        );
    }

    /// Checks (B), and that the right token is accepted. `wrong` is the number of the client's guesses.
    fn check_guarded(&self, said: &Said<'_>, reply: &Reply<'_>, wrong: u64) {
        if !self.protection.guards_reading() {
            return;
        }
        let (head, status) = (reply.head, reply.status);
        if !self.has_token(said) && !self.has_session(said) {
            assert!(!contains(reply.body, SECRET.as_bytes()), "(B) {} is read: {head:?}", said.target);
            let is_known = match status {
                200 => [&b""[..], b"ok\n", include_bytes!("../login/login.css")].contains(&reply.body),
                503 => [&b""[..], b"no; send the token to see why\n"].contains(&reply.body),
                _ => matches!(status, 204 | 303 | 400 | 401 | 403 | 405 | 408 | 429 | 431),
            };
            assert!(is_known, "(B) {} without a token: {head:?}", said.target);
            return;
        }
        // The form takes no token from a header.
        let is_right = said.bearers().next() == Some(self.token.as_deref());
        if is_right && !said.target.contains("login") {
            assert!(status != 401, "(B) the right token is refused: {head:?}");
            let may_wait = !self.is_derived && wrong == GUESSES;
            assert!(status != 429 || may_wait, "(F) the right token has to wait: {head:?}");
        }
    }

    /// Checks (C).
    fn check_acted(&mut self, said: &Said<'_>, reply: &Reply<'_>) {
        if reply.status != 202 {
            return;
        }
        self.acted += 1;
        let of_page = !said.is_foreign(self.scheme()) && !said.is_of_no_page();
        assert!(
            said.method == "POST" && (self.has_token(said) || self.has_session(said) && of_page),
            "(C) {} {} is acted on",
            said.method,
            said.target
        );
    }

    /// Checks that a session begins only with the token, and that its cookie is for this endpoint only.
    /// Returns whether one has begun.
    fn check_session(&mut self, said: &Said<'_>, reply: &Reply<'_>) -> bool {
        let Some(cookie) = reply.header("set-cookie") else { return false };
        let has_token = self.token.as_deref().is_some_and(|token| said.has(token));
        assert!(reply.status == 303 && said.method == "POST" && has_token, "(B) a session without a token");
        assert!(!said.is_foreign(self.scheme()), "(C) a page of another site begins a session");
        let secure = if self.protection == Protection::Https { "; Secure" } else { "" };
        let rest = format!("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200{secure}");
        let id = cookie.strip_prefix(&format!("{}=", self.cookie())).and_then(|id| id.strip_suffix(&rest));
        let id = id.expect("a cookie for this endpoint only");
        assert!(id.len() == 64 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "an id has 64 digits");
        assert!(!self.ids.iter().any(|own| own == id), "each session has an id of its own");
        self.ids.push(id.to_owned());
        true
    }

    /// Checks (E) for an answer.
    fn check_shown(&self, reply: &Reply<'_>, begun: bool) {
        let others = self.ids.len() - usize::from(begun);
        let secrets = self.token.iter().chain(&self.ids[..others]).map(String::as_str);
        for told in secrets.chain([CANARY]) {
            assert!(!reply.head.contains(told), "(E) a header has what a client sends: {:?}", reply.head);
            // The log has the reason of a request that is acted on.
            let is_echo = self.acted == 0 && contains(reply.body, told.as_bytes());
            assert!(!is_echo, "(E) an answer has what a client sends: {:?}", reply.head);
        }
    }

    /// Checks (E) and (F) for the log.
    pub fn check_log(&self) {
        let lines = self.log.recent.lines();
        // The secret, a line about each client, and one about each request that is acted on.
        assert!(lines.len() <= 1 + self.wrong.len() + self.acted, "(F) {} lines", lines.len());
        for line in lines {
            let text = line.text;
            assert!(text.len() <= LINE_BYTES_MAX, "(F) a line of {} bytes", text.len());
            assert!(!text.chars().any(char::is_control), "(E) a line with control characters: {text:?}");
            // The reason of a request that is acted on is what the client says, even if that is its token.
            if text.starts_with("received a request over HTTP: ") {
                continue;
            }
            for secret in self.token.iter().chain(&self.ids) {
                assert!(!text.contains(secret.as_str()), "a secret is logged");
            }
            assert!(!text.contains(CANARY), "(E) a line: {text:?}");
        }
    }
}

impl Drop for Tried {
    fn drop(&mut self) {
        self.look.abort();
    }
}
