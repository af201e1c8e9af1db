//! Attacks with many connections at once, from an address that no task has.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::scene::{Attacker, Scene};
use super::tls::{end_of, is_timeout, send};
use super::{Attack, CHIEF, Counted, PS};
use crate::harness::{PATIENCE, noise, wait_until};

/// One connection more than those of a host that may not have proved who they are.
const HALF_OPEN: usize = 65;
/// The number of handshakes that never end, at the same time.
const SLOW: u64 = 8;
/// The number of attempts that fail one after the other. Eight more may fail in each second.
const GARBAGE: u64 = 200;
/// How long a slow handshake may take at most: five seconds, and what a busy machine adds.
const SLOW_MAX: Duration = Duration::from_secs(25);

const ATTACKS: &[Attack] = &[
    Attack {
        is_flood: true,
        ..Attack::unproved(
            17,
            "connections that say nothing",
            "64 connections of this host have not proved who they are",
            half_open,
        )
        .counted(Counted::Closed("too_many"))
    },
    Attack {
        times: SLOW,
        ..Attack::unproved(
            18,
            "handshakes of a byte a second",
            "the peer did not prove who it is within 5 s",
            slow,
        )
    },
    Attack {
        is_flood: true,
        ..Attack::unproved(
            19,
            "garbage, again and again",
            "too many attempts of this host have failed",
            garbage,
        )
        .counted(Counted::Closed("too_many"))
    },
];

/// Opens connections and says nothing, until the task has closed one of them.
fn half_open(attacker: &Attacker<'_>) -> String {
    let mut open: Vec<TcpStream> = (0..HALF_OPEN).map(|_| attacker.tcp()).collect();
    for stream in &open {
        stream.set_nonblocking(true).expect("a socket can be asked without waiting");
    }
    wait_until("a connection that is closed", PATIENCE, || {
        let closed = |stream: &mut TcpStream| match stream.read(&mut [0; 64]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        open.iter_mut().any(closed).then_some(())
    });
    String::new()
}

/// Begins handshakes, and sends one byte a second of each of them until the task closes it.
fn slow(attacker: &Attacker<'_>) -> String {
    let drip = || {
        let mut stream = attacker.tcp();
        let began = Instant::now();
        // The wait for an answer is what paces the bytes.
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket has a time limit");
        for byte in [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3].into_iter().chain(noise(18, 64)) {
            let open = stream.write_all(&[byte]).is_ok()
                && stream.read(&mut [0; 64]).is_err_and(|error| is_timeout(&error));
            if !open {
                break;
            }
            assert!(began.elapsed() < SLOW_MAX, "the handshake is still open");
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SLOW).map(|_| scope.spawn(drip)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("each of them is closed in time"));
    });
    String::new()
}

/// Sends garbage over one connection after the other, and waits each time until the task has closed it.
fn garbage(attacker: &Attacker<'_>) -> String {
    for attempt in 0..GARBAGE {
        let mut stream = attacker.tcp();
        send(&mut stream, &noise(attempt, 1000));
        end_of(stream);
    }
    String::new()
}

#[test]
fn floods_are_bounded_while_a_job_trains() {
    let mut scene = Scene::new();
    scene.withstand(ATTACKS);
    // Another host is not affected.
    for task in [CHIEF, PS] {
        drop(Attacker { scene: &scene, task, from: [127, 0, 0, 3].into() }.member());
    }
    scene.end();
}
