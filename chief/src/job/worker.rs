//! One worker of the job, as the chief knows it: which life, over which connection, and what it waits for.
//! Knows nothing of the other workers.

use pushpull_messages::id::Incarnation;
use pushpull_messages::message::Resume;

pub(super) struct Worker<R> {
    /// Its latest life: what an earlier one says is refused. `None` until one has come.
    pub incarnation: Option<Incarnation>,
    /// Lives of it that have come.
    pub lives: u64,
    /// Where it says that it can be observed.
    pub http: Option<String>,
    /// The latest connection of that life; what still comes over an earlier one has been asked again.
    pub connection: u64,
    /// That connection is broken, and the worker may come back on another.
    pub away: bool,
    pub state: State<R>,
    /// It has left because a signal told it to.
    pub told_to_stop: bool,
    /// What it told last.
    pub loss: Option<f32>,
    /// Where it goes on in its input, as far as it has told, if it is started again.
    pub resume: Resume,
}

pub(super) enum State<R> {
    /// Has never come.
    Absent,
    /// Waits to be told the job.
    Registered(R),
    /// Prepares.
    Preparing,
    /// Waits for the word to begin.
    Ready(R),
    Training,
    /// Waits to be told what is left to do.
    Finished(R),
    Evaluating,
    /// Gone, by its own word or the job's.
    Left,
    /// Was away for too long: what it still says comes too late.
    Lost,
}

impl<R> Worker<R> {
    pub(super) const fn absent() -> Self {
        Self {
            incarnation: None,
            lives: 0,
            http: None,
            connection: 0,
            away: false,
            state: State::Absent,
            told_to_stop: false,
            loss: None,
            resume: Resume { drawn: 0, examples: 0 },
        }
    }

    /// Takes part, though its connection may be broken.
    pub(super) const fn is_here(&self) -> bool {
        !matches!(self.state, State::Absent | State::Left | State::Lost)
    }

    /// Takes part, and can be reached.
    pub(super) const fn is_present(&self) -> bool {
        self.is_here() && !self.away
    }

    /// Has been here, and will not be again in this life.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, State::Left | State::Lost)
    }

    /// Has something to do before the job can be evaluated.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_here() && !matches!(self.state, State::Finished(_))
    }

    /// It has taken so many batches of that size, in all its lives.
    pub(super) fn has_drawn(&mut self, drawn: u64, batch_size: u32) {
        if let Some(more) = drawn.checked_sub(self.resume.drawn) {
            let examples = more.saturating_mul(u64::from(batch_size));
            self.resume = Resume { drawn, examples: self.resume.examples.saturating_add(examples) };
        }
    }

    /// Replaces its state, and gives the reply that it was waiting for.
    pub(super) fn put(&mut self, state: State<R>) -> Option<R> {
        match std::mem::replace(&mut self.state, state) {
            State::Registered(reply) | State::Ready(reply) | State::Finished(reply) => Some(reply),
            _ => None,
        }
    }
}
