//! Tests a client on every transport. Its connections are cut, its frames are lost or doubled, or its peer
//! stays away.

mod flaky;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::observe::Traffic;
use tokio::time::Instant;

use super::*;
use crate::buffer::{Buffer, Segment};
use crate::wire::Envelope;
use crate::{InProcess, Link, Tcp};
use flaky::{Fate, Faults, Flaky, Judge, PS, Setup, both, identity, start, start_as};

/// Retry settings with long time limits, so that a test does not fail on a busy machine.
const RETRY: RetryConfig = RetryConfig {
    redial_for: Duration::from_secs(30),
    resend_after: Duration::from_secs(60),
    connections_max: 100,
};

async fn client(setup: &Setup, faults: &Arc<Faults>, retry: RetryConfig) -> ReconnectingClient {
    retry.validate().unwrap();
    let transport = Flaky { inner: Arc::clone(&setup.transport), faults: Arc::clone(faults) };
    let patience = Patience::of(Duration::from_secs(20));
    let me = identity(TaskId::worker(0), 1);
    ReconnectingClient::connect(Arc::new(transport), &setup.address, &me, PS, patience, retry).await.unwrap()
}

fn push(version: u64, slices: u32) -> Push {
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(version),
        slices: (0..slices).map(SliceId).collect(),
        drawn: 0,
        pull: false,
        traced: false,
        with: Vec::new(),
    }
}

/// Sends a push, and asserts that the reply has the version and payload of that push.
async fn echoed(client: &ReconnectingClient, version: u64) {
    let values: Vec<f32> = (0..100).map(|i| (version * 100 + i) as f32).collect();
    let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&values)))]);
    let (pushed, back): (Pushed, _) = client.call(push(version, 1), payload).await.unwrap();
    assert_eq!(pushed.version, Version(version));
    assert_eq!(back.segments()[0].as_f32(), values);
}

#[tokio::test]
async fn a_call_whose_connection_is_cut_is_answered_on_the_next() {
    both(async |setup| {
        let faults = Faults::none();
        let client = client(&setup, &faults, RETRY).await;
        let call = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let cut = async {
            for _ in 0..3 {
                setup.echo.came.notified().await;
                faults.cut();
            }
            setup.echo.came.notified().await;
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 7, ..Default::default() }, Payload::EMPTY);
        };
        let (answer, ()) = tokio::join!(call, cut);
        assert_eq!(answer.unwrap().0.pulls, 7);
        let counted = client.counters().snapshot();
        assert_eq!((counted.reconnections, counted.resends), (3, 3));
        assert!(!client.is_lost());
        echoed(&client, 1).await;
    })
    .await;
}

#[tokio::test]
async fn both_ends_count_traffic_without_handshakes() {
    both(async |setup| {
        // The second request is sent twice, and both copies are answered.
        let faults = Faults::none();
        let mut requests = 0;
        *faults.request.lock().unwrap() = Box::new(move |_| {
            requests += 1;
            if requests == 2 { Fate::Double } else { Fate::Pass }
        });
        let client = client(&setup, &faults, RETRY).await;
        for version in 1..=5 {
            echoed(&client, version).await;
        }
        let traffic = |messages| Traffic { messages, payload_bytes: messages * 400 };
        let counted = client.counters().snapshot();
        assert_eq!((counted.sent, counted.received, counted.ignored), (traffic(5), traffic(6), 1));
        drop(client);
        let observer = setup.server.observer();
        setup.server.stop().await;
        let ended = observer.snapshot();
        assert_eq!((ended.received, ended.sent, ended.writing.count()), (traffic(6), traffic(6), 6));
        assert_eq!((ended.accepted, ended.closed.values().sum::<u64>()), (1, 1));
        assert_eq!((ended.in_flight_bytes, ended.in_flight_bytes_max), (0, 8 << 30));
    })
    .await;
}

