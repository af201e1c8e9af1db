//! Tests of both ends together, over a pipe in memory: tasks that enrol and talk, and strangers that try to.

mod files;

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::cluster::{ClusterSpec, TASKS_PER_JOB_MAX};
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::observe::unix_time;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::{Authority, CLOCKS_DIFFER, LIFE};
use crate::certificate::{TaskCertificate, TaskKey};
use crate::configs::{self, CLIENT, Clients, ENROLMENT, PEERS, Servers};
use crate::enrolment::{Channel, EnrolmentError, Grants, admit, ask, grant, prove_role};
use crate::error::IdentityError;
use crate::place::Place;
use crate::untrusted::Untrusted;
use crate::verifier::Verifier;
use crate::{ClientCredentials, ClientRole, ClientString, Credentials, JoinString, Proven, Secured};

const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(1);

fn cluster() -> ClusterSpec {
    let jobs =
        [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:2"])];
    ClusterSpec::new(jobs).unwrap()
}

fn chief() -> (Credentials, JoinString) {
    let authority = Authority::new().unwrap();
    let join = authority.join().clone();
    (Credentials::of_chief(authority, cluster(), TaskId::CHIEF).unwrap(), join)
}

fn task(join: &JoinString, task: TaskId) -> Credentials {
    Credentials::of_task(join.clone(), cluster(), task).unwrap()
}

fn tasks(task: TaskId) -> Proven {
    Proven::Tasks(vec![task])
}

type Accepted = Result<Option<Secured<DuplexStream>>, IdentityError>;

/// Lets a task ask a chief, and returns the results of both.
async fn enrol(task: &Credentials, chief: &Credentials) -> (Result<(), IdentityError>, Accepted) {
    let (near, far) = duplex(1 << 16);
    let asked = task.enrol(|address| async move {
        assert_eq!(address, "c:1");
        Ok(near)
    });
    tokio::join!(asked, chief.accept(far))
}

/// Lets the chief connect to a task, and returns the results of both.
async fn enrol_ps(chief: &Credentials, ps: &Credentials) -> (Result<(), IdentityError>, Accepted) {
    let (near, far) = duplex(1 << 16);
    tokio::join!(chief.enrol_peer(near), ps.accept(far))
}

async fn connect(
    from: &Credentials,
    to: &Credentials,
) -> (Result<Secured<DuplexStream>, IdentityError>, Accepted) {
    let (near, far) = duplex(1 << 16);
    tokio::join!(from.connect(near), to.accept(far))
}

#[tokio::test]
async fn tasks_that_have_enrolled_know_each_other() {
    let (chief, join) = chief();
    let (worker, ps) = (task(&join, WORKER), task(&join, PS));
    let (near, far) = connect(&worker, &ps).await;
    assert!(matches!((near, far), (Err(IdentityError::NoCertificate), Ok(None))));
    let (asked, granted) = enrol(&worker, &chief).await;
    asked.unwrap();
    assert!(granted.unwrap().is_none());
    let (near, far) = connect(&worker, &ps).await;
    assert!(matches!((near, far), (Err(IdentityError::PeerHasNone), Ok(None))), "not yet");
    let (granted, asked) = enrol_ps(&chief, &ps).await;
    granted.unwrap();
    assert!(asked.unwrap().is_none());
    for (from, to, named) in [(&worker, &ps, [WORKER, PS]), (&chief, &ps, [TaskId::CHIEF, PS])] {
        let (near, far) = connect(from, to).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap().unwrap());
        assert_eq!((&far.proven, &near.proven), (&tasks(named[0]), &tasks(named[1])));
        assert!(!chief.must_renew(&near) && !worker.must_renew(&near));
        near.stream.write_all(b"hello").await.unwrap();
        near.stream.flush().await.unwrap();
        let mut got = [0; 5];
        far.stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
    }
    // A task that has a certificate does not ask again, and a ps task never asks.
    for quiet in [&worker, &ps, &task(&join, PS), &chief] {
        quiet.enrol(|_| async { Err::<DuplexStream, _>(std::io::Error::other("unexpected")) }).await.unwrap();
    }
}

