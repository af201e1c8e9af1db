//! Tests of the endpoint from the point of view of its clients, including hostile clients.

mod access;
mod https;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pushpull_chief::checkpoint::CheckpointConfig;
use pushpull_chief::{Chief, ChiefConfig};
use pushpull_messages::cluster::{ClusterConfig, ClusterSpec};
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::observe::{
    ActorSnapshot, Observed, PsSnapshot, RoleSnapshot, TaskSnapshot, TaskState, TimeHistogram, WorkerSnapshot,
};
use tokio_util::sync::CancellationToken;

use super::connections::LIFE;
use super::events::{CLIENTS_MAX, Events, Source};
use super::rendered::JobText;
use super::sample::{chief_that, cluster};
use super::{About, Endpoint, EndpointConfig, Token};
use crate::programs::exposure::Exposure;
use crate::programs::logging::Log;

/// A task that counts the requests for its snapshot.
struct Task {
    state: TaskState,
    actor: &'static str,
    busy_us: Option<u64>,
    asked: AtomicU64,
    /// True if the task never answers a request for its snapshot.
    stuck: bool,
}

impl Task {
    fn new(state: TaskState) -> Arc<Self> {
        Arc::new(Self {
            state,
            actor: "worker/1/trainer",
            busy_us: None,
            asked: AtomicU64::new(0),
            stuck: false,
        })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Observed for Task {
    async fn observe(&self) -> TaskSnapshot {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.stuck {
            std::future::pending::<()>().await;
        }
        let mut handling = TimeHistogram::default();
        handling.record(Duration::from_millis(2));
        let actor = ActorSnapshot {
            name: self.actor.into(),
            state: "trains".into(),
            handling,
            busy_us: self.busy_us,
            ..Default::default()
        };
        TaskSnapshot {
            task: TaskId::worker(1),
            incarnation: Incarnation(7),
            state: self.state,
            actors: vec![actor],
            role: RoleSnapshot::Worker(Box::new(WorkerSnapshot {
                loss: Some(f32::NAN),
                ..Default::default()
            })),
        }
    }
}

/// A ps task whose connection to the chief can be lost and restored.
struct PsTask {
    has_chief: AtomicBool,
}

#[async_trait]
impl Observed for PsTask {
    async fn observe(&self) -> TaskSnapshot {
        let chief_connected = self.has_chief.load(Ordering::Relaxed);
        TaskSnapshot {
            task: TaskId::ps(0),
            incarnation: Incarnation(7),
            state: TaskState::Ready,
            actors: Vec::new(),
            role: RoleSnapshot::Ps(Box::new(PsSnapshot { chief_connected, ..Default::default() })),
        }
    }
}

fn endpoint_with(token: Option<&str>) -> Endpoint {
    let token = Token::read(None, token).unwrap();
    let config = EndpointConfig { address: Some("127.0.0.1:0".into()), token, ..Default::default() };
    Endpoint::bind(&config, About::default()).unwrap()
}

fn endpoint() -> Endpoint {
    endpoint_with(None)
}

fn chief() -> Chief {
    chief_that(ChiefConfig::default())
}

/// Returns the address of an endpoint on loopback. An endpoint at all addresses is reached there, too.
fn address(endpoint: &Endpoint) -> String {
    let advertised = endpoint.advertised().unwrap();
    let (_, port) = advertised.rsplit_once(':').unwrap();
    format!("127.0.0.1:{port}")
}

fn connect(endpoint: &Endpoint) -> TcpStream {
    let stream = TcpStream::connect(address(endpoint)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status =
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Sends `bytes` on a new connection, and returns the complete answer.
fn send(endpoint: &Endpoint, bytes: &[u8]) -> Answer {
    let mut stream = connect(endpoint);
    stream.write_all(bytes).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    Answer::read(text)
}

fn ask(endpoint: &Endpoint, method: &str, path: &str, more: &str) -> Answer {
    send(
        endpoint,
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n").as_bytes(),
    )
}

fn get(endpoint: &Endpoint, path: &str) -> Answer {
    ask(endpoint, "GET", path, "")
}

/// The wrong tokens that a client has sent: how many were looked at, and how many were refused unseen.
#[derive(Clone, Copy, Debug, Default)]
struct Guesses {
    looked_at: u64,
    unseen: u64,
}

/// Sends wrong tokens until the client has to wait for seconds. How many that takes depends on the time that
/// they take, because more of them are looked at as time passes.
fn guess_to_the_limit(guess: impl Fn() -> Answer) -> Guesses {
    let (mut guesses, deadline) = (Guesses::default(), Instant::now() + Duration::from_secs(60));
    loop {
        assert!(Instant::now() < deadline, "guesses are not limited: {guesses:?}");
        let answer = guess();
        match answer.status {
            401 => guesses.looked_at += 1,
            429 => {
                guesses.unseen += 1;
                let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=6).contains(&seconds), "{seconds}");
                if seconds > 3 {
                    return guesses;
                }
            }
            status => panic!("{status}: {}", answer.body),
        }
    }
}

#[test]
fn every_route_has_its_kind_and_its_policy() {
    let (endpoint, chief) = (endpoint(), chief());
    endpoint.observers().add(Task::new(TaskState::Ready));
    let of_any = [
        ("/metrics", "text/plain; version=0.0.4"),
        ("/actors", "application/json"),
        ("/tasks", "application/json"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/readyz", "text/plain; charset=utf-8"),
        ("/config", "application/json"),
        ("/log", "application/json"),
    ];
    let of_chief = [
        ("/job", "application/json"),
        ("/curves", "application/json"),
        ("/placement", "application/json"),
        ("/targets", "application/json"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
    ];
    let index = get(&endpoint, "/");
    assert!(index.status == 200 && index.body.contains("/metrics"), "{}", index.body);
    for (path, kind) in of_any {
        let answer = get(&endpoint, path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let head = ask(&endpoint, "HEAD", path, "");
        assert_eq!((head.status, &*head.body), (200, ""), "{path}");
        let wrong = ask(&endpoint, "POST", path, "Content-Length: 0\r\n");
        assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET")), "{path}");
    }
    for (path, _) in of_chief {
        assert_eq!(get(&endpoint, path).status, 404, "{path} is of a chief");
    }
    endpoint.observers().lead(chief.view());
    assert_eq!(get(&endpoint, "/").header("content-type"), Some("text/html; charset=utf-8"));
    for (path, kind) in of_chief {
        let answer = get(&endpoint, path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(ask(&endpoint, "PUT", path, "Content-Length: 0\r\n").status, 405, "{path}");
    }
    let none = get(&endpoint, "/none");
    assert_eq!((none.status, none.header("content-type")), (404, Some("application/json")));
    assert!(none.json()["error"].is_string());
    assert_eq!(ask(&endpoint, "BREW", "/metrics", "").status, 405);
    for method in ["PUT", "DELETE", "PATCH"] {
        let wrong = ask(&endpoint, method, "/login", "Content-Length: 0\r\n");
        assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, POST")), "{method}");
    }
}

#[test]
fn requests_that_nothing_answers_are_counted() {
    let (endpoint, chief) = (endpoint_with(Some("s3cret")), chief());
    endpoint.observers().lead(chief.view());
    for path in ["/none", "/../etc/passwd", "//etc/passwd"] {
        assert_eq!(get(&endpoint, path).status, 404, "{path}");
    }
    assert_eq!(ask(&endpoint, "PUT", "/job", "Content-Length: 0\r\n").status, 405);
    let right = "Authorization: Bearer s3cret\r\n";
    let long = format!("{right}Content-Length: 5000\r\n\r\n{}", "x".repeat(5000));
    assert_eq!(ask(&endpoint, "POST", "/stop", &long).status, 413);
    assert_eq!(ask(&endpoint, "POST", "/login", "Content-Length: 0\r\n").status, 400);
    let metrics = get(&endpoint, "/metrics").body;
    for (reason, count) in [("path", 3), ("method", 1), ("body", 2)] {
        let expected = format!("\npushpull_http_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&expected), "{expected}{metrics}");
    }
}

/// A client may send several requests before it reads the first answer, which ends the connection.
#[test]
fn a_connection_is_for_one_request() {
    let (endpoint, chief) = (endpoint_with(Some("s3cret")), chief());
    endpoint.observers().lead(chief.view());
    let save =
        "POST /stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\nContent-Length: 0\r\n\r\n";
    let mut stream = connect(&endpoint);
    stream.write_all(format!("GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n{save}").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let statuses: Vec<_> = text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "400"], "{text}");
    assert!(text.contains("a connection is for one request"), "{text}");
    let metrics = get(&endpoint, "/metrics").body;
    assert!(metrics.contains("pushpull_http_refused_total{reason=\"second\"} 1\n"), "{metrics}");
}

#[test]
fn routes_show_the_snapshots() {
    let endpoint = endpoint();
    assert_eq!(get(&endpoint, "/readyz").status, 503, "there is no task yet");
    assert_eq!(get(&endpoint, "/healthz").status, 200);
    drop(endpoint);
    let endpoint = self::endpoint();
    endpoint.observers().add(Task::new(TaskState::Ready));
    let metrics = get(&endpoint, "/metrics");
    let expected = "pushpull_task_state{job=\"worker\",task=\"1\",state=\"ready\"} 1\n";
    assert!(metrics.body.contains(expected), "{}", metrics.body);
    let actors = get(&endpoint, "/actors").json();
    assert_eq!((&actors[0]["name"], &actors[0]["handled"]), (&"worker/1/trainer".into(), &1.into()));
    assert!(actors[0]["handling_p99_ms"].as_f64().unwrap() > 1.0);
    let tasks = get(&endpoint, "/tasks").json();
    assert_eq!(tasks[0]["task"]["index"], 1);
    assert!(tasks[0]["role"]["worker"]["loss"].is_null(), "JSON has no NaN");
    assert_eq!(get(&endpoint, "/readyz").body, "ready\n");
    for state in [TaskState::Starting, TaskState::Stopping, TaskState::Ended] {
        let endpoint = self::endpoint();
        endpoint.observers().add(Task::new(state));
        let answer = get(&endpoint, "/readyz");
        assert_eq!((answer.status, answer.body), (503, format!("worker/1 is {}\n", state.as_str())));
        assert_eq!(get(&endpoint, "/healthz").status, 200);
    }
}

#[test]
fn a_ps_without_its_chief_is_not_ready() {
    let (endpoint, task) = (endpoint(), Arc::new(PsTask { has_chief: AtomicBool::new(true) }));
    endpoint.observers().add(task.clone());
    let wait_for = |expected: (u16, &str)| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = get(&endpoint, "/readyz");
            if (answer.status, &*answer.body) == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{}: {}", answer.status, answer.body);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for((200, "ready\n"));
    task.has_chief.store(false, Ordering::Relaxed);
    wait_for((503, "ps/0 has lost its connection to the chief\n"));
    task.has_chief.store(true, Ordering::Relaxed);
    wait_for((200, "ready\n"));
}

#[test]
fn a_stuck_or_failed_task_is_named() {
    let endpoint = endpoint();
    let busy = |actor, seconds: u64| {
        let mut task = Task::new(TaskState::Ready);
        let own = Arc::get_mut(&mut task).unwrap();
        (own.actor, own.busy_us) = (actor, Some(seconds * 1_000_000));
        task
    };
    endpoint.observers().add(busy("ps/0/shard/1", 59));
    // These actors may wait for other tasks or for a disk.
    for patient in ["worker/1/trainer", "worker/1/device/0", "worker/1/input", "ps/0/checkpoints"] {
        endpoint.observers().add(busy(patient, 3600));
    }
    assert_eq!(get(&endpoint, "/healthz").body, "ok\n");
    endpoint.fail(TaskId::ps(3), "its disk is full");
    let answer = get(&endpoint, "/healthz");
    assert_eq!((answer.status, &*answer.body), (503, "ps/3 ended with an error: its disk is full\n"));
    drop(endpoint);
    for prompt in ["ps/0/shard/1", "chief/0/desk"] {
        let endpoint = self::endpoint();
        endpoint.observers().add(busy(prompt, 61));
        let answer = get(&endpoint, "/healthz");
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body, format!("{prompt} has been handling one message for 61 s\n"));
    }
}

#[test]
fn a_silent_task_delays_no_answer() {
    let endpoint = endpoint();
    let mut stuck = Task::new(TaskState::Ready);
    Arc::get_mut(&mut stuck).unwrap().stuck = true;
    endpoint.observers().add(stuck);
    endpoint.observers().add(Task::new(TaskState::Ready));
    let began = Instant::now();
    let tasks = get(&endpoint, "/tasks").json();
    assert_eq!(tasks.as_array().map(Vec::len), Some(1), "the other one is told all the same");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(get(&endpoint, "/readyz").body.contains("not every task"));
}

#[test]
fn tasks_are_asked_once_for_all_clients() {
    let (endpoint, task) = (endpoint(), Task::new(TaskState::Ready));
    endpoint.observers().add(task.clone());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..25).for_each(|_| assert_eq!(get(&endpoint, "/metrics").status, 200)));
        }
    });
    let looks = began.elapsed().as_millis() as u64 / 250 + 1;
    assert!((1..=looks).contains(&task.asked()), "{} times in {:?}", task.asked(), began.elapsed());
}

