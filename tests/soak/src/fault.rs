//! What happens to a job: tasks are killed, told to end or stopped for a time, and the network breaks.

use std::fmt;
use std::time::Duration;

use pushpull_messages::id::TaskId;

use crate::plan::Plan;
use crate::proxy::Way;
use crate::random::Random;

/// The longest time in milliseconds for which a task may be stopped, or the network may stand still, without
/// anyone counting as lost.
const HARMLESS_MS: u64 = 1500;
/// The times in milliseconds for which a task is stopped so that it counts as lost.
const LOST_MS: [u64; 2] = [7000, 9000];

/// A fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Kills a task, as SIGKILL does.
    Kill(TaskId),
    /// Tells a task to end, with SIGTERM.
    Terminate(TaskId),
    /// Stops a task with SIGSTOP, and lets it run on after a time.
    Pause(TaskId, Duration),
    /// Breaks all connections to a task.
    Cut(TaskId),
    /// Lets nothing pass to or from a task for a time; with a way, in this direction only.
    Stall(TaskId, Option<Way>, Duration),
}

impl Fault {
    /// Draws a fault. One that the bits of a deterministic job would not survive is not drawn for it: its
    /// workers are neither killed nor stopped for long.
    pub fn draw(plan: &Plan, random: &mut Random) -> Self {
        let worker = TaskId::worker(random.between(0, u64::from(plan.workers) - 1) as u32);
        let ps = TaskId::ps(random.between(0, u64::from(plan.ps) - 1) as u32);
        let listens = if random.one_in(3) { TaskId::CHIEF } else { ps };
        let victim = match random.between(0, 5) {
            0..=2 if !plan.deterministic => worker,
            3 => TaskId::CHIEF,
            _ => ps,
        };
        let time = Duration::from_millis(random.between(20, HARMLESS_MS));
        let way = if random.one_in(2) { Way::In } else { Way::Out };
        match random.between(0, 11) {
            0..=2 => Self::Kill(victim),
            3 => Self::Terminate(victim),
            4 => Self::Pause(victim, Duration::from_millis(random.between(LOST_MS[0], LOST_MS[1]))),
            5 => Self::Pause(worker, time),
            6 => Self::Pause(listens, time),
            // `pushpull local` has no proxies.
            _ if plan.local => Self::Kill(victim),
            7 | 8 => Self::Cut(listens),
            9 => Self::Stall(listens, None, time),
            _ => Self::Stall(listens, Some(way), time),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(task) => write!(f, "{task} is killed"),
            Self::Terminate(task) => write!(f, "{task} is told to end"),
            Self::Pause(task, time) => write!(f, "{task} is stopped for {time:?}"),
            Self::Cut(task) => write!(f, "the connections to {task} are cut"),
            Self::Stall(task, way, time) => {
                let what = match way {
                    None => "to or from",
                    Some(Way::In) => "to",
                    Some(Way::Out) => "from",
                };
                write!(f, "nothing passes {what} {task} for {time:?}")
            }
        }
    }
}
