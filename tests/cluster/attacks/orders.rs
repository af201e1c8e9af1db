//! Attacks of a program that has stolen the certificate of worker 0, and that every task has admitted: the
//! orders of the chief, and requests in the name of others.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation, LocalStep, NodeId, PlacementEpoch, Sequence, Version};
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_transport::Identity;

use super::scene::{Attacker, Scene};
use super::tls::refusal;
use super::{Attack, CHIEF, Counted, PS, WORKER};
use crate::harness::create_order;

/// Returns an attack with a request that the task accepts only from others.
const fn forbidden(
    number: u32,
    name: &'static str,
    logged: &'static str,
    run: fn(&Attacker<'_>) -> String,
) -> Attack {
    let attack = Attack::unproved(number, name, logged, run).at(&[PS]);
    attack.told("does not accept").counted(Counted::Refused("malformed"))
}

/// Sends one request as worker 0, and returns the reason of the refusal.
#[track_caller]
fn asks(attacker: &Attacker<'_>, request: impl Into<Message>) -> String {
    refusal(&mut attacker.member(), request)
}

const ORDERS: &[Attack] = &[
    forbidden(8, "a worker that claims a ps task", "ps/0 does not accept Claim from worker/0", |attacker| {
        asks(attacker, Claim { attempt: u64::MAX })
    }),
    forbidden(60, "a worker that stops a ps task", "ps/0 does not accept Stop from worker/0", |attacker| {
        asks(attacker, Stop { reason: StopReason::Completed })
    }),
    forbidden(25, "a worker that creates a shard", "does not accept CreateShard from worker/0", |attacker| {
        asks(attacker, create_order())
    }),
    forbidden(61, "a worker that saves a shard", "does not accept Save from worker/0", |attacker| {
        let checkpoint = CheckpointName { step: GlobalStep(1), life: Incarnation(1) };
        asks(attacker, Save { shard: 0, store: "/tmp".to_owned(), checkpoint, at: Version(u64::MAX) })
    }),
    forbidden(62, "a worker that ends the training", "does not accept StopAt from worker/0", |attacker| {
        asks(attacker, StopAt { shard: 0, step: GlobalStep(1), drains: false })
    }),
    forbidden(63, "a worker that holds the training", "does not accept HoldAt from worker/0", |attacker| {
        asks(attacker, HoldAt { shard: 0, version: Version(1) })
    }),
    forbidden(
        64,
        "a worker that sets the learning rate",
        "does not accept SetLearningRate from worker/0",
        |attacker| {
            let change = RateChange { from: Version(1), factor: 1e6 };
            asks(attacker, SetLearningRate { shard: 0, change })
        },
    ),
    forbidden(65, "a worker that appoints itself", "does not accept Appoint from worker/0", |attacker| {
        asks(attacker, Appoint { shard: 0, worker: 0, incarnation: Incarnation(1), number: 1 << 40 })
    }),
    forbidden(66, "a worker that dismisses another", "does not accept Leave from worker/0", |attacker| {
        let (incarnation, epoch) = (Incarnation(u64::MAX), PlacementEpoch(1));
        asks(attacker, Leave { shard: 0, worker: 1, incarnation, epoch })
    }),
    forbidden(67, "a worker that inspects a shard", "does not accept Inspect from worker/0", |attacker| {
        asks(attacker, Inspect { shard: 0 })
    }),
    forbidden(68, "a worker that withdraws a claim", "does not accept Withdraw from worker/0", |attacker| {
        asks(attacker, Withdraw { attempt: u64::MAX })
    }),
    forbidden(69, "a worker that deletes files", "does not accept AccessFiles from worker/0", |attacker| {
        asks(attacker, AccessFiles { access: FileAccess::Delete { name: "step-1".to_owned() } })
    }),
    forbidden(30, "a reply as a request", "does not accept Claimed from worker/0", |attacker| {
        asks(attacker, Claimed {})
    }),
    forbidden(31, "a run of a session", "does not accept Run from worker/0", |attacker| {
        let (feeds, fetches, targets) = (Vec::new(), vec![NodeId(0)], Vec::new());
        asks(attacker, Run { graph: 1, number: 1, feeds, fetches, targets })
    }),
    forbidden(70, "a reset of a session's variables", "does not accept Reset from worker/0", |attacker| {
        asks(attacker, Reset { containers: Vec::new(), own: false })
    }),
    forbidden(71, "an order of the chief to the chief", "chief/0 does not accept Stop", |attacker| {
        asks(attacker, Stop { reason: StopReason::Completed })
    })
    .at(&[CHIEF]),
];

/// Returns an attack with a request that does not fit the shard.
const fn unfit(
    number: u32,
    name: &'static str,
    logged: &'static str,
    run: fn(&Attacker<'_>) -> String,
) -> Attack {
    Attack::unproved(number, name, logged, run).at(&[PS]).told(logged).counted(Counted::Refused("misfit"))
}

/// Returns an attack with a request of an incarnation that is no member. That of a worker that was started
/// again would look the same, so only the reply has the reason.
const fn outsider(number: u32, name: &'static str, run: fn(&Attacker<'_>) -> String) -> Attack {
    let attack = Attack::unproved(number, name, "", run).at(&[PS]);
    attack.told("another incarnation of worker/0 than").counted(Counted::Refused("unavailable"))
}

const PUSHES: &[Attack] = &[
    forbidden(26, "a push in the name of another worker", "does not accept Push", |attacker| {
        let mine = push(attacker.scene.digest);
        asks(attacker, Push { id: PushId { worker: 1, ..mine.id }, ..mine })
    }),
    unfit(27, "a push with a forged digest", "expected placement epoch", |attacker| {
        asks(attacker, push(!attacker.scene.digest))
    }),
    unfit(72, "a push with a forged epoch", "expected placement epoch", |attacker| {
        asks(attacker, Push { epoch: PlacementEpoch(7), ..push(attacker.scene.digest) })
    }),
    outsider(73, "a push of another incarnation of a worker", |attacker| {
        asks(attacker, push(attacker.scene.digest))
    }),
    outsider(29, "an incarnation that the chief did not appoint", |attacker| {
        let later = Incarnation(u64::MAX);
        let later = Identity { incarnation: later, ..attacker.scene.identity(WORKER) };
        let (placement_digest, at) = (attacker.scene.digest, PullAt::Join);
        let join = Pull { shard: 0, epoch: PlacementEpoch(1), placement_digest, at, averages: false };
        refusal(&mut attacker.member_as(&later), join)
    }),
];

/// Returns an empty push of worker 0, whose incarnation never joined.
fn push(placement_digest: u32) -> Push {
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: PlacementEpoch(1),
        placement_digest,
        version: Version(0),
        slices: Vec::new(),
        drawn: 0,
        pull: true,
        traced: false,
        with: Vec::new(),
    }
}

#[test]
fn a_worker_gives_no_orders() {
    let mut scene = Scene::new();
    scene.withstand(ORDERS);
    let report = scene.end();
    assert_eq!(report.shards()[0]["refused"], 0, "no order came as far as a shard");
}

#[test]
fn a_push_of_a_stolen_certificate_changes_nothing() {
    let mut scene = Scene::new();
    scene.withstand(PUSHES);
    let report = scene.end();
    // Three of the attacks were pushes that reached the shard.
    assert_eq!(report.shards()[0]["refused"], 3);
}
