//! Measures the examples per second and the memory of a worker that streams its data. Compares a small data
//! set that the worker holds in memory with large sets of gzip-compressed TFRecord and CSV files, which the
//! worker streams because they may be larger than memory.

mod support;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull::data::{Dataset, Datasets, Reading, load, open};
use pushpull::{
    CategorySpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, Example, FeatureKind, FeatureSpec,
    InputSpec, JobSpec, NumberSpec, OptimizerSpec, ShuffleSpec, StreamSpec, TfRecordSpec, TfRecordWriter,
    VocabularySpec,
};
use support::models::mlp_of;
use support::usage::{children_of, name_of, peak_of};
use support::{local, reported, tell};

/// The number of files of each large data set.
const FILES: usize = 8;
const PIXELS: usize = 28 * 28;
/// The time between two readings of the worker's memory.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Parser)]
struct Flags {
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of unpacked megabytes of each large set
    #[arg(long, default_value_t = 10_000)]
    megabytes: u64,
    /// Number of steps of each run
    #[arg(long, default_value_t = 4000)]
    steps: u64,
    /// Number of examples in the shuffle buffer
    #[arg(long, default_value_t = 10_000)]
    buffer: u32,
    /// Directory for the data, which take about a fifth of their unpacked size [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure how fast one thread reads the sets, without training
    #[arg(long)]
    read: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    pushpull::main(|flags: Flags| Ok(run(&flags)?))
}

fn run(flags: &Flags) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = flags.dir.as_deref().unwrap_or(temporary.path());
    let digits = Digits::draw(2000)?;
    let (small, tests) = (folder.join("small.tfrecord.gz"), folder.join("test.tfrecord.gz"));
    digits.write_records(&small, 60_000)?;
    digits.write_records(&tests, 500)?;
    let test = tf_record(vec![tests]);
    let each = flags.megabytes * 1_000_000 / FILES as u64;
    let records =
        set(folder, "tfrecord.gz", |path| digits.write_records(path, each / digits.record_bytes()))?;
    let rows = set(folder, "csv.gz", |path| digits.write_rows(path, each / digits.row_bytes()))?;
    let sets = [
        ("memory", tf_record(vec![small]), StreamSpec::Never),
        ("TFRecord", tf_record(records), StreamSpec::Always),
        ("CSV", csv(rows), StreamSpec::Always),
    ];
    if flags.read {
        return read(flags, &sets);
    }
    let mut speeds = vec![Vec::new(); sets.len()];
    let mut memory = vec![Vec::new(); sets.len()];
    for _ in 0..flags.rounds {
        for (at, (_, set, stream)) in sets.iter().enumerate() {
            let (speed, bytes) = measure(flags, set, &test, *stream)?;
            speeds[at].push(speed);
            memory[at].push(bytes as f64 / 1e6);
        }
    }
    let base = speeds[0].clone();
    for ((name, ..), (speeds, memory)) in sets.iter().zip(speeds.into_iter().zip(memory)) {
        let ratios = speeds.iter().zip(&base).map(|(speed, base)| speed / base).collect();
        tell(name, speeds, "examples/s");
        tell(&format!("{name} / memory"), ratios, "");
        tell(&format!("{name}: peak of the worker"), memory, "MB");
    }
    Ok(())
}

/// Measures and prints how many examples per second one thread reads from each data set.
fn read(flags: &Flags, sets: &[(&str, DatasetSpec, StreamSpec)]) -> anyhow::Result<()> {
    let mut speeds = vec![Vec::new(); sets.len()];
    for _ in 0..flags.rounds {
        for (speeds, (_, spec, _)) in speeds.iter_mut().zip(sets) {
            let set = open(spec, &Reading::plain(&Datasets::default()))?;
            let (mut reader, mut rows) = (set.reader()?, set.rows()?);
            let (start, mut examples) = (Instant::now(), 0);
            while examples < flags.steps as usize * 64 {
                rows.clear();
                match reader.read(64, &mut rows)? {
                    0 => break,
                    read => examples += read,
                }
            }
            speeds.push(examples as f64 / start.elapsed().as_secs_f64());
        }
    }
    for ((name, ..), speeds) in sets.iter().zip(speeds) {
        tell(&format!("{name}: reading alone"), speeds, "examples/s");
    }
    Ok(())
}

/// Writes the first file of a large data set with `write`, and copies it until there are [`FILES`] files.
/// Returns their paths.
fn set(
    folder: &Path,
    ending: &str,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = (0..FILES).map(|at| folder.join(format!("part-{at}.{ending}"))).collect();
    write(&paths[0])?;
    for path in &paths[1..] {
        fs::copy(&paths[0], path)?;
    }
    Ok(paths)
}

