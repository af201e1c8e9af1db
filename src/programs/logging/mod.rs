//! Writes log lines with time, level, task and message to standard error, as text for people or as JSON.
//! `RUST_LOG` filters them. The last lines are also kept in memory, for the HTTP endpoint.

mod fields;
mod keeper;
mod lines;
mod recent;

use std::io::IsTerminal;
use std::sync::Arc;

use tracing::Span;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::keeper::Keeper;
use self::lines::{Human, Json};

pub(crate) use self::recent::Recent;

/// The environment variable that a parent process sets if the parent itself puts the task's name in front of
/// every line.
pub(crate) const PREFIXED: &str = "PUSHPULL_LOG_PREFIXED";

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text for each event.
    #[default]
    Human,
    /// One JSON object for each event.
    Json,
}

/// The log of one run, either of a task's process or of a cluster within a process.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    /// The last lines that this log has kept.
    pub(crate) recent: Arc<Recent>,
    span: Span,
}

impl Default for Log {
    /// Makes a log that keeps nothing.
    fn default() -> Self {
        Self { recent: Arc::default(), span: Span::none() }
    }
}

impl Log {
    /// Returns the span of the run. Lines that are logged within the span, or within its child spans, are
    /// kept only by this log. The span is [`Span::none`] if this log keeps all lines of the process, or no
    /// lines.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }
}

/// Starts the log of a process that runs only `task`. The log keeps all lines of the process.
pub(crate) fn start(task: &str, format: LogFormat) -> Log {
    start_with(task, format, true)
}

/// Starts the log of a cluster in a process that may run several clusters. The log keeps only the lines that
/// are logged within [`Log::span`].
pub(crate) fn start_within(task: &str, format: LogFormat) -> Log {
    start_with(task, format, false)
}

/// Starts a log for `task`. All logs of a process are written in the format of the log that was started
/// first.
fn start_with(task: &str, format: LogFormat, keeps_all: bool) -> Log {
    let recent = Arc::<Recent>::default();
    let home = keeps_all.then(|| Arc::clone(&recent));
    let log = tracing_subscriber::registry()
        .with(filter(std::env::var("RUST_LOG").ok().as_deref()))
        .with(Keeper::new(task, format, home));
    // Fields are coloured only on a terminal, because programs read log lines from files and pipes.
    let ansi = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_ansi(ansi).with_writer(std::io::stderr);
    // An application that embeds this library may have installed a subscriber already. That subscriber stays
    // in use.
    let _ = match format {
        LogFormat::Human => {
            let prefixed = std::env::var_os(PREFIXED).is_some();
            log.with(lines.event_format(Human::new(task, !prefixed))).try_init()
        }
        LogFormat::Json => log.with(lines.event_format(Json::new(task))).try_init(),
    };
    // A log that keeps all lines of the process needs no span, which would only name the task a second time.
    let span = if keeps_all { Span::none() } else { keeper::span_of(task, &recent) };
    Log { recent, span }
}

/// Returns a subscriber that keeps the lines of the level INFO, and writes none. [`kept`] makes its logs.
#[cfg(feature = "fuzz")]
pub(crate) fn silent() -> tracing::Dispatch {
    let keeper = Keeper::new("none", LogFormat::Human, None);
    tracing_subscriber::registry().with(filter(None)).with(keeper).into()
}

/// Returns a log of the current subscriber, which keeps the lines within [`Log::span`].
#[cfg(feature = "fuzz")]
pub(crate) fn kept(task: &str) -> Log {
    let recent = Arc::default();
    Log { span: keeper::span_of(task, &recent), recent }
}

/// The filter directives that are put before those of the user. Most events of the HTTP server's libraries
/// are left out, because they say nothing about the job. The spans that determine the task and the log of a
/// line are always enabled.
const DEFAULTS: &str = "actix_server=warn,actix_http=off,pushpull::spans=error";

/// Returns the filter for `told`, the value of `RUST_LOG`. If the value is missing, empty or not a valid
/// filter, returns the filter for the level INFO.
fn filter(told: Option<&str>) -> Targets {
    let with = |told: &str| format!("{DEFAULTS},{told}").parse::<Targets>().ok();
    // To `Targets`, an empty directive means "errors only". A manifest may pass the variable without a value,
    // and a list may end with a comma.
    let directives =
        told.unwrap_or_default().split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let directives = directives.collect::<Vec<_>>().join(",");
    let told = if directives.is_empty() { None } else { with(&directives) };
    told.or_else(|| with("info")).expect("'info' is a filter")
}

/// Returns true when only JSON lines may be written to standard error.
pub(crate) fn is_json() -> bool {
    tracing::dispatcher::get_default(|log| log.downcast_ref::<Keeper>().is_some_and(Keeper::is_json))
}

#[cfg(test)]
mod tests {
    use tracing::Level;
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

    #[test]
    fn the_server_is_quiet_by_default() {
        for (told, server, http, chief) in [
            (None, LevelFilter::WARN, LevelFilter::OFF, LevelFilter::INFO),
            (Some(""), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::INFO),
            (Some(","), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::INFO),
            (Some("info, ,pushpull_chief=debug,"), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::DEBUG),
            (Some("debug"), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::DEBUG),
            (
                Some("actix_server=info,actix_http=info,warn"),
                LevelFilter::INFO,
                LevelFilter::INFO,
                LevelFilter::WARN,
            ),
            (Some("warn,pushpull_chief=trace"), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::TRACE),
            (Some("=no=filter="), LevelFilter::WARN, LevelFilter::OFF, LevelFilter::INFO),
        ] {
            let filter = filter(told);
            let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
            for (target, most) in [("actix_server", server), ("actix_http", http), ("pushpull_chief", chief)]
            {
                let enabled = levels.iter().filter(|level| filter.would_enable(target, level)).count();
                let expected = levels.iter().filter(|level| **level <= most).count();
                assert_eq!(enabled, expected, "{told:?} {target}");
            }
        }
    }
}
