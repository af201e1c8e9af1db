//! Tests of jobs whose certificates were made elsewhere: the tasks train as with a join string, others are
//! refused with one clear line, and certificates are replaced while the job runs.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use pushpull_identity::HttpsClient;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::TaskId;

use crate::harness::{Cluster, ENDLESS, Job, PATIENCE, Program, TCP, tool, wait_until, write_secret};
use crate::organisation::{Organisation, OwnFiles};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The time limit for a task that is refused to end.
const PROMPT: Duration = Duration::from_secs(20);
/// A job whose variables have the same bits however the tasks are connected.
const SAME_BITS: [&str; 2] = ["--sync=sync", "--deterministic"];
/// The token of the endpoints of a cluster's tasks.
const TOKEN: &str = "the-token-of-the-tests";

fn uri(job: &str, task: TaskId) -> String {
    format!("pushpull://{job}/{}/{}", task.job, task.index)
}

/// Returns the names of the process that is started as `task`.
fn names(cluster: &ClusterSpec, task: TaskId) -> Vec<String> {
    let hosted_ps = (!cluster.has_ps() && task != CHIEF).then(|| TaskId::ps(task.index));
    let hosted_chief = (task == cluster.chief_host() && task != CHIEF).then_some(CHIEF);
    [task].into_iter().chain(hosted_ps).chain(hosted_chief).map(|task| uri("digits", task)).collect()
}

/// A cluster whose tasks have certificates of an organisation.
struct Certified {
    cluster: Cluster,
    organisation: Organisation,
}

impl Certified {
    fn new(cluster: Cluster) -> Self {
        Self { cluster, organisation: Organisation::new("organisation") }
    }

    /// Writes the files of a task. Each has a folder of its own.
    #[track_caller]
    fn files(&self, task: TaskId) -> OwnFiles {
        let folder = task.to_string().replace('/', "-");
        self.organisation.write(self.cluster.dir(), &folder, &names(&self.cluster.spec, task))
    }

    /// Returns the command of a task with these files.
    fn role(&self, task: TaskId, files: &OwnFiles) -> Command {
        let mut command = self.cluster.role(task);
        files.give(command.arg(TCP));
        command
    }

    #[track_caller]
    fn start(&self, task: TaskId) -> Program {
        self.cluster.spawn(task, &mut self.role(task, &self.files(task)))
    }

    #[track_caller]
    fn start_all(&self) -> Vec<Program> {
        self.cluster.spec.tasks().map(|(task, _)| self.start(task)).collect()
    }
}

#[track_caller]
fn all_end(programs: impl IntoIterator<Item = Program>) {
    programs.into_iter().for_each(|mut program| drop(program.wait().expect(0)));
}

#[test]
fn a_job_with_own_certificates_gives_the_same_bits() {
    let workers = ["--strategy=multi_worker_mirrored", "--deterministic"];
    for (chiefs, ps, flags) in [(1, 2, SAME_BITS), (0, 0, workers)] {
        let cluster = || Cluster::with(chiefs, ps, 2, |dir| Job::with(dir, 60, &flags));
        let (plain, certified) = (cluster(), Certified::new(cluster()));
        all_end(plain.start_all());
        all_end(certified.start_all());
        let bits = certified.cluster.finished().variables_crc32c();
        assert_eq!(bits, plain.finished().variables_crc32c());
    }
}

#[test]
fn the_environment_may_name_the_files() {
    let certified = Certified::new(Cluster::new(1, 1, 50));
    let start = |task: TaskId| {
        let mut command = certified.cluster.role(task);
        certified.files(task).give_by_environment(command.arg(TCP));
        certified.cluster.spawn(task, &mut command)
    };
    all_end([CHIEF, PS, WORKER].map(start));
    certified.cluster.finished();
}

