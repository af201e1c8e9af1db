//! A secured job that trains while it is attacked. Each attack comes from an address of its own, so that the
//! log says which line belongs to it. Afterwards the job ends well, with exact counts.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};

use pushpull_messages::id::{Incarnation, PlacementEpoch, TaskId};
use pushpull_messages::message::{Message, Pull, PullAt, Welcome};
use pushpull_transport::Identity;
use rustix::net::{AddressFamily, SocketType};

use super::certificates::{Certificate, Forger, key};
use super::tls::{ENROLMENT, PEERS, Tls, answer, end_of, question, receive, refusal, send, tls};
use super::{Attack, CHIEF, PROMPT, PS, WORKER};
use crate::harness::{Cluster, ENDLESS, Endpoint, Joined, PATIENCE, Program, Report, TCP, frame, wait_until};

/// The version after which a job has learnt enough for the checks of its report.
const LEARNT: u64 = 100;
/// The largest peak memory of a task under attack, in bytes.
const PEAK_BYTES_MAX: u64 = 256 << 20;
/// The largest number of lines about one host, in a minute and for one reason.
const LINES_MAX: usize = 10;

/// A job of a chief, a ps task and two workers, which have a join string, and what the attackers know.
pub(super) struct Scene {
    joined: Joined,
    /// The chief, the ps task, and the workers.
    programs: Vec<Program>,
    endpoints: Vec<Endpoint>,
    /// The key of the job's authority.
    pub(super) forger: Forger,
    /// The key of another authority.
    pub(super) other: Forger,
    /// A certificate of worker 0 that was got with the join string.
    pub(super) stolen: Certificate,
    /// The digest of the job's placement.
    pub(super) digest: u32,
}

/// The attacker of one task.
pub(super) struct Attacker<'a> {
    pub(super) scene: &'a Scene,
    pub(super) task: TaskId,
    /// The attacker's own address.
    pub(super) from: Ipv4Addr,
}

impl Scene {
    /// Starts the job, and waits until it trains.
    #[track_caller]
    pub(super) fn new() -> Self {
        let joined = Joined::new(Cluster::new(1, 2, ENDLESS));
        let (other, _) = Joined::authority(&joined.cluster, "other");
        let mut programs: Vec<Program> = [CHIEF, PS, WORKER, TaskId::worker(1)]
            .map(|task| joined.cluster.spawn(task, joined.role(task).args([TCP])))
            .into();
        let endpoints: Vec<Endpoint> = programs[..2].iter_mut().map(Endpoint::of).collect();
        endpoints[1].wait_for_update();
        let (forger, key) = (Forger::of(&joined.authority), key());
        let thief = connect(&joined.cluster.address(CHIEF), Ipv4Addr::new(127, 0, 0, 2));
        let mut thief = tls(thief, ENROLMENT, None);
        let asked = question(&mut thief, &forger.join, WORKER, &key);
        send(&mut thief, &asked);
        let stolen = Certificate::new(answer(&mut thief).expect("the join string is right"), &key);
        let other = Forger::of(&other);
        let mut scene = Self { joined, programs, endpoints, forger, other, stolen, digest: 0 };
        let spy = Attacker { scene: &scene, task: PS, from: Ipv4Addr::new(127, 0, 0, 2) };
        // The error of a shard that refuses a wrong digest has the right one.
        let (epoch, at) = (PlacementEpoch(1), PullAt::Latest);
        let pull = Pull { shard: 0, epoch, placement_digest: 0, at, averages: false };
        let refused = refusal(&mut spy.member(), pull);
        let (_, digest) = refused.split_once("with digest ").expect("the digest that was expected");
        scene.digest = u32::from_str_radix(&digest[..8], 16).expect("eight hexadecimal digits");
        scene
    }

    pub(super) fn identity(&self, task: TaskId) -> Identity {
        let (incarnation, cluster) = (Incarnation(1), self.joined.cluster.spec.clone());
        Identity { task, incarnation, cluster, graph: None, http: None, nonce: 0 }
    }

    fn version(&self) -> u64 {
        self.endpoints[1].metrics().count("pushpull_shard_version", &[])
    }

    fn count(&self, task: TaskId, attack: &Attack) -> u64 {
        let endpoint = &self.endpoints[usize::from(task == PS)];
        let (family, reason) = attack.counted.family();
        endpoint.metrics().sum(family, &[("reason", reason)]).unwrap_or_default() as u64
    }

    /// Makes all attacks of a table, one after the other, and checks what each of them has changed.
    #[track_caller]
    pub(super) fn withstand(&mut self, attacks: &[Attack]) {
        for attack in attacks {
            for &task in attack.at {
                self.withstand_at(task, attack);
            }
        }
    }

