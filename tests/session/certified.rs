//! Tests of servers whose certificates were made elsewhere: clients have the role that their certificate
//! names, and others are refused with one clear line.

use std::time::Duration;

use pushpull::{ClientRole, GraphBuilder, Session, SessionOptions, TaskId, TlsFiles};

use crate::harness::{Program, Servers, tool};
use crate::organisation::{Organisation, OwnFiles};

const FIRST: TaskId = TaskId::ps(0);
const SECOND: TaskId = TaskId::ps(1);

/// The time limit for a program that is refused to end.
const PROMPT: Duration = Duration::from_secs(20);

/// Two servers with certificates.
struct Certified {
    servers: Servers,
    organisation: Organisation,
}

impl Certified {
    #[track_caller]
    fn start() -> Self {
        let servers = Servers::prepare(&[("ps", 2)], &[]);
        let mut certified = Self { servers, organisation: Organisation::new("organisation") };
        for task in [FIRST, SECOND] {
            let files = certified.files(&format!("server-{}", task.index), &format!("digits/{task}"));
            let mut command = certified.servers.command(task);
            files.give(&mut command);
            certified.servers.spawn(task, command);
        }
        [FIRST, SECOND].into_iter().for_each(|task| certified.servers.wait_until_serving(task));
        certified
    }

    /// Writes the files of a program that has this name in its certificate.
    #[track_caller]
    fn files(&self, folder: &str, name: &str) -> OwnFiles {
        self.organisation.write(self.servers.dir(), folder, &[format!("pushpull://{name}")])
    }

    fn connect(&self, files: &OwnFiles) -> Result<Session, String> {
        let OwnFiles { ca, certificate, key } = files;
        let (ca, certificate, key) = (ca.clone(), certificate.clone(), key.clone());
        let certificate = Some(TlsFiles { ca, certificate, key });
        let options = SessionOptions { certificate, ..SessionOptions::default() };
        Session::connect_with(&self.servers.target("ps/1"), options).map_err(|error| error.to_string())
    }
}

#[test]
fn a_client_has_the_role_of_its_certificate() {
    let certified = Certified::start();
    let [run, read] = ClientRole::ALL.map(|role| {
        let files = certified.files(role.as_str(), &format!("digits/client/{role}"));
        certified.connect(&files).expect("the servers admit it")
    });
    let mut g = GraphBuilder::new("shared");
    let count = g.device("/job:ps/task:0", |g| {
        g.variable_of("n", [], pushpull::DType::I64, pushpull::InitializerSpec::Zeros)
    });
    let one = g.value(1i64);
    let change = g.assign_add(count, one);
    let graph = g.finish_session().expect("a graph");
    let count = |session: &Session, node| {
        let values = session.run(&graph, &[], &[node]).map_err(|error| error.to_string())?;
        Ok::<_, String>(values[0].i64s().expect("an integer")[0])
    };
    assert_eq!(count(&run, change), Ok(1), "both servers trust each other");
    let error = count(&read, change).unwrap_err();
    assert!(error.contains("changes a variable, and this client has the role read"), "{error}");
    let error = read.reset(&[""]).unwrap_err().to_string();
    assert!(error.contains("this client has the role read"), "{error}");
    assert_eq!(run.reset(&[""]).unwrap(), 1);
}

#[test]
fn other_clients_are_refused_with_one_line() {
    let mut certified = Certified::start();
    let [beside, task] = [("beside", "letters/client/run"), ("task", "digits/worker/0")]
        .map(|(folder, name)| certified.files(folder, name));
    let error = certified.connect(&beside).unwrap_err();
    assert!(
        error.contains("names pushpull://digits/ps/1, expected only tasks of the job 'letters'"),
        "{error}"
    );
    let error = certified.connect(&task).unwrap_err();
    assert!(error.contains("names pushpull://digits/worker/0, expected either"), "{error}");
    let other = Organisation::new("other");
    let own = certified.files("own", "digits/client/read");
    let start = |certified: &Certified, give: &dyn Fn(&mut std::process::Command)| {
        let mut command = tool();
        give(command.args(["session", &certified.servers.target("ps/0")]));
        Program::start(certified.servers.dir(), "tool", &mut command)
    };
    let shown = start(&certified, &|command| own.give(command)).wait_within(PROMPT).expect(0).out;
    assert!(shown.contains("ps/0: ") && shown.contains("ps/1: "), "{shown}");
    let shown =
        start(&certified, &|command| own.give_by_environment(command)).wait_within(PROMPT).expect(0).out;
    assert!(shown.contains("ps/1: "), "{shown}");
    let plain = start(&certified, &|_| {}).wait_within(PROMPT).expect(1);
    assert!(plain.last_line().contains("the server demands a client string"), "{}", plain.err);
    let mut one = start(&certified, &|command| {
        command.arg("--tls-cert").arg(&own.certificate);
    });
    let one = one.wait_within(PROMPT).expect(2);
    assert!(one.last_line().contains("give --tls-ca and --tls-key, too"), "{}", one.err);
    // The files trust both authorities, so only the server can refuse.
    std::fs::write(&own.ca, format!("{}{}", other.pem, certified.organisation.pem))
        .expect("it can be written");
    own.replace(&other.make(&["pushpull://digits/client/read".into()]));
    let stranger = start(&certified, &|command| own.give(command)).wait_within(PROMPT).expect(1);
    assert!(stranger.last_line().contains("the peer does not trust this task"), "{}", stranger.err);
    assert_eq!(stranger.err.lines().count(), 1, "{}", stranger.err);
    certified
        .servers
        .program("ps/0")
        .wait_for("no authority that is trusted here has signed its certificate");
}
