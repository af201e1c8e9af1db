//! The target `tls`: what arrives on a connection before it is secured. The ends are real credentials over
//! pipes in memory, and a script decides what a stranger or a relay between two ends does. Wanted properties:
//! (A) no input causes a panic; (B) each end decides within its time limit; (C) an end admits only the task
//! that has proved who it is; (D) only a question with the right proof, for a task of the cluster that is not
//! the chief, gets a certificate.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use pushpull_identity::{Authority, Credentials, IdentityError, Proven, Secured};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsConnector;

use crate::anybody::Anybody;
use crate::corpus::Form;
use crate::limits::Limits;
use crate::script::Script;
use crate::target::{Class, Target, check_error};

/// The size of a pipe in bytes.
const PIPE_BYTES: usize = 1 << 14;
/// How long an end that is secured waits for a word.
const WORD_WITHIN: Duration = Duration::from_secs(5);
/// More than the time limits of both ends together.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// The label with which the proofs of an enrolment are bound to their connection.
const LABEL: &[u8] = b"EXPORTER-pushpull-enrolment";
const WORKER: TaskId = TaskId::worker(1);
const PS: TaskId = TaskId::ps(0);
/// A task that the cluster does not list.
const OTHER: TaskId = TaskId::new(JobName::Evaluator, 1);

pub(crate) const TARGET: Target = Target {
    name: "tls",
    class: Class::Tls,
    about: &[
        "messages/identity/src/certificate.rs",
        "messages/identity/src/configs.rs",
        "messages/identity/src/credentials.rs",
        "messages/identity/src/enrolment",
        "messages/identity/src/handshake.rs",
        "messages/identity/src/name.rs",
        "messages/identity/src/place.rs",
        "messages/identity/src/verifier.rs",
    ],
    check,
    stages: &["refused", "one end secured", "both ends secured", "a certificate"],
    seeds,
    form: Form::Script,
    content: |_| 1,
    limits: Limits { time: Duration::from_millis(500), allocated_bytes: 64 << 20 },
    ..Target::USUAL
};

/// The credentials of a job whose tasks have enrolled, and of another job.
struct Job {
    chief: Credentials,
    worker: Credentials,
    ps: Credentials,
    /// A ps task that has not enrolled.
    new: Credentials,
    /// The chief of another job.
    other: Credentials,
    secret: Vec<u8>,
    /// What a worker has sent to the ps task on an earlier connection, and what it has received.
    recorded: [Vec<u8>; 2],
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    static JOB: Job = RUNTIME.with(|runtime| runtime.block_on(job()));
}