    #[track_caller]
    fn withstand_at(&mut self, task: TaskId, attack: &Attack) {
        let Attack { number, name, told, logged, times, .. } = *attack;
        let [high, low] = (number as u16).to_be_bytes();
        let from = Ipv4Addr::new(127, 1, high, low);
        let (version, before) = (self.version(), self.count(task, attack));
        let heard = (attack.run)(&Attacker { scene: self, task, from });
        assert!(heard.contains(told), "attack {number}, {name}: it heard '{heard}', expected '{told}'");
        wait_until(&format!("a count of attack {number}, {name}, at {task}"), PATIENCE, || {
            (self.count(task, attack) >= before + times).then_some(())
        });
        let counted = self.count(task, attack) - before;
        wait_until(&format!("more updates after attack {number}, {name}"), PATIENCE, || {
            assert!(self.programs.iter_mut().all(Program::is_running), "attack {number} has ended a task");
            (self.version() > version + 1).then_some(())
        });
        let log = self.programs[usize::from(task == PS)].err();
        let about = format!("{from}:");
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&about)).collect();
        let fits = lines.iter().filter(|line| line.contains(logged)).count();
        if attack.is_flood {
            let some = (1..=LINES_MAX).contains(&fits);
            assert!(some, "attack {number}, {name}, at {task}: '{logged}' in {lines:#?}");
        } else {
            let expected = if logged.is_empty() { 0 } else { times as usize };
            assert_eq!((fits, lines.len()), (expected, expected), "{number}: '{logged}' in {lines:#?}");
            assert_eq!(counted, times, "attack {number}, {name}, at {task}");
        }
        println!("{number:3}  {name}\n     {task}: {}", lines.first().unwrap_or(&heard.as_str()));
    }

    /// Ends the job well, and returns its report. The model has learnt something.
    #[track_caller]
    pub(super) fn end(mut self) -> Report {
        wait_until("a model that has learnt", PATIENCE, || (self.version() > LEARNT).then_some(()));
        for program in &self.programs[..2] {
            let peak = program.peak_bytes();
            assert!(peak < PEAK_BYTES_MAX, "{peak} bytes");
        }
        Cluster::stop_now(&mut self.programs[0]);
        for program in &mut self.programs {
            program.wait().expect(0);
        }
        self.joined.cluster.finished()
    }
}

/// Connects to a task of this host from one of this host's own addresses.
#[track_caller]
pub(super) fn connect(address: &str, from: Ipv4Addr) -> TcpStream {
    let address: SocketAddr = address.parse().expect("an address of loopback");
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).expect("every 127.x.x.x is this host");
    rustix::net::connect(&socket, &address).expect("the task listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PROMPT)).expect("a socket has a time limit");
    stream
}

impl Attacker<'_> {
    /// Connects to the task.
    #[track_caller]
    pub(super) fn tcp(&self) -> TcpStream {
        connect(&self.scene.joined.cluster.address(self.task), self.from)
    }

    /// Connects to the task with TLS, as a task that talks.
    #[track_caller]
    pub(super) fn tls(&self, shown: Option<&Certificate>) -> Tls {
        tls(self.tcp(), PEERS, shown)
    }

    /// Shows a certificate, and returns what the attacker hears.
    #[track_caller]
    pub(super) fn show(&self, certificate: &Certificate) -> String {
        end_of(self.tls(Some(certificate)))
    }

    /// Returns the bytes of a hello.
    pub(super) fn hello(&self, identity: &Identity) -> Vec<u8> {
        frame(0, identity.hello(self.task))
    }

    /// Says hello with the certificate of worker 0, and returns what the attacker hears.
    #[track_caller]
    pub(super) fn claim(&self, identity: &Identity) -> String {
        let mut stream = self.tls(Some(&self.scene.stolen));
        send(&mut stream, &self.hello(identity));
        match receive(&mut stream) {
            Ok(Message::Refusal(refusal)) => refusal.reason,
            other => panic!("{other:?}"),
        }
    }

    /// Connects as worker 0, which the task admits.
    #[track_caller]
    pub(super) fn member(&self) -> Tls {
        self.member_as(&self.scene.identity(WORKER))
    }

    /// Connects with this identity of worker 0, which the task admits.
    #[track_caller]
    pub(super) fn member_as(&self, identity: &Identity) -> Tls {
        let mut stream = self.tls(Some(&self.scene.stolen));
        send(&mut stream, &self.hello(identity));
        let welcome = receive(&mut stream).map(Welcome::try_from);
        assert!(matches!(welcome, Ok(Ok(_))), "{welcome:?}");
        stream
    }
}
