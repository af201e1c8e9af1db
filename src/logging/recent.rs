//! The last log lines of this process, for whoever asks it. A bounded number of bounded lines.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::fields::{Fields, remember, task_of};

/// So many lines are kept,
const LINES_MAX: usize = 200;
/// each of at most so many bytes.
const LINE_BYTES_MAX: usize = 2000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LogLine {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// How bad it is: INFO, WARN or ERROR.
    pub level: &'static str,
    /// Who says it.
    pub task: String,
    /// What.
    pub text: String,
}

/// Lines, and how many there have been.
#[derive(Debug)]
struct Ring {
    lines: VecDeque<LogLine>,
    count: u64,
}

impl Ring {
    fn push(&mut self, line: LogLine) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
        self.count += 1;
    }

    /// Those after the first `known`, as far as they are still there.
    fn since(&self, known: u64) -> Vec<LogLine> {
        let new = usize::try_from(self.count.saturating_sub(known)).unwrap_or(usize::MAX);
        self.lines.iter().skip(self.lines.len().saturating_sub(new)).cloned().collect()
    }
}

/// What a process logs is of the whole process.
static RING: Mutex<Ring> = Mutex::new(Ring { lines: VecDeque::new(), count: 0 });

fn ring() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last lines, the oldest first.
pub(crate) fn recent() -> Vec<LogLine> {
    ring().since(0)
}

/// How many lines there have been.
pub(crate) fn newest() -> u64 {
    ring().count
}

/// The lines since there were so many, and how many there have been.
pub(crate) fn since(known: u64) -> (Vec<LogLine>, u64) {
    let ring = ring();
    (ring.since(known), ring.count)
}

/// Keeps what is logged.
pub(super) struct Recent {
    task: String,
}

impl Recent {
    /// Of a process that runs that task, where a line says nothing else.
    pub(super) fn new(task: &str) -> Self {
        Self { task: task.to_owned() }
    }
}

impl<S> Layer<S> for Recent
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        remember(attributes, id, &context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let task = task_of(context.event_scope(event)).unwrap_or_else(|| self.task.clone());
        let mut text = Fields::of(event).text();
        text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        ring().push(LogLine { at_ms, level: level.as_str(), task, text });
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn the_last_lines_stay_and_are_told_once() {
        let mut ring = Ring { lines: VecDeque::new(), count: 0 };
        let line = |at_ms| LogLine { at_ms, level: "INFO", task: String::new(), text: String::new() };
        let numbers = |lines: Vec<LogLine>| lines.iter().map(|line| line.at_ms).collect::<Vec<_>>();
        (0..3).for_each(|at| ring.push(line(at)));
        assert_eq!(numbers(ring.since(0)), [0, 1, 2]);
        assert_eq!(numbers(ring.since(2)), [2]);
        assert_eq!(numbers(ring.since(3)), [0; 0]);
        (3..1000).for_each(|at| ring.push(line(at)));
        assert_eq!(numbers(ring.since(0)), (800..1000).collect::<Vec<_>>());
        assert_eq!(numbers(ring.since(998)), [998, 999]);
        assert_eq!(numbers(ring.since(2000)), [0; 0]);
    }

    #[test]
    fn a_line_names_its_task_and_is_bounded() {
        let log = tracing_subscriber::registry().with(Recent::new("model"));
        tracing::subscriber::with_default(log, || {
            tracing::warn!(step = 7, "a mark of this test: alone");
            let _within = crate::logging::of_task(pushpull_messages::id::TaskId::ps(3)).entered();
            tracing::info!("a mark of this test: {}", "\u{fc}".repeat(5000));
            tracing::debug!("a mark of this test: too small");
        });
        // Other tests log, too.
        let mut lines = recent();
        lines.retain(|line| line.text.starts_with("a mark of this test"));
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            (first.level, &*first.task, &*first.text),
            ("WARN", "model", "a mark of this test: alone step=7")
        );
        assert_eq!((second.level, &*second.task), ("INFO", "ps/3"));
        assert!((1900..=LINE_BYTES_MAX).contains(&second.text.len()));
    }
}
