//! Log lines: when, how bad, which task, what. To standard error, for people or as JSON, filtered by `RUST_LOG`; the last
//! of them are kept for whoever looks at the process later.

mod fields;
mod lines;
mod recent;

use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::lines::{Human, Json};
use self::recent::Recent;

pub(crate) use self::recent::{newest, recent, since};

/// Set by a parent that puts the task's name in front of every line itself.
pub(crate) const PREFIXED: &str = "PUSHPULL_LOG_PREFIXED";

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text each.
    #[default]
    Human,
    /// A JSON object each.
    Json,
}

/// Whether lines are JSON, and nothing else may be between them.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts to log as `task`. Once per process; later calls change nothing.
pub(crate) fn start(task: &str, format: LogFormat) {
    let log = tracing_subscriber::registry()
        .with(filter(std::env::var(EnvFilter::DEFAULT_ENV).ok().as_deref()))
        .with(Recent::new(task));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // Somebody who embeds us may have set up a log already, and then that one holds.
    let _ = match format {
        LogFormat::Human => {
            let prefixed = std::env::var_os(PREFIXED).is_some();
            log.with(lines.event_format(Human::new(task, !prefixed))).try_init()
        }
        LogFormat::Json => {
            IS_JSON.store(true, Ordering::Relaxed);
            log.with(lines.event_format(Json::new(task))).try_init()
        }
    };
}

/// What is logged where `RUST_LOG` says that. The server's own life is no news of the job, nor is what its clients do.
fn filter(told: Option<&str>) -> EnvFilter {
    let with = |told: &str| EnvFilter::try_new(format!("actix_server=warn,actix_http=off,{told}")).ok();
    // What is empty says nothing, as in a manifest that leaves it open.
    told.filter(|told| !told.trim().is_empty())
        .and_then(with)
        .or_else(|| with("info"))
        .expect("'info' is a filter")
}

/// Whether nothing but JSON lines may be written to standard error.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// All that is logged within it comes from that task, where several run in one process.
pub(crate) fn of_task(task: pushpull_messages::id::TaskId) -> tracing::Span {
    // Whatever is logged at all is to bear it.
    tracing::error_span!("task", task = %task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_quiet_unless_it_is_asked() {
        for (told, expected) in [
            (None, "actix_server=warn,actix_http=off,info"),
            (Some(""), "actix_server=warn,actix_http=off,info"),
            (Some("debug"), "actix_server=warn,actix_http=off,debug"),
            (Some("actix_server=info,actix_http=info,warn"), "actix_server=info,actix_http=info,warn"),
            (Some("=no=filter="), "actix_server=warn,actix_http=off,info"),
        ] {
            assert_eq!(filter(told).to_string(), expected, "{told:?}");
        }
    }
}
