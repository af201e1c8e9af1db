//! Tests of local links: payloads arrive unchanged, and lent memory is neither changed nor kept for ever.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use pushpull_messages::id::{GlobalStep, RequestId, SliceId, Version};
use pushpull_messages::message::Pulled;
use tokio::net::UnixListener;

use crate::Tcp;
use crate::buffer::{Buffer, BufferPool, Payload, Promise, Segment};
use crate::link::Link;
use crate::local::names::own_name;
use crate::transport::Transport;
use crate::wire::{Envelope, Limits, WireError};

/// The number of bytes of a buffer that is lent.
const LARGE: usize = 256 << 10;

/// Two tasks with a link, each with its pool.
struct Pair {
    near: Link,
    far: Link,
    near_pool: BufferPool,
}

async fn pair() -> Pair {
    let pools = [BufferPool::shared(), BufferPool::shared()];
    let [near, far] = pools.each_ref().map(|pool| Tcp::new(pool.clone()).with_local(true));
    let mut listener = far.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address();
    let (far, near) = tokio::join!(listener.accept(), near.dial(&address));
    let (mut near, mut far) = (near.unwrap(), far.unwrap().open().await);
    for link in [&mut near, &mut far] {
        link.receiver.trust(Limits::default(), None);
        assert!(link.peer.ends_with("of this host"), "{}", link.peer);
    }
    let [near_pool, _] = pools;
    Pair { near, far, near_pool }
}

fn envelope(payload: Payload) -> Envelope {
    let slices = (0..payload.segments().len() as u32).map(SliceId).collect();
    let pulled = Pulled { version: Version(1), step: GlobalStep(1), last_step: GlobalStep(2), slices };
    Envelope { request: RequestId(1), message: pulled.into(), payload }
}

fn filled(pool: &BufferPool, bytes: usize, value: u8) -> Arc<Buffer> {
    let mut buffer = pool.take(bytes);
    buffer.as_bytes_mut().fill(value);
    Arc::new(buffer)
}

async fn send(from: &mut Link, to: &mut Link, payload: Payload) -> Payload {
    let both = async { tokio::join!(from.sender.send(envelope(payload)), to.receiver.receive()) };
    let (sent, received) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it arrives");
    sent.unwrap();
    received.unwrap().expect("the link is open").payload
}

fn bytes_of(payload: &Payload) -> Vec<Vec<u8>> {
    payload.segments().iter().map(|segment| segment.as_bytes().to_vec()).collect()
}

#[tokio::test]
async fn what_is_lent_comes_back() {
    let Pair { mut near, mut far, near_pool, .. } = pair().await;
    for value in 0..5 {
        let (large, small) = (filled(&near_pool, LARGE, value), filled(&near_pool, 100, value));
        let promise = Promise::new(LARGE);
        let segments = vec![Segment::whole(large), Segment::whole(small), promise.segment(0, LARGE)];
        let keep = async {
            tokio::task::yield_now().await;
            let mut buffer = near_pool.take(LARGE);
            buffer.as_bytes_mut().fill(value + 100);
            promise.keep(buffer);
        };
        let (received, ()) = tokio::join!(send(&mut near, &mut far, Payload::new(segments)), keep);
        let expected = [vec![value; LARGE], vec![value; 100], vec![value + 100; LARGE]];
        assert_eq!(bytes_of(&received), expected);
        assert_eq!(near_pool.bytes_used(), 2 * LARGE + 128, "the pool has what is lent");
        drop(received);
        // The next frame in the other direction says so.
        send(&mut far, &mut near, Payload::EMPTY).await;
        assert_eq!(near_pool.bytes_used(), 0);
    }
    assert!(near_pool.bytes_kept() < 3 * LARGE, "the same buffers are lent again");
}

#[tokio::test]
async fn what_is_lent_stays_when_the_link_ends() {
    let Pair { mut near, mut far, near_pool, .. } = pair().await;
    let lent = Segment::whole(filled(&near_pool, LARGE, 7));
    let received = send(&mut near, &mut far, Payload::new(vec![lent])).await;
    drop((near, far));
    for _ in 0..10 {
        drop(filled(&near_pool, LARGE, 9));
    }
    assert!(received.segments()[0].as_bytes().iter().all(|&byte| byte == 7), "(A)");
    assert_eq!(near_pool.bytes_used(), LARGE);
    drop(received);
    crate::local::retired::sweep();
    assert_eq!(near_pool.bytes_used(), 0, "nobody reads it any more");
}

#[tokio::test]
async fn a_borrower_that_returns_nothing_gets_copies() {
    let Pair { mut near, mut far, near_pool, .. } = pair().await;
    let mut kept = Vec::new();
    for value in 0..40 {
        let lent = Segment::whole(filled(&near_pool, LARGE, value));
        kept.push(send(&mut near, &mut far, Payload::new(vec![lent])).await);
    }
    assert_eq!(near_pool.bytes_used(), 16 * LARGE, "(B)");
    for (value, payload) in kept.iter().enumerate() {
        assert!(payload.segments()[0].as_bytes().iter().all(|&byte| usize::from(byte) == value));
    }
    drop(kept);
    send(&mut far, &mut near, Payload::EMPTY).await;
    assert_eq!(near_pool.bytes_used(), 0);
}