#[test]
fn only_clients_with_the_token_may_save_or_stop() {
    let unarmed = endpoint();
    let first = chief();
    unarmed.observers().lead(first.view());
    let answer = ask(&unarmed, "POST", "/save", "Authorization: Bearer x\r\nContent-Length: 0\r\n");
    assert_eq!(answer.status, 403);
    assert!(answer.json()["error"].as_str().unwrap().contains("--http-token-file"), "{}", answer.body);
    assert_eq!(get(&unarmed, "/job").json()["accepts_wishes"], false);

    let endpoint = endpoint_with(Some("s3cret"));
    let chief = chief_that(ChiefConfig {
        checkpoint: Some(CheckpointConfig::new("/nowhere")),
        ..ChiefConfig::default()
    });
    endpoint.observers().lead(chief.view());
    assert_eq!(get(&endpoint, "/job").json()["accepts_wishes"], true);
    assert!(!get(&endpoint, "/config").body.contains("s3cret"));
    for path in ["/save", "/stop"] {
        for wrong in ["", "Authorization: Bearer wrong\r\n", "Authorization: s3cret\r\n"] {
            let answer = ask(&endpoint, "POST", path, &format!("{wrong}Content-Length: 0\r\n"));
            assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{wrong}");
        }
        let answer = ask(&endpoint, "GET", path, "Authorization: Bearer s3cret\r\n");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    }
    let right = "Authorization: Bearer s3cret\r\n";
    assert_eq!(ask(&endpoint, "POST", "/save", &format!("{right}Content-Length: 0\r\n")).status, 202);
    let reason = ask(&endpoint, "POST", "/stop", &format!("{right}Content-Length: 6\r\n\r\nenough"));
    assert_eq!(reason.status, 202);
    let long = format!("{right}Content-Length: 5000\r\n\r\n{}", "x".repeat(5000));
    assert_eq!(ask(&endpoint, "POST", "/stop", &long).status, 413);
    drop(chief);
    assert_eq!(ask(&endpoint, "POST", "/save", &format!("{right}Content-Length: 0\r\n")).status, 409);

    let (endpoint, forgetful) = (endpoint_with(Some("s3cret")), self::chief());
    endpoint.observers().lead(forgetful.view());
    let answer = ask(&endpoint, "POST", "/save", &format!("{right}Content-Length: 0\r\n"));
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains("--checkpoint-dir"), "{}", answer.body);
    assert_eq!(ask(&endpoint, "POST", "/stop", &format!("{right}Content-Length: 0\r\n")).status, 202);
}

