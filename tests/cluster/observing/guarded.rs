//! Tests of endpoints that other hosts can reach: they demand identity, and one secret is enough for tasks,
//! `pushpull top`, and other clients. The endpoints listen at all addresses, and the tests use loopback.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use pushpull_identity::{Authority, HttpsClient};
use pushpull_messages::id::TaskId;

use crate::harness::{
    Cluster, ENDLESS, Ended, Job, Joined, PATIENCE, Program, tool, wait_until, write_secret,
};

const EVERYWHERE: &str = "--http-addr=0.0.0.0:0";
const PS: TaskId = TaskId::ps(0);
const TOKEN: &str = "s3cret";

/// Writes a file that only its owner can read, in the directory of the cluster.
fn secret(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.dir().join(name);
    write_secret(&path, text);
    path
}

/// Waits until a program has logged the address of its endpoint, and returns the address.
#[track_caller]
fn endpoint(program: &mut Program, scheme: &str) -> String {
    let rest = program.wait_for_line("", &format!("observe this task at {scheme}://"));
    rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect()
}

/// Returns a request for a path.
fn request(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n")
}

/// Sends a request, and returns the whole answer.
fn answer(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("the endpoint reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the endpoint answers");
    text
}

/// Asks with HTTPS. The error says why the endpoint is not trusted.
fn ask(client: &HttpsClient, address: &str, request: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).expect("the endpoint listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time limit");
    client
        .connect("localhost", stream)
        .map(|stream| answer(stream, request))
        .map_err(|error| error.to_string())
}

/// Lets the endpoint of a task listen at all addresses, and takes its token away.
fn everywhere(mut command: Command) -> Command {
    command.arg(EVERYWHERE).env_remove("PUSHPULL_HTTP_TOKEN");
    command
}

fn role(cluster: &Cluster, task: TaskId) -> Command {
    everywhere(cluster.role(task))
}

/// Returns the command that shows the job of a chief once.
fn top(chief: &str) -> Command {
    let mut command = tool();
    command.args(["top", "--once", "--chief", chief]);
    command
}

#[track_caller]
fn run(cluster: &Cluster, command: &mut Command) -> Ended {
    Program::run(cluster.dir(), "top", command)
}

#[test]
fn a_join_string_opens_every_endpoint_of_a_job() {
    let joined = Joined::new(Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[])));
    let (cluster, join) = (&joined.cluster, &joined.join);
    let authority = Authority::read(&joined.authority).expect("it was just written");
    let (text, client) =
        (authority.join().text(), HttpsClient::new(authority.join()).expect("it can be made"));
    let tasks = cluster.spec.tasks();
    let mut programs: Vec<_> =
        tasks.map(|(task, _)| cluster.spawn(task, &mut everywhere(joined.role(task)))).collect();

    let mut printed = tool();
    printed.args(["join", "token", "--join-file"]).arg(join);
    let printed = Program::run(cluster.dir(), "token", &mut printed).expect(0).out;
    let token = printed.trim();
    assert!(token.len() == 64 && !text.contains(token), "it is not the secret");
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let endpoints: Vec<String> = programs.iter_mut().map(|program| endpoint(program, "https")).collect();
    for (address, program) in endpoints.iter().zip(&mut programs) {
        // Until the task is enrolled, its certificate proves nothing.
        let told = wait_until("a certificate of the job", PATIENCE, || {
            assert!(program.is_running());
            ask(&client, address, &request("/metrics", &bearer)).ok()
        });
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("pushpull_build_info"), "{told}");
        let without = ask(&client, address, &request("/metrics", ""));
        assert!(without.is_ok_and(|answer| answer.starts_with("HTTP/1.1 401")));
        let rebound = request("/metrics", &bearer).replace("localhost", "evil.example");
        assert!(ask(&client, address, &rebound).is_ok_and(|answer| answer.starts_with("HTTP/1.1 403")));
    }
    let chief = &endpoints[0];
    let targets = wait_until("the targets", PATIENCE, || {
        let told = ask(&client, chief, &request("/targets", &bearer)).ok()?;
        endpoints.iter().all(|address| told.contains(&format!("\"{address}\""))).then_some(told)
    });
    assert_eq!(targets.matches("\"__scheme__\":\"https\"").count(), endpoints.len(), "{targets}");

    // `pushpull top` needs the same file, and checks who answers.
    let url = format!("https://{chief}");
    for known in [top(&url).arg("--join-file").arg(join), top(&url).env("PUSHPULL_JOIN", &text)] {
        assert!(run(cluster, known).expect(0).out.contains("WORKER"), "it shows the job");
    }
    run(cluster, &mut top(&url)).expect(2).says("https:// needs the job's join string");
    let other = Authority::new().expect("it can be made");
    // Without its scheme, this address is taken for that of an endpoint on loopback.
    run(cluster, top(chief).arg("--join-file").arg(join)).expect_failure().says("use https://HOST:PORT");
    run(cluster, top(&url).env("PUSHPULL_JOIN", other.join().text()))
        .expect_failure()
        .says("another authority");
    for program in &mut programs {
        assert!(!program.err().contains(token), "the log has the token");
        program.kill();
    }
}

