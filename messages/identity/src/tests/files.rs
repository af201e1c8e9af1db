//! Tests of certificates that are made elsewhere: of both ends together, over a pipe in memory, and of files
//! that change while they are used.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::observe::unix_time;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use crate::authority::Authority;
use crate::reloaded::{EVERY, Found};
use crate::tls_files::{Material, TlsFiles, TlsFilesError};
use crate::untrusted::Untrusted;
use crate::{
    ClientCredentials, ClientRole, ClientString, Credentials, HttpsClient, HttpsServer, IdentityError,
    Proven, Secured,
};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const HOUR: Duration = Duration::from_secs(3600);

/// An authority of an organisation.
struct Organisation {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// The certificates between this authority and the first one.
    between: String,
}

/// What a certificate is to be.
#[derive(Clone)]
struct Wish<'a> {
    names: Vec<&'a str>,
    from: Duration,
    until: Duration,
    uses: Vec<ExtendedKeyUsagePurpose>,
    algorithm: &'static rcgen::SignatureAlgorithm,
}

impl<'a> Wish<'a> {
    fn of(names: &[&'a str]) -> Self {
        let uses = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let (from, until) = (unix_time() - HOUR, unix_time() + HOUR);
        Self { names: names.to_vec(), from, until, uses, algorithm: &rcgen::PKCS_ECDSA_P256_SHA256 }
    }
}

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params, KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap())
}

impl Organisation {
    fn new() -> Self {
        let (params, key) = authority("organisation");
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem, between: String::new() }
    }

    /// Makes an authority below this one.
    fn below(&self, name: &str) -> Self {
        let (params, key) = authority(name);
        let own = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem: self.pem.clone(), between: own + &self.between }
    }

    /// Makes a certificate, and returns the texts of a chain and a key.
    fn make(&self, wish: &Wish<'_>) -> (String, String) {
        let since_1970 = |time: Duration| date_time_ymd(1970, 1, 1) + time;
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (since_1970(wish.from), since_1970(wish.until));
        params.extended_key_usages.clone_from(&wish.uses);
        let name = |name: &&str| match name.contains("://") {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        };
        params.subject_alt_names = wish.names.iter().map(name).collect();
        let key = KeyPair::generate_for(wish.algorithm).unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        (leaf.pem() + &self.between, key.serialize_pem())
    }
}

/// The three files of a process.
struct Files {
    _dir: TempDir,
    paths: TlsFiles,
}

impl Files {
    fn new(organisation: &Organisation, wish: &Wish<'_>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [ca, certificate, key] = ["ca.crt", "tls.crt", "tls.key"].map(|name| dir.path().join(name));
        let files = Self { _dir: dir, paths: TlsFiles { ca, certificate, key } };
        files.write_ca(&organisation.pem);
        files.write(&organisation.make(wish));
        files
    }

    fn of(organisation: &Organisation, names: &[&str]) -> Self {
        Self::new(organisation, &Wish::of(names))
    }

    fn write_ca(&self, text: &str) {
        std::fs::write(&self.paths.ca, text).unwrap();
    }

    fn write(&self, (certificate, key): &(String, String)) {
        std::fs::write(&self.paths.certificate, certificate).unwrap();
        std::fs::write(&self.paths.key, key).unwrap();
        self.allow(0o600);
    }

    fn allow(&self, mode: u32) {
        set_permissions(&self.paths.key, Permissions::from_mode(mode)).unwrap();
    }

    fn task(&self, task: TaskId) -> Result<Credentials, TlsFilesError> {
        Credentials::of_task_with_files(self.paths.clone(), cluster(), task)
    }
}

fn cluster() -> ClusterSpec {
    let jobs = [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])];
    ClusterSpec::new(jobs).unwrap()
}

fn name(job: &str, task: TaskId) -> String {
    crate::name::uri(job, task)
}

/// Returns the credentials of a task of the job `a`.
fn member(organisation: &Organisation, task: TaskId) -> Credentials {
    Files::of(organisation, &[&name("a", task)]).task(task).unwrap()
}

type Made = Result<Secured<DuplexStream>, IdentityError>;
type Accepted = Result<Option<Secured<DuplexStream>>, IdentityError>;

async fn connect(from: &Credentials, to: &Credentials) -> (Made, Accepted) {
    let (near, far) = duplex(1 << 16);
    tokio::join!(from.connect(near), to.accept(far))
}

