//! A witness of the messages between the tasks. It checks what no report of a job shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Message, Registered};

/// A witness; clones share what they see.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The batches that each worker had drawn at the beginning of the current life of the job, and of the
    /// life before it.
    drawn: BTreeMap<TaskId, u64>,
    drawn_before: BTreeMap<TaskId, u64>,
    /// Whether a chief has told a ps task to stop, in the current life of the job.
    stops: bool,
    /// What a worker was told last when it registered.
    registered: Option<Registered>,
    /// The first thing that must not happen.
    fault: Option<String>,
}

impl Witness {
    /// Begins another life of the job.
    pub fn begin_life(&self) {
        let seen = &mut *self.0.lock();
        let drawn = std::mem::take(&mut seen.drawn);
        // A life that ended before a worker was told its position does not count.
        seen.drawn_before.extend(drawn);
        seen.stops = false;
    }

    /// Returns whether a chief has told a ps task to stop, because the job had ended.
    pub fn saw_end(&self) -> bool {
        self.0.lock().stops
    }

    /// Sees that a message has arrived.
    pub fn saw(&self, _: TaskId, to: TaskId, message: &Message) {
        let seen = &mut *self.0.lock();
        seen.stops |= matches!(message, Message::Stop(_));
        let Message::Registered(registered) = message else { return };
        let drawn = registered.resume.drawn;
        seen.registered = Some(Registered::clone(registered));
        if seen.drawn.contains_key(&to) {
            return;
        }
        seen.drawn.insert(to, drawn);
        let before = seen.drawn_before.get(&to).copied().unwrap_or_default();
        if drawn < before {
            seen.fault.get_or_insert(format!(
                "{to} continues after {drawn} batches, but the life before continued after {before}"
            ));
        }
    }

    /// Returns what a worker was told last when it registered; `None` if none has registered.
    pub fn registered(&self) -> Option<Registered> {
        self.0.lock().registered.clone()
    }

    /// Returns the first thing that must not happen and has happened.
    pub fn fault(&self) -> Option<String> {
        self.0.lock().fault.clone()
    }
}