#[tokio::test]
async fn a_restarted_chief_goes_on_with_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("authority");
    Authority::new().unwrap().write(&path).unwrap();
    let start = || Credentials::of_chief(Authority::read(&path).unwrap(), cluster(), TaskId::CHIEF).unwrap();
    let (first, join) = (start(), Authority::read(&path).unwrap().join().clone());
    let worker = task(&join, WORKER);
    enrol(&worker, &first).await.0.unwrap();
    let (near, far) = connect(&worker, &start()).await;
    assert_eq!((near.unwrap().proven, far.unwrap().unwrap().proven), (tasks(TaskId::CHIEF), tasks(WORKER)));
}

#[tokio::test]
async fn a_task_with_the_wrong_secret_gets_nothing() {
    let (chief, join) = chief();
    let wrong = JoinString { secret: [7; 16], ..join.clone() };
    let worker = task(&wrong, WORKER);
    let (asked, granted) = enrol(&worker, &chief).await;
    let (asked, granted) = (asked.unwrap_err(), granted.unwrap_err());
    assert!(matches!(asked, IdentityError::Enrolment(EnrolmentError::Refused(_))) && asked.is_final());
    assert!(matches!(granted, IdentityError::Enrolment(EnrolmentError::Proof(WORKER))), "{granted}");
    assert!(matches!(worker.connect(duplex(9).0).await, Err(IdentityError::NoCertificate)));
    let (granted, asked) = enrol_ps(&chief, &task(&wrong, PS)).await;
    assert!(matches!(granted, Err(IdentityError::Enrolment(EnrolmentError::Proof(PS)))));
    assert!(matches!(asked, Err(IdentityError::Enrolment(EnrolmentError::Refused(_)))));
}

#[tokio::test]
async fn a_chief_of_another_authority_is_refused() {
    let ((chief, _), (_, join)) = (chief(), chief());
    let (asked, granted) = enrol(&task(&join, WORKER), &chief).await;
    let error = asked.unwrap_err();
    assert!(matches!(error, IdentityError::Untrusted(Untrusted::Authority)) && error.is_final(), "{error}");
    assert!(matches!(granted, Err(IdentityError::NotTrusted)), "{granted:?}");
    let (granted, asked) = enrol_ps(&chief, &task(&join, PS)).await;
    assert!(matches!(granted, Err(IdentityError::NotTrusted)), "{granted:?}");
    assert!(matches!(asked, Err(IdentityError::Untrusted(Untrusted::Authority))), "{asked:?}");
}

#[tokio::test]
async fn a_chief_that_knows_no_secret_is_refused() {
    // Somebody who has the authority's key, but not the secret, cannot answer.
    let (_, join) = chief();
    let (mut near, mut far) = duplex(1 << 16);
    let authority = Authority::new().unwrap();
    let place = Place::in_training(cluster(), TaskId::CHIEF);
    let grants = Grants { authority: &authority, place: &place, now: unix_time() };
    let theirs = JoinString { secret: authority.join().secret, ..join.clone() };
    let key = TaskKey::new().unwrap();
    let channel = Channel::test(1);
    let (chain, tasks) = tokio::join!(
        ask(&mut near, channel, &theirs, WORKER, key.public()),
        grant(&mut far, channel, grants)
    );
    assert_eq!((chain.unwrap().len(), tasks.unwrap()), (2, vec![WORKER]));
    let answer = async {
        // The answer is proved on another connection.
        grant(&mut far, Channel::test(2), grants).await.unwrap_err()
    };
    let (chain, refused) = tokio::join!(ask(&mut near, channel, &theirs, WORKER, key.public()), answer);
    assert!(
        matches!(chain, Err(EnrolmentError::Refused(_))),
        "a proof is worth nothing on another connection"
    );
    assert!(matches!(refused, IdentityError::Enrolment(EnrolmentError::Proof(WORKER))));
}

#[tokio::test]
async fn only_tasks_of_the_cluster_get_certificates() {
    let (chief, join) = chief();
    let beyond = TaskId::worker(TASKS_PER_JOB_MAX as u32);
    for stranger in [TaskId::CHIEF, beyond, TaskId::new(JobName::CLIENT, 0)] {
        let (asked, granted) = enrol(&task(&join, stranger), &chief).await;
        assert!(matches!(asked, Err(IdentityError::Enrolment(EnrolmentError::Refused(_)))), "{stranger}");
        let error = granted.unwrap_err();
        assert!(
            matches!(&error, IdentityError::Enrolment(EnrolmentError::NotListed(got)) if *got == stranger)
        );
    }
}

/// Returns the chain of a certificate for these tasks that is made at `now`, with its key.
fn certificate(authority: &Authority, tasks: &[TaskId], now: Duration) -> TaskCertificate {
    let key = TaskKey::new().unwrap();
    key.certified(authority.certify(tasks, &[], key.public(), now).unwrap())
}