#[tokio::test]
async fn a_lost_request_or_reply_is_sent_again() {
    both(async |setup| {
        let mut replies = 0;
        let faults = Faults::on_replies(move |_| {
            replies += 1;
            if replies <= 2 { Fate::Drop } else { Fate::Pass }
        });
        let mut requests = 0;
        *faults.request.lock().unwrap() = Box::new(move |_| {
            requests += 1;
            if requests == 1 { Fate::Drop } else { Fate::Pass }
        });
        let resend_after = Duration::from_millis(10);
        let client = client(&setup, &faults, RetryConfig { resend_after, ..RETRY }).await;
        echoed(&client, 3).await;
        let counted = client.counters().snapshot();
        assert!(counted.resends >= 3 && counted.reconnections == 0, "{counted:?}");
        assert!(setup.echo.pushed.lock().unwrap()[&3] >= 3);
    })
    .await;
}

#[tokio::test]
async fn a_doubled_reply_is_ignored_once() {
    both(async |setup| {
        let faults = Faults::on_replies(|_| Fate::Double);
        let client = client(&setup, &faults, RETRY).await;
        for version in 1..=5 {
            echoed(&client, version).await;
        }
        // The copy of the last reply may still be on its way.
        let counted = client.counters().snapshot();
        assert!((4..=5).contains(&counted.ignored), "{counted:?}");
        assert_eq!((counted.resends, counted.reconnections), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_refused_call_is_not_sent_again() {
    both(async |setup| {
        let client = client(&setup, &Faults::none(), RETRY).await;
        let refused = client.call::<Registered>(Register::default(), Payload::EMPTY).await.unwrap_err();
        assert!(matches!(&refused, CallError::Refused { peer, .. } if *peer == PS), "{refused}");
        let odd = client.call::<Registered>(push(1, 0), Payload::EMPTY).await.unwrap_err();
        assert!(matches!(&odd, CallError::Unexpected { got: "Pushed", .. }), "{odd}");
        assert_eq!(client.counters().snapshot().resends, 0);
        // The connection is still good.
        echoed(&client, 1).await;
    })
    .await;
}

#[tokio::test]
async fn the_reply_to_a_dropped_call_is_ignored() {
    both(async |setup| {
        let client = client(&setup, &Faults::none(), RETRY).await;
        {
            let call = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
            tokio::select! {
                _ = call => panic!("the call has no answer"),
                () = setup.echo.came.notified() => {}
            }
        }
        let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
        reply.send(ShardSnapshot::default(), Payload::EMPTY);
        // The reply to this push arrives after the reply to the dropped call, so the client has then read
        // both.
        echoed(&client, 1).await;
        assert_eq!(client.counters().snapshot().ignored, 1);
    })
    .await;
}

#[tokio::test]
async fn a_doubled_request_waits_for_the_later_answer() {
    both(async |setup| {
        let faults = Faults::none();
        *faults.request.lock().unwrap() = Box::new(|_| Fate::Double);
        let client = client(&setup, &faults, RETRY).await;
        let call = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let answer = async {
            // Waits until the second copy has arrived and has superseded the first one.
            setup.echo.came.notified().await;
            setup.echo.came.notified().await;
            echoed(&client, 1).await;
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 3, ..Default::default() }, Payload::EMPTY);
        };
        let (answered, ()) = tokio::join!(call, answer);
        assert_eq!(answered.unwrap().0.pulls, 3);
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_stays_away_is_lost_with_both_reasons() {
    both(async |setup| {
        let redial_for = Duration::from_millis(200);
        let client = client(&setup, &Faults::none(), RetryConfig { redial_for, ..RETRY }).await;
        let Setup { server, echo, .. } = setup;
        let call = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let end = async {
            echo.came.notified().await;
            // The reply is held until the end of the test: if it were dropped, the request would be refused.
            let reply = echo.kept.lock().unwrap().pop().unwrap();
            std::mem::drop(tokio::spawn(server.stop()));
            reply
        };
        let before = Instant::now();
        let (lost, _reply) = tokio::join!(call, end);
        let error = lost.unwrap_err();
        assert!(matches!(&error, CallError::Lost { peer, .. } if *peer == PS), "{error}");
        let text = error.to_string();
        assert!(text.contains("closed by the peer; dialled again for 0.2 s without success"), "{text}");
        assert!(before.elapsed() >= redial_for);
        assert!(client.is_lost());
        assert!(text.ends_with(&client.wait_lost().await));
        let again = client.call::<Pushed>(push(1, 0), Payload::EMPTY).await.unwrap_err();
        assert_eq!(again, error);
    })
    .await;
}

#[tokio::test]
async fn another_life_of_the_peer_does_not_answer_for_the_first() {
    both(async |setup| {
        let client = client(&setup, &Faults::none(), RETRY).await;
        let Setup { transport, address, server, .. } = setup;
        server.stop().await;
        let next = start(transport, &address, 2).await;
        let reason = client.wait_lost().await;
        assert!(
            reason.contains("ps/0 has restarted: expected incarnation 1, but incarnation 2 answered"),
            "{reason}"
        );
        assert!(client.call::<Pushed>(push(1, 0), Payload::EMPTY).await.is_err());
        assert!(next.echo.pushed.lock().unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_nonce_tells_two_starts_in_one_microsecond_apart() {
    both(async |setup| {
        let client = client(&setup, &Faults::none(), RETRY).await;
        let Setup { transport, address, server, .. } = setup;
        server.stop().await;
        let next = start_as(transport, &address, Identity { nonce: 1, ..identity(PS, 1) }).await;
        let reason = client.wait_lost().await;
        assert!(reason.contains("ps/0 has restarted with the same incarnation 1"), "{reason}");
        assert!(client.call::<Pushed>(push(1, 0), Payload::EMPTY).await.is_err());
        assert!(next.echo.pushed.lock().unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_refuses_is_lost_unless_it_is_not_ready() {
    both(async |setup| {
        let faults = Faults::none();
        let client = client(&setup, &faults, RETRY).await;
        let refuse = |code| *setup.echo.refuses.lock().unwrap() = Some(Refusal::new(code, "not now"));
        refuse(RefusalCode::Unavailable);
        faults.cut();
        let accepted = setup.server.observer().snapshot().accepted;
        while setup.server.observer().snapshot().accepted < accepted + 3 {
            tokio::task::yield_now().await;
        }
        assert!(!client.is_lost());
        *setup.echo.refuses.lock().unwrap() = None;
        echoed(&client, 1).await;
        refuse(RefusalCode::Mismatch);
        faults.cut();
        let reason = client.wait_lost().await;
        assert!(reason.contains("dialled again: ps/0 refused this task: not now"), "{reason}");
    })
    .await;
}

#[tokio::test]
async fn a_request_that_breaks_every_connection_fails() {
    both(async |setup| {
        let faults = Faults::none();
        *faults.request.lock().unwrap() = Box::new(|message| match message {
            Message::Pull(_) => Fate::Cut,
            _ => Fate::Pass,
        });
        let client = client(&setup, &faults, RetryConfig { connections_max: 4, ..RETRY }).await;
        let pull = Pull {
            shard: 0,
            epoch: PlacementEpoch(1),
            placement_digest: 0,
            at: PullAt::Latest,
            averages: false,
        };
        let error = client.call::<Pulled>(pull, Payload::EMPTY).await.unwrap_err().to_string();
        assert!(error.contains("Pull was sent on 4 connections, and each broke"), "{error}");
        // No other request fails.
        echoed(&client, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_hangs_up_after_handshakes_is_lost() {
    let transport = InProcess::new();
    let mut listener = transport.listen("p:1").await.unwrap();
    let host = tokio::spawn(async move {
        loop {
            let Link { mut sender, mut receiver, .. } = listener.accept().await.unwrap().open().await;
            let welcome = Welcome {
                protocol: PROTOCOL,
                task: PS,
                incarnation: Incarnation(1),
                shards: 1,
                payload_bytes_max: 0,
                requests_max: 1,
                http: None,
                nonce: 0,
            };
            let envelope =
                Envelope { request: RequestId(0), message: welcome.into(), payload: Payload::EMPTY };
            // The peer may have closed the link already; then there is nothing to receive.
            let _ = receiver.receive().await;
            let _ = sender.send(envelope).await;
        }
    });
    let (me, patience) = (identity(TaskId::worker(0), 1), Patience::of(Duration::from_secs(20)));
    let retry = RetryConfig { redial_for: Duration::from_millis(300), ..RETRY };
    let client =
        ReconnectingClient::connect(Arc::new(transport), "p:1", &me, PS, patience, retry).await.unwrap();
    let error = client.call::<Pushed>(push(1, 0), Payload::EMPTY).await.unwrap_err().to_string();
    assert!(error.contains("dialled again for 0.3 s without success"), "{error}");
    // The attempts are at least 10, 20, 40, 80 and 160 ms apart.
    assert!((1..=8).contains(&client.counters().snapshot().reconnections));
    host.abort();
}

#[tokio::test]
async fn a_caller_that_is_dropped_closes_its_connection() {
    both(async |setup| {
        let client = client(&setup, &Faults::none(), RETRY).await;
        echoed(&client, 1).await;
        drop(client);
        while setup.server.observer().snapshot().closed.get("closed") != Some(&1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(setup.server.observer().snapshot().accepted, 1);
    })
    .await;
}

/// Returns a judge, a function that chooses the fate of a frame. It takes the fates from a pseudo-random
/// sequence.
fn fates(seed: u64) -> Judge {
    let mut state = seed | 1;
    Box::new(move |_| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 100 {
            0..3 => Fate::Cut,
            3..8 => Fate::Drop,
            8..20 => Fate::Double,
            _ => Fate::Pass,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks that every call of a client ends with its own reply, whichever frames are lost or doubled, and
    /// whichever links are cut (A to D in `client/mod.rs`).
    #[test]
    fn every_call_is_answered_once(seed in any::<u64>(), tcp in any::<bool>(), tasks in 1u64..12) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let setup = if tcp {
                start(Arc::new(Tcp::default()), "127.0.0.1:0", 1).await
            } else {
                start(Arc::new(InProcess::new()), "p:1", 1).await
            };
            let faults = Faults::none();
            *faults.request.lock().unwrap() = fates(seed);
            *faults.reply.lock().unwrap() = fates(!seed);
            let resend_after = Duration::from_millis(10);
            let client = client(&setup, &faults, RetryConfig { resend_after, ..RETRY }).await;
            let calls = (0..tasks).map(|task| {
                let client = &client;
                async move {
                    for call in 0..20 {
                        echoed(client, task * 100 + call).await;
                    }
                }
            });
            join_all(calls).await;
            assert_eq!(setup.echo.pushed.lock().unwrap().len() as u64, tasks * 20);
            assert!(!client.is_lost());
        });
    }
}

/// Returns faults that cut the connection instead of passing on the first reply to a push.
fn cut_at_the_first_push() -> Arc<Faults> {
    let mut cut = false;
    Faults::on_replies(move |message| match message {
        Message::Pushed(_) if !std::mem::replace(&mut cut, true) => Fate::Cut,
        _ => Fate::Pass,
    })
}

#[tokio::test]
async fn a_later_call_is_repeated_behind_the_earlier_one() {
    both(async |setup| {
        let client = client(&setup, &cut_at_the_first_push(), RETRY).await;
        let pushes = || setup.echo.pushed.lock().unwrap()[&7];
        let (answered, earlier) = EarlierCall::new();
        let first = async {
            let seen = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY).await.unwrap().0;
            assert_eq!((seen.pulls, pushes()), (3, 1), "the later one waits");
            answered.tell();
        };
        let second = client.call_after::<Pushed>(push(7, 0), Payload::EMPTY, earlier);
        let answer = async {
            setup.echo.came.notified().await;
            setup.echo.came.notified().await;
            // The connection is a new one. Whatever the calls have sent on it has arrived before this.
            echoed(&client, 1).await;
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 3, ..Default::default() }, Payload::EMPTY);
        };
        let ((), second, ()) = tokio::join!(first, second, answer);
        assert_eq!((second.unwrap().0.version, pushes()), (Version(7), 2));
    })
    .await;
}

#[tokio::test]
async fn a_call_fails_if_the_earlier_one_never_comes() {
    both(async |setup| {
        let client = client(&setup, &cut_at_the_first_push(), RETRY).await;
        let (answered, earlier) = EarlierCall::new();
        drop(answered);
        let failed = client.call_after::<Pushed>(push(7, 0), Payload::EMPTY, earlier).await.unwrap_err();
        assert!(failed.to_string().contains("an earlier request that comes first has failed"), "{failed}");
        assert_eq!(setup.echo.pushed.lock().unwrap()[&7], 1);
        // On a connection that is up, a call does not depend on the earlier one.
        echoed(&client, 1).await;
        let (answered, earlier) = EarlierCall::new();
        drop(answered);
        client.call_after::<Pushed>(push(8, 0), Payload::EMPTY, earlier).await.unwrap();
    })
    .await;
}
