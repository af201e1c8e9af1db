//! Tests of servers with a join string: they run graphs together as without one, clients have the role of
//! their client string, and strangers are refused with one clear line and counted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pushpull::{
    ClientRole, ClientString, DType, GraphBuilder, GraphSpec, InitializerSpec, JoinString, NodeId, Session,
    SessionOptions, TaskId,
};

use crate::harness::{Endpoint, Program, Servers, tool, wait_until};

/// The first task of the cluster, which has the authority, and another one. Both are of a job that never
/// dials in training.
const FIRST: TaskId = TaskId::ps(0);
const SECOND: TaskId = TaskId::ps(1);

/// The time limit for a program that is refused to end, and for a stranger to be counted.
const PROMPT: Duration = Duration::from_secs(20);

/// Two servers with a join string.
struct Joined {
    servers: Servers,
    authority: PathBuf,
    join: PathBuf,
}

impl Joined {
    #[track_caller]
    fn start() -> Self {
        let servers = Servers::prepare(&[("ps", 2)], &["--http-addr=127.0.0.1:0"]);
        let (authority, join) = new_join(servers.dir(), "authority");
        let mut joined = Self { servers, authority, join };
        for task in [SECOND, FIRST] {
            let command = joined.command(task);
            joined.servers.spawn(task, command);
        }
        [FIRST, SECOND].into_iter().for_each(|task| joined.servers.wait_until_serving(task));
        joined
    }

    /// Returns the command of a server that has what it needs to prove who it is.
    fn command(&self, task: TaskId) -> Command {
        let mut command = self.servers.command(task);
        match task {
            FIRST => command.arg("--authority").arg(&self.authority),
            _ => command.arg("--join-file").arg(&self.join),
        };
        command
    }

    /// Prints the client string of a role with the tool.
    #[track_caller]
    fn client(&self, role: ClientRole) -> ClientString {
        client_of(self.servers.dir(), &self.join, role)
    }

    #[track_caller]
    fn connect(&self, task: &str, client: ClientString) -> Result<Session, String> {
        let options = SessionOptions { client: Some(client), ..SessionOptions::default() };
        Session::connect_with(&self.servers.target(task), options).map_err(|error| error.to_string())
    }

    /// Runs `pushpull session` with a client string in a file, in the environment, or without one.
    fn tool(&self, file: Option<&Path>, env: Option<&str>) -> Program {
        let mut command = tool();
        command.args(["session", &self.servers.target("ps/1")]);
        file.map(|file| command.arg("--client-file").arg(file));
        env.map(|env| command.env("PUSHPULL_CLIENT", env));
        Program::start(self.servers.dir(), "tool", &mut command)
    }
}

/// Makes an authority and its join string, and returns their files.
#[track_caller]
fn new_join(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let [authority, join] = [name.to_owned(), format!("{name}-join")].map(|name| dir.join(name));
    let mut new = tool();
    new.args(["join", "new", "--authority"]).arg(&authority);
    write_secret(&join, &Program::run(dir, "join", &mut new).expect(0).out);
    (authority, join)
}

#[track_caller]
fn client_of(dir: &Path, join: &Path, role: ClientRole) -> ClientString {
    let mut command = tool();
    command.args(["join", "client", "--role", role.as_str(), "--join-file"]).arg(join);
    let printed = Program::run(dir, "join-client", &mut command).expect(0);
    assert_eq!((printed.out.lines().count(), printed.err.as_str()), (1, ""), "only the client string");
    let client: ClientString = printed.out.trim().parse().expect("a client string");
    assert_eq!(client.role(), role);
    client
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the test's directory can be written");
}

/// A graph over both tasks: a variable on the second one, its double on the first one, and a change.
struct Shared {
    graph: GraphSpec,
    double: NodeId,
    change: NodeId,
}

impl Shared {
    fn new() -> Self {
        let mut g = GraphBuilder::new("shared");
        let count =
            g.device("/job:ps/task:1", |g| g.variable_of("n", [], DType::I64, InitializerSpec::Zeros));
        let double = g.device("/job:ps/task:0", |g| g.add(count, count));
        let one = g.value(1i64);
        let change = g.assign_add(count, one);
        Self { graph: g.finish_session().expect("a graph"), double, change }
    }

    fn run(&self, session: &Session, node: NodeId) -> Result<i64, String> {
        let values = session.run(&self.graph, &[], &[node]).map_err(|error| error.to_string())?;
        Ok(values[0].i64s().expect("an integer")[0])
    }
}

/// Waits until a server has closed this number of connections because an end proved nothing.
#[track_caller]
fn wait_counted(endpoint: &Endpoint, expected: u64) {
    wait_until("a counted stranger", PROMPT, || {
        let labels = [("reason", "identity")];
        let count = endpoint.metrics().sum("pushpull_connections_closed_total", &labels);
        (count.unwrap_or_default() as u64 == expected).then_some(())
    });
}