/// Checks that two tasks reach each other.
async fn meet(one: &Credentials, other: &Credentials) {
    for (from, to) in [(one, other), (other, one)] {
        let (near, far) = connect(from, to).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap().unwrap());
        near.stream.write_all(b"x").await.unwrap();
        near.stream.flush().await.unwrap();
        assert_eq!(far.stream.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn tasks_with_certificates_of_one_authority_meet() {
    let organisation = Organisation::new();
    let (chief, ps) = (member(&organisation, CHIEF), member(&organisation, PS));
    let (near, far) = connect(&chief, &ps).await;
    let (near, far) = (near.unwrap(), far.unwrap().unwrap());
    assert_eq!((&near.proven, &far.proven), (&Proven::Tasks(vec![PS]), &Proven::Tasks(vec![CHIEF])));
    assert!(!chief.must_renew(&near) && !chief.has_authority() && chief.join_string().is_none());
    // Authorities between, other names, several tasks, and keys of other kinds.
    let deep = organisation.below("one").below("two").below("three");
    let names = [&name("a", WORKER), "spiffe://a/worker", "w.example", &name("a", TaskId::worker(7))];
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let worker = Files::new(&deep, &Wish { algorithm, ..Wish::of(&names) }).task(WORKER).unwrap();
        meet(&worker, &ps).await;
        let named = connect(&worker, &ps).await.1.unwrap().unwrap().proven;
        assert_eq!(named, Proven::Tasks(vec![WORKER, TaskId::worker(7)]));
    }
    let unexpected = |_| async { panic!("it never asks") as std::io::Result<DuplexStream> };
    chief.enrol(unexpected).await.unwrap();
    let (near, _) = duplex(1);
    assert!(matches!(chief.enrol_peer(near).await, Err(IdentityError::Enrolment(_))));
}

/// Returns the reason why a task refuses another one.
async fn refused(from: &Credentials, to: &Credentials) -> Untrusted {
    match connect(from, to).await.0 {
        Err(error @ IdentityError::Untrusted(_)) => {
            assert!(error.is_final() && !error.to_string().contains('\n'), "{error}");
            let IdentityError::Untrusted(untrusted) = error else { unreachable!() };
            untrusted
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn other_authorities_and_other_jobs_are_refused() {
    let (organisation, other) = (Organisation::new(), Organisation::new());
    let ps = member(&organisation, PS);
    let stranger = member(&other, WORKER);
    assert_eq!(refused(&stranger, &ps).await, Untrusted::Signer);
    assert_eq!(refused(&ps, &stranger).await, Untrusted::Signer);
    let beside = Files::of(&organisation, &[&name("b", WORKER)]).task(WORKER).unwrap();
    let expected = "its certificate names pushpull://a/ps/0, expected only tasks of the job 'b', such as \
                    pushpull://b/worker/0";
    assert_eq!(refused(&beside, &ps).await.to_string(), expected);
    // The listening end refuses a dialling one for the same reasons.
    let lax = Files::of(&organisation, &[&name("a", WORKER)]);
    lax.write(&other.make(&Wish::of(&[&name("a", WORKER)])));
    lax.write_ca(&format!("{}{}", organisation.pem, other.pem));
    let (_, far) = connect(&lax.task(WORKER).unwrap(), &ps).await;
    assert!(matches!(far, Err(IdentityError::Untrusted(Untrusted::Signer))), "{far:?}");
}

/// Returns the error of the files of worker/0, after they were changed.
fn fault(organisation: &Organisation, wish: &Wish<'_>, change: impl FnOnce(&Files)) -> String {
    let files = Files::new(organisation, wish);
    change(&files);
    let error = files.task(WORKER).unwrap_err().to_string();
    let key = std::fs::read_to_string(&files.paths.key).unwrap_or_default();
    let secrets = key.lines().filter(|line| line.len() > 30 && !line.starts_with("-----"));
    assert!(secrets.into_iter().all(|line| !error.contains(line)) && !error.contains('\n'), "(B) {error}");
    error
}

#[test]
fn files_that_do_not_fit_are_refused_with_one_line() {
    let (organisation, other) = (Organisation::new(), Organisation::new());
    let own = name("a", WORKER);
    let usual = Wish::of(&[&own]);
    let check = |wish: &Wish<'_>, change: &dyn Fn(&Files), words: &str| {
        let error = fault(&organisation, wish, change);
        assert!(error.contains(words), "{error}, expected {words}");
    };
    let nothing = |_: &Files| {};
    let named = |names: &[&'static str]| Wish::of(names);
    for (path, flag) in [(0, "--tls-ca"), (1, "--tls-cert"), (2, "--tls-key")] {
        let remove = move |files: &Files| {
            let TlsFiles { ca, certificate, key } = &files.paths;
            std::fs::remove_file([ca, certificate, key][path]).unwrap();
        };
        check(&usual, &remove, &format!("{flag}: cannot read "));
    }
    check(&usual, &|files| files.allow(0o644), "--tls-key: ");
    check(&usual, &|files| files.allow(0o604), "has mode 0604, and it holds a key");
    check(
        &usual,
        &|files| files.write_ca("nothing"),
        "has 0 certificates that can be read, expected 1 to 64",
    );
    let many = organisation.make(&usual).0.repeat(5);
    let long = |files: &Files| std::fs::write(&files.paths.certificate, &many).unwrap();
    check(&usual, &long, "has 5 certificates that can be read, expected 1 to 4");
    let cut = |files: &Files| {
        let text = std::fs::read_to_string(&files.paths.certificate).unwrap();
        std::fs::write(&files.paths.certificate, &text[..text.len() / 2]).unwrap();
    };
    check(&usual, &cut, "has 0 certificates that can be read");
    let large = |files: &Files| files.write_ca(&"x".repeat(300 << 10));
    check(&usual, &large, "expected a text of at most 262144 bytes");
    let garbage = |files: &Files| std::fs::write(&files.paths.key, "s3cret").unwrap();
    check(&usual, &garbage, "has no key that can be used");
    let swapped = organisation.make(&usual).1;
    let swap = |files: &Files| std::fs::write(&files.paths.key, &swapped).unwrap();
    check(&usual, &swap, "is not the key of the first certificate in --tls-cert");
    check(&usual, &|files| files.write_ca(&other.pem), "no authority that is trusted here has signed");
    let (past, future) = (unix_time() - 2 * HOUR, unix_time() + 2 * HOUR);
    check(&Wish { from: past, until: past + HOUR, ..usual.clone() }, &nothing, "has expired");
    check(&Wish { from: future - HOUR, until: future, ..usual.clone() }, &nothing, "is not valid yet");
    let uses = vec![ExtendedKeyUsagePurpose::ServerAuth];
    check(&Wish { uses, ..usual }, &nothing, "its extended key usages must be serverAuth and clientAuth");
    let example = "expected pushpull://JOB/worker/0 among its subject alternative names";
    check(&named(&[]), &nothing, &format!("names no URI of pushpull, {example}"));
    check(&named(&["w.example", "spiffe://a/worker/0"]), &nothing, example);
    for wrong in ["pushpull://A/worker/0", "pushpull://a/worker/00", "PUSHPULL://a/worker/0"] {
        check(&named(&[wrong]), &nothing, &format!("names {wrong}, expected a job of 1 to 64 characters"));
    }
    let two = named(&["pushpull://a/worker/0", "pushpull://b/worker/0"]);
    check(&two, &nothing, "names pushpull://b/worker/0, expected only names of the job 'a'");
    let ps = named(&["pushpull://a/ps/0"]);
    check(&ps, &nothing, "names pushpull://a/ps/0, expected pushpull://a/worker/0 among");
    check(
        &named(&["pushpull://a/client/run"]),
        &nothing,
        "names pushpull://a/client/run, expected only tasks",
    );
}

#[test]
fn a_worker_needs_the_names_of_all_its_tasks() {
    let organisation = Organisation::new();
    let workers = ClusterSpec::new([(JobName::Worker, vec!["w:1", "w:2"])]).unwrap();
    let all = [name("a", WORKER), name("a", PS), name("a", CHIEF)];
    for missing in 0..3 {
        let some: Vec<&str> =
            all.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, name)| name.as_str()).collect();
        let files = Files::of(&organisation, &some);
        let made = Credentials::of_task_with_files(files.paths.clone(), workers.clone(), WORKER);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(&format!("expected {}", all.join(" and "))), "{error}");
    }
    let files = Files::of(&organisation, &all.each_ref().map(String::as_str));
    Credentials::of_task_with_files(files.paths.clone(), workers, WORKER).unwrap();
}

#[test]
fn three_files_are_given_or_none() {
    let path = |given: bool| given.then(|| PathBuf::from("x"));
    assert_eq!(TlsFiles::of(None, None, None), Ok(None));
    assert!(TlsFiles::of(path(true), path(true), path(true)).unwrap().is_some());
    for (bits, missing) in
        [(1, "--tls-cert and --tls-key"), (2, "--tls-ca and --tls-key"), (6, "--tls-ca"), (3, "--tls-key")]
    {
        let [ca, certificate, key] = [1, 2, 4].map(|bit| path(bits & bit != 0));
        let error = TlsFiles::of(ca, certificate, key).unwrap_err().to_string();
        assert!(error.starts_with(&format!("give {missing}, too: ")), "{error}");
    }
}

/// The files of a task that is running, and the time of its last look.
struct Running {
    files: Files,
    credentials: Credentials,
    now: Instant,
}

impl Running {
    fn new(organisation: &Organisation, task: TaskId) -> Self {
        let files = Files::of(organisation, &[&name("a", task)]);
        let credentials = files.task(task).unwrap();
        Self { files, credentials, now: Instant::now() }
    }

    /// Looks at the files after this time has passed.
    fn look_after(&mut self, time: Duration) -> Found {
        self.now += time;
        self.credentials.of_files().look(self.now)
    }

    fn look(&mut self) -> Found {
        self.look_after(EVERY)
    }

    fn shown(&self) -> Vec<u8> {
        self.credentials.shown().unwrap().cert[0].to_vec()
    }
}

#[tokio::test]
async fn authorities_are_replaced_by_turns() {
    let (old, new) = (Organisation::new(), Organisation::new());
    let both = format!("{}{}", old.pem, new.pem);
    let tasks = [CHIEF, PS, WORKER];
    let mut running = tasks.map(|task| Running::new(&old, task));
    let open = connect(&running[0].credentials, &running[1].credentials).await;
    let mut open = (open.0.unwrap(), open.1.unwrap().unwrap());
    // First, all trust both. Then each gets a certificate of the new one. Then nobody trusts the old one.
    for turn in 0..3 {
        for at in 0..tasks.len() {
            let task = &mut running[at];
            match turn {
                0 => task.files.write_ca(&both),
                1 => task.files.write(&new.make(&Wish::of(&[&name("a", tasks[at])]))),
                _ => task.files.write_ca(&new.pem),
            }
            assert_eq!(task.look_after(EVERY / 2), Found::TooEarly, "(C)");
            assert_eq!(task.look_after(EVERY / 2), Found::New, "(A)");
            assert_eq!(task.look(), Found::Same);
            meet(&running[at].credentials, &running[(at + 1) % 3].credentials).await;
            meet(&running[at].credentials, &running[(at + 2) % 3].credentials).await;
        }
    }
    assert_eq!(refused(&member(&old, WORKER), &running[1].credentials).await, Untrusted::Signer);
    open.0.stream.write_all(b"x").await.unwrap();
    open.0.stream.flush().await.unwrap();
    assert_eq!(open.1.stream.read_u8().await.unwrap(), b'x', "connections stay open");
}

#[tokio::test]
async fn files_that_cannot_be_used_change_nothing() {
    let (organisation, other) = (Organisation::new(), Organisation::new());
    let (own, usual) = (name("a", PS), Wish::of(&["pushpull://a/ps/0"]));
    let chief = member(&organisation, CHIEF);
    let mut ps = Running::new(&organisation, PS);
    let (first, good) = (ps.shown(), organisation.make(&usual));
    let past = unix_time() - HOUR;
    let wrong = [
        (organisation.make(&Wish::of(&["pushpull://b/ps/0"])), 0o600),
        (organisation.make(&Wish::of(&["pushpull://a/ps/1"])), 0o600),
        (organisation.make(&Wish { from: past - HOUR, until: past, ..Wish::of(&[&own]) }), 0o600),
        (other.make(&usual), 0o600),
        (good.clone(), 0o644),
        ((good.0[..good.0.len() / 2].to_owned(), good.1.clone()), 0o600),
        ((good.0.clone(), good.1[..good.1.len() / 2].to_owned()), 0o600),
        ((good.0.clone(), organisation.make(&usual).1), 0o600),
        ((String::new(), String::new()), 0o600),
    ];
    for (texts, mode) in &wrong {
        ps.files.write(texts);
        ps.files.allow(*mode);
        assert!(matches!(ps.look(), Found::Unusable { .. }), "(B)");
        assert_eq!(ps.shown(), first, "(B)");
        meet(&chief, &ps.credentials).await;
    }
    std::fs::remove_file(&ps.files.paths.ca).unwrap();
    assert!(matches!(ps.look(), Found::Unusable { .. }));
    meet(&chief, &ps.credentials).await;
    ps.files.write_ca(&organisation.pem);
    ps.files.write(&good);
    assert_eq!(ps.look(), Found::New);
    assert_ne!(ps.shown(), first);
    meet(&chief, &ps.credentials).await;
}

#[test]
fn a_pair_that_is_being_replaced_causes_no_warning() {
    let organisation = Organisation::new();
    let mut ps = Running::new(&organisation, PS);
    let first = ps.shown();
    let (certificate, key) = organisation.make(&Wish::of(&["pushpull://a/ps/0"]));
    std::fs::write(&ps.files.paths.certificate, &certificate).unwrap();
    assert_eq!(ps.look(), Found::Unusable { warned: false }, "(D)");
    assert_eq!(ps.shown(), first);
    std::fs::write(&ps.files.paths.key, &key).unwrap();
    assert_eq!(ps.look(), Found::New, "(A)");
    // What stays broken is said, once a minute.
    std::fs::write(&ps.files.paths.key, "").unwrap();
    let warned: Vec<bool> = (0..=61).map(|_| ps.look() == Found::Unusable { warned: true }).collect();
    let times: Vec<usize> = (0..=61).filter(|&at| warned[at]).collect();
    assert_eq!(times, [1, 31, 61], "(D)");
}

#[tokio::test]
async fn a_client_has_the_role_that_its_certificate_names() {
    let organisation = Organisation::new();
    let servers = ClusterSpec::new([(JobName::Ps, vec!["c:1"])]).unwrap();
    let files = Files::of(&organisation, &[&name("a", PS)]);
    let server = Credentials::of_server_with_files(files.paths.clone(), servers, PS).unwrap();
    let visit = |files: Files| {
        let client = ClientCredentials::with_files(&files.paths);
        let server = server.clone();
        async move {
            let (near, far) = duplex(1 << 16);
            let client = client.unwrap();
            tokio::join!(client.connect(near), server.accept(far))
        }
    };
    for role in ClientRole::ALL {
        let uses = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = format!("pushpull://a/client/{role}");
        let wish = Wish { uses, ..Wish::of(&["https://example", &uri]) };
        let (near, far) = visit(Files::new(&organisation, &wish)).await;
        let (near, far) = (near.unwrap(), far.unwrap().unwrap());
        assert_eq!((near.proven, far.proven), (Proven::Tasks(vec![PS]), Proven::Client(role)));
    }
    let other = Files::of(&organisation, &["pushpull://b/client/run"]);
    let (near, _) = visit(other).await;
    assert!(matches!(near, Err(IdentityError::Untrusted(Untrusted::Names { .. }))), "{near:?}");
    let strange = Organisation::new();
    let (files, wish) = (Files::of(&organisation, &["pushpull://a/client/run"]), ["pushpull://a/client/run"]);
    files.write(&strange.make(&Wish::of(&wish)));
    files.write_ca(&format!("{}{}", organisation.pem, strange.pem));
    let (_, far) = visit(files).await;
    assert!(matches!(far, Err(IdentityError::Untrusted(Untrusted::Signer))), "{far:?}");
    for names in [
        &["pushpull://a/client/run", "pushpull://a/client/read"][..],
        &["pushpull://a/client/run", "pushpull://a/worker/0"],
        &["pushpull://a/worker/0"],
        &["pushpull://a/client/0"],
    ] {
        let error = ClientCredentials::with_files(&Files::of(&organisation, names).paths).unwrap_err();
        assert!(matches!(&error, TlsFilesError::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains("either pushpull://a/client/run or"), "{error}");
    }
    let task = Files::of(&organisation, &["pushpull://a/worker/0", "pushpull://a/client/run"]).task(WORKER);
    assert!(matches!(task, Err(TlsFilesError::Untrusted { .. })), "no task is a client, too");
}

#[tokio::test]
async fn join_strings_and_files_do_not_mix() {
    let organisation = Organisation::new();
    let (chief, ps) = (member(&organisation, CHIEF), member(&organisation, PS));
    let authority = Authority::new().unwrap();
    let join = authority.join().clone();
    let joined = Credentials::of_task(join.clone(), cluster(), WORKER).unwrap();
    let (near, far) = duplex(1 << 16);
    let (asked, accepted) = tokio::join!(joined.enrol(|_| async { Ok(near) }), chief.accept(far));
    let asked = asked.unwrap_err();
    assert!(matches!(asked, IdentityError::NotEnrolling) && asked.is_final(), "{asked}");
    assert!(matches!(accepted, Err(IdentityError::NothingToGrant)), "{accepted:?}");
    let waiting = Credentials::of_task(join.clone(), cluster(), PS).unwrap();
    let (near, far) = connect(&chief, &waiting).await;
    assert!(matches!((near, far), (Err(IdentityError::PeerWaits), Ok(None))));
    let leader = Credentials::of_chief(authority, cluster(), CHIEF).unwrap();
    let (near, far) = connect(&leader, &ps).await;
    assert!(near.is_err() && far.is_err(), "{near:?} {far:?}");
    let (near, far) = connect(&ps, &leader).await;
    assert!(matches!(near, Err(IdentityError::Untrusted(Untrusted::Signer))), "{near:?}");
    assert!(far.is_err());

    let files = Files::of(&organisation, &[&name("a", PS)]);
    let servers = ClusterSpec::new([(JobName::Ps, vec!["c:1"])]).unwrap();
    let server = Credentials::of_server_with_files(files.paths.clone(), servers.clone(), PS).unwrap();
    let string = ClientCredentials::new(ClientString::of(&join, ClientRole::Run)).unwrap();
    let client = Files::of(&organisation, &["pushpull://a/client/run"]);
    let certified = ClientCredentials::with_files(&client.paths).unwrap();
    let first = Credentials::of_first_server(Authority::new().unwrap(), servers).unwrap();
    for (client, server, expected) in [
        (&string, &server, IdentityError::ClientString),
        (&certified, &first, IdentityError::ClientCertificate),
        (&certified, &ps, IdentityError::NoServer),
    ] {
        let (near, far) = duplex(1 << 16);
        let (near, far) = tokio::join!(client.connect(near), server.accept(far));
        assert!(matches!(near, Err(IdentityError::NotServing)), "{near:?}");
        assert_eq!(far.unwrap_err().to_string(), expected.to_string());
    }
}

/// Asks an endpoint on a thread, because the client blocks.
async fn ask(client: &HttpsClient, host: &'static str, to: &HttpsServer) -> Result<Vec<u8>, String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, address) = (client.clone(), listener.local_addr().unwrap());
    let asked = tokio::task::spawn_blocking(move || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        let stream = client.connect(host, stream).map_err(|error| error.to_string())?;
        Ok(stream.conn.peer_certificates().unwrap()[0].to_vec())
    });
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        // Its error is the client's as well.
        let _ = to.accept(stream).await;
    };
    let (asked, ()) = tokio::join!(asked, served);
    asked.unwrap()
}

