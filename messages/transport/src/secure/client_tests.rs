//! Tests of servers of sessions and their clients, over real sockets: what each end learns of the other one,
//! and how strangers are refused and counted.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use pushpull_identity::{
    Authority, ClientCredentials, ClientRole, ClientString, Credentials, IdentityError, JoinString,
};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName, RequestId, TaskId};
use pushpull_messages::message::{Describe, Described, Hello, Message, PROTOCOL, RefusalCode};

use crate::buffer::Payload;
use crate::wire::{Envelope, Limits};
use crate::{
    Connection, DialError, Guest, Identity, Link, Patience, Peer, Reply, Server, ServerConfig, Service, Tcp,
    Transport, TransportError, dial, dial_as_guest, serve,
};

const FIRST: TaskId = TaskId::ps(0);
const SECOND: TaskId = TaskId::ps(1);

/// A service that refuses every request, with what it knows of the peer.
struct Knows;

impl Service for Knows {
    fn call(&self, peer: &Peer, _: Message, _: Payload, reply: Reply) {
        let role = peer.guest.map_or("task", ClientRole::as_str);
        reply.refuse(RefusalCode::Malformed, format!("{role} {}", peer.task.job));
    }
}

/// Two servers of one cluster, which is not a training job although it has only ps tasks.
struct Servers {
    cluster: ClusterSpec,
    join: JoinString,
    tcp: [Tcp; 2],
    running: [Server; 2],
}

impl Servers {
    fn start() -> Self {
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = sockets.each_ref().map(|socket| socket.local_addr().unwrap().to_string());
        let cluster = ClusterSpec::new([(JobName::Ps, addresses.to_vec())]).unwrap();
        let authority = Authority::new().unwrap();
        let join = authority.join().clone();
        let credentials = [
            Credentials::of_first_server(authority, cluster.clone()).unwrap(),
            Credentials::of_server(join.clone(), cluster.clone(), SECOND).unwrap(),
        ];
        let tcp = credentials.map(|credentials| Tcp::default().with_credentials(Some(credentials)));
        let mut index = 0;
        let running = sockets.map(|socket| {
            let (tcp, task): (&Tcp, _) = (&tcp[index], TaskId::ps(index as u32));
            index += 1;
            let config = ServerConfig { guests: true, ..ServerConfig::default() };
            serve(tcp.listen_on(socket).unwrap(), identity(&cluster, task), Arc::new(Knows), config)
        });
        Self { cluster, join, tcp, running }
    }

    fn address(&self, task: TaskId) -> String {
        self.cluster.address(task).unwrap().to_string()
    }

    /// Returns the transport of a client with this role.
    fn client(&self, role: ClientRole) -> Tcp {
        client(ClientString::of(&self.join, role))
    }

    async fn visit(&self, from: &Tcp, to: TaskId) -> Result<Connection, DialError> {
        let guest = Guest { index: 70_000, incarnation: Incarnation(1), nonce: 1 };
        dial_as_guest(from, &self.address(to), &guest, patience()).await
    }

    /// Waits until the first server has closed this number of connections for a reason.
    async fn wait_closed(&self, reason: &str, count: u64) {
        let counted = async {
            while self.running[0].observer().snapshot().closed.get(reason) != Some(&count) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), counted).await.expect("each is counted");
    }
}

fn identity(cluster: &ClusterSpec, task: TaskId) -> Identity {
    let (incarnation, cluster) = (Incarnation(1), cluster.clone());
    Identity { task, incarnation, cluster, graph: None, http: None, nonce: 0 }
}

fn client(string: ClientString) -> Tcp {
    Tcp::default().with_client(Some(ClientCredentials::new(string).unwrap()))
}

fn patience() -> Patience {
    Patience::of(Duration::from_secs(10))
}

async fn known_as(connection: &Connection) -> String {
    let request = Describe { own: true, variables: false };
    connection.call::<Described>(request, Payload::EMPTY).await.unwrap_err().to_string()
}

