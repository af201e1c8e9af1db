//! Attacks on the exchange in which a task gets its certificate.

use pushpull_identity::JoinString;
use pushpull_messages::id::TaskId;

use super::certificates::key;
use super::scene::{Attacker, Scene};
use super::tls::{ENROLMENT, answer, end_of, question, send, tls};
use super::{Attack, CHIEF, PS, WORKER};

/// What every task is told that is refused.
const REFUSED: &str = "its role, its index or its join string is not one of this job";

const ATTACKS: &[Attack] = &[
    Attack::unproved(
        10,
        "the join string of another job",
        "a task that calls itself worker/0 does not know the secret of this job's join string",
        |attacker| enrol(attacker, &attacker.scene.other.join, WORKER),
    )
    .at(&[CHIEF])
    .told(REFUSED),
    Attack::unproved(
        11,
        "an enrolment that was recorded",
        "a task that calls itself worker/0 does not know the secret of this job's join string",
        |attacker| {
            let mut first = tls(attacker.tcp(), ENROLMENT, None);
            let recorded = question(&mut first, &attacker.scene.forger.join, WORKER, &key());
            send(&mut first, &recorded);
            answer(&mut first).expect("the first one is right");
            let mut again = tls(attacker.tcp(), ENROLMENT, None);
            send(&mut again, &recorded);
            answer(&mut again).expect_err("a proof holds for one connection")
        },
    )
    .at(&[CHIEF])
    .told(REFUSED),
    Attack::unproved(
        12,
        "the join string for the certificate of the chief",
        "chief/0 proved the join string, but the cluster spec does not list it, or another process runs it",
        |attacker| enrol(attacker, &attacker.scene.forger.join, CHIEF),
    )
    .at(&[CHIEF])
    .told(REFUSED),
    Attack::unproved(
        13,
        "the join string for a task that the cluster does not list",
        "ps/9 proved the join string, but the cluster spec does not list it, or another process runs it",
        |attacker| enrol(attacker, &attacker.scene.forger.join, TaskId::ps(9)),
    )
    .at(&[CHIEF])
    .told(REFUSED),
    Attack::unproved(
        47,
        "a worker that gives a ps task a certificate",
        "the certificate of the peer names worker/0, expected chief/0",
        |attacker| end_of(tls(attacker.tcp(), ENROLMENT, Some(&attacker.scene.stolen))),
    )
    .at(&[PS]),
    Attack::unproved(
        48,
        "a question of 64 KiB",
        "a message of an enrolment is not valid: it is too large",
        |attacker| {
            let mut stream = tls(attacker.tcp(), ENROLMENT, None);
            send(&mut stream, &[0xff; 1 << 16]);
            end_of(stream)
        },
    )
    .at(&[CHIEF]),
];

/// Asks for the certificate of a task with the secret of a join string, and returns the reason of the
/// refusal.
#[track_caller]
fn enrol(attacker: &Attacker<'_>, join: &JoinString, task: TaskId) -> String {
    let mut stream = tls(attacker.tcp(), ENROLMENT, None);
    let asked = question(&mut stream, join, task, &key());
    send(&mut stream, &asked);
    answer(&mut stream).expect_err("the chief refuses")
}

#[test]
fn nobody_enrols_as_another_while_a_job_trains() {
    let mut scene = Scene::new();
    scene.withstand(ATTACKS);
    scene.end();
}