#[tokio::test]
async fn a_task_without_an_arena_gets_and_sends_copies() {
    for shared in [[true, false], [false, true], [false, false]] {
        let pools = shared.map(|shared| if shared { BufferPool::shared() } else { BufferPool::default() });
        let [near, far] = pools.each_ref().map(|pool| Tcp::new(pool.clone()).with_local(true));
        let mut listener = far.listen("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let (far, near) = tokio::join!(listener.accept(), near.dial(&address));
        let (mut near, mut far) = (near.unwrap(), far.unwrap().open().await);
        for link in [&mut near, &mut far] {
            link.receiver.trust(Limits::default(), None);
        }
        let large = || Payload::new(vec![Segment::whole(filled(&pools[0], LARGE, 3))]);
        assert_eq!(bytes_of(&send(&mut near, &mut far, large()).await), [vec![3; LARGE]]);
        assert_eq!(bytes_of(&send(&mut far, &mut near, large()).await), [vec![3; LARGE]]);
    }
}

#[tokio::test]
async fn a_borrower_cannot_reach_beyond_what_there_is() {
    let Pair { near, .. } = pair().await;
    drop(near);
    let (one, other) = tokio::net::UnixStream::pair().unwrap();
    let pool = BufferPool::shared();
    let (mut one, mut other) = (one, other);
    let (one, other) = tokio::join!(
        crate::local::greeting::greet(&mut one, &pool),
        crate::local::greeting::greet(&mut other, &pool)
    );
    let (borrower, lender) = (one.unwrap().borrower, other.unwrap().lender);
    assert!(borrower.borrow([0; 8]).is_none(), "nothing is lent");
    let borrowing = borrower.borrow(1u64.to_le_bytes()).unwrap();
    for (place, bytes) in [(1, 4), (0, u64::MAX), (1 << 60, 1), (u64::MAX - 63, 64)] {
        let got = borrowing.segment(&u64::to_le_bytes(place), bytes);
        assert!(matches!(got, Err(WireError::Loan(_))), "{place} {bytes}");
    }
    assert!(borrowing.segment(&u64::MAX.to_le_bytes(), 4).unwrap().is_none());
    assert!(matches!(borrower.take_back(&5u64.to_le_bytes()), Err(WireError::Loan(_))), "it was never lent");
    assert!(super::Borrower::decode_returned(u32::MAX.to_le_bytes()).is_err());
    drop(lender);
}

#[tokio::test]
async fn a_stranger_at_the_name_leaves_tcp() {
    let tcp = Tcp::new(BufferPool::shared()).with_local(true);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let squatter = UnixListener::bind(own_name(address)).unwrap();
    let mut listener = tcp.listen_on(socket).unwrap();
    let answer = async {
        // It ends the connection without a word.
        drop(squatter.accept().await.unwrap());
    };
    let address = address.to_string();
    let (near, far, ()) = tokio::join!(tcp.dial(&address), listener.accept(), answer);
    assert_eq!(near.unwrap().peer, address);
    assert!(far.unwrap().peer().starts_with("127.0.0.1:"));
}

#[tokio::test]
async fn both_ends_must_want_it() {
    for wanted in [[true, false], [false, true]] {
        let [near, far] = wanted.map(|local| Tcp::new(BufferPool::shared()).with_local(local));
        let mut listener = far.listen("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let (far, near) = tokio::join!(listener.accept(), near.dial(&address));
        assert_eq!(near.unwrap().peer, address);
        assert!(far.unwrap().peer().starts_with("127.0.0.1:"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Checks that payloads of any shape arrive unchanged in both directions, while some are kept.
    #[test]
    fn payloads_arrive_unchanged(
        frames in prop::collection::vec(
            (prop::collection::vec(0usize..50_000, 0..5), any::<bool>(), any::<bool>()),
            1..30,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let Pair { mut near, mut far, near_pool } = pair().await;
            let mut kept: Vec<(Vec<Vec<u8>>, Payload)> = Vec::new();
            for (number, (floats, there, keep)) in frames.into_iter().enumerate() {
                let segment = |floats| Segment::whole(filled(&near_pool, 4 * floats, number as u8));
                let payload = Payload::new(floats.into_iter().map(segment).collect());
                let expected = bytes_of(&payload);
                let (from, to) = if there { (&mut near, &mut far) } else { (&mut far, &mut near) };
                let received = send(from, to, payload).await;
                assert_eq!(bytes_of(&received), expected);
                if keep {
                    kept.push((expected, received));
                } else {
                    kept.truncate(kept.len() / 2);
                }
                assert!(kept.iter().all(|(expected, payload)| bytes_of(payload) == *expected), "(A)");
            }
        });
    }
}
