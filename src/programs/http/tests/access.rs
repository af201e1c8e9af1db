//! Tests of who may use an endpoint: tokens, sessions of browsers, guesses, and pages of other sites.

use pushpull_messages::observe::TaskState;

use super::super::attempts::BURST;
use super::*;

const RIGHT: &str = "Authorization: Bearer s3cret\r\n";
const WRONG: &str = "Authorization: Bearer guess\r\n";

fn everywhere() -> EndpointConfig {
    EndpointConfig { address: Some("0.0.0.0:0".into()), ..Default::default() }
}

/// Returns an endpoint that other hosts can reach, and that has a token.
fn guarded() -> Endpoint {
    let token = Token::read(None, Some("s3cret")).unwrap();
    let endpoint = Endpoint::bind(&EndpointConfig { token, ..everywhere() }, About::default()).unwrap();
    endpoint.observers().add(Task::new(TaskState::Ready));
    endpoint
}

/// Sends a filled form.
fn log_in(endpoint: &Endpoint, token: &str) -> Answer {
    log_in_from(endpoint, token, "")
}

/// Sends a filled form, with headers that say which page it is from.
fn log_in_from(endpoint: &Endpoint, token: &str, from: &str) -> Answer {
    let body = format!("token={token}");
    let kind = "Accept: text/html\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let length = body.len();
    ask(endpoint, "POST", "/login", &format!("{from}{kind}Content-Length: {length}\r\n\r\n{body}"))
}

/// Returns the header with the cookie that a browser got.
fn cookie(answer: &Answer) -> String {
    let set = answer.header("set-cookie").unwrap_or_else(|| panic!("{}", answer.head));
    format!("Cookie: theme=dark; {}\r\n", set.split(';').next().unwrap())
}

#[test]
fn an_endpoint_for_other_hosts_needs_identity() {
    for (config, can_join) in
        [(everywhere().identified(None, false), true), (everywhere().alone(false), false)]
    {
        let Err(error) = Endpoint::bind(&config, About::default()) else { panic!("nothing protects it") };
        let line = format!("{error:#}");
        for way in ["--http-token-file FILE", "--insecure", "loopback", "0.0.0.0:0"] {
            assert!(line.contains(way) && !line.contains('\n'), "{line}");
        }
        assert_eq!(line.contains("--join-file FILE"), can_join, "{line}");
        assert_eq!(config.check().unwrap_err().to_string(), line);
    }
    let local = EndpointConfig { address: Some("localhost:0".into()), ..Default::default() };
    local.check().unwrap();
    let open = Endpoint::bind(&EndpointConfig { insecure: true, ..everywhere() }, About::default()).unwrap();
    assert_eq!(get(&open, "/config").status, 200);
    assert!(get(&open, "/metrics").body.contains("\npushpull_insecure 1\n"));
    let local = EndpointConfig { insecure: true, ..local };
    let closed = Endpoint::bind(&local, About::default()).unwrap();
    assert!(get(&closed, "/metrics").body.contains("\npushpull_insecure 0\n"), "no other host reaches it");
    let exposed = Endpoint::bind(&local, About::default()).unwrap();
    exposed.exposure().expose();
    assert!(get(&exposed, "/metrics").body.contains("\npushpull_insecure 1\n"), "its task is reached");
    assert_eq!(log_in(&open, "s3cret").status, 403, "there is no token");
}

#[test]
fn every_path_but_those_of_probes_needs_the_token() {
    let (endpoint, chief) = (guarded(), chief());
    endpoint.observers().lead(chief.view());
    let paths = ["/", "/metrics", "/actors", "/tasks", "/config", "/log", "/job", "/curves", "/placement"];
    for path in paths.iter().chain(&["/targets", "/page.css", "/page.js", "/none"]) {
        for without in ["", "Authorization: s3cret\r\n", "Authorization: Basic s3cret\r\n"] {
            let answer = ask(&endpoint, "GET", path, without);
            assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{path}");
            let error = answer.json()["error"].to_string();
            assert!(error.contains("--http-token-file") && !error.contains("pushpull join"), "{error}");
        }
        let expected = if *path == "/none" { 404 } else { 200 };
        assert_eq!(ask(&endpoint, "GET", path, RIGHT).status, expected, "{path}");
    }
    let events = ask(&endpoint, "GET", "/events", "");
    assert_eq!((events.status, ask(&endpoint, "GET", "/favicon.ico", "").status), (401, 204));
    let own = ask(&endpoint, "GET", "/config", RIGHT);
    assert!(!own.body.contains("s3cret"), "{}", own.body);
}

