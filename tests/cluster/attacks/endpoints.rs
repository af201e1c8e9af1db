//! Attacks on HTTP endpoints that other hosts can reach, of a secured job that trains: programs without the
//! token, pages of other sites, and clients that never send a whole request.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use pushpull_identity::{Authority, HttpsClient, HttpsClientStream};

use super::scene::connect;
use super::tls::is_timeout;
use super::{CHIEF, PROMPT};
use crate::harness::{Cluster, ENDLESS, Job, Joined, Metrics, PATIENCE, Program, TCP, noise, wait_until};

/// The number of wrong tokens that a client may send at once.
const BURST: u64 = 10;
/// The time after which a client may send one more, in seconds.
const EVERY_S: u64 = 6;

/// A secured job whose endpoints listen at all addresses.
struct Site {
    joined: Joined,
    /// The chief, the ps task and the worker.
    programs: Vec<Program>,
    /// The address of the chief's endpoint.
    address: String,
    client: HttpsClient,
    token: String,
    /// The number of wrong tokens that the last attack has sent, beside those that it always sends.
    guessed: Cell<u64>,
}

/// An attack on the endpoint of the chief.
struct Attack {
    number: u32,
    name: &'static str,
    /// Attacks from an address, and returns the last answer.
    run: fn(&Site, Ipv4Addr) -> String,
    /// The beginning of the answer, and a part of it.
    told: [&'static str; 2],
    /// The reason under which requests are counted, and their number without guesses.
    counted: (&'static str, u64),
    /// What the chief logs once; empty if it logs nothing.
    logged: &'static str,
}

const ATTACKS: &[Attack] = &[
    Attack {
        number: 33,
        name: "the name of another host (DNS rebinding)",
        run: |site, from| {
            site.ask(from, &site.authorised("GET", "/job").replace("localhost", "evil.example"))
        },
        told: ["HTTP/1.1 403", "does not answer requests to this host name"],
        counted: ("host", 1),
        logged: "refused an HTTP request: the Host header names another host",
    },
    Attack {
        number: 80,
        name: "two names of hosts",
        run: |site, from| {
            let host = "Host: localhost\r\n";
            let two = format!("{host}Host: evil.example\r\n");
            site.ask(from, &site.authorised("GET", "/job").replacen(host, &two, 1))
        },
        told: ["HTTP/1.1 400", ""],
        counted: ("no_request", 1),
        logged: "",
    },
    Attack {
        number: 34,
        name: "POST /stop without a token",
        run: |site, from| site.ask(from, &request("POST", "/stop", "Content-Length: 0\r\n")),
        told: ["HTTP/1.1 401", "the token is missing or wrong"],
        counted: ("no_token", 1),
        logged: "",
    },
    Attack {
        number: 35,
        name: "wrong tokens until the client has to wait",
        run: |site, from| {
            let limited = site.guess_to_the_limit(from, "POST", "/stop");
            assert!(site.guessed.get() >= BURST, "{}", site.guessed.get());
            let owner = site.ask(from, &site.authorised("GET", "/log"));
            assert!(owner.starts_with("HTTP/1.1 200"), "the owner of the token is locked out: {owner}");
            limited
        },
        told: ["HTTP/1.1 429", "too many wrong tokens: try again later"],
        counted: ("wrong_token", 0),
        logged: "refused an HTTP request: the token is wrong",
    },
    Attack {
        number: 36,
        name: "guesses where probes need no token",
        run: |site, from| {
            let began = Instant::now();
            (0..BURST).for_each(|_| drop(site.ask(from, &bearer("GET", "/healthz", "guess"))));
            let limited = site.guess_to_the_limit(from, "GET", "/job");
            // What the time has given back may be used.
            let earned = began.elapsed().as_secs() / EVERY_S + 1;
            assert!(site.guessed.get() <= earned, "{} of {earned}", site.guessed.get());
            limited
        },
        told: ["HTTP/1.1 429", "too many wrong tokens: try again later"],
        counted: ("wrong_token", BURST),
        logged: "refused an HTTP request: the token is wrong",
    },
    Attack {
        number: 37,
        name: "a page of another site that stops the job with the user's cookie",
        run: |site, from| {
            let entered = site.log_in(from, &site.token, "");
            let cookie = entered.lines().find_map(|line| line.strip_prefix("set-cookie: "));
            let cookie = cookie.and_then(|cookie| cookie.split(';').next()).expect("the token was right");
            let more = format!("Cookie: {cookie}\r\nOrigin: https://evil.example\r\nContent-Length: 0\r\n");
            site.ask(from, &request("POST", "/stop", &more))
        },
        told: ["HTTP/1.1 403", "a page of another site has sent this request"],
        counted: ("origin", 1),
        logged: "refused an HTTP request: it came from a page of another site",
    },
    Attack {
        number: 86,
        name: "a page of another site that uses up the user's attempts",
        run: |site, from| {
            let guess = || site.log_in(from, "guess", "Origin: https://evil.example\r\n");
            (0..BURST).for_each(|_| drop(guess()));
            guess()
        },
        told: ["HTTP/1.1 403", "a page of another site has sent this request"],
        counted: ("origin", BURST + 1),
        logged: "refused an HTTP request: it came from a page of another site",
    },
    Attack {
        number: 81,
        name: "a cookie that was made up",
        run: |site, from| {
            let port = site.address.rsplit_once(':').expect("an address has a port").1;
            let more = format!("Cookie: __Host-pushpull-{port}={}\r\n", "0".repeat(64));
            site.ask(from, &request("GET", "/job", &more))
        },
        told: ["HTTP/1.1 401", "the token is missing or wrong"],
        counted: ("session", 1),
        logged: "",
    },
    Attack {
        number: 82,
        name: "the token in the URL",
        run: |site, from| site.ask(from, &request("GET", &format!("/job?token={}", site.token), "")),
        told: ["HTTP/1.1 401", "the token is missing or wrong"],
        counted: ("no_token", 1),
        logged: "",
    },
    Attack {
        number: 38,
        name: "a head that never ends",
        run: |site, from| site.ask(from, "GET /job HTTP/1.1\r\nHost: localhost\r\nX-Slow: a"),
        told: ["HTTP/1.1 408", ""],
        counted: ("no_request", 1),
        logged: "",
    },
    Attack {
        number: 83,
        name: "a handshake that never ends",
        run: |site, from| {
            let mut stream = connect(&site.address, from);
            let _ = stream.write_all(&[22, 3, 1, 2, 0]);
            read(stream)
        },
        told: ["", ""],
        counted: ("no_request", 1),
        logged: "",
    },
    Attack {
        number: 39,
        name: "a head of 4 MiB",
        run: |site, from| {
            let huge = format!("X: {}\r\n", "x".repeat(4 << 20));
            site.ask(from, &request("GET", "/job", &huge))
        },
        told: ["", ""],
        counted: ("no_request", 1),
        logged: "",
    },
    Attack {
        number: 84,
        name: "a reason of 4 MiB, with the token",
        run: |site, from| {
            let more = format!("Authorization: Bearer {}\r\nContent-Length: {}\r\n", site.token, 4 << 20);
            site.ask(from, &(request("POST", "/stop", &more) + &"x".repeat(4 << 20)))
        },
        told: ["HTTP/1.1 413", "the reason is too long"],
        counted: ("body", 1),
        logged: "",
    },
    Attack {
        number: 85,
        name: "noise in TLS",
        run: |site, from| site.say(from, &noise(85, 5000)),
        told: ["HTTP/1.1 400", ""],
        counted: ("no_request", 1),
        logged: "",
    },
    Attack {
        number: 40,
        name: "a way up to the files of the host",
        run: |site, from| {
            let paths =
                ["/../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"];
            let answers: Vec<String> =
                paths.iter().map(|path| site.ask(from, &site.authorised("GET", path))).collect();
            for answer in &answers {
                assert!(answer.starts_with("HTTP/1.1 404") && !answer.contains("root:"), "{answer}");
            }
            answers[0].clone()
        },
        told: ["HTTP/1.1 404", "unknown path"],
        counted: ("path", 4),
        logged: "",
    },
];

fn request(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n")
}

fn bearer(method: &str, path: &str, token: &str) -> String {
    request(method, path, &format!("Authorization: Bearer {token}\r\n"))
}

/// Reads until the endpoint closes the connection.
#[track_caller]
fn read(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(!is_timeout(&error), "the connection is still open");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Site {
    /// Starts the job, and waits until its endpoint shows the certificate of the chief.
    #[track_caller]
    fn new() -> Self {
        let joined = Joined::new(Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[])));
        let mut programs: Vec<Program> = joined
            .cluster
            .spec
            .tasks()
            .map(|(task, _)| {
                let mut command = joined.role(task);
                command.args([TCP, "--http-addr=0.0.0.0:0"]).env_remove("PUSHPULL_HTTP_TOKEN");
                joined.cluster.spawn(task, &mut command)
            })
            .collect();
        let authority = Authority::read(&joined.authority).expect("it was just written");
        let client = HttpsClient::new(authority.join()).expect("it can be made");
        let said = programs[0].wait_for_line("", "observe this task at https://");
        let port: String =
            said.split(':').nth(1).expect("a port").chars().take_while(char::is_ascii_digit).collect();
        let (address, token) = (format!("127.0.0.1:{port}"), authority.join().http_token());
        Self { joined, programs, address, client, token, guessed: Cell::new(0) }
    }

    fn authorised(&self, method: &str, path: &str) -> String {
        bearer(method, path, &self.token)
    }

    /// Sends a request over HTTPS, and returns the whole answer.
    #[track_caller]
    fn ask(&self, from: Ipv4Addr, request: &str) -> String {
        self.say(from, request.as_bytes())
    }

    /// Sends wrong tokens until the client has to wait, counts them, and returns the last answer.
    #[track_caller]
    fn guess_to_the_limit(&self, from: Ipv4Addr, method: &str, path: &str) -> String {
        wait_until("the end of the guesses", PATIENCE, || {
            let answer = self.ask(from, &bearer(method, path, "guess"));
            let is_limited = !answer.starts_with("HTTP/1.1 401");
            self.guessed.set(self.guessed.get() + u64::from(!is_limited));
            is_limited.then_some(answer)
        })
    }

    /// Sends the form with a token. `page` has headers that say which page has sent it.
    #[track_caller]
    fn log_in(&self, from: Ipv4Addr, token: &str, page: &str) -> String {
        let form = format!("token={token}");
        let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
        let head = format!("{page}{kind}Content-Length: {}\r\n", form.len());
        self.ask(from, &(request("POST", "/login", &head) + &form))
    }

    #[track_caller]
    fn say(&self, from: Ipv4Addr, bytes: &[u8]) -> String {
        let stream = connect(&self.address, from);
        let mut stream: HttpsClientStream<TcpStream> =
            self.client.connect("localhost", stream).expect("the endpoint is that of the job");
        // The endpoint may close the connection before everything is sent.
        let _ = stream.write_all(bytes).and_then(|()| stream.flush());
        read(stream)
    }

    #[track_caller]
    fn metrics(&self) -> Metrics {
        let answer = self.ask(Ipv4Addr::LOCALHOST, &self.authorised("GET", "/metrics"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Metrics::parse(body)
    }

    fn refused(&self, reason: &str) -> u64 {
        self.metrics().count("pushpull_http_refused_total", &[("reason", reason)])
    }

    fn step(&self) -> f64 {
        self.metrics().sum("pushpull_job_step", &[]).unwrap_or_default()
    }

    #[track_caller]
    fn withstand(&mut self, attack: &Attack) {
        let Attack { number, name, told: [status, words], counted: (reason, times), logged, .. } = *attack;
        let from = Ipv4Addr::new(127, 1, 0, number as u8);
        let (step, before) = (self.step(), self.refused(reason));
        let heard = (attack.run)(self, from);
        let times = times + self.guessed.take();
        let fits = heard.starts_with(status) && heard.contains(words);
        assert!(fits, "attack {number}, {name}: it heard '{heard}', expected '{status}' and '{words}'");
        assert!(!heard.contains("\"step\"") && !heard.contains("root:"), "{number}, {name}: {heard}");
        wait_until(&format!("a count of attack {number}, {name}"), PROMPT, || {
            (self.refused(reason) == before + times).then_some(())
        });
        let log = self.programs[0].err();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&from.to_string())).collect();
        let expected = usize::from(!logged.is_empty());
        assert!(lines.len() == expected && lines.iter().all(|line| line.contains(logged)), "{lines:#?}");
        wait_until(&format!("more steps after attack {number}, {name}"), PATIENCE, || {
            assert!(self.programs.iter_mut().all(Program::is_running), "attack {number} has ended a task");
            (self.step() > step).then_some(())
        });
        println!("{number:3}  {name}\n     {CHIEF}: {}", heard.lines().next().unwrap_or("closed"));
    }
}

#[test]
fn an_endpoint_is_attacked_while_its_job_trains() {
    let mut site = Site::new();
    wait_until("a job that trains", PATIENCE, || (site.step() > 0.0).then_some(()));
    for attack in ATTACKS {
        site.withstand(attack);
    }
    wait_until("a model that has learnt", PATIENCE, || (site.step() > 100.0).then_some(()));
    let stopped = site.ask(Ipv4Addr::LOCALHOST, &site.authorised("POST", "/stop"));
    assert!(stopped.starts_with("HTTP/1.1 202"), "{stopped}");
    for program in &mut site.programs {
        assert!(!program.wait().expect(0).err.contains(&site.token), "the token is never logged");
    }
    let report = site.joined.cluster.finished();
    assert_eq!(report.shards()[0]["refused"], 0);
}