#[test]
fn a_page_from_elsewhere_cannot_read_what_is_on_loopback() {
    let endpoint = endpoint();
    for (host, status) in [
        ("Host: localhost:80\r\n", 200),
        ("Host: 127.0.0.1\r\n", 200),
        ("Host: [::1]:7\r\n", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: 127.0.0.1.evil.example\r\n", 403),
        ("Host: localhost\r\nHost: evil.example\r\n", 403),
        ("Host: \r\n", 403),
    ] {
        let answer =
            send(&endpoint, format!("GET /healthz HTTP/1.1\r\n{host}Connection: close\r\n\r\n").as_bytes());
        // actix may refuse two of these hosts itself, with the status 400.
        assert!(answer.status == status || status == 403 && answer.status == 400, "{host}: {}", answer.head);
    }
    let absolute =
        b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(send(&endpoint, absolute).status, 403);
}

#[test]
fn an_open_endpoint_is_advertised_by_a_name() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let everywhere =
            EndpointConfig { address: Some(address.into()), insecure: true, ..Default::default() };
        let told = Endpoint::bind(&everywhere, About::default()).unwrap().advertised().unwrap();
        let (host, port) = told.rsplit_once(':').unwrap();
        assert!(!["", "0.0.0.0", "[::]"].contains(&host) && port != "0", "{told}");
    }
}