#[test]
fn probes_learn_only_the_state() {
    let endpoint = guarded();
    assert_eq!((get(&endpoint, "/healthz").status, &*get(&endpoint, "/readyz").body), (200, "ok\n"));
    endpoint.fail(TaskId::ps(3), "its disk is full");
    let told = get(&endpoint, "/healthz");
    assert_eq!((told.status, told.body.contains("disk")), (503, false), "{}", told.body);
    let told = ask(&endpoint, "GET", "/healthz", RIGHT);
    assert_eq!((told.status, &*told.body), (503, "ps/3 ended with an error: its disk is full\n"));
}

#[test]
fn a_client_that_guesses_has_to_wait() {
    let endpoint = guarded();
    let cookie = cookie(&log_in(&endpoint, "s3cret"));
    // A probe that sends a token is an attempt, too: it must be no other way to guess.
    assert_eq!(ask(&endpoint, "GET", "/healthz", WRONG).status, 200);
    assert_eq!(log_in(&endpoint, "guess").status, 401);
    let guesses = guess_to_the_limit(|| ask(&endpoint, "GET", "/metrics", WRONG));
    let (wrong, unseen) = (guesses.looked_at + 2, guesses.unseen + 2);
    assert!(wrong >= u64::from(BURST), "{guesses:?}");
    assert_eq!(
        ask(&endpoint, "GET", "/metrics", RIGHT).status,
        429,
        "a token that may be short is not looked at"
    );
    let answer = log_in(&endpoint, "s3cret");
    assert_eq!((answer.status, answer.header("set-cookie")), (429, None));
    assert_eq!(get(&endpoint, "/healthz").status, 200, "probes send no token");
    assert_eq!(get(&endpoint, "/metrics").status, 401);
    // A session goes on: its id cannot be guessed.
    let metrics = ask(&endpoint, "GET", "/metrics", &cookie);
    assert_eq!(metrics.status, 200);
    for (reason, count) in [("wrong_token", wrong), ("too_many", unseen), ("no_token", 1), ("host", 0)] {
        let expected = format!("\npushpull_http_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.body.contains(&expected), "{expected}{}", metrics.body);
    }
}

#[test]
fn a_browser_enters_the_token_once() {
    let (endpoint, chief) = (guarded(), chief());
    endpoint.observers().lead(chief.view());
    let form = ask(&endpoint, "GET", "/", "Accept: text/html,application/xml;q=0.9\r\n");
    assert_eq!((form.status, form.header("content-type")), (401, Some("text/html; charset=utf-8")));
    assert!(form.body.contains("action=\"login\"") && !form.body.contains("<script"), "{}", form.body);
    assert!(form.header("content-security-policy").unwrap().contains("form-action 'self'"));
    assert_eq!(get(&endpoint, "/login.css").header("content-type"), Some("text/css; charset=utf-8"));
    assert_eq!(get(&endpoint, "/login").header("location"), Some("./"));
    let wrong = log_in(&endpoint, "guess");
    assert!(wrong.status == 401 && wrong.body.contains("This token is wrong."), "{}", wrong.body);
    assert_eq!(wrong.header("set-cookie"), None);
    let entered = log_in(&endpoint, "s3cret");
    assert_eq!((entered.status, entered.header("location")), (303, Some("./")));
    assert!(!entered.head.contains("s3cret") && entered.head.contains("HttpOnly"), "{}", entered.head);
    let cookie = cookie(&entered);
    for path in ["/", "/page.js", "/page.css", "/job", "/log"] {
        assert_eq!(ask(&endpoint, "GET", path, &cookie).status, 200, "{path}");
        let (rest, last) = cookie.trim_end().split_at(cookie.len() - 3);
        let stale = format!("{rest}{}\r\n", if last == "0" { "1" } else { "0" });
        assert_eq!(ask(&endpoint, "GET", path, &stale).status, 401, "{path}");
    }
    let other = guarded();
    assert_eq!(ask(&other, "GET", "/config", &cookie).status, 401, "a session of another process");
}

#[test]
fn only_the_page_saves_with_a_cookie() {
    let token = Token::read(None, Some("s3cret")).unwrap();
    let local = EndpointConfig { address: Some("127.0.0.1:0".into()), token, ..Default::default() };
    let on_loopback = Endpoint::bind(&local, About::default()).unwrap();
    for endpoint in [guarded(), on_loopback] {
        let chief = chief_that(ChiefConfig {
            checkpoint: Some(CheckpointConfig::new("/nowhere")),
            ..ChiefConfig::default()
        });
        endpoint.observers().lead(chief.view());
        let cookie = cookie(&log_in(&endpoint, "s3cret"));
        for (from, status) in [
            ("", 403),
            ("Sec-Fetch-Site: cross-site\r\n", 403),
            ("Sec-Fetch-Site: same-site\r\nOrigin: http://localhost\r\n", 403),
            ("Origin: http://evil.example\r\n", 403),
            ("Origin: null\r\n", 403),
            ("Sec-Fetch-Site: same-origin\r\n", 202),
            ("Origin: http://localhost\r\n", 202),
        ] {
            let answer = ask(&endpoint, "POST", "/save", &format!("{cookie}{from}Content-Length: 0\r\n"));
            assert_eq!(answer.status, status, "{from}: {}", answer.body);
        }
        let own = "Sec-Fetch-Site: same-origin\r\nContent-Length: 0\r\n";
        assert_eq!(ask(&endpoint, "POST", "/stop", own).status, 401, "without a cookie");
        let with_token = format!("{RIGHT}Sec-Fetch-Site: cross-site\r\nContent-Length: 0\r\n");
        assert_eq!(ask(&endpoint, "POST", "/stop", &with_token).status, 202);
    }
}

#[test]
fn pages_of_other_sites_use_up_no_attempts() {
    let endpoint = guarded();
    for from in [
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\nOrigin: http://localhost\r\n",
        "Sec-Fetch-Site: none\r\n",
        "Origin: http://evil.example\r\n",
        "Origin: https://localhost\r\n",
        "Origin: null\r\n",
    ] {
        for token in ["guess", "guess", "s3cret"] {
            let answer = log_in_from(&endpoint, token, from);
            assert_eq!((answer.status, answer.header("set-cookie")), (403, None), "{from}: {}", answer.body);
        }
    }
    for from in ["", "Sec-Fetch-Site: same-origin\r\n", "Origin: http://localhost\r\n"] {
        assert_eq!(log_in_from(&endpoint, "s3cret", from).status, 303, "{from}");
    }
    let metrics = ask(&endpoint, "GET", "/metrics", RIGHT).body;
    for (reason, count) in [("origin", 18), ("wrong_token", 0)] {
        let expected = format!("\npushpull_http_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&expected), "{expected}{metrics}");
    }
    // With `no-referrer`, browsers send `Origin: null` with the form.
    let form = ask(&endpoint, "GET", "/", "Accept: text/html\r\n");
    assert_eq!(form.header("referrer-policy"), Some("same-origin"));
}

#[test]
fn a_form_is_bounded_in_size_and_time() {
    let endpoint = guarded();
    let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let long = "x".repeat(100_000);
    let answer = ask(
        &endpoint,
        "POST",
        "/login",
        &format!("{kind}Content-Length: {}\r\n\r\ntoken={long}", long.len() + 6),
    );
    assert_eq!(answer.status, 400, "{}", answer.body);
    for body in ["", "tokens=s3cret", "token=%ff%", "token"] {
        let more = format!("{kind}Content-Length: {}\r\n\r\n{body}", body.len());
        assert!([400, 401].contains(&ask(&endpoint, "POST", "/login", &more).status), "{body}");
    }
    let late = ask(&endpoint, "POST", "/login", &format!("{kind}Content-Length: 9\r\n\r\ntoken"));
    assert_eq!(late.status, 408);
}

#[test]
fn an_endpoint_answers_only_to_names_of_its_host() {
    let hosts = vec!["proxy.example".into(), "10.0.0.7".into()];
    let config = EndpointConfig { hosts, insecure: true, ..everywhere() };
    let of = ClusterConfig::new(cluster(), JobName::Worker, Some(0)).unwrap();
    let endpoint = Endpoint::bind(&config, About::task(&of)).unwrap();
    assert!(endpoint.advertised().unwrap().starts_with("w:"), "its host's name in the cluster");
    for (host, status) in [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("w:9090", 200),
        ("W.:1", 200),
        ("proxy.example", 200),
        ("10.0.0.7:80", 200),
        ("w.evil.example", 403),
        ("evil.example", 403),
        ("10.0.0.8", 403),
    ] {
        for path in ["/healthz", "/config", "/login.css"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let answer = send(&endpoint, request.as_bytes());
            assert_eq!(answer.status, status, "{host}{path}: {}", answer.body);
            assert!(status == 200 || answer.body.contains("--http-host NAME"), "{}", answer.body);
        }
    }
    let server = Endpoint::bind(&config, About::server(TaskId::worker(0), &cluster())).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: w:9400\r\nConnection: close\r\n\r\n";
    assert_eq!(send(&server, request).status, 200, "a server of sessions has its host's name, too");
    let metrics = get(&endpoint, "/metrics").body;
    assert!(metrics.contains("pushpull_http_refused_total{reason=\"host\"} 9\n"), "{metrics}");
}