fn cluster() -> ClusterSpec {
    let jobs =
        [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:2"])];
    ClusterSpec::new(jobs).expect("a valid cluster")
}

async fn job() -> Job {
    let authority = Authority::new().expect("random numbers");
    let join = authority.join().clone();
    let secret = join.text().split('.').nth(3).map(from_hex).expect("a join string has a secret");
    let chief_of =
        |authority| Credentials::of_chief(authority, cluster(), TaskId::CHIEF).expect("random numbers");
    let task = |task| Credentials::of_task(join.clone(), cluster(), task).expect("random numbers");
    let (chief, worker, ps) = (chief_of(authority), task(WORKER), task(PS));
    let (near, far) = duplex(PIPE_BYTES);
    let (asked, granted) = tokio::join!(worker.enrol(|_| async { Ok(near) }), chief.accept(far));
    asked.and(granted.map(drop)).expect("the worker enrols");
    let (near, far) = duplex(PIPE_BYTES);
    let (granted, asked) = tokio::join!(chief.enrol_peer(near), ps.accept(far));
    granted.and(asked.map(drop)).expect("the ps task enrols");
    let mut job = Job {
        chief,
        worker,
        ps,
        new: task(PS),
        other: chief_of(Authority::new().expect("random numbers")),
        secret,
        recorded: [Vec::new(), Vec::new()],
    };
    let mut relay = Relay::default();
    let (near, far) = between(&job.worker, &job.ps, &mut Script::new(&[]), &mut relay).await;
    assert!(near.is_ok() && matches!(far, Ok(Some(_))), "the ends of a job are secured");
    job.recorded = relay.passed;
    job
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let mut script = Script::new(bytes);
    RUNTIME.with(|runtime| {
        JOB.with(|job| {
            let checked = async { tokio::time::timeout(HANGS_AFTER, job.check(&mut script)).await };
            runtime.block_on(checked).expect("(B) both ends decide within their limits")
        })
    })
}

type Connected = Result<Vec<TaskId>, IdentityError>;
type Accepted = Result<Option<Vec<TaskId>>, IdentityError>;

impl Job {
    async fn check(&self, script: &mut Script<'_>) -> usize {
        match script.below(8) {
            0 => self.bytes_to_server(script).await,
            1 => self.bytes_to_client(script).await,
            2 => self.replay(script).await,
            3 => self.of_another_job(script).await,
            4 | 5 => self.ask(script).await,
            _ => self.relayed(script).await,
        }
    }

    fn server(&self, script: &mut Script<'_>) -> &Credentials {
        script.choose(&[&self.ps, &self.chief, &self.worker, &self.new])
    }

    /// Sends bytes that nobody has signed to an end that accepts.
    async fn bytes_to_server(&self, script: &mut Script<'_>) -> usize {
        let server = self.server(script);
        let (mut near, far) = duplex(PIPE_BYTES);
        let mut bytes = Vec::new();
        if script.once_in(2) {
            // A record of a handshake, so that more than its head is read.
            bytes.extend([22, 3, 1, 0, script.byte(), script.choose(&[1, 2, 0, 11, 20]), 0, 0]);
        }
        while !script.is_over() {
            bytes.push(script.byte());
        }
        let send = async {
            let _ = near.write_all(&bytes).await;
            let _ = near.shutdown().await;
            let _ = near.read_to_end(&mut Vec::new()).await;
        };
        let ((), accepted) = tokio::join!(send, server.accept(far));
        refused(accepted.map(|found| found.is_some()))
    }

    /// Sends bytes that nobody has signed to an end that dials.
    async fn bytes_to_client(&self, script: &mut Script<'_>) -> usize {
        let (near, mut far) = duplex(PIPE_BYTES);
        let mut bytes = match script.below(3) {
            0 => self.recorded[1].clone(),
            1 => vec![22, 3, 3, 0, script.byte(), 2, 0, 0],
            _ => Vec::new(),
        };
        change(&mut bytes, script);
        let send = async {
            let _ = far.write_all(&bytes).await;
            let _ = far.shutdown().await;
            let _ = far.read_to_end(&mut Vec::new()).await;
        };
        let ((), connected) = tokio::join!(send, self.worker.connect(near));
        refused(connected.map(|_| true))
    }

    /// Sends what a worker has sent on an earlier connection, whole or changed.
    async fn replay(&self, script: &mut Script<'_>) -> usize {
        let server = self.server(script);
        let (mut near, far) = duplex(PIPE_BYTES);
        let mut bytes = self.recorded[0].clone();
        if script.once_in(2) {
            change(&mut bytes, script);
        }
        let send = async {
            let _ = near.write_all(&bytes).await;
            let _ = near.shutdown().await;
            let _ = near.read_to_end(&mut Vec::new()).await;
        };
        let ((), accepted) = tokio::join!(send, server.accept(far));
        refused(accepted.map(|found| found.is_some()))
    }

    /// Connects with the certificate of another job, at either end.
    async fn of_another_job(&self, script: &mut Script<'_>) -> usize {
        let server = self.server(script);
        let (near, far) = if script.once_in(2) {
            between(&self.other, server, script, &mut Relay::default()).await
        } else {
            between(&self.worker, &self.other, script, &mut Relay::default()).await
        };
        assert!(!matches!(far, Ok(Some(_))), "(C) a task of another job is refused");
        refused(near.map(|_| true))
    }

    /// Lets a worker dial a ps task over a relay that changes what it passes on.
    async fn relayed(&self, script: &mut Script<'_>) -> usize {
        let (from, to, names) = match script.below(4) {
            0 => (&self.chief, &self.ps, [TaskId::CHIEF, PS]),
            1 => (&self.worker, &self.chief, [WORKER, TaskId::CHIEF]),
            _ => (&self.worker, &self.ps, [WORKER, PS]),
        };
        let mut relay = Relay::default();
        let (near, far) = between(from, to, script, &mut relay).await;
        let near = near.inspect_err(|error| check_error(error)).ok();
        let far = far.inspect_err(|error| check_error(error)).ok().flatten();
        assert!(
            near.as_ref().is_none_or(|tasks| tasks[..] == names[1..]),
            "(C) it is the task that was dialled"
        );
        assert!(far.as_ref().is_none_or(|tasks| tasks[..] == names[..1]), "(C) it is the task that dialled");
        assert!(relay.changed || (near.is_some() && far.is_some()), "ends without a disturbance are secured");
        usize::from(near.is_some()) + usize::from(far.is_some())
    }

    /// Asks the chief for a certificate, with a message that is changed or a proof of something else.
    async fn ask(&self, script: &mut Script<'_>) -> usize {
        let (near, far) = duplex(PIPE_BYTES);
        let task = script.choose(&[
            WORKER,
            PS,
            TaskId::worker(0),
            TaskId::CHIEF,
            TaskId::worker(2),
            TaskId::ps(9),
            OTHER,
        ]);
        // A worker that the cluster does not list may join it.
        let may = task.job == JobName::Worker || task == PS;
        let (mut is_right, mut granted) = (false, false);
        let asks = async {
            let config = stranger(b"pushpull-enrol/1");
            let name = ServerName::try_from("pushpull").expect("a valid name");
            let Ok(mut stream) = TlsConnector::from(config).connect(name, near).await else { return };
            let channel =
                stream.get_ref().1.export_keying_material([0; 32], LABEL, None).expect("a secured stream");
            let right = question(&self.secret, &channel, task);
            let mut sent = right.clone();
            if script.once_in(2) {
                change(&mut sent, script);
            }
            is_right = sent.starts_with(&right);
            for part in sent.chunks(1 + usize::from(script.byte())) {
                let _ = stream.write_all(part).await;
                let _ = stream.flush().await;
            }
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            granted = answer.get(2) == Some(&2);
        };
        let ((), accepted) = tokio::join!(asks, self.chief.accept(far));
        if let Err(error) = &accepted {
            check_error(error);
        }
        assert!(!matches!(accepted, Ok(Some(_))), "(C) a task that enrols is not admitted yet");
        assert!(granted == (is_right && may), "(D) {task}: granted {granted}, right {is_right}");
        usize::from(granted) * 3
    }
}

/// Checks that an end was not secured.
fn refused(secured: Result<bool, IdentityError>) -> usize {
    match secured {
        Ok(secured) => assert!(!secured, "(C) nothing was proved"),
        Err(error) => check_error(&error),
    }
    0
}

/// Returns the question of an enrolment with its length, and with the proof of the secret.
fn question(secret: &[u8], channel: &[u8], task: TaskId) -> Vec<u8> {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).expect("random numbers");
    let (role, index, key) =
        (task.job.as_str().as_bytes(), task.index.to_be_bytes(), key.public_key().as_ref());
    let mut proof = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    for part in [b"task", channel, role, &index, key] {
        proof.update(&(part.len() as u64).to_be_bytes());
        proof.update(part);
    }
    let mut body = vec![1];
    for field in [role, &index, key, proof.sign().as_ref()] {
        body.extend((field.len() as u16).to_be_bytes());
        body.extend(field);
    }
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// Changes bytes as a script says, at least once unless it is over.
fn change(bytes: &mut Vec<u8>, script: &mut Script<'_>) {
    for _ in 0..=script.below(4) {
        if bytes.is_empty() || script.is_over() {
            bytes.push(script.byte());
            continue;
        }
        let at = (usize::from(script.byte()) << 8 | usize::from(script.byte())) % bytes.len();
        match script.below(6) {
            0 | 1 => bytes[at] ^= 1 << script.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, script.byte()),
            4 => drop(bytes.remove(at)),
            _ => {
                let part = bytes[at..].iter().copied().take(usize::from(script.byte())).collect::<Vec<_>>();
                bytes.splice(at..at, part);
            }
        }
    }
}

