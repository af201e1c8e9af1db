//! One worker of the job, as the chief knows it: its life, its connection, and what it waits for. Knows
//! nothing of the other workers.

use pushpull_messages::id::Incarnation;
use pushpull_messages::message::Resume;

/// A worker of the job.
pub(super) struct Member<R> {
    /// The latest life; requests of an earlier one are refused. `None` until the worker has registered.
    pub incarnation: Option<Incarnation>,
    /// The number of lives that have registered.
    pub lives: u64,
    /// The address at which the worker can be observed, if it has one.
    pub http: Option<String>,
    /// The latest connection of that life; the worker repeats over it what it sent over earlier ones.
    pub connection: u64,
    /// Whether that connection is broken; the worker may come back on another one.
    pub away: bool,
    pub state: MemberState<R>,
    /// Whether the worker has left because of a signal.
    pub interrupted: bool,
    /// The last finite loss that the worker has reported; `None` again when it has left.
    pub loss: Option<f32>,
    /// The position at which the worker goes on in its input if it is started again.
    pub resume: Resume,
}

/// What a worker does or waits for.
pub(super) enum MemberState<R> {
    /// It has never registered.
    Absent,
    /// It waits to be told the job.
    Registered(R),
    /// It prepares.
    Preparing,
    /// It waits for the others to be ready.
    Ready(R),
    Training,
    /// It waits to be told what is left to do.
    Finished(R),
    Evaluating,
    /// It has left by itself, or was sent away.
    Left,
    /// It was away for too long, and its requests come too late.
    Lost,
}

impl<R> Member<R> {
    pub(super) const fn absent() -> Self {
        Self {
            incarnation: None,
            lives: 0,
            http: None,
            connection: 0,
            away: false,
            state: MemberState::Absent,
            interrupted: false,
            loss: None,
            resume: Resume { drawn: 0, examples: 0 },
        }
    }

    /// Returns whether the worker takes part, though its connection may be broken.
    pub(super) const fn is_here(&self) -> bool {
        !matches!(self.state, MemberState::Absent | MemberState::Left | MemberState::Lost)
    }

    /// Returns whether the worker takes part and can be reached.
    pub(super) const fn is_present(&self) -> bool {
        self.is_here() && !self.away
    }

    /// Returns whether the worker has taken part and will not do so again in this life.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, MemberState::Left | MemberState::Lost)
    }

    /// Returns whether the worker has something to do before the job can be evaluated.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_here() && !matches!(self.state, MemberState::Finished(_))
    }

    /// Records that the worker has drawn `drawn` batches of `batch_size` examples in all its lives.
    pub(super) fn has_drawn(&mut self, drawn: u64, batch_size: u32) {
        if let Some(more) = drawn.checked_sub(self.resume.drawn) {
            let examples = more.saturating_mul(u64::from(batch_size));
            self.resume = Resume { drawn, examples: self.resume.examples.saturating_add(examples) };
        }
    }

    /// Replaces the state, and returns the reply handle of a worker that was waiting.
    pub(super) fn put(&mut self, state: MemberState<R>) -> Option<R> {
        match std::mem::replace(&mut self.state, state) {
            MemberState::Registered(reply) | MemberState::Ready(reply) | MemberState::Finished(reply) => {
                Some(reply)
            }
            _ => None,
        }
    }
}
