//! The tool `pushpull checkpoint`: its flags and its output.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Subcommand;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::WallClock;
use pushpull_storage::{Catalog, ManifestSpec, Store};
use serde_json::{Value, json};

use super::flags::read_job;
use crate::incarnation::{incarnation, nonce};
use crate::programs::checkpoint::{
    Entry, Export, Import, State, Verified, chosen, export, import, latest_whole, listed, select, verify,
};
use crate::programs::exit::{Failure, Outcome};
use crate::programs::format::{bytes_shown, plain, time_shown};

/// The location of checkpoints.
#[derive(Debug, clap::Args)]
pub(super) struct Where {
    /// Directory of the checkpoints: a path or file://; also s3:// or gs:// if the program was built with
    /// support for them
    #[arg(value_name = "DIR")]
    store: String,
}

/// One checkpoint, and the format of the output.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    #[command(flatten)]
    place: Where,
    /// Step or name of the checkpoint [default: the latest]
    #[arg(value_name = "STEP|NAME")]
    checkpoint: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum CheckpointTool {
    /// List all checkpoints with their states: complete, damaged or unfinished; reads only manifests and
    /// file sizes
    List {
        #[command(flatten)]
        place: Where,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the content of a checkpoint: its job, its tensors with their shards, and its workers
    Show(Which),
    /// Read every byte of a checkpoint, and list its faults
    Verify(Which),
    /// Write the whole model of a checkpoint to one safetensors file, which Python can read
    Export {
        #[command(flatten)]
        place: Where,
        /// File to write
        #[arg(value_name = "FILE.safetensors")]
        file: String,
        /// Step or name of the checkpoint [default: the latest]
        #[arg(long, value_name = "STEP|NAME")]
        step: Option<String>,
        /// Write the moving averages of trained variables instead of their values
        #[arg(long)]
        averages: bool,
        /// Write only variables that match these patterns, separated by commas; * matches any characters, ?
        /// matches one
        #[arg(long, value_name = "GLOB,..", value_delimiter = ',')]
        variables: Vec<String>,
    },
    /// Make a checkpoint of a job from a safetensors file with one F32 tensor for each variable
    Import {
        /// File to read
        #[arg(value_name = "FILE.safetensors")]
        file: String,
        #[command(flatten)]
        place: Where,
        /// Job file of the checkpoint; an example writes such a file with --export-job
        #[arg(long, value_name = "FILE")]
        job: PathBuf,
        /// Step of the new checkpoint
        #[arg(long, value_name = "N", default_value_t = 0)]
        step: u64,
        /// Ignore tensors that the job does not have
        #[arg(long)]
        allow_extra: bool,
    },
}

impl CheckpointTool {
    /// Runs the tool.
    pub(super) async fn run(self) -> Outcome {
        match self {
            Self::List { place, json } => list(&place.open()?, json).await,
            Self::Show(Which { place, checkpoint, json }) => {
                show(&place.open()?, checkpoint.as_deref(), json).await
            }
            Self::Verify(Which { place, checkpoint, json }) => {
                check(&place.open()?, checkpoint.as_deref(), json).await
            }
            Self::Export { place, file, step, averages, variables } => {
                let from = place.open()?;
                let (to, file) = split(&file)?;
                let name = select(&from, step.as_deref()).await?;
                let manifest = &Catalog::new(from.clone()).manifest(name).await?;
                let variables = chosen(manifest, &variables)?;
                let count = variables.len();
                let what = Export { name, manifest, averages, variables };
                let bytes = export(&from, &what, &Store::open(&to)?, &file).await?;
                let kind = if averages { "moving averages" } else { "values" };
                say(&format!("{kind} of {count} variable(s) of {name}: {}\n", bytes_shown(bytes)));
                Ok(())
            }
            Self::Import { file, place, job, step, allow_extra } => {
                let job = read_job(&job)?;
                let (from, file) = split(&file)?;
                let from = Store::open(&from)?;
                let (store, saved_ms) = (Store::create(&place.store)?, WallClock::default().unix_ms());
                let life = Catalog::new(store.clone()).next_life(incarnation(), nonce()).await?;
                let name = CheckpointName { step: GlobalStep(step), life };
                import(&from, &file, Import { name, job, saved_ms, allow_extra }, &store).await?;
                say(&format!("{name}\n"));
                Ok(())
            }
        }
    }
}

impl Where {
    fn open(&self) -> Result<Store, Failure> {
        Ok(Store::open(&self.store)?)
    }
}

/// Splits a path into the location of its directory and the name of the file.
fn split(path: &str) -> Result<(String, String), Failure> {
    let (directory, name) = match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((directory, name)) => (directory, name),
        None => (".", path),
    };
    // Only these characters are allowed: a store encodes all other characters, and the file would then have
    // a different name.
    let letter = |letter: char| letter.is_alphanumeric() || " ._-+=,@()".contains(letter);
    if matches!(name, "" | "." | "..") || !name.chars().all(letter) {
        let path = plain(path);
        return Err(Failure::Usage(format!(
            "'{path}' cannot be used, expected a file name of letters, digits, spaces and ._-+=,@()"
        )));
    }
    Ok((directory.to_owned(), name.to_owned()))
}