#[test]
fn a_reason_has_a_time_limit() {
    let (endpoint, chief) = (endpoint_with(Some("s3cret")), chief());
    endpoint.observers().lead(chief.view());
    let bodies = ["Content-Length: 9\r\n\r\nenough", "Transfer-Encoding: chunked\r\n\r\nff\r\nenough"];
    let asked = bodies.map(|body| {
        let head = "POST /stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n";
        let mut stream = connect(&endpoint);
        stream.set_read_timeout(Some(LIFE * 3)).unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    });
    for mut stream in asked {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 408");
    }
}

#[test]
fn loopback_is_not_advertised_elsewhere() {
    let local = EndpointConfig { address: Some("127.0.0.1:0".into()), ..Default::default() };
    let of = |host: &str| {
        let one = |port| vec![format!("{host}:{port}")];
        let cluster = [(JobName::Chief, one(1)), (JobName::Ps, one(2)), (JobName::Worker, one(3))];
        let config =
            ClusterConfig::new(ClusterSpec::new(cluster).unwrap(), JobName::Worker, Some(0)).unwrap();
        Endpoint::bind(&local, About::task(&config)).unwrap().advertised()
    };
    assert_eq!(of("w0.example"), None);
    assert_eq!(of("10.0.0.7"), None);
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let told = of(host).unwrap_or_else(|| panic!("the tasks at {host} are all on this machine"));
        assert!(told.starts_with("127.0.0.1:"), "{told}");
    }
    assert!(endpoint().advertised().is_some(), "a task without a cluster");
}

