//! The health of this process's tasks. One check says whether the tasks are alive, for a supervisor that
//! restarts them. The other check says whether they are ready for work, for programs that must wait for the
//! tasks.

use std::time::Duration;

use actix_web::HttpResponse;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{RoleSnapshot, TaskSnapshot, TaskState};

use super::views::Seen;

/// The actors that handle every message quickly, identified by the third part of their names. Other actors
/// may need a long time for one message: a device computes a whole batch, a trainer waits for other workers,
/// an input waits until its batches are taken, and the checkpoint writer waits for its disk.
const PROMPT: [&str; 2] = ["shard", "desk"];
/// The time after which a prompt actor that still handles the same message counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Answers 200 if all tasks are alive, and otherwise 503 with a list of the failed tasks and the stuck
/// actors.
pub(super) fn alive(seen: &Seen, failed: &[(TaskId, String)]) -> HttpResponse {
    let mut complaints: Vec<String> =
        failed.iter().map(|(task, reason)| format!("{task} ended with an error: {reason}")).collect();
    let actors = seen.tasks.iter().flat_map(|task| &task.actors);
    for actor in
        actors.filter(|actor| actor.name.split('/').nth(2).is_some_and(|kind| PROMPT.contains(&kind)))
    {
        let busy = Duration::from_micros(actor.busy_us.unwrap_or(0));
        if busy > STUCK {
            complaints.push(format!("{} has been handling one message for {} s", actor.name, busy.as_secs()));
        }
    }
    told("ok", &complaints)
}

/// Answers 200 if all tasks are ready for work, and otherwise 503 with a list of the tasks that are not
/// ready and the reasons.
pub(super) fn ready(seen: &Seen) -> HttpResponse {
    let waiting = seen.tasks.iter().filter(|task| task.state != TaskState::Ready);
    let mut complaints: Vec<String> =
        waiting.map(|task| format!("{} is {}", task.task, task.state.as_str())).collect();
    let lonely = seen.tasks.iter().filter(|task| task.state == TaskState::Ready && !has_chief(task));
    complaints.extend(lonely.map(|task| format!("{} has lost its connection to the chief", task.task)));
    if seen.silent > 0 || seen.tasks.is_empty() {
        complaints.push("not every task has answered yet".into());
    }
    told("ready", &complaints)
}

/// Returns false when a task needs the chief and has no connection to it.
fn has_chief(task: &TaskSnapshot) -> bool {
    match &task.role {
        RoleSnapshot::Ps(ps) => ps.chief_connected,
        // This is `None` until the worker has dialled the chief. Until then the worker is not in the state
        // `Ready`, so the result does not matter.
        RoleSnapshot::Worker(worker) => worker.chief_connected != Some(false),
        RoleSnapshot::Chief(_) | RoleSnapshot::Evaluator(_) | RoleSnapshot::Session(_) => true,
    }
}

/// Makes the response for a client without the token out of one with details: the status is the same.
pub(super) fn brief(answer: &HttpResponse) -> HttpResponse {
    let status = answer.status();
    let text = if status.is_success() { "ok\n" } else { "no; send the token to see why\n" };
    HttpResponse::build(status).content_type("text/plain; charset=utf-8").body(text)
}

fn told(well: &str, complaints: &[String]) -> HttpResponse {
    let (mut answer, text) = match complaints {
        [] => (HttpResponse::Ok(), well.to_owned()),
        _ => (HttpResponse::ServiceUnavailable(), complaints.join("\n")),
    };
    answer.content_type("text/plain; charset=utf-8").body(text + "\n")
}
