//! Writes event files for TensorBoard: TFRecord frames of `Event` messages. The caller decides what is
//! plotted. Uses only the graph and the settings of the job.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe;
use pushpull_messages::summary::{HistogramSpec, SummaryError, SummarySpec, SummaryValue};
use pushpull_storage::record;

use super::proto::{
    DT_STRING, Event, EventKind, FILE_VERSION, Histogram, Image, Metadata, Plugin, SessionLog, Summary,
    Tensor, TensorShape, Value, ValueKind,
};
use super::{graph, image, text};

/// The error for a summary that could not be plotted.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The path of the file or the directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A summary is invalid.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// An image cannot be encoded.
    #[error("the image '{tag}' cannot be encoded: {source}")]
    Image {
        /// The tag of the image.
        tag: String,
        /// The error of the encoder.
        source: png::EncodingError,
    },
}

/// A writer of an event file. Each call writes immediately: a reader sees either all of a call's data or
/// nothing, unless the disk is full.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates a new file in a directory. A directory that does not exist is created.
    ///
    /// # Errors
    /// Returns an error if the directory or the file cannot be created.
    pub fn create(dir: &Path) -> Result<Self, EventError> {
        let error = |path: &Path| {
            let path = path.to_owned();
            |source| EventError::Io { path, source }
        };
        std::fs::create_dir_all(dir).map_err(error(dir))?;
        let path = dir.join(file_name());
        let file = File::options().append(true).create_new(true).open(&path).map_err(error(&path))?;
        let mut writer = Self { path, file };
        writer.append(vec![(GlobalStep(0), EventKind::FileVersion(FILE_VERSION.into()))])?;
        Ok(writer)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a run at `step`. TensorBoard then discards what earlier runs have plotted for this step and
    /// for later steps. Writes the job's graph and its settings.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn begin(&mut self, job: &JobSpec, step: GlobalStep) -> Result<(), EventError> {
        let settings = SummaryValue::Text(text::table(job));
        let settings = value(&SummarySpec { tag: "job".into(), step, value: settings })?;
        self.append(vec![
            (step, EventKind::Session(SessionLog::START)),
            (step, EventKind::Graph(graph::encode(job))),
            (step, EventKind::Summary(Summary { value: vec![settings] })),
        ])
    }

    /// Writes summaries. An invalid summary does not prevent the others from being written.
    ///
    /// # Errors
    /// Returns the error of the first invalid summary, or an error if the file cannot be written. In the
    /// latter case, the file may end within a record, and the writer must not be used again.
    pub fn write(&mut self, summaries: &[SummarySpec]) -> Result<(), EventError> {
        let mut events: Vec<(GlobalStep, EventKind)> = Vec::new();
        let mut first_error = Ok(());
        for summary in summaries {
            match (value(summary), events.last_mut()) {
                (Err(error), _) => first_error = first_error.and(Err(error)),
                (Ok(value), Some((step, EventKind::Summary(event)))) if *step == summary.step => {
                    event.value.push(value);
                }
                (Ok(value), _) => {
                    events.push((summary.step, EventKind::Summary(Summary { value: vec![value] })));
                }
            }
        }
        self.append(events)?;
        first_error
    }

    fn append(&mut self, events: Vec<(GlobalStep, EventKind)>) -> Result<(), EventError> {
        let mut frames = Vec::new();
        let written = events.into_iter().try_for_each(|(step, what)| {
            let step = i64::try_from(step.0).unwrap_or(i64::MAX);
            let event = Event { wall_time: now().as_secs_f64(), step, what: Some(what) };
            record::write(&mut frames, &event.encode_to_vec())
        });
        let written = written.and_then(|()| self.file.write_all(&frames));
        written.map_err(|source| EventError::Io { path: self.path.clone(), source })
    }
}

fn now() -> Duration {
    observe::unix_time()
}