#[tokio::test]
async fn a_worker_cannot_play_the_chief() {
    let authority = Authority::new().unwrap();
    let join = authority.join().clone();
    let mine = certificate(&authority, &[WORKER], unix_time());
    let server = configs::server(Clients::Strangers, mine.clone(), ENROLMENT).unwrap();
    let (near, far) = duplex(1 << 16);
    let worker = task(&join, TaskId::worker(0));
    let served = async { TlsAcceptor::from(server).accept(far).await.map(drop) };
    let (asked, _) = tokio::join!(worker.enrol(|_| async { Ok(near) }), served);
    let error = asked.unwrap_err();
    assert_eq!(error.to_string(), "the certificate of the peer names worker/1, expected chief/0");
    let client = configs::client(Servers::Strangers, Some(mine), ENROLMENT).unwrap();
    let (near, far) = duplex(1 << 16);
    let ps = task(&join, PS);
    let dialled = async {
        let stream = TlsConnector::from(client).connect("x".try_into().unwrap(), near).await;
        stream.unwrap().read_u8().await
    };
    let (accepted, _) = tokio::join!(ps.accept(far), dialled);
    assert!(matches!(accepted, Err(IdentityError::WrongTask { .. })), "{accepted:?}");
}

#[tokio::test]
async fn a_peer_must_show_a_valid_certificate() {
    let (authority, now) = (Authority::new().unwrap(), unix_time());
    let chief = || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authority");
        authority.write(&path).unwrap();
        Credentials::of_chief(Authority::read(&path).unwrap(), cluster(), TaskId::CHIEF).unwrap()
    };
    let expired = certificate(&authority, &[WORKER], now.saturating_sub(LIFE + CLOCKS_DIFFER));
    let early = certificate(&authority, &[WORKER], now + 2 * CLOCKS_DIFFER);
    let alone = TaskKey::new().unwrap().self_signed().unwrap();
    let stolen = {
        // The chain of a worker, with the key of somebody else.
        let chain = certificate(&authority, &[WORKER], now).chain;
        chain[1].clone()
    };
    let swapped = {
        let mine = certificate(&Authority::new().unwrap(), &[WORKER], now);
        TaskCertificate { chain: vec![mine.chain[0].clone(), stolen], key: mine.key }
    };
    for (certificate, expected) in [
        (Some(expired), Untrusted::Expired.to_string()),
        (Some(early), Untrusted::NotYetValid.to_string()),
        (Some(alone), Untrusted::Chain(1).to_string()),
        (Some(swapped), "its certificate is not valid".to_owned()),
        (None, "the TLS handshake failed".to_owned()),
    ] {
        let client = configs::client(Servers::Strangers, certificate, PEERS).unwrap();
        let (near, far) = duplex(1 << 16);
        let dialled = async {
            let stream = TlsConnector::from(client).connect("x".try_into().unwrap(), near).await;
            stream.unwrap().read_u8().await
        };
        let credentials = chief();
        let (accepted, read) = tokio::join!(credentials.accept(far), dialled);
        let error = accepted.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}, expected {expected}");
        assert!(read.is_err());
    }
}

#[test]
fn only_the_chain_of_this_job_is_accepted() {
    let (authority, now) = (Authority::new().unwrap(), unix_time());
    let verifier = Verifier::new(authority.join());
    let chain = authority.certify(&[WORKER, PS], &[], TaskKey::new().unwrap().public(), now).unwrap();
    assert_eq!(verifier.check(&chain, now), Ok(vec![WORKER, PS]));
    assert_eq!(verifier.check(&chain, now + LIFE + Duration::from_secs(1)), Err(Untrusted::Expired), "(B)");
    assert_eq!(verifier.check(&chain, now - 2 * CLOCKS_DIFFER), Err(Untrusted::NotYetValid), "(B)");
    assert_eq!(verifier.check(&chain[..1], now), Err(Untrusted::Chain(1)), "(A)");
    assert_eq!(
        verifier.check(&[chain.clone(), chain.clone()].concat(), now),
        Err(Untrusted::Chain(4)),
        "(A)"
    );
    let other = Verifier::new(Authority::new().unwrap().join());
    assert_eq!(other.check(&chain, now), Err(Untrusted::Authority), "(A)");
    let job = Verifier::new(&JoinString { job: [9; 8], ..authority.join().clone() });
    assert_eq!(job.check(&chain, now), Err(Untrusted::OtherJob), "(C)");
    let nobody = authority.certify(&[], &[], TaskKey::new().unwrap().public(), now).unwrap();
    assert_eq!(verifier.check(&nobody, now), Err(Untrusted::OtherJob), "(C)");
    let own = [chain[1].clone(), chain[1].clone()];
    let Err(error @ Untrusted::Invalid(_)) = verifier.check(&own, now) else {
        panic!("an authority is no task")
    };
    assert!(error.to_string().contains("it is that of an authority"), "{error}");
    for at in (0..chain[0].len()).step_by(7) {
        let mut changed = chain[0].to_vec();
        changed[at] ^= 1;
        assert!(verifier.check(&[changed.into(), chain[1].clone()], now).is_err(), "(A) at {at}");
    }
}

