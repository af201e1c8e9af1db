//! Log lines: when, how bad, which task, what. To standard error, filtered by `RUST_LOG`.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Set by a parent that puts the task's name in front of every line itself.
pub(crate) const PREFIXED: &str = "PUSHPULL_LOG_PREFIXED";

/// Starts to log as `task`. Once per process; later calls change nothing.
pub(crate) fn start(task: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let task = if std::env::var_os(PREFIXED).is_some() { String::new() } else { format!("{task}: ") };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .event_format(Lines { task });
    // Somebody who embeds us may have set up a log already, and then that one holds.
    let _ = lines.try_init();
}

struct Lines {
    task: String,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() % 86_400);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR ",
            Level::WARN => "WARN ",
            Level::INFO => "",
            Level::DEBUG => "DEBUG ",
            Level::TRACE => "TRACE ",
        };
        write!(writer, "{hours:02}:{minutes:02}:{seconds:02} {level}{}", self.task)?;
        for span in ctx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write!(writer, "{fields} ")?;
            }
        }
        ctx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
