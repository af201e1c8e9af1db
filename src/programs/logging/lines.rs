//! The formats of a log line: text for people, JSON for programs.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::registry::LookupSpan;

use super::fields::{Fields, task_of};

/// The format for people: the time of day in UTC, the level unless it is INFO, the task, and the message.
pub(super) struct Human {
    task: String,
    /// True if a line outside of all task spans names this process's own task.
    names: bool,
}

impl Human {
    pub(super) fn new(task: &str, names: bool) -> Self {
        Self { task: task.to_owned(), names }
    }
}

impl<S, N> FormatEvent<S, N> for Human
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
        write!(writer, "{hours:02}:{minutes:02}:{seconds:02} {level}")?;
        match task_of(ctx.event_scope()) {
            Some(task) => write!(writer, "{task}: ")?,
            None if self.names => write!(writer, "{}: ", self.task)?,
            None => {}
        }
        ctx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The format for programs: one JSON object on each line.
pub(super) struct Json {
    task: String,
}

impl Json {
    pub(super) fn new(task: &str) -> Self {
        Self { task: task.to_owned() }
    }
}

impl<S, N> FormatEvent<S, N> for Json
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
        let task = task_of(ctx.event_scope()).unwrap_or_else(|| self.task.clone());
        // If the process runs a whole cluster, `task` is the name of the model, and not a job's name with an
        // index.
        let (job, task) = task.split_once('/').unzip();
        let mut timestamp = String::new();
        tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let Fields { message, fields } = Fields::of(event);
        let level = event.metadata().level().as_str();
        let line = json!({
            "timestamp": timestamp, "level": level, "job": job, "task": task, "message": message, "fields": fields,
        });
        writeln!(writer, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use pushpull_messages::id::TaskId;
    use serde_json::Value;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::incarnation::span_of;
    use crate::programs::logging::LogFormat;
    use crate::programs::logging::keeper::Keeper;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Page {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged<F>(format: F, level: &str, log: impl FnOnce()) -> String
    where
        F: FormatEvent<
                tracing_subscriber::layer::Layered<Keeper, tracing_subscriber::Registry>,
                tracing_subscriber::fmt::format::DefaultFields,
            > + Send
            + Sync
            + 'static,
    {
        let page = Page::default();
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(page.clone()).event_format(format);
        let all = tracing_subscriber::registry().with(Keeper::new("x", LogFormat::Human, None));
        let all = all.with(lines);
        // The task is known even if only warnings pass the filter.
        let all = all.with(super::super::filter(Some(level)));
        tracing::subscriber::with_default(all, log);
        String::from_utf8(std::mem::take(&mut page.0.lock())).unwrap()
    }

    fn two() {
        tracing::info!(step = 3, rate = 0.5, "a \"quoted\" word\nand a line break");
        let _within = span_of(TaskId::worker(1)).entered();
        tracing::warn!("the disk is slow");
    }

    #[test]
    fn a_json_line_names_job_and_task() {
        let text = logged(Json::new("mnist"), "info", two);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second] = &lines[..] else { panic!("{text}") };
        assert_eq!(first["message"], "a \"quoted\" word\nand a line break");
        assert_eq!(first["fields"], json!({"step": 3, "rate": 0.5}));
        assert_eq!(
            (&first["job"], &first["task"], &first["level"]),
            (&Value::Null, &Value::Null, &json!("INFO"))
        );
        assert_eq!(
            (&second["job"], &second["task"], &second["level"]),
            (&json!("worker"), &json!("1"), &json!("WARN"))
        );
        let timestamp = first["timestamp"].as_str().unwrap();
        assert!(timestamp.ends_with('Z') && timestamp.as_bytes()[10] == b'T', "{timestamp}");
    }

    #[test]
    fn a_line_for_people_names_task_and_level() {
        let text = logged(Human::new("mnist", true), "info", two);
        assert!(text.contains(" mnist: "), "{text}");
        assert!(text.trim_end().ends_with(" WARN worker/1: the disk is slow"), "{text}");
        // The task is named even if the filter accepts the lines of some modules only.
        let own = concat!(module_path!(), "=warn");
        for level in ["warn", own] {
            let bad = logged(Human::new("mnist", true), level, two);
            assert!(bad[8..].starts_with(" WARN worker/1: the disk is slow"), "{bad}");
        }
        let unnamed = logged(Human::new("mnist", false), "info", || tracing::info!("a line of no task"));
        assert!(unnamed[8..].starts_with(" a line of no task"), "{unnamed}");
    }
}
