//! The tool `pushpull session`: shows the tasks of a cluster of servers, their devices and variables, and
//! evaluates a job's model with these variables.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use pushpull_identity::ClientString;
use pushpull_input::{Datasets, Reading, TestSet};
use pushpull_messages::message::{Described, Evaluation, TaskDescription};

use super::flags::read_job;
use super::tls::TlsArgs;
use crate::programs::exit::{Failure, Outcome};
use crate::programs::format::clean;
use crate::programs::logging::{self, LogFormat};
use crate::programs::rows::{RowFormat, write_evaluation};
use crate::session::{CLIENT_ENV, Session, SessionError, SessionOptions};

#[derive(Debug, clap::Args)]
pub(super) struct SessionArgs {
    /// Server of the cluster, such as pushpull://localhost:2222
    #[arg(value_name = "pushpull://HOST:PORT")]
    target: String,
    /// Remove the variables of these containers from all tasks, separated by commas; an empty name is the
    /// default container
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    reset: Option<Vec<String>>,
    /// Job file whose model is evaluated on its test set, with the variables that the servers have: print the
    /// loss and the metrics
    #[arg(long, value_name = "FILE", conflicts_with = "reset")]
    evaluate: Option<PathBuf>,
    /// Container of the variables for --evaluate; the default container has no name
    #[arg(long, value_name = "NAME", requires = "evaluate")]
    container: Option<String>,
    /// Number of batches that --evaluate computes, from the beginning of the test set; the default is all
    #[arg(long, value_name = "N", requires = "evaluate", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// File with a client string, which only its owner can read; servers with a join string demand one.
    /// Without a file, it is taken from the variable PUSHPULL_CLIENT
    #[arg(long, value_name = "FILE")]
    client_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Log the device of each operation that --evaluate runs
    #[arg(long, requires = "evaluate")]
    log_placement: bool,
}

impl SessionArgs {
    /// Prints what the tasks have, removes variables, or evaluates a model.
    pub(super) fn run(self) -> Outcome {
        if self.log_placement {
            logging::start("session", LogFormat::Human);
        }
        let text = self.text()?;
        let mut out = std::io::stdout().lock();
        out.write_all(&text)?;
        Ok(out.flush()?)
    }

    fn text(&self) -> Result<Vec<u8>, Failure> {
        if let Some(path) = &self.evaluate {
            let (evaluation, mut text) = (self.evaluation(path)?, Vec::new());
            write_evaluation(&mut text, RowFormat::Text, &evaluation)?;
            return Ok(text);
        }
        let session = self.session()?;
        let text = match &self.reset {
            Some(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("removed {} variables\n", session.reset(&names)?)
            }
            None => shown(&session.describe()?),
        };
        Ok(text.into_bytes())
    }

    fn session(&self) -> Result<Session, Failure> {
        let container = self.container.clone().unwrap_or_default();
        let env = std::env::var(CLIENT_ENV).ok().filter(|text| !text.is_empty());
        let others = [("--client-file", self.client_file.is_some()), (CLIENT_ENV, env.is_some())];
        let certificate = self.tls.files(&others)?;
        let client = client_string(self.client_file.as_deref(), env.as_deref())?;
        let log_placement = self.log_placement;
        let options =
            SessionOptions { container, log_placement, client, certificate, ..SessionOptions::default() };
        Session::connect_as_told(&self.target, options).map_err(|error| match error {
            SessionError::Target { .. } | SessionError::Files(_) => Failure::usage(error),
            error => Failure::Error(error.into()),
        })
    }

    /// Evaluates the model of a job file.
    fn evaluation(&self, path: &Path) -> Result<Evaluation, Failure> {
        let job = read_job(path)?;
        let (input, datasets) = (&job.input, Datasets::default());
        let set = TestSet::open(&input.test, &input.map, input.stream, &Reading::plain(&datasets));
        let set = set.map_err(|error| anyhow!("--evaluate: {error}"))?;
        let (batch_size, batches) = (job.batch_size as usize, self.batches.unwrap_or(u64::MAX));
        Ok(self.session()?.evaluate_set(&job.graph, &set, batch_size, batches)?)
    }
}