#[tokio::test]
async fn an_endpoint_shows_the_newest_file() {
    let organisation = Organisation::new();
    let wish = Wish::of(&["pushpull://a/ps/0", "ps.example"]);
    let files = Files::new(&organisation, &wish);
    let mut ps = Running { credentials: files.task(PS).unwrap(), files, now: Instant::now() };
    let server = HttpsServer::new(&ps.credentials).unwrap();
    let client = HttpsClient::of_authorities(&ps.files.paths.ca).unwrap();
    let first = ask(&client, "ps.example", &server).await.unwrap();
    assert_eq!(first, ps.shown());
    ps.files.write(&organisation.make(&wish));
    assert_eq!(ps.look(), Found::New);
    assert_ne!(ask(&client, "ps.example", &server).await.unwrap(), first);
    let error = ask(&client, "other.example", &server).await.unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
    let other = Files::of(&Organisation::new(), &[]);
    let strange = HttpsClient::of_authorities(&other.paths.ca).unwrap();
    let error = ask(&strange, "ps.example", &server).await.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
    other.write_ca("");
    assert!(matches!(HttpsClient::of_authorities(&other.paths.ca), Err(TlsFilesError::Certificates { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Changes a byte of one of the files, which is hostile input.
    #[test]
    fn a_changed_file_is_used_only_if_all_fits(
        file in 0usize..3, at in any::<prop::sample::Index>(), byte in 0u8..128, cut in any::<bool>()
    ) {
        let organisation = Organisation::new();
        let files = Files::of(&organisation, &["pushpull://a/worker/0"]);
        let path = [&files.paths.ca, &files.paths.certificate, &files.paths.key][file];
        let mut bytes = std::fs::read(path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(if cut { at } else { bytes.len() });
        std::fs::write(path, bytes).unwrap();
        let contents = files.paths.read().unwrap();
        if let Ok(material) = Material::of_tasks(&files.paths, &contents, &[WORKER], unix_time()) {
            prop_assert!(material.shown.keys_match().is_ok());
            let named = material.verifier.check(&material.certificate.chain, unix_time());
            prop_assert_eq!(named, Ok(vec![WORKER]));
        }
    }
}