/// What a relay has passed on from the end that dials, and from the other one.
#[derive(Default)]
struct Relay {
    passed: [Vec<u8>; 2],
    /// Whether it has changed, dropped or repeated anything.
    changed: bool,
}

impl Relay {
    /// Passes on what arrives, as the script says.
    async fn run(&mut self, script: &mut Script<'_>, ends: [DuplexStream; 2]) {
        let [near, far] = ends;
        let ((mut from_near, mut to_near), (mut from_far, mut to_far)) =
            (tokio::io::split(near), tokio::io::split(far));
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        let mut open = [true, true];
        while open[0] || open[1] {
            let (side, read) = tokio::select! {
                biased;
                read = from_near.read(&mut one), if open[0] => (0, read.unwrap_or(0)),
                read = from_far.read(&mut other), if open[1] => (1, read.unwrap_or(0)),
            };
            let to = if side == 0 { &mut to_far } else { &mut to_near };
            if read == 0 {
                open[side] = false;
                let _ = to.shutdown().await;
                continue;
            }
            let bytes = if side == 0 { one[..read].to_vec() } else { other[..read].to_vec() };
            self.pass(side, bytes, script, to).await;
        }
    }

    async fn pass(
        &mut self,
        side: usize,
        mut bytes: Vec<u8>,
        script: &mut Script<'_>,
        to: &mut tokio::io::WriteHalf<DuplexStream>,
    ) {
        self.passed[side].extend(&bytes);
        let how = script.byte();
        match how {
            0..=127 => {}
            128..=159 => {
                // Split into parts, which changes nothing.
                for part in bytes.chunks(1 + usize::from(how % 32) * 8) {
                    let _ = to.write_all(part).await;
                    tokio::task::yield_now().await;
                }
                return;
            }
            160..=219 => {
                self.changed = true;
                change(&mut bytes, script);
            }
            220..=229 => {
                self.changed = true;
                bytes = bytes.repeat(2);
            }
            230..=239 => {
                // What is reflected comes from the wrong end.
                self.changed = true;
                bytes = self.passed[1 - side].clone();
            }
            240..=249 => {
                self.changed = true;
                tokio::time::sleep(Duration::from_millis(u64::from(script.byte()) * 50)).await;
            }
            _ => {
                self.changed = true;
                return;
            }
        }
        let _ = to.write_all(&bytes).await;
    }
}