#[tokio::test]
async fn what_is_no_tls_is_refused_and_what_stalls_is_too() {
    let (chief, _) = chief();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], b"PPUL\0\0\0\0\0\0\0\0"] {
        let (mut near, far) = duplex(1 << 16);
        near.write_all(bytes).await.unwrap();
        let error = chief.accept(far).await.unwrap_err();
        assert!(matches!(error, IdentityError::NotTls), "{error}");
    }
    let (near, far) = duplex(1 << 16);
    let error = chief.accept(far).await.unwrap_err();
    assert_eq!(error.to_string(), "the peer did not prove who it is within 5 s");
    drop(near);
    let (near, far) = duplex(1 << 16);
    drop(near);
    assert!(chief.accept(far).await.unwrap().is_none(), "a look whether the port is open");
}

#[tokio::test]
async fn an_enrolment_that_stalls_ends() {
    let (chief, join) = chief();
    let client = configs::client(Servers::Tasks(Verifier::new(&join)), None, ENROLMENT).unwrap();
    let (near, far) = duplex(1 << 16);
    let dialled = async {
        let mut stream =
            TlsConnector::from(Arc::clone(&client)).connect("x".try_into().unwrap(), near).await.unwrap();
        stream.write_u16(100).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_u8().await
    };
    let (accepted, read) = tokio::join!(chief.accept(far), dialled);
    assert!(matches!(accepted, Err(IdentityError::Late(_))), "{accepted:?}");
    assert!(read.is_err());
}

/// Gives a task a certificate that was made this long ago.
fn give(task: &Credentials, authority: &Authority, id: TaskId, ago: Duration) {
    let made = unix_time().saturating_sub(ago);
    let task = task.of_join();
    task.install(authority.certify(&[id], &[], task.public_key(), made).unwrap()).unwrap();
}

#[tokio::test]
async fn a_certificate_is_renewed_after_half_of_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("authority");
    Authority::new().unwrap().write(&path).unwrap();
    let authority = Authority::read(&path).unwrap();
    let chief = Credentials::of_chief(Authority::read(&path).unwrap(), cluster(), TaskId::CHIEF).unwrap();
    let (worker, ps) = (task(authority.join(), WORKER), task(authority.join(), PS));
    let hour = Duration::from_secs(3600);
    for (ago, old) in [(LIFE / 2 - hour, false), (LIFE / 2 + hour, true)] {
        give(&ps, &authority, PS, ago);
        assert_eq!(chief.must_renew(&connect(&chief, &ps).await.0.unwrap()), old);
        give(&worker, &authority, WORKER, ago);
        // A chief that cannot be reached does not matter while the certificate is valid.
        let unreachable = |_| async { Err::<DuplexStream, _>(std::io::Error::other("unreachable")) };
        assert_eq!(worker.enrol(unreachable).await.is_err(), old);
        assert!(worker.is_enrolled() && !worker.expires_soon());
        assert_eq!(connect(&worker, &ps).await.0.unwrap().proven, tasks(PS));
    }
    give(&worker, &authority, WORKER, LIFE - hour);
    assert!(worker.is_enrolled() && worker.expires_soon());
    for old in [Untrusted::Expired, Untrusted::NotYetValid] {
        assert!(IdentityError::from(old).needs_certificate(), "the chief gives the peer a new one");
    }
    let (granted, asked) = enrol_ps(&chief, &ps).await;
    granted.and(asked).unwrap();
    assert!(!chief.must_renew(&connect(&chief, &ps).await.0.unwrap()), "it is new");
    let (asked, granted) = enrol(&worker, &chief).await;
    asked.and(granted).unwrap();
    let unexpected = |_| async { panic!("it is new") as std::io::Result<DuplexStream> };
    worker.enrol(unexpected).await.unwrap();
}