#[test]
fn an_address_in_use_is_one_line() {
    let taken = endpoint();
    for address in [taken.advertised().unwrap(), "host.invalid:0".into()] {
        let config = EndpointConfig { address: Some(address.clone()), ..Default::default() };
        let Err(error) = Endpoint::bind(&config, About::default()) else { panic!("{address} was free") };
        let line = format!("{error:#}");
        assert!(line.contains(&address) && line.contains("--http-addr") && !line.contains('\n'), "{line}");
    }
}

/// Requests `/events`, and reads the head of the answer. Returns the status, and a reader for the events
/// that follow.
fn listen(endpoint: &Endpoint) -> (u16, BufReader<TcpStream>) {
    let mut stream = connect(endpoint);
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let (mut status, mut line) = (0, String::new());
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest[..3].parse().unwrap();
        }
    }
    (status, reader)
}

/// Reads events until one has the name `event`, or until the answer ends. Returns the names of all events
/// that it has read.
fn until(reader: &mut BufReader<TcpStream>, event: Option<&str>) -> Vec<String> {
    let mut events = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 0 {
        if let Some(name) = line.strip_prefix("event: ") {
            events.push(name.trim().to_owned());
            if events.last().map(String::as_str) == event {
                break;
            }
        }
        line.clear();
    }
    events
}

