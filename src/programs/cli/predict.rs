//! The tool `pushpull predict`: its flags, and how it finds the model and the examples.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use pushpull_input::{Dataset, Datasets, Reading, in_directory, open};
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::input::DatasetSpec;
use pushpull_messages::job::{JobSpec, told};

use super::flags::{read_job, read_text};
use super::paths::check_writable;
use crate::error::Error;
use crate::model::{Examples, Model};
use crate::programs::exit::{Failure, Outcome};
use crate::programs::rows::{RowFormat, Rows, write_evaluation};
use crate::report::{is_special, partial};

#[derive(Debug, clap::Args)]
pub(super) struct PredictArgs {
    /// Model to predict with, as --save-model or the library has written it
    #[arg(value_name = "MODEL.safetensors")]
    model: PathBuf,
    /// JSON file with the data set to predict, written as in a job file: {"csv": {"files": ..}}
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Images to predict, without labels: a file in the IDX format of MNIST, plain or packed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "files", "data_dir", "evaluate"])]
    images: Option<PathBuf>,
    /// Job file whose test set is predicted unless --input or --images is given. A model file that Python or
    /// `pushpull checkpoint export` has written needs this flag, because such a file has no graph. If the
    /// model file has a graph, its own graph and map stages are used, not those of the job
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Files to read in place of those that the data set names, in the same format
    #[arg(long, value_name = "FILE,..", value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// Directory of the data on this host, if it differs from the directory that the data set names
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    data_dir: Option<PathBuf>,
    /// Print the loss and the metrics over all examples instead of predictions; needs labels
    #[arg(long)]
    evaluate: bool,
    /// Format of the output
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    output: RowFormat,
    /// File to write to instead of standard output; it is replaced only when the output is complete
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

impl PredictArgs {
    /// Predicts every example, or evaluates the model.
    pub(super) fn run(self) -> Outcome {
        if self.images.is_none() && self.input.is_none() && self.job.is_none() {
            let reason =
                "no examples are given: expected --input FILE, --images FILE, or --job FILE for its test set";
            return Err(Failure::usage(reason));
        }
        self.to.as_deref().map_or(Ok(()), |path| check_writable("--to", "the predictions", path))?;
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let read = std::iter::once(&self.model).chain(&self.files).chain(&self.images).chain(&self.input);
        if let Some(to) = self.to.as_deref().and_then(real)
            && read.filter_map(|path| real(path)).any(|path| path == to)
        {
            return Err(Failure::Usage(format!(
                "--to: {} is read by this command and would be overwritten: name another file",
                to.display()
            )));
        }
        let job = self.job.as_deref().map(read_job).transpose()?;
        let model = match &job {
            Some(job) => Model::load_of(job, &self.model)?,
            None => Model::load(&self.model)?,
        };
        if let Some(job) = &job
            && let differences = model.differences(job)
            && !differences.is_empty()
        {
            let (differ, model) = (differences.join(" and "), self.model.display());
            eprintln!("warning: the {differ} of --job differ from those in {model}; using those in {model}");
        }
        let set: Arc<dyn Dataset> = match &self.images {
            Some(path) => Arc::new(Examples::images(path)?.dataset()),
            None => {
                let spec = self.dataset(job.as_ref(), model.graph())?;
                open(&spec, &Reading::plain(&Datasets::default())).map_err(Error::from)?
            }
        };
        match &self.to {
            None => self.write(&model, set, &mut io::stdout().lock()),
            Some(path) => self.write_file(&model, set, path),
        }
    }

