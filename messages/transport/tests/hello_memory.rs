//! Checks that the first frame of a stranger costs little memory: no more than a small multiple of its
//! bytes, whatever they are. The allocations are counted in the allocator.

use std::alloc::System;
use std::collections::BTreeMap;

use pushpull_messages::cluster::{JOBS_MAX, TASKS_PER_JOB_MAX};
use pushpull_messages::id::{RequestId, TaskId};
use pushpull_messages::message::{Message, PROTOCOL};
use pushpull_transport::wire::{Incoming, Limits, PREFIX_BYTES, Prefix, WireError};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The size of the first header that a stranger may send to a task of a small cluster.
const HEADER_BYTES: usize = Limits::STRANGER.header_bytes_max as usize;
/// The largest number of bytes that are allocated for each byte of a header. This counts every allocation,
/// so the memory at one moment is less.
const BYTES_PER_BYTE_MAX: usize = 20;
/// The largest number of bytes that are allocated for an error.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// Bytes that serialize as MessagePack's `bin`.
struct Bin<'a>(&'a [u8]);

impl serde::Serialize for Bin<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Returns a header with these segment lengths and this message.
fn header(lengths: &[u64], message: &[u8]) -> Vec<u8> {
    rmp_serde::to_vec(&(lengths, Bin(message))).unwrap()
}

/// Decodes a frame as a task does, and returns the bytes that were allocated for it.
fn allocated(header: &[u8], limits: &Limits) -> (usize, Result<(), WireError>) {
    let kind = Message::KINDS[0];
    let (request, header_bytes) = (RequestId(0), header.len() as u32);
    let prefix = Prefix { kind, request, header_bytes, payload_bytes: 0, payload_crc: None };
    let prefix_bytes: [u8; PREFIX_BYTES] = prefix.encode(header);
    let region = Region::new(ALLOCATOR);
    let decoded = Prefix::decode(&prefix_bytes, limits)
        .and_then(|prefix| Incoming::decode(&prefix_bytes, prefix, header, limits))
        .map(|_| ());
    let change = region.change();
    (change.bytes_allocated + change.bytes_reallocated.unsigned_abs(), decoded)
}

/// A hello that was not checked before it was sent.
#[derive(serde::Serialize)]
struct Claimed {
    protocol: u16,
    task: TaskId,
    incarnation: u64,
    to: TaskId,
    cluster: BTreeMap<String, Vec<String>>,
    http: String,
}

/// Returns a hello whose jobs have this number of tasks each, with these addresses.
fn claimed<J: ToString>(jobs: &[J], tasks: usize, address: impl Fn(usize) -> String) -> Claimed {
    let addresses = |job: usize| (job * tasks..(job + 1) * tasks).map(&address).collect();
    let cluster = jobs.iter().enumerate().map(|(at, job)| (job.to_string(), addresses(at))).collect();
    let (task, to, http) = (TaskId::CHIEF, TaskId::ps(0), String::new());
    Claimed { protocol: PROTOCOL, task, incarnation: 1, to, cluster, http }
}

fn encoded(hello: &Claimed) -> Vec<u8> {
    header(&[], &rmp_serde::to_vec_named(hello).unwrap())
}

/// Returns headers that a stranger might send, each with a part of the reason for which it is refused; the
/// empty reason if it is decoded.
fn strangers() -> Vec<(Vec<u8>, &'static str)> {
    let named = |jobs: usize| (0..jobs).map(|at| format!("j{at}")).collect::<Vec<_>>();
    const JOBS: [&str; 4] = ["chief", "ps", "worker", "evaluator"];
    let http = |bytes: usize| Claimed {
        http: "h".repeat(bytes),
        ..claimed(&JOBS[1..3], 1, |at| format!("h:{}", at + 1))
    };
    vec![
        // As many addresses as fit.
        (
            encoded(&claimed(&JOBS[1..], TASKS_PER_JOB_MAX, |at| {
                format!("{}:{}", ["a", "b", "c"][at / TASKS_PER_JOB_MAX], at % TASKS_PER_JOB_MAX + 1)
            })),
            "",
        ),
        (encoded(&claimed(&["ps"], 60_000, |_| String::new())), "address of ps/0"),
        (encoded(&claimed(&["worker"], 9000, |at| format!("w:{}", at + 1))), "at most 4096 addresses"),
        (encoded(&claimed(&JOBS, 4000, |_| "a:1".into())), "both chief/0 and chief/1"),
        (encoded(&claimed(&JOBS[1..3], 4000, |_| "a:1".into())), "both ps/0 and ps/1"),
        (encoded(&claimed(&["ps"], 200, |_| "a".repeat(300))), "at most 255 bytes"),
        (encoded(&claimed(&JOBS[1..3], 100, |at| format!("{}:{}", "a".repeat(63), at + 1))), ""),
        (encoded(&http(60_000)), "has 60000 bytes, expected at most 272"),
        (header(&vec![0; 60_000], &rmp_serde::to_vec_named(&http(9)).unwrap()), "at most 0 segment lengths"),
        (encoded(&claimed(&named(JOBS_MAX), 2, |at| format!("a:{}", at + 1))), ""),
        (encoded(&claimed(&named(JOBS_MAX + 1), 0, |_| String::new())), "has 65 jobs, expected at most 64"),
        (encoded(&claimed(&named(9000), 0, |_| String::new())), "has 65 jobs, expected at most 64"),
        (encoded(&claimed(&named(5), 4000, |at| format!("a:{}", at + 1))), "has 20000 tasks"),
        (encoded(&claimed(&["j".repeat(60_000)], 1, |_| "a:1".into())), "is not valid, expected a letter"),
        (encoded(&claimed::<&str>(&[], 1, |_| "a:1".into())), "the cluster has no task"),
        (encoded(&claimed(&["\n\u{1b}[2J 12:00 INFO"], 1, |_| "a:1".into())), "\\n\\u{1b}[2J 12:00 INFO"),
        (encoded(&claimed(&["ps"], 1, |_| "\n\u{1b}[2J".into())), "'\\n\\u{1b}[2J' is not host:port"),
        (header(&[], &vec![0x91; 60_000]), "cannot be decoded"),
        (header(&[], &vec![0xa0; 60_000]), "cannot be decoded"),
        (vec![0x92; 60_000], "wrong msgpack marker"),
    ]
}

/// This file contains a single test, because a second test would allocate concurrently.
#[test]
fn a_strangers_hello_costs_little_memory() {
    for (header, reason) in strangers() {
        let limits = Limits { header_bytes_max: header.len() as u32, ..Limits::STRANGER };
        let (bytes, decoded) = allocated(&header, &limits);
        let error = decoded.map_or_else(|error| error.to_string(), |()| String::new());
        assert!(error.contains(reason) && error.is_empty() == reason.is_empty(), "'{reason}' in '{error}'");
        assert!(error.len() < 1000 && !error.contains(char::is_control), "an error for the log: {error:?}");
        let most = BYTES_PER_BYTE_MAX * header.len() + ERROR_BYTES_MAX;
        assert!(bytes <= most, "{} bytes cost {bytes} bytes ({reason})", header.len());
    }
    let long = encoded(&claimed(&["ps"], HEADER_BYTES, |_| String::new()));
    let (bytes, decoded) = allocated(&long, &Limits::STRANGER);
    assert!(matches!(decoded, Err(WireError::TooLarge { .. })) && bytes == 0, "{bytes} bytes");
}
