//! Attacks on jobs of real processes, each with a number and a name. Each attack is refused with one clear
//! line and counted, while the job trains; then the job ends well with exact counts.

mod certificates;
mod chiefs;
mod endpoints;
mod enrolling;
mod floods;
mod members;
mod orders;
mod scene;
mod strangers;
mod tls;

use std::time::Duration;

use pushpull_messages::id::TaskId;

use scene::Attacker;

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The time limit for a task to close a connection, and to count what it has refused.
const PROMPT: Duration = Duration::from_secs(30);

/// An attack on the tasks of a secured job, and what the attacked task does.
struct Attack {
    /// The number, by which documents may refer to the attack. The attacker's address has it, too.
    number: u32,
    name: &'static str,
    /// The tasks that are attacked, one after the other.
    at: &'static [TaskId],
    /// Attacks, and returns what the attacker hears; empty if it hears nothing.
    run: fn(&Attacker<'_>) -> String,
    /// A part of what the attacker hears.
    told: &'static str,
    /// A part of the line that the task logs; empty if the task logs nothing, because the reply has the
    /// reason.
    logged: &'static str,
    counted: Counted,
    /// How many lines there are, and by how much the counter grows.
    times: u64,
    /// Whether the attack has more connections than the task logs or counts one by one.
    is_flood: bool,
}

/// The counter of an attack.
#[derive(Clone, Copy)]
enum Counted {
    /// Connections that were closed for this reason.
    Closed(&'static str),
    /// Requests that were refused for this reason.
    Refused(&'static str),
}

impl Counted {
    /// Returns the name of the metric, and the reason.
    const fn family(self) -> (&'static str, &'static str) {
        match self {
            Self::Closed(reason) => ("pushpull_connections_closed_total", reason),
            Self::Refused(reason) => ("pushpull_requests_refused_total", reason),
        }
    }
}

impl Attack {
    /// Returns an attack with a connection that the task closes because its other end proves nothing.
    const fn unproved(
        number: u32,
        name: &'static str,
        logged: &'static str,
        run: fn(&Attacker<'_>) -> String,
    ) -> Self {
        let (at, counted) = (&[CHIEF, PS] as &[TaskId], Counted::Closed("identity"));
        Self { number, name, at, run, told: "", logged, counted, times: 1, is_flood: false }
    }

    const fn at(self, at: &'static [TaskId]) -> Self {
        Self { at, ..self }
    }

    const fn told(self, told: &'static str) -> Self {
        Self { told, ..self }
    }

    const fn counted(self, counted: Counted) -> Self {
        Self { counted, ..self }
    }
}
