//! Tests of tasks that prove who they are, over real sockets: they reach each other, and strangers do not.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use pushpull_identity::{Authority, Credentials, JoinString, Proven};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName, RequestId, TaskId};
use pushpull_messages::message::{AccessFiles, FileAccess, Message, RefusalCode, Stopped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::buffer::{Buffer, Payload, Segment};
use crate::tests::push;
use crate::wire::{Envelope, Limits};
use crate::{
    Connection, DialError, Identity, Patience, Peer, Reply, Server, ServerConfig, Service, SharedPort, Tcp,
    Transport, dial, serve,
};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);

/// A service that refuses every request, with the name of the peer.
struct Names;

impl Service for Names {
    fn call(&self, peer: &Peer, _: Message, _: Payload, reply: Reply) {
        reply.refuse(RefusalCode::Malformed, format!("hello {}", peer.task));
    }
}

/// A cluster on loopback, whose tasks have sockets but do not run yet.
struct Job {
    cluster: ClusterSpec,
    sockets: Vec<(TaskId, TcpListener)>,
    authority: Option<Authority>,
    join: JoinString,
}

impl Job {
    fn new(tasks: &[(JobName, u32)]) -> Self {
        let (mut sockets, mut jobs) = (Vec::new(), Vec::new());
        for &(job, count) in tasks {
            let mut addresses = Vec::new();
            for index in 0..count {
                let socket = TcpListener::bind("127.0.0.1:0").unwrap();
                addresses.push(socket.local_addr().unwrap().to_string());
                sockets.push((TaskId::new(job, index), socket));
            }
            jobs.push((job, addresses));
        }
        let authority = Authority::new().unwrap();
        let (cluster, join) = (ClusterSpec::new(jobs).unwrap(), authority.join().clone());
        Self { cluster, sockets, authority: Some(authority), join }
    }

    fn usual() -> Self {
        Self::new(&[(JobName::Chief, 1), (JobName::Ps, 1), (JobName::Worker, 2)])
    }

    fn identity(&self, task: TaskId) -> Identity {
        let cluster = self.cluster.clone();
        Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
    }

    fn address(&self, task: TaskId) -> String {
        self.cluster.reached_at(task).unwrap().to_string()
    }

    fn tcp(&self, task: TaskId) -> Tcp {
        let credentials = Credentials::of_task(self.join.clone(), self.cluster.clone(), task);
        Tcp::default().with_credentials(Some(credentials.unwrap()))
    }

    /// Returns the transport of the process that hosts the chief.
    fn chief(&mut self) -> Tcp {
        let (authority, host) = (self.authority.take().unwrap(), self.cluster.chief_host());
        let credentials = Credentials::of_chief(authority, self.cluster.clone(), host);
        Tcp::default().with_credentials(Some(credentials.unwrap()))
    }

    fn socket(&mut self, task: TaskId) -> TcpListener {
        let at = self.sockets.iter().position(|(of, _)| *of == task).unwrap();
        self.sockets.swap_remove(at).1
    }

    fn serve(&mut self, tcp: &Tcp, task: TaskId) -> Server {
        let listener = tcp.listen_on(self.socket(task)).unwrap();
        serve(listener, self.identity(task), Arc::new(Names), ServerConfig::default())
    }

    async fn dial(&self, from: &Tcp, task: TaskId, to: TaskId) -> Result<Connection, DialError> {
        let patience = Patience::of(Duration::from_secs(10));
        dial(from, &self.address(to), &self.identity(task), to, patience).await
    }
}

/// Calls the task at the other end as a worker, and returns the name by which it knows this one.
async fn known_as(connection: &Connection, payload: Payload) -> String {
    let segments = payload.segments().len() as u32;
    let refused = connection.call::<Stopped>(push(1, segments), payload).await.unwrap_err();
    refused.to_string()
}

/// Calls the task at the other end as the chief or as a ps task, and returns the name by which it knows this
/// one.
async fn ordered_as(connection: &Connection) -> String {
    let list = AccessFiles { access: FileAccess::List { folder: String::new() } };
    connection.call::<Stopped>(list, Payload::EMPTY).await.unwrap_err().to_string()
}

fn closed(server: &Server, reason: &str) -> u64 {
    server.observer().snapshot().closed.get(reason).copied().unwrap_or(0)
}