/// Returns a file name that is unique across all hosts. Readers read the files of a directory in the order of
/// their names.
fn file_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let host: String = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-', "_");
    let (seconds, process) = (now().as_secs(), std::process::id());
    format!("events.out.tfevents.{seconds:010}.{host}.{process}.{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn value(summary: &SummarySpec) -> Result<Value, EventError> {
    summary.validate()?;
    let plugin = match &summary.value {
        // Readers show a tensor only if a plugin is named.
        SummaryValue::Text(_) => Some(Plugin { name: "text".into() }),
        _ => None,
    };
    let shown = match &summary.value {
        SummaryValue::Scalar(value) => ValueKind::Scalar(*value),
        SummaryValue::Histogram(histogram) => ValueKind::Histogram(distribution(histogram)),
        SummaryValue::Image(image) => ValueKind::Image(Image {
            height: image.height.cast_signed(),
            width: image.width.cast_signed(),
            colorspace: image.channels.into(),
            encoded: image::encode(image)
                .map_err(|source| EventError::Image { tag: summary.tag.clone(), source })?,
        }),
        SummaryValue::Text(text) => ValueKind::Tensor(Tensor {
            dtype: DT_STRING,
            shape: Some(TensorShape::default()),
            string_val: vec![text.clone().into_bytes()],
        }),
    };
    let metadata = plugin.map(|plugin| Metadata { plugin: Some(plugin) });
    Ok(Value { tag: summary.tag.clone(), metadata, shown: Some(shown) })
}

fn distribution(histogram: &HistogramSpec) -> Histogram {
    let HistogramSpec { min, max, count, sum, sum_squares, ref buckets } = *histogram;
    let (bucket_limit, bucket) = buckets.iter().copied().unzip();
    Histogram { min, max, num: count, sum, sum_squares, bucket_limit, bucket }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::summary::ImageSpec;
    use pushpull_storage::record::{HEAD_BYTES, TAIL_BYTES, check_data, read_head};

    use super::*;
    use crate::job::tests::job;

    fn read(path: &Path) -> Vec<Event> {
        let bytes = std::fs::read(path).unwrap();
        let (mut rest, mut events) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let length = read_head(rest[..HEAD_BYTES].try_into().unwrap()).unwrap();
            let (data, behind) = rest[HEAD_BYTES..].split_at(length);
            check_data(data, behind[..TAIL_BYTES].try_into().unwrap()).unwrap();
            events.push(Event::decode(data).unwrap());
            rest = &behind[TAIL_BYTES..];
        }
        events
    }

    #[test]
    fn files_are_unique_and_begin_with_their_version() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let mut writers = [EventWriter::create(&dir).unwrap(), EventWriter::create(&dir).unwrap()];
        assert!(writers[0].path() != writers[1].path());
        writers[1].begin(&job(), GlobalStep(7)).unwrap();
        let name = writers[1].path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents.") && name.split('.').count() == 7, "{name}");
        let events = read(writers[1].path());
        assert_eq!(events[0].what, Some(EventKind::FileVersion("brain.Event:2".into())));
        assert!(events[0].wall_time > 1e9);
        assert_eq!(events[1].what, Some(EventKind::Session(SessionLog::START)));
        assert!(matches!(&events[2].what, Some(EventKind::Graph(graph)) if !graph.is_empty()));
        assert!(events[1..].iter().all(|event| event.step == 7));
        assert_eq!(events.len(), 4);
    }

    #[test]
    fn an_invalid_summary_keeps_back_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        let bad = ImageSpec { width: 2, height: 2, channels: 1, pixels: vec![0; 3] };
        let bad = SummarySpec { tag: "bad".into(), step: GlobalStep(1), value: SummaryValue::Image(bad) };
        let scalar = |tag, step| SummarySpec::scalar(tag, GlobalStep(step), 0.5);
        let error = writer.write(&[scalar("a", 1), bad, scalar("b", 1), scalar("a", 2)]).unwrap_err();
        assert!(error.to_string().starts_with("the image 'bad' is 2×2"), "{error}");
        let tags: Vec<(i64, Vec<String>)> = read(writer.path())
            .into_iter()
            .filter_map(|event| match event.what {
                Some(EventKind::Summary(summary)) => {
                    Some((event.step, summary.value.into_iter().map(|value| value.tag).collect()))
                }
                _ => None,
            })
            .collect();
        assert_eq!(tags, [(1, vec!["a".to_owned(), "b".to_owned()]), (2, vec!["a".to_owned()])]);
    }
}