/// Lets `from` dial `to` over a relay. If both are secured, a word is passed in each direction.
async fn between(
    from: &Credentials,
    to: &Credentials,
    script: &mut Script<'_>,
    relay: &mut Relay,
) -> (Connected, Accepted) {
    let (near, relay_near) = duplex(PIPE_BYTES);
    let (relay_far, far) = duplex(PIPE_BYTES);
    let dials = async {
        let secured = from.connect(near).await?;
        let tasks = tasks_of(&secured);
        talk(secured, b"hello", b"world").await;
        Ok(tasks)
    };
    let accepts = async {
        let Some(secured) = to.accept(far).await? else { return Ok(None) };
        let tasks = tasks_of(&secured);
        talk(secured, b"world", b"hello").await;
        Ok(Some(tasks))
    };
    let ends = async { tokio::join!(dials, accepts) };
    tokio::pin!(ends);
    tokio::select! {
        biased;
        both = &mut ends => both,
        () = relay.run(script, [relay_near, relay_far]) => ends.await,
    }
}

/// Returns the tasks that the other end has proved to be. The tasks of this job serve no clients.
fn tasks_of(secured: &Secured<DuplexStream>) -> Vec<TaskId> {
    match &secured.proven {
        Proven::Tasks(tasks) => tasks.clone(),
        Proven::Client(role) => panic!("(C) a training job has no client, but one has the role {role}"),
    }
}

/// Sends a word, and checks that nothing else arrives than the word of the other end. A relay that drops
/// both words would let both ends wait for ever, so an end waits for a while only.
async fn talk(mut secured: Secured<DuplexStream>, word: &[u8; 5], expected: &[u8; 5]) {
    let _ = secured.stream.write_all(word).await;
    let _ = secured.stream.flush().await;
    let mut got = [0; 5];
    let read = tokio::time::timeout(WORD_WITHIN, secured.stream.read_exact(&mut got)).await;
    if matches!(read, Ok(Ok(_))) {
        assert!(got == *expected, "what arrives is what was sent");
    }
}

/// Returns the settings of a client that trusts every server and has no certificate.
fn stranger(protocol: &[u8]) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3 is there");
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.enable_sni = false;
    Arc::new(config)
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let names =
        ["bytes-to-server", "bytes-to-client", "replay", "other-job", "ask", "ask-changed", "relayed"];
    let scripts: [&[u8]; 7] =
        [&[0, 0, 1, 60, 1], &[1, 0], &[2], &[3, 0, 1], &[4, 0, 0, 255], &[5, 0, 1, 1], &[6, 2]];
    names
        .iter()
        .zip(scripts)
        .map(|(name, script)| ((*name).to_owned(), [script, &[0; 16]].concat()))
        .collect()
}
