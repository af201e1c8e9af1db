//! Keeps the last lines of each log in memory. Each log has a tracing span, and a line that is logged inside
//! this span goes to this log. Any other line goes to the process's own log, if there is one.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Span, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::{Layer, Registry};

use super::LogFormat;
use super::fields::{Fields, OfTask, remember, task_of};
use super::recent::{LINE_BYTES_MAX, LogLine, Recent};

/// A layer that keeps lines of the level INFO and above.
pub(super) struct Keeper {
    task: String,
    format: LogFormat,
    /// The log for lines that are outside of all log spans. If it is `None`, such lines are not kept.
    home: Option<Arc<Recent>>,
}

/// An extension of a span: the log to which all events within the span belong.
struct OfLog(Arc<Recent>);

impl Keeper {
    /// Makes the layer for a process that runs `task`. Lines outside of all log spans go to `home`. If
    /// `home` is `None`, such lines are not kept.
    pub(super) fn new(task: &str, format: LogFormat, home: Option<Arc<Recent>>) -> Self {
        Self { task: task.to_owned(), format, home }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == LogFormat::Json
    }
}

/// Makes the span of a log. Lines within it name `task`, except those within the span of a different task.
pub(super) fn span_of(task: &str, recent: &Arc<Recent>) -> Span {
    let span = tracing::error_span!(target: "pushpull::spans", parent: None, "log");
    span.with_subscriber(|(id, log)| {
        // An application that embeds this library may have installed a subscriber without a registry. In
        // that case no lines are kept for the endpoint.
        if let Some(span) = log.downcast_ref::<Registry>().and_then(|registry| registry.span(id)) {
            let mut extensions = span.extensions_mut();
            extensions.insert(OfTask(task.to_owned()));
            extensions.insert(OfLog(Arc::clone(recent)));
        }
    });
    span
}

fn log_of<S>(scope: Option<Scope<'_, S>>) -> Option<Arc<Recent>>
where
    S: for<'a> LookupSpan<'a>,
{
    scope
        .into_iter()
        .flatten()
        .find_map(|span| span.extensions().get::<OfLog>().map(|log| Arc::clone(&log.0)))
}

impl<S> Layer<S> for Keeper
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
        let Some(recent) = log_of(context.event_scope(event)).or_else(|| self.home.clone()) else { return };
        recent.push(LogLine { at_ms, level: level.as_str(), task, text });
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::TaskId;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::incarnation;

    #[test]
    fn a_line_names_its_task_and_is_bounded() {
        let recent = Arc::<Recent>::default();
        let keeper = Keeper::new("model", LogFormat::Human, Some(Arc::clone(&recent)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(keeper), || {
            tracing::warn!(step = 7, "a warning");
            let _within = incarnation::span_of(TaskId::ps(3)).entered();
            tracing::info!("{}", "\u{fc}".repeat(5000));
            tracing::debug!("a debug line, which must not be kept");
        });
        let lines = recent.lines();
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((first.level, &*first.task, &*first.text), ("WARN", "model", "a warning step=7"));
        assert_eq!((second.level, &*second.task), ("INFO", "ps/3"));
        assert!((1900..=LINE_BYTES_MAX).contains(&second.text.len()));
    }

    #[test]
    fn each_log_keeps_its_own_lines() {
        let home = Arc::<Recent>::default();
        let keeper = Keeper::new("first", LogFormat::Human, Some(Arc::clone(&home)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(keeper), || {
            let recents = [Arc::<Recent>::default(), Arc::<Recent>::default()];
            let spans = [span_of("left", &recents[0]), span_of("right", &recents[1])];
            for (span, word) in spans.iter().zip(["one", "other"]) {
                let _log = span.enter();
                tracing::info!("{word}");
                let _task = incarnation::span_of(TaskId::worker(0)).entered();
                tracing::info!("{word} task");
            }
            tracing::info!("a line outside of all log spans");
            let told = |recent: &Recent| {
                recent
                    .lines()
                    .into_iter()
                    .map(|line| format!("{}: {}", line.task, line.text))
                    .collect::<Vec<_>>()
            };
            assert_eq!(told(&recents[0]), ["left: one", "worker/0: one task"]);
            assert_eq!(told(&recents[1]), ["right: other", "worker/0: other task"]);
            assert_eq!(told(&home), ["first: a line outside of all log spans"]);
        });
    }
}