#[tokio::test]
async fn tasks_reach_each_other_once_they_have_certificates() {
    let mut job = Job::usual();
    let (chief, ps, worker) = (job.chief(), job.tcp(PS), job.tcp(WORKER));
    let servers = [job.serve(&chief, CHIEF), job.serve(&ps, PS)];
    let (to_chief, to_ps, from_chief) =
        tokio::join!(job.dial(&worker, WORKER, CHIEF), job.dial(&worker, WORKER, PS), async {
            // The worker has to wait for this.
            tokio::time::sleep(Duration::from_millis(300)).await;
            job.dial(&chief, CHIEF, PS).await
        },);
    let [to_chief, to_ps, from_chief] = [to_chief, to_ps, from_chief].map(Result::unwrap);
    // Large payloads pass, in records of TLS.
    let large = Segment::whole(Arc::new(Buffer::from_f32(&vec![1.5; 1 << 20])));
    let large = || Payload::new(vec![large.clone(), large.clone()]);
    for connection in [&to_chief, &to_ps] {
        assert!(known_as(connection, Payload::EMPTY).await.contains("hello worker/0"));
        assert!(known_as(connection, large()).await.contains("hello worker/0"));
    }
    assert!(ordered_as(&from_chief).await.contains("hello chief/0"));
    let refused = known_as(&from_chief, large()).await;
    assert!(refused.contains("ps/0 does not accept Push from chief/0"), "{refused}");
    drop((to_chief, to_ps, from_chief));
    for server in servers {
        server.alone().await;
        let closed = server.observer().snapshot().closed;
        assert!(closed.keys().all(|reason| reason == "closed"), "{closed:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn payloads_arrive_unchanged_in_both_directions() {
    let mut job = Job::usual();
    let (chief, worker) = (job.chief(), job.tcp(WORKER));
    let mut listener = chief.listen_on(job.socket(CHIEF)).unwrap();
    let address = job.address(CHIEF);
    let accept = async {
        // The first connection is that of the enrolment.
        listener.accept().await.unwrap().open().await;
        listener.accept().await.unwrap().open().await
    };
    let (near, mut far) = tokio::join!(worker.dial(&address), accept);
    let mut near = near.unwrap();
    assert_eq!(
        (&near.proven, &far.proven),
        (&Some(Proven::Tasks(vec![CHIEF])), &Some(Proven::Tasks(vec![WORKER])))
    );
    for link in [&mut near, &mut far] {
        link.receiver.trust(Limits::default(), None);
    }
    for lengths in [&[][..], &[1], &[3, 1_000_001, 0, 17], &[300; 40]] {
        let values: Vec<Vec<f32>> =
            lengths.iter().map(|&length| (0..length).map(|i| i as f32).collect()).collect();
        let segments = values.iter().map(|values| Segment::whole(Arc::new(Buffer::from_f32(values))));
        let payload = Payload::new(segments.collect());
        let bytes = payload.bytes();
        for back in [false, true] {
            let (from, to) = if back { (&mut far, &mut near) } else { (&mut near, &mut far) };
            let message = push(7, lengths.len() as u32).into();
            let envelope = Envelope { request: RequestId(1), message, payload: payload.clone() };
            let before = from.sender.taken().unwrap().load(std::sync::atomic::Ordering::Relaxed);
            let (sent, received) = tokio::join!(from.sender.send(envelope), to.receiver.receive());
            sent.unwrap();
            let taken = from.sender.taken().unwrap().load(std::sync::atomic::Ordering::Relaxed) - before;
            assert!(taken >= bytes as u64, "{taken} of {bytes} bytes");
            let received = received.unwrap().unwrap().payload;
            let got: Vec<&[f32]> = received.segments().iter().map(Segment::as_f32).collect();
            assert_eq!(got, values);
        }
    }
    drop(near);
    assert!(far.receiver.receive().await.unwrap().is_none(), "it is closed, and nothing is wrong");
}

#[tokio::test]
async fn a_task_cannot_claim_to_be_another_one() {
    let mut job = Job::usual();
    let (chief, worker) = (job.chief(), job.tcp(WORKER));
    let server = job.serve(&chief, CHIEF);
    for claimed in [TaskId::worker(1), PS] {
        let refused = job.dial(&worker, claimed, CHIEF).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("is not that of {claimed}")), "{refused}");
    }
    server.alone().await;
    assert_eq!(closed(&server, "refused"), 2);
    // A task that is dialled in place of another one is refused before it learns anything.
    let patience = Patience::of(Duration::from_secs(10));
    let wrong = dial(&worker, &job.address(CHIEF), &job.identity(WORKER), PS, patience).await;
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.ends_with("the certificate of the peer names chief/0, expected ps/0"), "{wrong}");
}