#[test]
fn clients_have_the_role_of_their_client_string() {
    let joined = Joined::start();
    let shared = Shared::new();
    let [run, read] = [ClientRole::Run, ClientRole::Read].map(|role| joined.client(role));
    let [run, read] = [("ps/0", run), ("ps/1", read.clone())].map(|(task, client)| {
        let session = joined.connect(task, client).expect("the servers admit it");
        assert_eq!(session.describe().expect("both may").tasks.len(), 2);
        session
    });
    let error = shared.run(&read, shared.double).unwrap_err();
    assert!(error.contains("has no variable 'n', and this client has the role read"), "{error}");
    assert_eq!(run.describe().unwrap().tasks[1].containers.len(), 0, "nothing was created");
    assert_eq!(shared.run(&run, shared.change), Ok(1));
    assert_eq!(shared.run(&run, shared.change), Ok(2));
    assert_eq!(shared.run(&read, shared.double), Ok(4));
    for node in [shared.change, shared.double] {
        let result = read.run_with(&shared.graph, &[], &[node], &[shared.change]);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("changes a variable, and this client has the role read"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = read.reset(&[""]).unwrap_err().to_string();
    assert!(error.contains("a reset removes variables, and this client has the role read"), "{error}");
    assert_eq!(shared.run(&read, shared.double), Ok(4), "nothing has changed");
    assert_eq!(run.reset(&[""]).unwrap(), 1);
}

#[test]
fn strange_clients_are_refused_and_counted() {
    let mut joined = Joined::start();
    let endpoint = Endpoint::of(joined.servers.program("ps/1"));
    let (_, other) = new_join(joined.servers.dir(), "other");
    let other = client_of(joined.servers.dir(), &other, ClientRole::Run);
    let refused = |joined: &mut Joined, env: Option<&str>, count: u64, [here, there]: [&str; 2]| {
        let ended = joined.tool(None, env).wait_within(PROMPT).expect(1);
        assert!(ended.last_line().contains(here) && ended.err.lines().count() == 1, "{}", ended.err);
        assert!(ended.last_line().contains(&joined.servers.address("ps/1")), "{}", ended.err);
        joined.servers.program("ps/1").wait_for(there);
        wait_counted(&endpoint, count);
    };
    let none = ["the server demands a client string", "the peer does not speak TLS"];
    refused(&mut joined, None, 1, none);
    let wrong = ["the server is one of another cluster", "the client does not trust this server"];
    refused(&mut joined, Some(&other.text()), 2, wrong);
    // The job and the authority of this cluster, with the secret of the other one.
    let (own, strange) = (joined.client(ClientRole::Run).text(), other.text());
    let (own, strange): (Vec<&str>, Vec<&str>) = (own.split('.').collect(), strange.split('.').collect());
    let forged = [&own[..4], &strange[4..5]].concat().join(".");
    let forged = format!("{forged}.{:08x}", crc32c::crc32c(forged.as_bytes()));
    let guess = ["the server refused this client", "does not know the secret of that role"];
    refused(&mut joined, Some(&forged), 3, guess);

    let client = joined.client(ClientRole::Read);
    let file = joined.servers.dir().join("client");
    write_secret(&file, &client.text());
    for (file, env) in [(Some(file.as_path()), None), (None, Some(client.text().as_str()))] {
        let shown = joined.tool(file, env).wait_within(PROMPT).expect(0).out;
        assert!(shown.contains("ps/0: ") && shown.contains("ps/1: "), "{shown}");
    }
    let both = joined.tool(Some(&file), Some(&strange.join("."))).wait_within(PROMPT).expect(2);
    assert!(both.last_line().contains("have different client strings"), "{}", both.err);
}

#[test]
fn a_client_string_makes_no_server() {
    let mut joined = Joined::start();
    let client = joined.client(ClientRole::Run).text();
    joined.servers.program("ps/1").kill();
    let file = joined.servers.dir().join("client");
    write_secret(&file, &client);
    let start = |joined: &Joined, file: &Path| {
        let mut command = joined.servers.command(SECOND);
        Program::start(joined.servers.dir(), "stranger", command.arg("--join-file").arg(file))
    };
    let ended = start(&joined, &file).wait_within(PROMPT).expect(2);
    assert!(ended.last_line().contains("got a client string"), "{}", ended.err);

    // A join string that is made up from the client string.
    let parts: Vec<&str> = client.split('.').collect();
    let text = ["pushpull1", parts[1], parts[2], parts[4]].join(".");
    let forged = format!("{text}.{:08x}", crc32c::crc32c(text.as_bytes()));
    forged.parse::<JoinString>().expect("it has the form of a join string");
    let file = joined.servers.dir().join("forged");
    write_secret(&file, &forged);
    let ended = start(&joined, &file).wait_within(PROMPT).expect(1);
    assert!(ended.last_line().contains("ps/1: this task gets no certificate"), "{}", ended.err);
    joined.servers.program("ps/0").wait_for("does not know the secret of this job's join string");
    wait_counted(&Endpoint::of(joined.servers.program("ps/0")), 1);

    // A server with the join string takes the place, also after the first one was started again.
    let first = joined.command(FIRST);
    joined.servers.program("ps/0").kill();
    let second = joined.command(SECOND);
    joined.servers.spawn(SECOND, second);
    joined.servers.program("ps/1").wait_for("waiting for the certificate of this task");
    joined.servers.spawn(FIRST, first);
    [FIRST, SECOND].into_iter().for_each(|task| joined.servers.wait_until_serving(task));
    let (shared, client) = (Shared::new(), joined.client(ClientRole::Run));
    let session = joined.connect("ps/0", client).expect("the servers admit it");
    assert_eq!(shared.run(&session, shared.change), Ok(1));
}

#[test]
fn a_server_without_a_join_string_is_no_member() {
    let mut joined = Joined::start();
    joined.servers.program("ps/1").kill();
    let plain = joined.servers.command(SECOND);
    joined.servers.spawn(SECOND, plain);
    joined.servers.wait_until_serving(SECOND);
    let client = joined.client(ClientRole::Run);
    let shared = Shared::new();
    let session = joined.connect("ps/0", client).expect("the first server is as before");
    let error = shared.run(&session, shared.change).unwrap_err();
    assert!(error.contains("ps/1") && error.contains("the peer may have no join string"), "{error}");
}