#[test]
fn events_follow_the_job_to_its_end() {
    let (endpoint, chief) = (endpoint(), chief());
    endpoint.observers().lead(chief.view());
    let (status, mut reader) = listen(&endpoint);
    assert_eq!(status, 200);
    assert_eq!(until(&mut reader, Some("job")).last().map(String::as_str), Some("job"), "at once");
    assert_eq!(until(&mut reader, Some("job")).last().map(String::as_str), Some("job"), "and after a while");
    drop(chief);
    let events = until(&mut reader, None);
    assert_eq!(events.last().map(String::as_str), Some("end"), "{events:?}");
    let (_, mut late) = listen(&endpoint);
    let events = until(&mut late, None);
    assert!(
        events.contains(&"job".to_owned()) && events.last().map(String::as_str) == Some("end"),
        "{events:?}"
    );
}

#[tokio::test]
async fn events_end_with_the_session_of_their_client() {
    let (events, chief, life) = (Events::default(), chief(), Duration::from_millis(600));
    let source = Source {
        chief: chief.view(),
        job: Arc::new(JobText::new(true, Exposure::default())),
        log: Log::default().recent,
    };
    let request = actix_web::test::TestRequest::default().to_http_request();
    let began = tokio::time::Instant::now();
    let answer = events.answer(&request, source, Some(began + life));
    let bytes = actix_web::body::to_bytes(answer.into_body()).await.unwrap();
    assert!(began.elapsed() >= life, "{:?}", began.elapsed());
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains("event: job\n"), "{text}");
    assert!(!text.contains("event: end"), "the job goes on: {text}");
}

#[test]
fn the_clients_of_events_are_bounded() {
    let (endpoint, chief) = (endpoint(), chief());
    endpoint.observers().lead(chief.view());
    let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| listen(&endpoint)).collect();
    assert!(clients.iter().all(|(status, _)| *status == 200));
    assert_eq!(listen(&endpoint).0, 503);
    drop(clients);
    // The server notices that a client is gone when it sends the next event.
    let deadline = Instant::now() + Duration::from_secs(20);
    while listen(&endpoint).0 != 200 {
        assert!(Instant::now() < deadline, "those who are gone still count");
    }
}

#[test]
fn hostile_clients_delay_nothing() {
    let (endpoint, task, chief) = (endpoint(), Task::new(TaskState::Ready), chief());
    endpoint.observers().add(task.clone());
    endpoint.observers().lead(chief.view());
    let began = Instant::now();
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(connect(&endpoint));
    }
    for half in [
        &b"GET /metrics HT"[..],
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: a",
        b"POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx",
        b"POST /stop HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    ] {
        let mut stream = connect(&endpoint);
        stream.write_all(half).unwrap();
        held.push(stream);
    }
    // These clients send a request and never read the answer.
    for path in ["/metrics", "/events"] {
        let mut stream = connect(&endpoint);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for _ in 0..200 {
            if stream.write_all(request.as_bytes()).is_err() {
                break;
            }
        }
        held.push(stream);
    }
    let huge = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10_000));
    for bytes in [huge.as_bytes(), many.as_bytes(), &[0xff; 4096], b"\r\n\r\n\r\n\0\0\0\0 / HTTP/9.9\r\n\r\n"]
    {
        let mut stream = connect(&endpoint);
        // The server may close the connection before all bytes are written.
        let _ = stream.write_all(bytes);
        held.push(stream);
    }
    for _ in 0..5 {
        let asked = Instant::now();
        let answer = get(&endpoint, "/healthz");
        assert_eq!((answer.status, &*answer.body), (200, "ok\n"));
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    let looks = began.elapsed().as_millis() as u64 / 250 + 1;
    assert!(task.asked() <= looks, "{} times in {:?}", task.asked(), began.elapsed());
    // A client that sends nothing gets the status 408.
    let mut idle = held.swap_remove(0);
    let mut said = Vec::new();
    idle.read_to_end(&mut said).unwrap();
    assert!(String::from_utf8_lossy(&said).contains("408"), "{said:?}");
    // Each of the others is counted, too, when it ends.
    drop(held);
    let deadline = Instant::now() + Duration::from_secs(30);
    let counted = || {
        let metrics = get(&endpoint, "/metrics").body;
        let (_, count) = metrics.split_once("pushpull_http_refused_total{reason=\"no_request\"} ").unwrap();
        count.lines().next().unwrap().parse::<u64>().unwrap()
    };
    while counted() < 44 {
        assert!(Instant::now() < deadline, "{} connections without a request are counted", counted());
    }
}