#[test]
fn a_certificate_of_another_task_is_not_used() {
    let authority = Authority::new().unwrap();
    let worker = task(authority.join(), WORKER);
    let worker = worker.of_join();
    let other = authority.certify(&[PS], &[], worker.public_key(), unix_time()).unwrap();
    assert!(matches!(worker.install(other), Err(IdentityError::WrongTask { .. })));
}

/// Returns the first of two servers, and the join string of their cluster.
fn first_server() -> (Credentials, JoinString) {
    let authority = Authority::new().unwrap();
    let join = authority.join().clone();
    (Credentials::of_first_server(authority, servers()).unwrap(), join)
}

/// A cluster of servers, whose first task is a ps.
fn servers() -> ClusterSpec {
    ClusterSpec::new([(JobName::Ps, vec!["c:1", "p:2"])]).unwrap()
}

const SECOND: TaskId = TaskId::ps(1);

/// Lets a client connect, and returns the results of both.
async fn visit(
    client: ClientString,
    server: &Credentials,
) -> (Result<Secured<DuplexStream>, IdentityError>, Accepted) {
    let client = ClientCredentials::new(client).unwrap();
    let (near, far) = duplex(1 << 16);
    tokio::join!(client.connect(near), server.accept(far))
}

#[tokio::test]
async fn every_server_asks_the_first_one() {
    let (first, join) = first_server();
    let second = Credentials::of_server(join.clone(), servers(), SECOND).unwrap();
    let (asked, granted) = enrol(&second, &first).await;
    asked.and(granted.map(drop)).unwrap();
    for (from, to, named) in [(&first, &second, [PS, SECOND]), (&second, &first, [SECOND, PS])] {
        let (near, far) = connect(from, to).await;
        assert_eq!((far.unwrap().unwrap().proven, near.unwrap().proven), (tasks(named[0]), tasks(named[1])));
    }
    // A server that only listens gets its certificate from the first one, too.
    let third = Credentials::of_server(join.clone(), servers(), SECOND).unwrap();
    let (granted, asked) = enrol_ps(&first, &third).await;
    granted.and(asked.map(drop)).unwrap();
    // The certificate of the first one is not granted, nor that of a task that is not listed.
    for stranger in [PS, TaskId::ps(2), TaskId::CHIEF, WORKER] {
        let server = Credentials::of_server(join.clone(), servers(), stranger).unwrap();
        let (asked, granted) = enrol(&server, &first).await;
        assert!(matches!(asked, Err(IdentityError::Enrolment(EnrolmentError::Refused(_)))), "{stranger}");
        assert!(matches!(granted, Err(IdentityError::Enrolment(EnrolmentError::NotListed(_)))), "{stranger}");
    }
}

#[tokio::test]
async fn a_server_cannot_play_the_first_one() {
    let authority = Authority::new().unwrap();
    let server = Credentials::of_server(authority.join().clone(), servers(), SECOND).unwrap();
    let (near, far) = duplex(1 << 16);
    let mine = certificate(&authority, &[TaskId::ps(2)], unix_time());
    let config = configs::server(Clients::Strangers, mine, ENROLMENT).unwrap();
    let served = async { TlsAcceptor::from(config).accept(far).await.map(drop) };
    let (asked, _) = tokio::join!(server.enrol(|_| async { Ok(near) }), served);
    assert_eq!(asked.unwrap_err().to_string(), "the certificate of the peer names ps/2, expected ps/0");
}

#[tokio::test]
async fn a_client_is_known_by_its_role_alone() {
    let (first, join) = first_server();
    for role in ClientRole::ALL {
        let (near, far) = visit(ClientString::of(&join, role), &first).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap().unwrap());
        assert_eq!((&near.proven, &far.proven), (&tasks(PS), &Proven::Client(role)));
        near.stream.write_all(b"hello").await.unwrap();
        near.stream.flush().await.unwrap();
        let mut got = [0; 5];
        far.stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
    }
}