/// Checks that a browser can enter the token, and then use the page with its cookie.
fn check_session(address: &str) {
    let ask = |request: &str| answer(TcpStream::connect(address).expect("the endpoint listens"), request);
    let form = ask(&request("/", "Accept: text/html\r\n"));
    assert!(
        form.starts_with("HTTP/1.1 401") && form.contains("<form method=\"post\" action=\"login\">"),
        "{form}"
    );
    let body = format!("token={TOKEN}");
    let filled = format!(
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let entered = ask(&request("/login", &filled).replacen("GET", "POST", 1));
    assert!(entered.starts_with("HTTP/1.1 303"), "{entered}");
    let cookie = entered.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    assert!(cookie.contains("; HttpOnly") && !cookie.contains(TOKEN), "{cookie}");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().expect("a name and a value"));
    assert!(ask(&request("/", &cookie)).contains("page.js"), "the cookie opens the page");
    let save = |from: &str| {
        let more = format!("{cookie}Sec-Fetch-Site: {from}\r\nContent-Length: 0\r\n");
        ask(&request("/save", &more).replacen("GET", "POST", 1))
    };
    assert!(save("same-site").starts_with("HTTP/1.1 403"), "it is a page of another origin");
    assert!(save("same-origin").starts_with("HTTP/1.1 409"), "this job makes no checkpoints");
    let rebound = request("/job", &cookie).replace("localhost", "evil.example");
    assert!(ask(&rebound).starts_with("HTTP/1.1 403"));
}

#[test]
fn a_token_guards_an_endpoint_without_a_join_string() {
    let cluster = Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[]));
    let token = secret(&cluster, "token", TOKEN);
    let mut command = role(&cluster, TaskId::CHIEF);
    let mut chief = cluster.spawn(TaskId::CHIEF, command.arg("--http-token-file").arg(&token));
    let address = endpoint(&mut chief, "http");
    let ask = |more: &str| {
        let stream = TcpStream::connect(&address).expect("the endpoint listens");
        answer(stream, &request("/job", more))
    };
    assert!(ask("").starts_with("HTTP/1.1 401"));
    assert!(ask(&format!("Authorization: Bearer {TOKEN}\r\n")).starts_with("HTTP/1.1 200"));
    run(&cluster, &mut top(&address)).expect_failure().says("--http-token-file FILE");
    run(&cluster, top(&address).arg("--http-token-file").arg(&token)).expect(0);
    check_session(&address);
    let limited = wait_until("the end of the guesses", PATIENCE, || {
        let answer = ask("Authorization: Bearer guess\r\n");
        (!answer.starts_with("HTTP/1.1 401")).then_some(answer)
    });
    assert!(limited.starts_with("HTTP/1.1 429") && limited.to_lowercase().contains("retry-after: "));
    chief.wait_for("refused an HTTP request: ");
    chief.kill();
    let log = chief.err();
    // One line about this client was due: the next ones come after a minute.
    assert_eq!(log.matches("refused an HTTP request").count(), 1, "{log}");
    assert!(!log.contains("guess") && !log.contains(TOKEN) && log.contains("127.0.0.1"), "{log}");
}

#[test]
fn a_program_without_identity_names_the_ways_on() {
    let cluster = Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[]));
    let refused = Program::run(cluster.dir(), "ps", &mut role(&cluster, PS)).expect_failure();
    for way in ["--join-file FILE", "--http-token-file FILE", "--insecure", "127.0.0.1:0"] {
        assert!(refused.last_line().contains(way), "{}", refused.err);
    }
    let mut ps = cluster.spawn(PS, role(&cluster, PS).arg("--insecure"));
    ps.wait_for("can read it (--insecure)");
    ps.kill();
}