#[test]
fn tasks_with_other_certificates_are_refused() {
    let certified = Certified::new(Cluster::new(1, 2, 300));
    let dir = certified.cluster.dir();
    let [mut chief, ps, first] = [CHIEF, PS, WORKER].map(|task| certified.start(task));
    let second = |files: &OwnFiles| {
        let mut command = certified.role(SECOND, files);
        certified.cluster.spawn(SECOND, &mut command)
    };
    let refused = |files: &OwnFiles, status: i32, words: &str| {
        let ended = second(files).wait_within(PROMPT).expect(status);
        assert!(ended.last_line().contains(words), "{}", ended.err);
    };
    let other = Organisation::new("other");
    let strange = other.write(dir, "strange", &[uri("digits", SECOND)]);
    refused(&strange, 1, "no authority that is trusted here has signed its certificate");
    let beside = certified.organisation.write(dir, "beside", &[uri("letters", SECOND)]);
    refused(
        &beside,
        1,
        "its certificate names pushpull://digits/chief/0, expected only tasks of the job 'letters'",
    );
    let role = certified.organisation.write(dir, "role", &[uri("digits", TaskId::ps(1))]);
    refused(&role, 2, "names pushpull://digits/ps/1, expected pushpull://digits/worker/1");
    let open = certified.organisation.write(dir, "open", &[uri("digits", SECOND)]);
    open.allow(0o644);
    refused(&open, 2, "has mode 0644, and it holds a key");
    let plain = certified.cluster.start_with(SECOND, &[TCP]).wait_within(PROMPT).expect_failure();
    assert!(plain.last_line().contains("the peer demands TLS"), "{}", plain.err);
    chief.wait_for("the peer does not speak TLS");
    // It trusts everybody, and is not trusted.
    strange.trust(&[&other, &certified.organisation]);
    let mut lax = second(&strange);
    chief.wait_for("the peer is not trusted: no authority that is trusted here has signed its certificate");
    lax.kill();
    all_end([chief, ps, first, certified.start(SECOND)]);
    certified.cluster.finished();
}

/// Waits until a program has logged the address of its endpoint with HTTPS, and returns the address.
#[track_caller]
fn endpoint(program: &mut Program) -> String {
    let rest = program.wait_for_line("", "observe this task at https://");
    rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect()
}

/// Waits until an endpoint shows this certificate. The client trusts the authorities in `files`.
#[track_caller]
fn wait_until_shown(address: &str, files: &OwnFiles, (chain, _): &(String, String)) {
    let expected = pem_bytes(chain);
    wait_until("the new certificate", PATIENCE, || {
        let client = HttpsClient::of_authorities(&files.ca).expect("the file is whole");
        let stream = TcpStream::connect(address).expect("the endpoint listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time limit");
        let stream = client.connect("localhost", stream).expect("both authorities are trusted");
        let shown = stream.conn.peer_certificates().and_then(|chain| chain.first());
        (shown.expect("it shows one").to_vec() == expected).then_some(())
    });
}

/// Returns the bytes of the first certificate in a PEM text.
fn pem_bytes(text: &str) -> Vec<u8> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    CertificateDer::from_pem_slice(text.as_bytes()).expect("a certificate").to_vec()
}

#[test]
fn certificates_are_replaced_while_the_job_runs() {
    let certified = Certified::new(Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[])));
    let new = Organisation::new("new");
    let tasks = [CHIEF, PS, WORKER];
    let files = tasks.map(|task| certified.files(task));
    let start = |at: usize| {
        let mut command = certified.role(tasks[at], &files[at]);
        if tasks[at] == PS {
            command.arg("--http-addr=0.0.0.0:0");
        }
        certified.cluster.spawn(tasks[at], &mut command)
    };
    let mut programs: Vec<Program> = (0..3).map(start).collect();
    let at_ps = endpoint(&mut programs[1]);
    programs[0].wait_for("of 1000000, ");
    // First, all trust both authorities. Then the ps gets a certificate of the new one.
    files.iter().for_each(|files| files.trust(&[&certified.organisation, &new]));
    let replaced = new.make(&names(&certified.cluster.spec, PS));
    files[1].replace(&replaced);
    wait_until_shown(&at_ps, &files[1], &replaced);
    programs[1].wait_for("new files of this task's certificate are used");
    // A key that every user can read is not used, and the task goes on.
    let open = new.make(&names(&certified.cluster.spec, PS));
    files[1].replace(&open);
    files[1].allow(0o644);
    wait_until("a warning", PATIENCE, || {
        wait_until_shown(&at_ps, &files[1], &replaced);
        programs[1].err().contains("the old ones stay in use: --tls-key: ").then_some(())
    });
    // A worker that only the new authority knows takes the place of the first one.
    programs[2].kill();
    files[2].replace(&new.make(&names(&certified.cluster.spec, WORKER)));
    programs[2] = start(2);
    programs[0].wait_for("new files of this task's certificate are used");
    programs[2].wait_for("joining the running job at step");
    Cluster::stop_now(&mut programs[0]);
    all_end(programs);
}

