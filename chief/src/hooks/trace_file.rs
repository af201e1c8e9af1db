//! Writes the timeline of a job to a file on a separate thread, so that a slow or full disk does not delay
//! the job. `trace_event` decides how a span is drawn.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use pushpull_messages::observe::SpanSpec;
use tracing::{info, warn};

use super::spool::{Spool, SpoolReader};
use super::trace_event::TraceEvents;
use crate::error::ChiefError;
use crate::hook::Hook;
use crate::report::JobEnd;

/// A hook that writes one file in the Chrome trace format, to be opened at <https://ui.perfetto.dev>. The
/// file has the traced steps of all workers, their pushes, and the handling of these pushes on the shards.
/// All times are on the chief's clock. A truncated file can still be read.
///
/// Spans that cannot be written are counted and logged; the training goes on.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    spool: Option<Spool>,
}

impl TraceFile {
    /// Creates the file. An existing file is replaced.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(path: impl Into<PathBuf>) -> std::io::Result<Self> {
        let path = path.into();
        let file = File::create(&path)?;
        let spool = Spool::start("timeline", move |spooled| write_all(file, &spooled))?;
        Ok(Self { path, spool: Some(spool) })
    }
}

impl Hook for TraceFile {
    fn spans(&mut self, spans: &[SpanSpec]) {
        if let Some(spool) = &self.spool {
            spool.send(spans);
        }
    }

    fn end(&mut self, _: Result<&JobEnd, &ChiefError>) {
        if let Some(spool) = self.spool.take()
            && spool.end() == 0
        {
            info!(path = %self.path.display(), "timeline is complete; open it at https://ui.perfetto.dev");
        }
    }
}

/// Writes spans until the spool is closed.
fn write_all(file: File, spooled: &SpoolReader) {
    let mut events = TraceEvents::new();
    let mut file = JsonArrayWriter { file: BufWriter::new(file), begun: false };
    // After the first error the file may end within an event, so nothing more is written.
    let mut broken = None;
    while let Some(spans) = spooled.next() {
        if broken.is_none() {
            broken = events
                .of(&spans)
                .iter()
                .try_for_each(|event| file.add(event))
                .and_then(|()| file.file.flush())
                .err();
        }
        if let Some(error) = &broken {
            spooled.lose(spans.len(), error);
        }
    }
    if broken.is_none()
        && let Err(error) = file.end()
    {
        warn!(%error, "could not write the end of the timeline");
    }
}

/// A writer of a JSON array, with one value per line.
struct JsonArrayWriter<W> {
    file: W,
    begun: bool,
}

impl<W: Write> JsonArrayWriter<W> {
    fn add(&mut self, value: &serde_json::Value) -> std::io::Result<()> {
        let before: &[u8] = if std::mem::replace(&mut self.begun, true) { b",\n" } else { b"[\n" };
        self.file.write_all(before)?;
        serde_json::to_writer(&mut self.file, value)?;
        Ok(())
    }

    fn end(mut self) -> std::io::Result<()> {
        self.file.write_all(if self.begun { b"\n]\n" } else { b"[]\n" })?;
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::GlobalStep;
    use serde_json::Value;

    use super::super::spool::tests::one_push;
    use super::*;

    fn end(hook: &mut TraceFile) {
        hook.end(Err(&ChiefError::NoWorkers {
            step: GlobalStep(1),
            last_step: GlobalStep(2),
            gave_up: None,
        }));
    }

    fn written(batches: &[&[SpanSpec]]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut hook = TraceFile::create(&path).unwrap();
        batches.iter().for_each(|spans| hook.spans(spans));
        end(&mut hook);
        std::fs::read_to_string(path).unwrap()
    }

    /// Returns the span that is on the same thread as an event, and contains the event's time.
    fn around<'a>(events: &'a [Value], event: &Value) -> &'a Value {
        let at = event["ts"].as_i64().unwrap();
        let here = |span: &&Value| {
            let start = span["ts"].as_i64().unwrap();
            let inside = || start <= at && at < start + span["dur"].as_i64().unwrap();
            span["ph"] == "X" && span["pid"] == event["pid"] && span["tid"] == event["tid"] && inside()
        };
        events.iter().filter(|event| event["ph"] == "X").find(here).expect("an arrow is within a span")
    }

    #[test]
    fn one_push_can_be_followed_to_its_shard_and_back() {
        let spans = one_push();
        let (first, second) = spans.split_at(3);
        let whole = written(&[&spans]);
        let events: Vec<Value> = serde_json::from_str(&whole).unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        assert_eq!((of("X").len(), of("s").len(), of("t").len(), of("f").len()), (8, 2, 4, 2));
        for begin in of("s") {
            assert_eq!(around(&events, begin)["name"], "compute");
            let mut path: Vec<&Value> = events.iter().filter(|event| event["id"] == begin["id"]).collect();
            path.sort_by_key(|event| (event["ts"].as_i64(), event["ph"] == "t"));
            let names: Vec<&str> =
                path.iter().map(|event| around(&events, event)["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["compute", "push", "apply", "push"]);
            let shard = |event: &Value| around(&events, event)["args"]["shard"].clone();
            assert!(path[1..].iter().all(|event| shard(event) == shard(path[1])));
            assert_eq!(around(&events, path[2])["args"]["push"], "worker/1 3 9");
        }
        let name = |kind: &str| {
            let named = events.iter().filter(|event| event["name"] == kind);
            named.map(|event| event["args"]["name"].as_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(name("process_name"), ["worker/1", "ps/0", "ps/1", "chief/0"]);
        assert!(name("thread_name").contains(&"to ps/0/shard/1"));
        // A process is named only once.
        let events: Vec<Value> = serde_json::from_str(&written(&[first, second, &spans])).unwrap();
        assert_eq!(events.iter().filter(|event| event["name"] == "process_name").count(), 4);
        assert_eq!(serde_json::from_str::<Vec<Value>>(&written(&[])).unwrap().len(), 0);
    }

    #[test]
    fn a_truncated_file_has_an_event_in_each_line() {
        let whole = written(&[&one_push()]);
        let cut = &whole[..whole.len() * 2 / 3];
        let lines: Vec<&str> = cut.lines().collect();
        assert_eq!(lines[0], "[");
        for line in &lines[1..lines.len() - 1] {
            serde_json::from_str::<Value>(line.trim_end_matches(',')).unwrap();
        }
    }

    #[test]
    fn spans_that_cannot_be_written_are_counted() {
        assert!(TraceFile::create("/nowhere/at/all").is_err());
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let spool = Spool::start("timeline", move |spooled| write_all(full, &spooled)).unwrap();
        spool.send(&one_push());
        spool.send(&one_push());
        assert_eq!(spool.end(), 16);
    }
}