    /// Returns the data set to read. If no labels are needed, the data set may lack columns that a prediction
    /// does not need.
    fn dataset(&self, job: Option<&JobSpec>, graph: &GraphSpec) -> Result<DatasetSpec, Failure> {
        let spec = match (&self.input, job) {
            (Some(path), _) => read_dataset(path)?,
            (None, Some(job)) => job.input.test.clone(),
            (None, None) => unreachable!("one of them is given"),
        };
        let spec = match &self.data_dir {
            Some(directory) => in_directory(&spec, directory)?,
            None => spec,
        };
        let spec = if self.files.is_empty() { spec } else { with_files(spec, &self.files)? };
        if self.evaluate {
            return Ok(spec);
        }
        let part = graph.prediction();
        let inputs = part.nodes.iter().filter(|node| matches!(node.op, Op::Input { .. }));
        let needed: BTreeSet<&str> = inputs.map(|node| node.name.as_str()).collect();
        Ok(spec.with_columns(|column| needed.contains(column)))
    }

    fn write_file(&self, model: &Model, set: Arc<dyn Dataset>, path: &Path) -> Outcome {
        // The file that a link leads to is replaced, and not the link.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let (partial, shown) = (partial(path), path.display());
        if is_special(path) {
            let file = File::options().write(true).open(path);
            let mut file = file.with_context(|| format!("--to: cannot write to {shown}"))?;
            return self.write(model, set, &mut file);
        }
        let written = || {
            let mut file =
                File::create(&partial).with_context(|| format!("--to: cannot write to {shown}"))?;
            self.write(model, set, &mut file)?;
            std::fs::rename(&partial, path).with_context(|| format!("--to: cannot write to {shown}"))?;
            Ok(())
        };
        written().inspect_err(|_| {
            // This fails if the file was never created. The error of `written` then says why it was not.
            let _ = std::fs::remove_file(&partial);
        })
    }

    /// Writes the predictions or the evaluation. Ends without an error if the reader has closed the pipe.
    fn write(&self, model: &Model, set: Arc<dyn Dataset>, out: &mut dyn Write) -> Outcome {
        let (mut out, graph) = (BufWriter::new(out), model.graph());
        let written = if self.evaluate {
            let evaluation = model.evaluate_dataset(set)?;
            write_evaluation(&mut out, self.output, &evaluation)
        } else {
            let mut rows = Rows::new(&mut out, self.output, graph)?;
            let mut written = Ok(());
            let predicted = model.predict_dataset(set, |predictions| {
                written = rows.write(&predictions);
                // This error only ends the prediction. The cause is in `written`.
                written.as_ref().map(|_| ()).map_err(Error::model)
            });
            if written.is_ok() {
                predicted?;
            }
            written
        };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other.context("cannot write the predictions")?),
        }
    }
}

/// Reads the data set that `--input` names.
fn read_dataset(path: &Path) -> Result<DatasetSpec, Failure> {
    let text = read_text("--input", "the data set", path)?;
    let spec: DatasetSpec = serde_json::from_str(&text).map_err(|error| {
        anyhow!(
            "--input: {} is not a data set in the form that job files use: {}",
            path.display(),
            told(&error)
        )
    })?;
    spec.validate().with_context(|| format!("--input: cannot use {}", path.display()))?;
    Ok(spec)
}

/// Returns `spec` with its files replaced by `files`.
fn with_files(mut spec: DatasetSpec, files: &[PathBuf]) -> Result<DatasetSpec, Failure> {
    match (&mut spec, files) {
        (DatasetSpec::Text(text), [file]) => text.file = file.clone(),
        (DatasetSpec::Idx { images, labels }, [own_images, own_labels]) => {
            (*images, *labels) = (own_images.clone(), own_labels.clone());
        }
        (DatasetSpec::Text(_), _) => return Err(Failure::usage("--files: a text is one file")),
        (DatasetSpec::Idx { .. }, _) => {
            let reason =
                "--files: expected two IDX files, images and labels; use --images for images without labels";
            return Err(Failure::usage(reason));
        }
        (other, _) => match other.file_list_mut() {
            Some(named) => *named = files.to_vec(),
            None => return Err(Failure::usage("--files: the data set is generated and names no files")),
        },
    }
    Ok(spec)
}
