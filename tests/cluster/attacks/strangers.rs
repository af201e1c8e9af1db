//! Attacks of programs that have no certificate of the job, or one that proves nothing.

use std::net::TcpStream;

use super::certificates::Certificate;
use super::scene::Scene;
use super::tls::{end_of, send, tls};
use super::{Attack, WORKER};
use crate::harness::noise;

const ATTACKS: &[Attack] = &[
    Attack::unproved(
        1,
        "plain frames to a port that speaks TLS",
        "the peer does not speak TLS",
        |attacker| {
            let hello = attacker.hello(&attacker.scene.identity(WORKER));
            says(attacker.tcp(), &hello)
        },
    ),
    Attack::unproved(2, "TLS without a certificate", "peer sent no certificates", |attacker| {
        end_of(attacker.tls(None))
    })
    .told("CertificateRequired"),
    Attack::unproved(
        3,
        "a certificate of another authority",
        "its certificate is from another authority than the join string names",
        |attacker| attacker.show(&attacker.scene.other.certificate(WORKER)),
    ),
    Attack::unproved(4, "a certificate that has expired", "its certificate has expired", |attacker| {
        attacker.show(&attacker.scene.forger.expired(WORKER))
    }),
    Attack::unproved(
        5,
        "a certificate that is not valid yet",
        "its certificate is not valid yet",
        |attacker| attacker.show(&attacker.scene.forger.early(WORKER)),
    ),
    Attack::unproved(14, "a client of TLS 1.2", "the TLS handshake failed: ", |attacker| {
        says(attacker.tcp(), &tls12_hello())
    }),
    Attack::unproved(
        15,
        "a certificate of the job with the wrong protocol",
        "the TLS handshake failed: ",
        |attacker| end_of(tls(attacker.tcp(), b"http/1.1", Some(&attacker.scene.stolen))),
    )
    .told("NoApplicationProtocol"),
    Attack::unproved(16, "the authority's own certificate", "its certificate is not valid: ", |attacker| {
        attacker.show(&attacker.scene.forger.own())
    }),
    Attack::unproved(20, "a record of 64 KiB", "the peer does not speak TLS", |attacker| {
        says(
            attacker.tcp(),
            &[&[22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff][..], &noise(20, 1 << 20)].concat(),
        )
    }),
    Attack::unproved(41, "a ClientHello of 16 MiB", "the peer does not speak TLS", |attacker| {
        says(attacker.tcp(), &huge_hello())
    }),
    Attack::unproved(42, "a certificate of the job without its key", "BadSignature", |attacker| {
        attacker.show(&attacker.scene.stolen.without_its_key())
    }),
    Attack::unproved(
        43,
        "a certificate of the authority for another job",
        "its certificate names no task of this job",
        |attacker| attacker.show(&attacker.scene.forger.of_job("0123456789abcdef", WORKER)),
    ),
    Attack::unproved(44, "a chain of three certificates", "it shows 3 certificates", |attacker| {
        let Certificate { mut chain, key } = attacker.scene.forger.certificate(WORKER);
        chain.push(chain[1].clone());
        attacker.show(&Certificate { chain, key })
    }),
    Attack::unproved(
        45,
        "an HTTP request to the port of a task",
        "the peer does not speak TLS",
        |attacker| says(attacker.tcp(), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ),
    Attack::unproved(
        46,
        "no protocol at all in the handshake",
        "chose no protocol of pushpull",
        |attacker| end_of(tls(attacker.tcp(), b"", Some(&attacker.scene.stolen))),
    ),
];

/// Sends bytes, and returns what the attacker hears until the task closes the connection.
#[track_caller]
fn says(mut stream: TcpStream, bytes: &[u8]) -> String {
    send(&mut stream, bytes);
    end_of(stream)
}

/// Returns a record with the beginning of a message of the handshake.
fn record(body: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

/// Returns the ClientHello of a client that speaks TLS 1.2 and nothing newer.
fn tls12_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend(noise(14, 32));
    // No session, the suite ECDHE-ECDSA with AES-128-GCM, no compression.
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let extensions: [(u16, &[u8]); 4] =
        [(10, &[0, 2, 0, 23]), (11, &[1, 0]), (13, &[0, 2, 4, 3]), (16, b"\x00\x0b\x0apushpull/1")];
    let mut encoded = Vec::new();
    for (kind, content) in extensions {
        encoded.extend(kind.to_be_bytes());
        encoded.extend((content.len() as u16).to_be_bytes());
        encoded.extend(content);
    }
    body.extend((encoded.len() as u16).to_be_bytes());
    body.extend(encoded);
    let length = (body.len() as u32).to_be_bytes();
    record(&[&[1][..], &length[1..], &body].concat())
}

/// Returns records that are each as long as they may be, and together the longest ClientHello.
fn huge_hello() -> Vec<u8> {
    let first = record(&[&[1, 0xff, 0xff, 0xff][..], &noise(41, (1 << 14) - 4)].concat());
    let more = record(&noise(42, 1 << 14));
    [first, more.repeat(1023)].concat()
}

#[test]
fn strangers_prove_nothing_while_a_secured_job_trains() {
    let mut scene = Scene::new();
    scene.withstand(ATTACKS);
    let report = scene.end();
    assert_eq!(report.shards()[0]["refused"], 0, "no stranger came as far as a shard");
}
