//! One worker of the job, as the chief knows it: which life, over which connection, and what it waits for.
//! Knows nothing of the other workers.

use messages::id::Incarnation;

pub(super) struct Worker<R> {
    /// Its latest life: what an earlier one says is refused. `None` until one has come.
    pub incarnation: Option<Incarnation>,
    /// The latest connection of that life; what still comes over an earlier one has been asked again.
    pub connection: u64,
    /// That connection is broken, and the worker may come back on another.
    pub away: bool,
    pub state: State<R>,
    /// What it told last.
    pub loss: Option<f32>,
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
        Self { incarnation: None, connection: 0, away: false, state: State::Absent, loss: None }
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

    /// Replaces its state, and gives the reply that it was waiting for.
    pub(super) fn put(&mut self, state: State<R>) -> Option<R> {
        match std::mem::replace(&mut self.state, state) {
            State::Registered(reply) | State::Ready(reply) | State::Finished(reply) => Some(reply),
            _ => None,
        }
    }
}
