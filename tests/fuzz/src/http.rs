//! The target `http`: clients that send any bytes to the HTTP endpoint of a task. Its body is in `pushpull`,
//! because it uses what no other crate sees.

use pushpull::fuzz::{HEAD, NEXT};

use crate::limits::Limits;
use crate::target::{Class, Target};

pub(crate) const TARGET: Target = Target {
    name: "http",
    class: Class::File,
    about: &[
        "src/programs/http/access.rs",
        "src/programs/http/answers.rs",
        "src/programs/http/attempts.rs",
        "src/programs/http/body.rs",
        "src/programs/http/control.rs",
        "src/programs/http/cookie.rs",
        "src/programs/http/host.rs",
        "src/programs/http/login",
        "src/programs/http/origin.rs",
        "src/programs/http/refusals.rs",
        "src/programs/http/routes.rs",
        "src/programs/http/sessions.rs",
        "src/programs/http/token.rs",
    ],
    check: pushpull::fuzz::check,
    stages: &pushpull::fuzz::STAGES,
    seeds,
    content: |_| HEAD,
    words: WORDS,
    limits: Limits { allocated_bytes: 256 << 20, ..Limits::usual() },
    ..Target::USUAL
};

/// The bytes above 0xef stand for what only the endpoint knows: the token, the id of the last session, the
/// name of the cookie, a wrong token, a word that must not come back, the length of the body, the scheme.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\xff\x00",
    b"\xff\x10",
    b"\xff\x0c",
    b"\xff\x2d",
    b"\xff\x42",
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"CONNECT ",
    b"/",
    b"/job",
    b"/login",
    b"/save",
    b"/stop",
    b"/healthz",
    b"/events",
    b"/config",
    b"/log",
    b"http://evil.example",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"Host: localhost\r\n",
    b"Host: evil.example\r\n",
    b"Host: [::1]:80\r\n",
    b"Host: 10.0.0.9\r\n",
    b"Host: w0.pushpull.\r\n",
    b"Authorization: Bearer \xf0\r\n",
    b"Authorization: Bearer \xf3\r\n",
    b"Cookie: \xf2=\xf1\r\n",
    b"Cookie: a=b; \xf2=\xf1\r\n",
    b"Sec-Fetch-Site: same-origin\r\n",
    b"Sec-Fetch-Site: cross-site\r\n",
    b"Origin: \xf6://localhost\r\n",
    b"Origin: null\r\n",
    b"Accept: text/html\r\n",
    b"Content-Type: application/x-www-form-urlencoded\r\n",
    b"Content-Length: \xf5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"token=\xf0",
    b"token=\xf3",
    b"%0d%0a",
    b"%00",
    b"\x1b[31m",
    b"\xf4",
    b"\xf0",
    b"\xf1",
];

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {f5}\r\n";

const TOKEN: &str = "Authorization: Bearer {f0}\r\n";
const GUESS: &str = "Authorization: Bearer {f3}\r\n";
const COOKIE: &str = "Cookie: theme=dark; {f2}={f1}\r\n";
const OWN: &str = "Sec-Fetch-Site: same-origin\r\n";
const PAGE: &str = "Accept: text/html,application/xml;q=0.9\r\n";

/// A connection: how it is made, and what the client sends.
type Sent = (u8, Vec<u8>);

fn seeds() -> Vec<(String, Vec<u8>)> {
    let named = |(name, kind, sent): (&str, _, Vec<Sent>)| (name.to_owned(), input(kind, &sent));
    reading().into_iter().chain(entering()).chain(odd()).map(named).collect()
}

fn get(path: &str, more: &str) -> Vec<u8> {
    request("GET", path, more, "")
}

fn post(path: &str, more: &[&str]) -> Vec<u8> {
    request("POST", path, &format!("{}Content-Length: {{f5}}\r\n", more.concat()), "because {f4}")
}

fn log_in(more: &str) -> Vec<u8> {
    request("POST", "/login", &format!("{more}{FORM}"), "token={f0}")
}