#[tokio::test]
async fn strangers_are_refused_and_counted() {
    let mut job = Job::usual();
    let (chief, worker) = (job.chief(), job.tcp(WORKER));
    let server = job.serve(&chief, CHIEF);
    let plain = job.dial(&Tcp::default(), WORKER, CHIEF).await.unwrap_err().to_string();
    assert!(plain.contains("the peer demands TLS: give this task the job's join string"), "{plain}");
    let other = Tcp::default().with_credentials(Some({
        let join = Authority::new().unwrap().join().clone();
        Credentials::of_task(join, job.cluster.clone(), WORKER).unwrap()
    }));
    let other = job.dial(&other, WORKER, CHIEF).await.unwrap_err().to_string();
    assert!(
        other.contains("its certificate is from another authority than the join string names"),
        "{other}"
    );
    let mut garbage = TcpStream::connect(job.address(CHIEF)).await.unwrap();
    garbage.write_all(&[b'x'; 100]).await.unwrap();
    let _ = garbage.read_to_end(&mut Vec::new()).await;
    let counted = async {
        while closed(&server, "identity") < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("each is counted");
    // A task of the job still gets in.
    job.dial(&worker, WORKER, CHIEF).await.unwrap();
}

#[tokio::test]
async fn a_process_that_hosts_tasks_has_one_certificate() {
    let mut job = Job::new(&[(JobName::Worker, 2)]);
    let (first, second) = (job.chief(), job.tcp(TaskId::worker(1)));
    let hosted = [CHIEF, PS, WORKER];
    let socket = first.listen_on(job.socket(WORKER)).unwrap();
    let port = SharedPort::open(socket, &job.identity(WORKER));
    let servers = hosted.map(|task| {
        let listener = port.listener(task).unwrap();
        serve(listener, job.identity(task), Arc::new(Names), ServerConfig::default())
    });
    let (from, other_ps) = (TaskId::worker(1), TaskId::ps(1));
    for task in hosted {
        for claimed in [from, other_ps] {
            let patience = Patience::of(Duration::from_secs(10));
            let address = job.address(WORKER);
            let reached = dial(&second, &address, &job.identity(claimed), task, patience).await.unwrap();
            let known = match claimed.job {
                JobName::Worker => known_as(&reached, Payload::EMPTY).await,
                _ => ordered_as(&reached).await,
            };
            assert!(known.contains(&format!("hello {claimed}")), "{known}");
        }
    }
    // Strangers at a shared port are counted by one of its tasks.
    let plain = job.dial(&Tcp::default(), from, WORKER).await.unwrap_err().to_string();
    assert!(plain.contains("the peer demands TLS"), "{plain}");
    let counted = async {
        while servers.iter().map(|server| closed(server, "identity")).sum::<u64>() < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("it is counted");
}

#[tokio::test]
async fn the_chief_looks_after_the_certificates_of_long_jobs() {
    let mut job = Job::usual();
    let (chief, ps, worker) = (job.chief(), job.tcp(PS), job.tcp(WORKER));
    let servers = [job.serve(&chief, CHIEF), job.serve(&ps, PS)];
    let _stays = job.dial(&chief, CHIEF, PS).await.unwrap();
    let known = chief.renewal.addresses();
    assert_eq!(known, [job.address(PS).parse().unwrap()]);
    let accepted = |server: &Server| server.observer().snapshot().accepted;
    let before = accepted(&servers[1]);
    chief.detached().renew(known).await;
    worker.renew(Vec::new()).await;
    let counted = async {
        while accepted(&servers[1]) == before || accepted(&servers[0]) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("the chief connects to the ps again");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_local_link_needs_no_certificate_but_gives_one() {
    let mut job = Job::usual();
    let local = |tcp: Tcp| tcp.with_local(true);
    let (chief, ps, worker) = (local(job.chief()), local(job.tcp(PS)), job.tcp(WORKER));
    let _servers = [job.serve(&chief, CHIEF), job.serve(&ps, PS)];
    let near = chief.dial(&job.address(PS)).await.unwrap();
    assert!(near.peer.ends_with("of this host") && near.proven.is_none(), "{}", near.peer);
    // The ps task has a certificate by now, for tasks of other hosts.
    let far = job.dial(&worker, WORKER, PS).await.unwrap();
    assert!(known_as(&far, Payload::EMPTY).await.contains("hello worker/0"));
}