/// Returns the client string that a file or the environment has.
fn client_string(file: Option<&Path>, env: Option<&str>) -> Result<Option<ClientString>, Failure> {
    let read = |path: &Path| {
        let client = ClientString::read(path);
        client.map_err(|error| Failure::Usage(format!("--client-file {}: {error}", path.display())))
    };
    let parse =
        |text: &str| text.trim().parse().map_err(|error| Failure::Usage(format!("{CLIENT_ENV}: {error}")));
    let file = file.map(read).transpose()?;
    let env: Option<ClientString> = env.filter(|text| !text.is_empty()).map(parse).transpose()?;
    match (file, env) {
        (Some(file), Some(env)) if file != env => Err(Failure::Usage(format!(
            "--client-file and {CLIENT_ENV} have different client strings: leave out one of the two"
        ))),
        (file, env) => Ok(file.or(env)),
    }
}

/// Returns a description of the tasks: a line for each device, container and variable.
fn shown(described: &Described) -> String {
    let mut text = String::new();
    for task in &described.tasks {
        // Writing to a string cannot fail.
        let _ = show_task(&mut text, task);
    }
    text
}

fn show_task(text: &mut String, task: &TaskDescription) -> std::fmt::Result {
    let TaskDescription { task: id, cpus, bytes, bytes_max, containers, error, .. } = task;
    if let Some(error) = error {
        return writeln!(text, "{id}: {}", clean(error));
    }
    writeln!(text, "{id}: {} KiB of {} MiB for variables", bytes.div_ceil(1 << 10), bytes_max >> 20)?;
    for cpu in 0..*cpus {
        writeln!(text, "  /job:{}/task:{}/device:CPU:{cpu}", id.job, id.index)?;
    }
    for container in containers {
        writeln!(text, "  container '{}'", clean(&container.name))?;
        for variable in &container.variables {
            let (name, changes) = (clean(&variable.name), variable.changes);
            writeln!(text, "    {name} {}, changed {changes} times", variable.tensor)?;
        }
        if container.left_out > 0 {
            writeln!(text, "    and {} more", container.left_out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser;
    use pushpull_identity::{Authority, ClientRole};
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;
    use crate::{GraphSpec, Job, Server};

    #[derive(Parser)]
    struct Tool {
        #[command(flatten)]
        args: SessionArgs,
    }

    fn printed(args: &[&str]) -> Result<String, String> {
        let tool = Tool::try_parse_from(std::iter::once(&"session").chain(args));
        let text = tool.map_err(|error| error.to_string())?.args.text().map_err(|error| error.to_string())?;
        Ok(String::from_utf8(text).unwrap())
    }

    /// Returns a model of digits, with weights of a given device.
    fn model() -> GraphSpec {
        let mut g = GraphBuilder::new("digits");
        let (images, labels) = (g.input("features", [28, 28]), g.labels("labels"));
        let flat = g.reshape(images, [784]);
        let kernel = g.variable("kernel", [784, 10], InitializerSpec::GlorotUniform);
        let logits = g.matmul(flat, kernel);
        let loss = g.softmax_cross_entropy(logits, labels);
        let accuracy = g.accuracy(logits, labels);
        g.finish(loss, &[("accuracy", accuracy)]).unwrap()
    }

    #[test]
    fn an_evaluation_uses_the_variables_of_a_container() {
        let server = Server::local().unwrap();
        let target = server.target();
        let digits = |examples| DatasetSpec::Digits { seed: 1, examples };
        let input = InputSpec::new(digits(100), digits(70));
        let job = Job::new(model(), input).batch_size(32).spec(1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.json");
        std::fs::write(&file, job.to_json()).unwrap();
        let evaluate = ["--container", "trained", "--evaluate", file.to_str().unwrap()];
        let args: Vec<&str> = std::iter::once(target.as_str()).chain(evaluate).collect();
        let error = printed(&args).unwrap_err();
        assert!(error.contains("no task has variable 'kernel' in container 'trained'"), "{error}");

        let options = SessionOptions { container: "trained".into(), ..SessionOptions::default() };
        let session = Session::connect_with(&target, options).unwrap();
        let kernel = job.graph.find("kernel").unwrap();
        session.run_targets(&job.graph, &[], &[kernel]).unwrap();
        let text = printed(&args).unwrap();
        let lines: Vec<(&str, f32)> = text
            .lines()
            .map(|line| line.split_once(char::is_whitespace).unwrap())
            .map(|(name, value)| (name, value.trim().parse().unwrap()))
            .collect();
        let [("examples", examples), ("loss", loss), ("accuracy", accuracy)] = lines[..] else {
            panic!("{text}")
        };
        assert_eq!(examples, 70.0);
        assert!(loss > 1.0 && loss < 5.0 && (0.0..=1.0).contains(&accuracy), "{text}");
        let first = printed(&[&args[..], &["--batches", "2"]].concat()).unwrap();
        assert!(first.starts_with("examples       64\n"), "{first}");
        assert!(printed(&[&target]).unwrap().contains("  container 'trained'\n    kernel f32[784, 10]"));
        assert!(printed(&[&target, "--batches", "2"]).is_err(), "--batches needs --evaluate");
    }

    #[test]
    fn a_client_string_comes_from_a_file_or_the_environment() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let strings = [ClientRole::Run, ClientRole::Read].map(|role| {
            let file = folder.path().join(role.as_str());
            let string = ClientString::of(Authority::new().unwrap().join(), role);
            std::fs::write(&file, string.text() + "\n").unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            (file, string)
        });
        let [(run, string), (read, other)] = &strings;
        let (text, other) = (string.text(), other.text());
        for (file, env) in [(Some(run), None), (None, Some(text.as_str())), (Some(run), Some(text.as_str()))]
        {
            assert_eq!(client_string(file.map(PathBuf::as_path), env).unwrap().as_ref(), Some(string));
        }
        assert!(
            client_string(None, None).unwrap().is_none() && client_string(None, Some("")).unwrap().is_none()
        );
        std::fs::set_permissions(read, PermissionsExt::from_mode(0o640)).unwrap();
        for (file, env, words) in [
            (
                Some(run),
                Some(other.as_str()),
                "--client-file and PUSHPULL_CLIENT have different client strings",
            ),
            (Some(read), None, "has mode 0640"),
            (None, Some(&text[..90]), "PUSHPULL_CLIENT: the client string is not valid"),
        ] {
            let error = client_string(file.map(PathBuf::as_path), env).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
            assert!(!error.contains(&text[100..120]) && !error.contains(&other[100..120]), "{error}");
        }
    }

    #[test]
    fn the_placement_is_logged_once_for_each_graph() {
        let server = Server::local().unwrap();
        let mut g = GraphBuilder::new("small");
        let (two, three) = (g.value(2.0f32), g.value(3i64));
        let graph = g.finish_session().unwrap();
        let options = SessionOptions { log_placement: true, ..SessionOptions::default() };
        let session = Session::connect_with(&server.target(), options).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = Arc::new(file.reopen().unwrap());
        let kept = tracing_subscriber::fmt().with_ansi(false).with_writer(lines).finish();
        tracing::subscriber::with_default(kept, || {
            for node in [two, three, two] {
                session.run(&graph, &[], &[node]).unwrap();
            }
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        let placed: Vec<&str> = text.lines().filter(|line| line.contains("placed constant")).collect();
        assert_eq!(placed.len(), 2, "{text}");
        assert!(placed.iter().all(|line| line.contains("device=/job:local/task:0/device:CPU:0")), "{text}");
    }
}
