//! Attacks of a program that has stolen the certificate of worker 0, before and right after its hello.

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName};
use pushpull_messages::message::{Observe, PROTOCOL, Register};
use pushpull_transport::Identity;
use pushpull_transport::wire::Limits;

use super::scene::{Attacker, Scene};
use super::tls::{end_of, receive, refusal, send};
use super::{Attack, CHIEF, Counted, SECOND, WORKER};
use crate::harness::{frame, noise, prefix};

const NOT_YOURS: &str = "the certificate of this connection is not that of";

/// Returns an attack with a connection that the task closes for this reason.
const fn closed(
    number: u32,
    name: &'static str,
    reason: &'static str,
    logged: &'static str,
    run: fn(&Attacker<'_>) -> String,
) -> Attack {
    Attack::unproved(number, name, logged, run).counted(Counted::Closed(reason))
}

const ATTACKS: &[Attack] = &[
    closed(
        6,
        "a worker that says hello as the chief",
        "refused",
        "chief/0 connected with the certificate of worker/0",
        |attacker| attacker.claim(&attacker.scene.identity(CHIEF)),
    )
    .told(NOT_YOURS),
    closed(
        7,
        "a worker that says hello as another worker",
        "refused",
        "worker/1 connected with the certificate of worker/0",
        |attacker| attacker.claim(&attacker.scene.identity(SECOND)),
    )
    .told(NOT_YOURS),
    closed(
        9,
        "a later incarnation of another worker",
        "refused",
        "worker/1 connected with the certificate of worker/0",
        |attacker| {
            let later = Incarnation(u64::MAX);
            attacker.claim(&Identity { incarnation: later, ..attacker.scene.identity(SECOND) })
        },
    )
    .told(NOT_YOURS),
    closed(21, "noise in TLS after the hello", "magic", "not a pushpull frame", |attacker| {
        let mut stream = attacker.member();
        send(&mut stream, &noise(21, 5000));
        end_of(stream)
    }),
    closed(22, "the hello of another cluster", "refused", "the cluster specs of", |attacker| {
        let cluster = ClusterSpec::new([(JobName::Chief, vec!["c:1"]), (JobName::Worker, vec!["w:1"])]);
        let cluster = cluster.expect("a cluster");
        attacker.claim(&Identity { cluster, ..attacker.scene.identity(WORKER) })
    })
    .told("has another cluster spec than the task that dialled it"),
    closed(
        23,
        "another version of the protocol",
        "version",
        "the peer speaks protocol version",
        |attacker| {
            let mut hello = attacker.hello(&attacker.scene.identity(WORKER));
            hello[4..6].copy_from_slice(&(PROTOCOL + 1).to_le_bytes());
            let mut stream = attacker.tls(Some(&attacker.scene.stolen));
            send(&mut stream, &hello);
            format!("{:?}", receive(&mut stream))
        },
    )
    .told("speaks protocol version"),
    closed(24, "a payload to the chief", "too_large", "payload may have at most 0 bytes", |attacker| {
        let mut stream = attacker.member();
        send(&mut stream, &prefix(12, 100, 1 << 30));
        end_of(stream)
    })
    .at(&[CHIEF]),
    closed(49, "a header of 4 GiB", "too_large", "header may have at most", |attacker| {
        let mut stream = attacker.member();
        send(&mut stream, &prefix(22, u32::MAX, 0));
        end_of(stream)
    }),
    closed(50, "a frame that is cut", "truncated", "ended in the middle of a frame", |attacker| {
        let mut stream = attacker.member();
        let cut = frame(1, Observe { shard: 0 });
        send(&mut stream, &cut[..cut.len() - 1]);
        stream.conn.send_close_notify();
        let _ = stream.conn.complete_io(&mut stream.sock);
        end_of(stream)
    }),
    closed(
        51,
        "a request before the hello",
        "not_hello",
        "the first frame is Register, expected Hello",
        |attacker| {
            let mut stream = attacker.tls(Some(&attacker.scene.stolen));
            refusal(&mut stream, Register::default())
        },
    )
    .told("the first frame must be Hello"),
    closed(52, "a hello of 1 MiB", "too_large", "header may have at most", |attacker| {
        let mut stream = attacker.tls(Some(&attacker.scene.stolen));
        send(&mut stream, &prefix(1, 16 * Limits::STRANGER.header_bytes_max, 0));
        end_of(stream)
    }),
    closed(
        53,
        "records that are changed on their way",
        "identity",
        "a TLS record cannot be decrypted",
        |attacker| {
            let mut stream = attacker.member();
            // A record of application data that was not encrypted with the keys of this connection.
            send(&mut stream.sock, &[&[23, 3, 3, 0, 64][..], &noise(53, 64)].concat());
            end_of(stream)
        },
    ),
    Attack::unproved(55, "a second life of a worker that trains", "", |attacker| {
        let later = Incarnation(u64::MAX);
        let later = Identity { incarnation: later, ..attacker.scene.identity(WORKER) };
        refusal(&mut attacker.member_as(&later), Register::default())
    })
    .at(&[CHIEF])
    .told("worker/0 is already connected: is the same task started twice?")
    .counted(Counted::Refused("unavailable")),
];

#[test]
fn a_stolen_certificate_is_that_of_one_task() {
    let mut scene = Scene::new();
    scene.withstand(ATTACKS);
    let report = scene.end();
    assert_eq!(report.shards()[0]["refused"], 0, "none of them came as far as a shard");
}
