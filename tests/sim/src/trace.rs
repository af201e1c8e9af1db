//! The trace of a simulation: what happened, in order, with the virtual time of each event.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use tokio::time::Instant;

/// The number of events in the story of a failure.
const TOLD: usize = 400;

/// An event, with the virtual time since the start of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub at: Duration,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A message of this name arrived from the first task at the second. Events of this kind are the most
    /// frequent ones, so they have no text of their own.
    Arrived(TaskId, TaskId, &'static str),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3} ms  ", self.at.as_secs_f64() * 1000.0)?;
        match &self.what {
            What::Arrived(from, to, message) => write!(f, "{from} > {to}: {message}"),
            What::Other(text) => f.write_str(text),
        }
    }
}

/// A trace that all parts of a simulation share.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    began: Instant,
    events: Vec<Event>,
}

impl Trace {
    /// Starts a trace at the current virtual time.
    pub fn start() -> Self {
        Self(Arc::new(Mutex::new(State { began: Instant::now(), events: Vec::new() })))
    }

    /// Adds an event that happens now.
    pub fn add(&self, what: impl Into<String>) {
        self.push(What::Other(what.into()));
    }

    /// Adds the event that a message has arrived.
    pub fn arrived(&self, from: TaskId, to: TaskId, message: &'static str) {
        self.push(What::Arrived(from, to, message));
    }

    fn push(&self, what: What) {
        let state = &mut *self.0.lock();
        state.events.push(Event { at: state.began.elapsed(), what });
    }

    /// Takes the events out of the trace.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().events)
    }
}

/// Returns the last events, a line each.
pub fn story(events: &[Event]) -> String {
    let told = &events[events.len().saturating_sub(TOLD)..];
    told.iter().map(|event| format!("{event}\n")).collect()
}