#[test]
fn an_endpoint_with_a_certificate_needs_a_token() {
    let certified = Certified::new(Cluster::with(1, 1, 1, |dir| Job::with(dir, ENDLESS, &[])));
    let files = certified.files(CHIEF);
    let mut without = certified.role(CHIEF, &files);
    without.arg("--http-addr=0.0.0.0:0").env_remove("PUSHPULL_HTTP_TOKEN");
    let ended = certified.cluster.spawn(CHIEF, &mut without).wait_within(PROMPT).expect_failure();
    let expected = "a task with --tls-cert needs a token for it (--http-token-file FILE)";
    assert!(ended.last_line().contains(expected), "{}", ended.err);

    let mut chief = certified.role(CHIEF, &files);
    let mut chief = certified.cluster.spawn(CHIEF, chief.arg("--http-addr=0.0.0.0:0"));
    let others = [PS, WORKER].map(|task| certified.start(task));
    let (url, token) = (format!("https://{}", endpoint(&mut chief)), certified.cluster.dir().join("token"));
    write_secret(&token, TOKEN);
    let top = |ca: &OwnFiles, token: Option<&std::path::Path>| {
        let mut command = tool();
        command.args(["top", "--once", "--chief", &url]).arg("--tls-ca").arg(&ca.ca);
        token.map(|token| command.arg("--http-token-file").arg(token));
        Program::run(certified.cluster.dir(), "top", &mut command)
    };
    assert!(top(&files, Some(&token)).expect(0).out.contains("WORKER"), "it shows the job");
    top(&files, None).expect_failure().says("demands a token");
    let strange = Organisation::new("other").write(certified.cluster.dir(), "strange", &[]);
    top(&strange, Some(&token)).expect_failure().says("invalid peer certificate");
    chief.wait_for("of 1000000, ");
    let mut stop = tool();
    stop.args(["top", "--once", "--chief", &url]);
    Program::run(certified.cluster.dir(), "top", &mut stop)
        .expect(2)
        .says("or the authorities of its certificates");
    drop((chief, others));
}

#[test]
fn the_commands_of_the_page_make_usable_files() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("SKIPPED: there is no openssl, so the commands of the page on security are NOT tested.");
        return;
    }
    let page = include_str!("../../docs/src/guide/security.md");
    let (_, rest) = page.split_once("With OpenSSL").expect("the page has the commands");
    let commands = rest.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let cluster = Cluster::new(1, 2, 30);
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", commands.expect("a block of commands")]).current_dir(cluster.dir());
    Program::run(cluster.dir(), "openssl", &mut shell).expect(0);
    let path = |name: String| cluster.dir().join(name);
    let start = |(task, _): (TaskId, _)| {
        let name = task.to_string().replace('/', "-");
        let (certificate, key) = (path(format!("{name}.crt")), path(format!("{name}.key")));
        let mut command = cluster.role(task);
        OwnFiles { ca: path("ca.crt".to_owned()), certificate, key }.give(command.arg(TCP));
        cluster.spawn(task, &mut command)
    };
    let programs: Vec<Program> = cluster.spec.tasks().map(start).collect();
    all_end(programs);
    cluster.finished();
}