#[tokio::test]
async fn servers_and_clients_know_each_other() {
    let servers = Servers::start();
    let early = servers.client(ClientRole::Read);
    let second = &servers.tcp[1];
    let (visited, enrolled) = tokio::join!(servers.visit(&early, SECOND), async {
        // The client comes first, and has to wait for this.
        while servers.running[1].observer().snapshot().accepted == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        second.enrol().await
    });
    enrolled.unwrap();
    let early = visited.unwrap();
    assert_eq!((early.peer(), known_as(&early).await.as_str()), (SECOND, "ps/1: read client"));
    let run = servers.visit(&servers.client(ClientRole::Run), FIRST).await.unwrap();
    assert_eq!(known_as(&run).await, "ps/0: run client");
    for (at, from, to) in [(0, FIRST, SECOND), (1, SECOND, FIRST)] {
        let identity = identity(&servers.cluster, from);
        let peer = dial(&servers.tcp[at], &servers.address(to), &identity, to, patience()).await.unwrap();
        assert_eq!(known_as(&peer).await, format!("{to}: task ps"));
    }
}

#[tokio::test]
async fn a_client_cannot_say_hello_as_a_task() {
    let servers = Servers::start();
    let client = servers.client(ClientRole::Run);
    let identity = identity(&servers.cluster, SECOND);
    let refused = dial(&client, &servers.address(FIRST), &identity, FIRST, patience()).await.unwrap_err();
    let expected = "this connection proves a client only, and not ps/1";
    assert!(refused.to_string().ends_with(expected), "{refused}");
    // Nor by a hello of a client that names a task.
    let Link { mut sender, mut receiver, .. } = client.dial(&servers.address(FIRST)).await.unwrap();
    receiver.trust(Limits::default(), None);
    let guest = Guest { index: 1, incarnation: Incarnation(1), nonce: 1 };
    let hello = Hello { protocol: PROTOCOL, task: SECOND, ..guest.hello() };
    let message = hello.into();
    sender.send(Envelope { request: RequestId(0), message, payload: Payload::EMPTY }).await.unwrap();
    let answer = receiver.receive().await.unwrap().unwrap().message;
    assert!(matches!(&answer, Message::Refusal(refusal) if refusal.reason.contains("expected client/N")));
    servers.wait_closed("refused", 2).await;
}

#[tokio::test]
async fn strange_clients_are_refused_and_counted() {
    let servers = Servers::start();
    let other = ClientString::of(Authority::new().unwrap().join(), ClientRole::Run);
    // A join string that somebody has made up from a client string.
    let forged = {
        let read = ClientString::of(&servers.join, ClientRole::Read).text();
        let run = ClientString::of(Authority::new().unwrap().join(), ClientRole::Run).text();
        let (read, run): (Vec<&str>, Vec<&str>) = (read.split('.').collect(), run.split('.').collect());
        let text = [read[0], read[1], read[2], "run", run[4]].join(".");
        let checksum = crc32c::crc32c(text.as_bytes());
        format!("{text}.{checksum:08x}").parse::<ClientString>().unwrap()
    };
    let mut count = 0;
    for (tcp, words) in [
        (Tcp::default(), "the server demands a client string: print one with `pushpull join client`"),
        (client(other), "the server is one of another cluster than the client string names"),
        (client(forged), "the server refused this client: its client string is not one of this cluster"),
    ] {
        let error = servers.visit(&tcp, FIRST).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(matches!(error, DialError::Transport(TransportError::Untrusted { .. })), "{error:?}");
        count += 1;
        servers.wait_closed("identity", count).await;
    }
    servers.visit(&servers.client(ClientRole::Run), FIRST).await.unwrap();
}

#[tokio::test]
async fn a_server_with_a_wrong_join_string_ends() {
    let servers = Servers::start();
    let join = Authority::new().unwrap().join().clone();
    let wrong = Credentials::of_server(join, servers.cluster.clone(), SECOND).unwrap();
    let error = Tcp::default().with_credentials(Some(wrong)).enrol().await.unwrap_err();
    assert!(matches!(error, IdentityError::Untrusted(_)), "{error}");
    servers.wait_closed("identity", 1).await;
}