/// Trains the MLP on a data set. Returns the examples per second, and the peak memory of the worker in
/// bytes.
fn measure(
    flags: &Flags,
    set: &DatasetSpec,
    test: &DatasetSpec,
    stream: StreamSpec,
) -> anyhow::Result<(f64, u64)> {
    let folder = tempfile::tempdir()?;
    let graph = mlp_of(&[PIXELS], 512)?;
    let input = InputSpec {
        shuffle: ShuffleSpec::Buffer(flags.buffer),
        stream,
        ..InputSpec::new(set.clone(), test.clone())
    };
    let (optimizer, seed) = (OptimizerSpec::sgd(0.05), 1);
    let job = JobSpec { optimizer, seed, ..JobSpec::new(graph, input, flags.steps) };
    let path = folder.path().join("job.json");
    fs::write(&path, job.to_json())?;
    let mut run =
        local(folder.path(), &path, 1, 1).env("RUST_LOG", "warn").stderr(Stdio::inherit()).spawn()?;
    let bytes = watch(&mut run)?;
    Ok((reported(folder.path())?, bytes))
}

/// Waits until the job ends, and returns the peak resident memory of its worker in bytes.
fn watch(run: &mut Child) -> anyhow::Result<u64> {
    let mut most = 0;
    loop {
        if let Some(status) = run.try_wait()? {
            match status.success() && most > 0 {
                true => return Ok(most),
                false => bail!("pushpull local ended with {status}; its worker's peak memory: {most} bytes"),
            }
        }
        for process in children_of(run.id()) {
            // The process may have ended meanwhile.
            if name_of(process).contains("worker") {
                most = most.max(peak_of(&process.to_string()).unwrap_or_default());
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Generated digits. Each file repeats them until it has the required number of examples.
struct Digits {
    pixels: Vec<u8>,
    labels: Vec<i32>,
}

impl Digits {
    fn draw(examples: u64) -> anyhow::Result<Self> {
        let set = load(&DatasetSpec::Digits { seed: 1, examples }, None)?;
        let pushpull::data::Storage::Pixels(pixels) = set.storage("features").context("the features")? else {
            bail!("the features are not pixels")
        };
        Ok(Self { pixels: pixels.clone(), labels: set.integers("labels").context("the labels")? })
    }

    fn example(&self, index: u64) -> (&[u8], i32) {
        let index = (index % self.labels.len() as u64) as usize;
        (&self.pixels[index * PIXELS..][..PIXELS], self.labels[index])
    }

    fn record(&self, index: u64) -> Example {
        let (pixels, label) = self.example(index);
        Example::new().bytes("image", pixels.to_vec()).ints("label", [i64::from(label)])
    }

    fn row(&self, index: u64) -> String {
        let (pixels, label) = self.example(index);
        let numbers = pixels.iter().map(|pixel| format!("{pixel},")).collect::<String>();
        format!("{numbers}{label}\n")
    }

    /// Returns the uncompressed size of a TFRecord record with its frame of 16 bytes, in bytes.
    fn record_bytes(&self) -> u64 {
        self.record(0).to_bytes().len() as u64 + 16
    }

    /// Returns the mean uncompressed size of the first 100 CSV rows, in bytes.
    fn row_bytes(&self) -> u64 {
        (0..100).map(|index| self.row(index).len() as u64).sum::<u64>() / 100
    }

    fn write_records(&self, path: &Path, examples: u64) -> anyhow::Result<()> {
        let output = GzEncoder::new(BufWriter::new(File::create(path)?), Compression::fast());
        let mut writer = TfRecordWriter::plain(output);
        for index in 0..examples {
            writer.write_example(&self.record(index))?;
        }
        writer.finish()?.finish()?.flush()?;
        Ok(())
    }

    fn write_rows(&self, path: &Path, examples: u64) -> anyhow::Result<()> {
        let mut output = GzEncoder::new(BufWriter::new(File::create(path)?), Compression::fast());
        let rows: Vec<String> = (0..self.labels.len() as u64).map(|index| self.row(index)).collect();
        for index in 0..examples {
            output.write_all(rows[index as usize % rows.len()].as_bytes())?;
        }
        output.finish()?.flush()?;
        Ok(())
    }
}

fn tf_record(files: Vec<PathBuf>) -> DatasetSpec {
    let features = vec![
        FeatureSpec::new("image", "features", FeatureKind::Pixels, [PIXELS]),
        FeatureSpec::new("label", "labels", FeatureKind::Int64, []),
    ];
    DatasetSpec::TfRecord(TfRecordSpec { files, features })
}

fn csv(files: Vec<PathBuf>) -> DatasetSpec {
    let column = |name: &str, fields| CsvColumnSpec { name: name.to_owned(), fields };
    let pixels = (0..PIXELS as u32).map(NumberSpec::new).collect();
    DatasetSpec::Csv(CsvSpec {
        files,
        columns: vec![
            column("features", CsvFieldsSpec::Numbers(pixels)),
            column(
                "labels",
                CsvFieldsSpec::Category(CategorySpec {
                    field: (PIXELS as u32).into(),
                    vocabulary: VocabularySpec::Ids,
                    unknown: None,
                }),
            ),
        ],
        ..CsvSpec::default()
    })
}