/// Returns inputs with clients that read. The first byte is 0 for an endpoint on loopback, 1 with HTTPS, 2
/// with a token and 3 without protection, and 4 more if the token is that of a join string.
fn reading() -> Vec<(&'static str, [u8; HEAD], Vec<Sent>)> {
    let get_all = |paths: [&str; 4]| paths.map(|path| (0, get(path, ""))).into();
    vec![
        ("open", [0, 3], vec![(0, get("/job", "")), (0, get("/config?x=1", "")), (0, get("/", PAGE))]),
        ("paths", [3, 1], get_all(["/metrics", "/actors", "/tasks", "/log"])),
        ("page", [0, 1], get_all(["/page.js", "/curves", "/placement", "/targets"])),
        (
            "probes",
            [2, 2],
            vec![(0, get("/healthz", "")), (0, get("/readyz", TOKEN)), (0, get("/login.css", ""))],
        ),
        (
            "guesses",
            [10, 0],
            vec![(0x0c, get("/tasks", GUESS)), (1, get("/tasks", TOKEN)), (2, get("/tasks", TOKEN))],
        ),
        (
            "derived",
            [6, 0],
            vec![(0x0d, get("/tasks", GUESS)), (0, get("/tasks", TOKEN)), (0, get("/healthz", GUESS))],
        ),
        ("events", [5, 1], vec![(0, get("/events", TOKEN)), (0x10, get("/events", ""))]),
    ]
}

/// Returns inputs with clients that enter the token, and that save and stop the job.
fn entering() -> Vec<(&'static str, [u8; HEAD], Vec<Sent>)> {
    let origin = "Origin: {f6}://localhost\r\n";
    vec![
        (
            "token",
            [5, 1],
            vec![(0, get("/job", TOKEN)), (0x40, post("/stop", &[TOKEN])), (0, get("/log", TOKEN))],
        ),
        (
            "session",
            [9, 1],
            vec![
                (0, get("/", PAGE)),
                (0, log_in("")),
                (0, get("/job", COOKIE)),
                (0, post("/save", &[COOKIE, OWN])),
            ],
        ),
        (
            "cross-site",
            [8, 1],
            vec![(0, log_in(OWN)), (1, post("/stop", &[COOKIE, origin])), (1, post("/save", &[COOKIE]))],
        ),
        (
            "foreign-form",
            [2, 1],
            vec![
                (0, log_in("Sec-Fetch-Site: cross-site\r\n")),
                (0, log_in("Origin: null\r\n")),
                (0, log_in("")),
            ],
        ),
    ]
}

/// Returns inputs with clients that are slow, or ask in other ways.
fn odd() -> Vec<(&'static str, [u8; HEAD], Vec<Sent>)> {
    let chunked = format!("{TOKEN}Transfer-Encoding: chunked\r\n");
    let line = |text: &str| (0, format!("{text}\r\n\r\n").into_bytes());
    let hosts = ["evil.example", "W0.PushPull.:9400", "[2001:db8::7]:80", "10.0.0.9"];
    vec![
        (
            "silent",
            [9, 1],
            vec![(0x10, get("/job", TOKEN)), (0x10, b"GET / HT".to_vec()), (0x10, log_in("")[..80].to_vec())],
        ),
        (
            "slow-body",
            [9, 1],
            vec![
                (0x10, request("POST", "/stop", &format!("{TOKEN}Content-Length: 99\r\n"), "because")),
                (0x10, request("POST", "/login", &FORM.replace("{f5}", "99"), "token={f0}")),
            ],
        ),
        ("chunks", [9, 1], vec![(0x60, request("POST", "/stop", &chunked, "3\r\nend\r\n0\r\n\r\n"))]),
        ("pipelined", [9, 1], vec![(0, [get("/job", TOKEN), post("/stop", &[TOKEN])].concat())]),
        ("hosts", [3, 1], hosts.map(|host| line(&format!("GET /job HTTP/1.1\r\nHost: {host}"))).into()),
        (
            "targets",
            [0, 1],
            vec![
                line("GET http://evil.example/job HTTP/1.1\r\nExpect: 100-continue"),
                line("GET http://u@localhost:1/job HTTP/1.0"),
                line("OPTIONS * HTTP/1.1\r\nHost: localhost"),
            ],
        ),
    ]
}

/// Writes a request. `{f0}` stands for the byte 0xf0.
fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}");
    let mut bytes = Vec::new();
    let mut parts = text.split('{');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let (code, rest) = part.split_once('}').expect("a code has an end");
        bytes.push(u8::from_str_radix(code, 16).expect("a code is a byte"));
        bytes.extend(rest.bytes());
    }
    bytes
}

fn input(kind: [u8; HEAD], connections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let connections: Vec<_> = connections.iter().map(|(how, sent)| [&[*how], &sent[..]].concat()).collect();
    [&kind[..], &connections.join(&NEXT)].concat()
}