#[tokio::test]
async fn a_client_cannot_choose_another_role() {
    let (first, join) = first_server();
    let read = ClientString::of(&join, ClientRole::Read);
    for wrong in [
        ClientString { role: ClientRole::Run, ..read.clone() },
        ClientString { secret: join.secret, ..read.clone() },
        ClientString { secret: [7; 16], ..read },
    ] {
        let (near, far) = visit(wrong.clone(), &first).await;
        let error = near.unwrap_err();
        assert!(error.is_final() && error.to_string().contains("is not one of this cluster"), "{error}");
        let refused = matches!(
            &far,
            Err(IdentityError::Enrolment(EnrolmentError::ClientProof(role))) if *role == wrong.role
        );
        assert!(refused, "{far:?}");
    }
}

#[tokio::test]
async fn a_client_knows_the_servers_of_its_cluster() {
    let ((first, _), (_, other)) = (first_server(), first_server());
    let (near, far) = visit(ClientString::of(&other, ClientRole::Run), &first).await;
    let error = near.unwrap_err();
    assert!(matches!(error, IdentityError::OtherCluster) && error.is_final(), "{error}");
    assert!(matches!(far, Err(IdentityError::ClientDistrusts)), "{far:?}");
}

#[tokio::test]
async fn only_servers_with_certificates_admit_clients() {
    let (chief, join) = chief();
    let (near, far) = visit(ClientString::of(&join, ClientRole::Run), &chief).await;
    assert!(matches!((near, far), (Err(IdentityError::NotServing), Err(IdentityError::NoServer))));
    let (_, join) = first_server();
    let server = Credentials::of_server(join.clone(), servers(), SECOND).unwrap();
    let (near, far) = visit(ClientString::of(&join, ClientRole::Run), &server).await;
    assert!(matches!((near, far), (Err(IdentityError::NotServing), Ok(None))), "not yet");
}

#[tokio::test]
async fn a_client_string_never_makes_a_task() {
    let (first, join) = first_server();
    for role in ClientRole::ALL {
        // The holder of a client string knows the job and the authority, and makes up a join string.
        let secret = ClientString::of(&join, role).secret;
        let forged = JoinString { secret, ..join.clone() };
        let server = Credentials::of_server(forged, servers(), SECOND).unwrap();
        let (asked, granted) = enrol(&server, &first).await;
        assert!(matches!(asked, Err(IdentityError::Enrolment(EnrolmentError::Refused(_)))), "{role}");
        assert!(matches!(granted, Err(IdentityError::Enrolment(EnrolmentError::Proof(SECOND)))), "{role}");
    }
    // A client shows no certificate, so it cannot talk as a task does.
    let client = configs::client(Servers::Tasks(Verifier::new(&join)), None, PEERS).unwrap();
    let (near, far) = duplex(1 << 16);
    let dialled = async {
        let stream = TlsConnector::from(client).connect("x".try_into().unwrap(), near).await;
        stream.unwrap().read_u8().await
    };
    let (accepted, read) = tokio::join!(first.accept(far), dialled);
    assert!(accepted.is_err() && read.is_err());
}

#[tokio::test]
async fn a_proof_of_a_role_is_for_one_connection() {
    let (_, join) = first_server();
    let (mut near, mut far) = duplex(1 << 16);
    let client = ClientString::of(&join, ClientRole::Run);
    let (proved, admitted) = tokio::join!(
        prove_role(&mut near, Channel::test(1), &client),
        admit(&mut far, Channel::test(2), &join)
    );
    assert!(matches!(proved, Err(EnrolmentError::ClientRefused(_))), "{proved:?}");
    assert!(matches!(admitted, Err(EnrolmentError::ClientProof(ClientRole::Run))), "{admitted:?}");
}

#[tokio::test]
async fn a_client_that_proves_nothing_is_refused() {
    let (first, join) = first_server();
    for (bytes, stalls) in
        [(&b"\0\x01\x03"[..], false), (b"\0\x01\x05", false), (b"PPUL", false), (b"", true)]
    {
        let config = configs::client(Servers::Tasks(Verifier::new(&join)), None, CLIENT).unwrap();
        let (near, far) = duplex(1 << 16);
        let dialled = async {
            let mut stream = TlsConnector::from(config).connect("x".try_into().unwrap(), near).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream.flush().await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.map(drop)
        };
        let (accepted, _) = tokio::join!(first.accept(far), dialled);
        match stalls {
            true => assert!(matches!(accepted, Err(IdentityError::Late(_))), "{accepted:?}"),
            false => assert!(matches!(accepted, Err(IdentityError::Enrolment(_))), "{accepted:?}"),
        }
    }
}