/// Threads that open many connections, send nothing on them, and replace those that the server closes.
struct Crowd {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Crowd {
    fn at(endpoint: &Endpoint) -> Self {
        let (address, over) = (address(endpoint), Arc::new(AtomicBool::new(false)));
        let hold = || {
            let (address, over) = (address.clone(), Arc::clone(&over));
            move || {
                let mut held = VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    if held.len() == 100 {
                        let mut oldest: TcpStream = held.pop_front().unwrap();
                        let _ = oldest.read(&mut [0; 1024]);
                    }
                    held.extend(TcpStream::connect(&address));
                }
            }
        };
        let threads = (0..4).map(|_| std::thread::spawn(hold())).collect();
        Self { over, threads }
    }

    fn leave(self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Opens many connections, sends nothing on them, and replaces those that the server closes. Checks that a
/// client that sends a request still gets its answer, and that a client that receives events keeps receiving
/// them.
#[test]
fn a_request_finds_room_among_silent_connections() {
    let (endpoint, chief) = (endpoint(), chief());
    endpoint.observers().lead(chief.view());
    let (status, mut reader) = listen(&endpoint);
    assert_eq!(status, 200);
    let crowd = Crowd::at(&endpoint);
    for _ in 0..20 {
        let mut stream = connect(&endpoint);
        // This is much less than the time limits of the other clients: this client must not wait for them.
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    assert_eq!(until(&mut reader, Some("job")).last().map(String::as_str), Some("job"));
    crowd.leave();
}

#[test]
fn a_client_that_reads_too_slowly_is_cut_off() {
    // The actor's name is longer than all buffers between the server and the client.
    let (endpoint, mut task) = (endpoint(), Task::new(TaskState::Ready));
    Arc::get_mut(&mut task).unwrap().actor = "x".repeat(32 << 20).leak();
    endpoint.observers().add(task);
    let mut stream = connect(&endpoint);
    stream.write_all(b"GET /actors HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (began, mut some, mut total) = (Instant::now(), [0; 4096], 0);
    loop {
        assert!(began.elapsed() < Duration::from_secs(40), "it is still told after {total} bytes");
        // This client reads, but very slowly.
        std::thread::sleep(Duration::from_millis(5));
        match stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => total += bytes,
        }
    }
    assert!((1..32 << 20).contains(&total), "{total} of {} bytes", 32 << 20);
    assert_eq!(get(&endpoint, "/healthz").status, 200);
}

#[tokio::test]
async fn it_ends_with_its_tasks_or_answers_for_a_while_longer() {
    let mut config = EndpointConfig { address: Some("127.0.0.1:0".into()), ..Default::default() };
    let interrupt = CancellationToken::new();
    let ended = Endpoint::bind(&config, About::default()).unwrap();
    let address = ended.advertised().unwrap();
    ended.close(&interrupt).await;
    assert!(TcpStream::connect(address).is_err(), "no socket listens there any more");

    config.linger = Duration::from_secs(3600);
    let lingers = Endpoint::bind(&config, About::default()).unwrap();
    let address = lingers.advertised().unwrap();
    let signal = interrupt.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        signal.cancel();
        text
    });
    lingers.close(&interrupt).await;
    assert!(asked.await.unwrap().starts_with("HTTP/1.1 200"));
}
