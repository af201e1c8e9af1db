//! A witness of the messages between the tasks. It checks what no report of a job shows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_chief::JobReport;
use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::message::{Message, PushId, RefusalCode, Registered};
use pushpull_transport::wire::Envelope;
use tokio::time::{Duration, Instant};

use crate::scenario::SECOND_CHIEF;
use crate::sums::Sums;

/// The time after which a chief that was killed has lost its ps tasks to a second one: its lease, and the
/// longest time in which a ps task does not notice that its connection broke.
const LEASE_OVER: Duration = Duration::from_secs(60);

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
    /// The greatest epoch of a placement with which a shard was created, in the current life of the job.
    epoch: u64,
    /// What a worker was told last when it registered.
    registered: Option<Registered>,
    /// The pushes that have arrived at each shard in the current life of the job. A push that arrives twice
    /// counts once.
    pushes: BTreeMap<ShardId, HashSet<PushId>>,
    /// The values, and the gradients that lead to them, in the current life of the job.
    sums: Sums,
    /// When the chief was killed.
    chief_killed: Option<Instant>,
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
        (seen.stops, seen.epoch) = (false, 0);
        seen.pushes.clear();
        seen.sums = Sums::default();
        seen.chief_killed = None;
    }

    /// Records that the chief was killed.
    pub fn chief_was_killed(&self) {
        self.0.lock().chief_killed = Some(Instant::now());
    }

    /// Returns whether a chief has told a ps task to stop, because the job had ended.
    pub fn saw_end(&self) -> bool {
        self.0.lock().stops
    }

    /// Returns whether the current life of the job has rolled back to a checkpoint.
    pub fn saw_rollback(&self) -> bool {
        self.0.lock().epoch > 1
    }

    /// Sees that a message has arrived.
    pub fn saw(&self, from: TaskId, to: TaskId, envelope: &Envelope) {
        let (seen, message) = (&mut *self.0.lock(), &envelope.message);
        if let Err(error) = seen.sums.saw(from, to, envelope) {
            seen.fault.get_or_insert(error);
        }
        seen.stops |= matches!(message, Message::Stop(_));
        let registered = match message {
            Message::Push(push) => {
                let shard = ShardId::new(to.index, push.shard);
                seen.pushes.entry(shard).or_default().extend(push.contributions().map(|own| own.id));
                return;
            }
            Message::Refusal(refusal) if to == SECOND_CHIEF && refusal.code == RefusalCode::Term => {
                if seen.chief_killed.is_some_and(|at| at.elapsed() > LEASE_OVER) {
                    let what = format!("T1: {from} still belongs to the killed chief: {}", refusal.reason);
                    seen.fault.get_or_insert(what);
                }
                return;
            }
            Message::CreateShard(create) => {
                seen.epoch = seen.epoch.max(create.placement.epoch.0);
                return;
            }
            Message::Registered(registered) => registered,
            _ => return,
        };
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

    /// Checks that no push of the current life counts twice: each shard has given at most one verdict for
    /// each push that has arrived.
    ///
    /// # Errors
    /// Returns the first shard that has given more.
    pub fn check(&self, report: &JobReport) -> Result<(), String> {
        let seen = &*self.0.lock();
        for (shard, snapshot) in &report.shards {
            let arrived = seen.pushes.get(shard).map_or(0, HashSet::len) as u64;
            let pushes = &snapshot.pushes;
            let judged = pushes.applied + pushes.held + pushes.stale + pushes.stopped;
            if judged > arrived {
                return Err(format!("V2 on {shard}: {judged} verdicts for {arrived} pushes: {pushes:?}"));
            }
        }
        Ok(())
    }

    /// Returns the first thing that must not happen and has happened.
    pub fn fault(&self) -> Option<String> {
        self.0.lock().fault.clone()
    }
}
