//! Whether the tasks of this process live, and whether they do what they are for: for whoever starts them again, and whoever
//! waits for them.

use std::time::Duration;

use actix_web::HttpResponse;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::TaskState;

use super::views::Seen;

/// Which actors answer every message soon, by the third part of their names. Others may be at one thing for as long as it takes:
/// a device computes a whole batch, a trainer waits for other workers, an input for whoever takes its batches, and a file is as slow
/// as its disk.
const PROMPT: [&str; 2] = ["shard", "desk"];
/// One of those that has been at one message for longer is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// 200 where all live, else 503 with who does not.
pub(super) fn alive(seen: &Seen, failed: &[(TaskId, String)]) -> HttpResponse {
    let mut complaints: Vec<String> =
        failed.iter().map(|(task, reason)| format!("{task} has ended badly: {reason}")).collect();
    let actors = seen.tasks.iter().flat_map(|task| &task.actors);
    for actor in
        actors.filter(|actor| actor.name.split('/').nth(2).is_some_and(|kind| PROMPT.contains(&kind)))
    {
        let busy = Duration::from_micros(actor.busy_us.unwrap_or(0));
        if busy > STUCK {
            complaints.push(format!("{} has been at one message for {} s", actor.name, busy.as_secs()));
        }
    }
    told("ok", &complaints)
}

/// 200 where all do what they are for, else 503 with who does not.
pub(super) fn ready(seen: &Seen) -> HttpResponse {
    let waiting = seen.tasks.iter().filter(|task| task.state != TaskState::Ready);
    let mut complaints: Vec<String> =
        waiting.map(|task| format!("{} is {}", task.task, task.state.as_str())).collect();
    if seen.silent > 0 || seen.tasks.is_empty() {
        complaints.push("not every task has been started".into());
    }
    told("ready", &complaints)
}

fn told(well: &str, complaints: &[String]) -> HttpResponse {
    let (mut answer, text) = match complaints {
        [] => (HttpResponse::Ok(), well.to_owned()),
        _ => (HttpResponse::ServiceUnavailable(), complaints.join("\n")),
    };
    answer.content_type("text/plain; charset=utf-8").body(text + "\n")
}