/// Prints to standard output. Errors are ignored, because the reader may have closed the pipe.
fn say(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn say_json(value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("plain data encodes");
    say(&(text + "\n"));
}

async fn list(store: &Store, json: bool) -> Outcome {
    let entries = listed(&Catalog::new(store.clone())).await?;
    if json {
        let entries = entries.iter().map(|Entry { name, saved_ms, bytes, files, state }| {
            let (state, reason) = match state {
                State::Whole => ("whole", None),
                State::Broken(reason) => ("broken", Some(reason)),
                State::Unfinished => ("unfinished", None),
            };
            json!({"step": name.step, "name": name, "saved_ms": saved_ms, "bytes": bytes, "files": files,
                   "state": state, "reason": reason})
        });
        say_json(&entries.collect());
        return Ok(());
    }
    if entries.is_empty() {
        say(&format!("no checkpoint in {}\n", store.location()));
        return Ok(());
    }
    let mut rows = vec![
        ["step", "name", "when", "bytes", "files", "state (manifest and file sizes; tensors not read)"]
            .map(str::to_owned),
    ];
    rows.extend(entries.into_iter().map(|Entry { name, saved_ms, bytes, files, state }| {
        let state = match state {
            State::Whole => "complete".to_owned(),
            State::Broken(reason) => format!("damaged: {reason}; run `pushpull checkpoint verify`"),
            State::Unfinished => "unfinished".to_owned(),
        };
        let when = saved_ms.map_or_else(|| "-".to_owned(), time_shown);
        [name.step.to_string(), name.to_string(), when, bytes_shown(bytes), files.to_string(), state]
    }));
    say(&table(&rows));
    Ok(())
}

/// Returns the rows as a text table, whose columns are as wide as their widest cell.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

async fn show(store: &Store, which: Option<&str>, json: bool) -> Outcome {
    let name = select(store, which).await?;
    let manifest = Catalog::new(store.clone()).manifest(name).await?;
    if json {
        say_json(&json!({"name": name, "manifest": manifest}));
    } else {
        say(&described(name, &manifest));
    }
    Ok(())
}

/// Describes the averages of a job: their decay and, if only some trained variables have averages, the
/// patterns that select these variables.
fn averages(job: &JobSpec) -> String {
    match (job.average, &job.average_variables[..]) {
        (None, _) => "none".to_owned(),
        (Some(decay), []) => decay.to_string(),
        (Some(decay), patterns) => format!("{decay}, of {}", patterns.join(", ")),
    }
}

fn described(name: CheckpointName, manifest: &ManifestSpec) -> String {
    let ManifestSpec { step, saved_ms, job, placement, files, workers, .. } = manifest;
    let bytes = files.iter().map(|file| file.bytes).sum();
    let lines = [
        ["checkpoint".to_owned(), name.to_string()],
        ["saved".to_owned(), time_shown(*saved_ms)],
        ["step".to_owned(), format!("{step} of {}", job.last_step)],
        ["model".to_owned(), plain(&job.graph.name)],
        ["optimizer".to_owned(), job.optimizer.name().to_owned()],
        ["averages".to_owned(), averages(job)],
        ["sync".to_owned(), job.sync.to_string()],
        ["files".to_owned(), format!("{}, {} together", files.len(), bytes_shown(bytes))],
    ];
    let mut tensors = vec![["shard", "tensor", "shape", "bytes"].map(str::to_owned)];
    for file in files {
        tensors.extend(file.tensors.iter().map(|tensor| {
            let slice = placement.slices[tensor.slice.index()].slice;
            let mut shape = job.graph.variables[slice.variable.index()].shape.clone();
            shape.0.first_mut().into_iter().for_each(|rows| *rows = slice.rows as usize);
            [file.shard.to_string(), plain(&tensor.name), shape.to_string(), tensor.bytes.to_string()]
        }));
    }
    let mut text = table(&lines) + "\n" + &table(&tensors);
    if !workers.is_empty() {
        let mut rows = vec![["worker", "pushes", "last verdict", "batches drawn"].map(str::to_owned)];
        rows.extend(workers.iter().map(|worker| {
            let verdict = format!("{:?}", worker.verdict).to_lowercase();
            [worker.worker.to_string(), worker.sequence.to_string(), verdict, worker.drawn.to_string()]
        }));
        text = text + "\n" + &table(&rows);
    }
    text
}

async fn check(store: &Store, which: Option<&str>, json: bool) -> Outcome {
    let name = select(store, which).await?;
    let Verified { faults, files, tensors, bytes } = verify(store, name).await;
    let whole = if faults.is_empty() { Some(name) } else { latest_whole(store).await? };
    if json {
        say_json(&json!({"name": name, "whole": faults.is_empty(), "faults": faults, "files": files,
                         "tensors": tensors, "bytes": bytes, "latest_whole": whole}));
    }
    if faults.is_empty() {
        if !json {
            let bytes = bytes_shown(bytes);
            say(&format!("{name} is valid: {files} file(s), {tensors} tensors, {bytes}\n"));
        }
        return Ok(());
    }
    if !json {
        say(&faults.iter().map(|fault| format!("{name}/{fault}\n")).collect::<String>());
    }
    let whole = match whole {
        Some(whole) => format!("the newest valid checkpoint is {whole}"),
        None => "no checkpoint is valid".to_owned(),
    };
    Err(Failure::Error(anyhow!("{name} is damaged, {} fault(s); {whole}", faults.len())))
}
