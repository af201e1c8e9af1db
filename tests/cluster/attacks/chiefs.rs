//! Attacks in the name of the chief: a second chief in a job without identity, and a chief that orders ps
//! tasks to write where they may not.

use std::path::{Path, PathBuf};

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, Version};
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, Connection, Identity};

use super::{CHIEF, PS};
use crate::harness::{
    Cluster, ENDLESS, Endpoint, Program, TCP, all_end_well, create_order, wait_for_version, wait_until,
    whisper,
};

/// The words in the refusal of a chief that the ps task does not obey.
const OTHER_TERM: &str = "it belongs to the chief with term ";

/// Returns every order of a chief.
fn orders() -> Vec<Message> {
    let (shard, version) = (0, Version(1));
    let checkpoint = CheckpointName { step: GlobalStep(1), life: Incarnation(1) };
    let change = RateChange { from: version, factor: 1e6 };
    vec![
        Claim { attempt: u64::MAX }.into(),
        create_order().into(),
        Inspect { shard }.into(),
        Save { shard, store: "/tmp".to_owned(), checkpoint, at: Version(u64::MAX) }.into(),
        StopAt { shard, step: GlobalStep(1), drains: false }.into(),
        HoldAt { shard, version }.into(),
        SetLearningRate { shard, change }.into(),
        Appoint { shard, worker: 0, incarnation: Incarnation(1), number: 1 << 40 }.into(),
        Leave { shard, worker: 0, incarnation: Incarnation(1), epoch: PlacementEpoch(1) }.into(),
        Stop { reason: StopReason::Completed }.into(),
    ]
}

/// Attack 28: without a join string, anybody on this host can say hello as the chief. Its orders are those of
/// another term.
#[test]
fn a_ps_obeys_no_second_chief() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let start = |task| cluster.start_with(task, &[TCP, "--insecure"]);
    let mut programs: Vec<Program> = cluster.spec.tasks().map(|(task, _)| start(task)).collect();
    let ps = Endpoint::of(&mut programs[1]);
    wait_for_version(&cluster, 20);
    let refused = || {
        let count = ps.metrics().sum("pushpull_requests_refused_total", &[("reason", "term")]);
        count.unwrap_or_default() as usize
    };
    let impostor = Identity { task: CHIEF, ..cluster.impostor() };
    for (at, order) in orders().into_iter().enumerate() {
        let name = order.name();
        let heard = whisper(&cluster, PS, &impostor, async |client: Connection| {
            client.call::<Stopped>(order, Payload::EMPTY).await
        });
        match heard.expect("the ps task cannot know who dials") {
            Err(CallError::Refused { refusal, .. }) => {
                assert_eq!(refusal.code, RefusalCode::Term, "{name}: {refusal}");
                assert!(refusal.reason.contains(OTHER_TERM), "{name}: {refusal}");
                println!(" 28  a second chief: {name}\n     {PS}: {refusal}");
            }
            other => panic!("{name} was answered with {other:?}"),
        }
        wait_until("a refusal that is counted", super::PROMPT, || (refused() == at + 1).then_some(()));
        let seen = wait_for_version(&cluster, 0);
        wait_for_version(&cluster, seen.version.0 + 1);
    }
    assert!(programs.iter_mut().all(Program::is_running), "it trains while it is attacked");
    all_end_well(&cluster, &mut programs);
    cluster.finished();
}

/// Attack 32: a chief orders checkpoints outside of the root of the ps task.
#[track_caller]
fn writes_outside(checkpoints: impl FnOnce(&Path) -> PathBuf) {
    let mut cluster = Cluster::new(1, 1, ENDLESS);
    let root = cluster.dir().join("root");
    std::fs::create_dir(&root).expect("the test's directory can be written");
    let asked = checkpoints(cluster.dir());
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", asked.display()), "--save-steps=20".to_owned()];
    let flag = format!("--checkpoint-root={}", root.display());
    let mut programs: Vec<Program> = cluster
        .spec
        .tasks()
        .map(|(task, _)| match task == PS {
            true => cluster.start_with(task, &[&flag]),
            false => cluster.start(task),
        })
        .collect();
    let outside = format!("is not below {}, where this task keeps checkpoints", root.display());
    let why = programs[0].wait_for_line("", &outside);
    println!(" 32  checkpoints at {}\n     {CHIEF}: ...{outside}{why}", asked.display());
    let failures = Endpoint::of(&mut programs[0]);
    wait_until("a failure that is counted", super::PROMPT, || {
        failures.metrics().sum("pushpull_checkpoint_failures_total", &[]).filter(|&count| count > 0.0)
    });
    let seen = wait_for_version(&cluster, 100);
    wait_for_version(&cluster, seen.version.0 + 50);
    cluster.stop(&mut programs[0]);
    let chief = programs[0].wait().expect_failure();
    let end = chief.last_line();
    assert!(end.contains("the job was trained, but its last step was not saved: ps/0/shard/0: "), "{end}");
    assert!(end.contains(&outside), "{end}");
    programs[1..].iter_mut().for_each(|program| drop(program.wait().expect(0)));
    cluster.finished();
    // The chief has its own files there. Those of a shard would be in a checkpoint's folder.
    let of_checkpoints = |path: &PathBuf| path.to_string_lossy().contains("step-");
    assert!(!files_below(&asked).iter().any(of_checkpoints), "the ps task has written where it may not");
}

/// Returns all files in a directory and below it; none if there is no such directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let below = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry of the test's directory").path();
        if path.is_dir() { files_below(&path) } else { vec![path] }
    };
    entries.flat_map(below).collect()
}

#[test]
fn a_ps_writes_nothing_beside_its_root() {
    writes_outside(|dir| dir.join("beside"));
}

#[test]
fn a_ps_follows_no_way_up_from_its_root() {
    writes_outside(|dir| dir.join("root/../beside"));
}

#[test]
fn a_ps_follows_no_link_out_of_its_root() {
    writes_outside(|dir| {
        let (away, link) = (dir.join("away"), dir.join("root/link"));
        std::fs::create_dir(&away).expect("the test's directory can be written");
        std::os::unix::fs::symlink(&away, &link).expect("a link can be made");
        link
    });
}
